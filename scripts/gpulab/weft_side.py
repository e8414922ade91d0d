"""weft as a worker: python -m gpulab.weft_side DEVICE MODEL_FOLDER [quick]"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft
from gpulab import cases, clock
from gpulab.cases import Case
from gpulab.serve import Side, serve
from weft.backends import registry
from weft.bench import model as bench_model, roofline
from weft.conform.gpt import GptSizes, Trainer
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.models.run.model import Decoder
from weft.models.run.runner import Runner
from weft.tensor import functional as F

DTYPES: dict[str, DType] = {"f32": dt.float32, "bf16": dt.bfloat16}
OPS: dict[str, Callable[..., Any]] = {
    "matmul": lambda x, y: x @ y,
    "softmax": F.softmax,
    "layernorm": F.layer_norm,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "chain": lambda x, y: (x * 1.5 + y).tanh() * x - y,
    "attention": lambda q, k, v: F.attention(q, k, v, causal=True),
}


class Weft(Side):
    """Compiled functions, a loaded model and a compiled training step on one device."""

    def __init__(self, device: str, folder: Path, quick: bool) -> None:
        super().__init__(cases.every(quick))
        self.spec, self.device = device, registry.get(device)
        self.folder, self.quick = folder, quick
        self.asks = {
            "info": self.info, "roofline": self.roofline, "moved": self.moved,
            "work": self.work, "soak": self.soak,
        }  # fmt: skip

    # -- what is prepared

    def prepare(self, case: Case, variant: str) -> Any:
        if case.part == "model":
            return self.model()
        return self.trainer() if case.part == "train" else self.op(case)

    def arrays(self, case: Case) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        kind = DTYPES[case.dtype].numpy
        return [rng.standard_normal(s, np.float32).astype(kind) for s in case.operands]

    def op(self, case: Case) -> Any:
        inputs = [weft.tensor(a).to(self.spec) for a in self.arrays(case)]
        compiled = weft.compile(OPS[case.op], device=self.device)
        return compiled, lambda: compiled(*inputs)

    def model(self) -> Decoder:
        made = self.kept.get(("", "model"))
        if made is None:
            d = cases.decoder(self.quick)
            made = weft.load(
                self.folder, device=self.device, dtype="bfloat16", context=d.context,
                act_dtype="bfloat16",
            )  # fmt: skip
            self.kept["", "model"] = made
        assert isinstance(made, Decoder)
        return made

    def trainer(self) -> Trainer:
        t = cases.trainee(self.quick)
        shape = GptSizes(t.layers, t.width, t.heads, t.context, t.batch, t.vocab)
        return Trainer(shape, self.spec, dt.bfloat16)

    # -- what is timed

    def time(self, case: Case, made: Any, budget: float) -> dict[str, Any]:
        if case.op == "train":
            return self.steps(case, made, budget)
        if case.part != "model":
            compiled, call = made
            found = super().time(case, (call, compiled.sync), budget)
            return found | {"by": self.who(compiled)}
        runner: Runner = made.runner()
        count = case.shape[0]
        vocab = made.config.vocab
        ids = [int(i) for i in np.random.default_rng(0).integers(3, vocab, count)]

        def decode() -> None:
            token = ids[0]
            for at in range(count):
                token = int(runner.rows([token], [0], [at])[0].argmax())

        call = decode if case.op == "decode" else lambda: runner.prefill(0, ids)
        times = clock.measure(call, self.device.sync, budget, warm=1)
        return clock.summary(times) | {"tok_s": round(count / float(np.median(times)), 2)}

    def steps(self, case: Case, made: Trainer, budget: float) -> dict[str, Any]:
        losses: list[float] = []
        times = clock.measure(lambda: losses.append(made.step()), self.device.sync, budget, warm=2)
        tokens = cases.trainee(self.quick).tokens
        return clock.summary(times) | {
            "tok_s": round(tokens / float(np.median(times)), 1),
            "loss_first": round(losses[0], 4), "loss_last": round(losses[-1], 4),
        }  # fmt: skip

    def who(self, compiled: Any) -> str:
        """The libraries that do the products of a compiled function, else "own kernels"."""
        found = {who for s in compiled.sessions() for who in s.products.values()}
        return ", ".join(sorted(found)) or "own kernels"

    # -- answers to questions

    def info(self) -> dict[str, Any]:
        i = self.device.info
        return {"id": i.id, "name": i.name, "driver": i.driver, "memory": i.memory,
                "version": weft.__version__}  # fmt: skip

    def roofline(self) -> dict[str, Any]:
        found = roofline.measure(self.device)
        return {k: round(v, 1) for k, v in vars(found).items()}

    def moved(self, case: str) -> dict[str, Any]:
        """Milliseconds of moving a case's operands to the device, and its result back."""
        given = self.cases[case]
        arrays = self.arrays(given)
        up, down = [], []
        result = weft.compile(OPS[given.op], device=self.device)(*arrays)
        for _ in range(5):
            start = time.perf_counter()
            there = [weft.tensor(a).to(self.spec) for a in arrays]
            self.device.sync()
            up.append(time.perf_counter() - start)
            start = time.perf_counter()
            back = np.array(result.numpy())
            down.append(time.perf_counter() - start)
            del there, back
        return {"upload_ms": round(min(up) * 1e3, 4), "download_ms": round(min(down) * 1e3, 4)}

    def work(self) -> dict[str, Any]:
        """FLOPs of products per prompt token; bytes of weights that a decode step reads."""
        flops, stream, per_position = bench_model.work(self.model())
        return {"flops_per_token": flops, "weight_bytes": stream, "cache_bytes": per_position}

    def soak(self, steps: int, seconds: float) -> dict[str, Any]:
        """Memory over many training steps: MiB of the device and of the process, sampled ten times
        after the first tenth."""
        trainer = self.trainer()
        every = max(steps // 10, 1)
        end = time.perf_counter() + seconds
        samples: list[dict[str, Any]] = []
        done, losses = 0, []
        while done < steps and time.perf_counter() < end:
            losses.append(trainer.step())
            done += 1
            if done % every == 0:
                samples.append({"step": done, **memory(self.device)})
        return {"steps": done, "wanted": steps, "samples": samples,
                "loss_first": round(losses[0], 4), "loss_last": round(losses[-1], 4)}  # fmt: skip


def memory(device: Any) -> dict[str, float | None]:
    """MiB in use: of the device (all processes; None where its driver does not say), and resident
    in this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize() / 2**20
    return {"device_mib": _used(device), "process_mib": round(resident, 1)}


def _used(device: Any) -> float | None:
    driver = getattr(device, "driver", None)
    if driver is None:
        return None
    free, total = map(int, driver.api.call("MemGetInfo"))
    return round((total - free) / 2**20, 1)


if __name__ == "__main__":
    serve(Weft(sys.argv[1], Path(sys.argv[2]), "quick" in sys.argv[3:]))
