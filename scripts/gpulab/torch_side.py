"""PyTorch eager, torch.compile and Triton as a worker: python -m gpulab.torch_side DEVICE FOLDER"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from gpulab import cases, clock
from gpulab.cases import Case
from gpulab.serve import Prepared, Side, serve
from gpulab.torch_gpt import Stepper

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
OPS: dict[str, Callable[..., Any]] = {
    "matmul": lambda x, y: x @ y,
    "softmax": lambda x: F.softmax(x, -1),
    "layernorm": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
    "gelu_erf": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "chain": lambda x, y: (x * 1.5 + y).tanh() * x - y,
    "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}
TRITON = ("matmul", "softmax", "layernorm")  # the ops that have kernels in triton_ops.py


def operands(case: Case, device: torch.device) -> list[torch.Tensor]:
    """Random tensors of the shapes that an operation takes."""
    make = torch.Generator().manual_seed(0)
    kind = DTYPES[case.dtype]
    return [torch.randn(*s, generator=make).to(device=device, dtype=kind) for s in case.operands]


class Torch(Side):
    """Variants "eager", "compile" and, for some operations on a GPU, "triton"."""

    def __init__(self, device: str, folder: str, quick: bool) -> None:
        super().__init__(cases.every(quick))
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.backends.cuda.matmul.allow_tf32 = False  # weft's float32 is float32 too
        torch.backends.cudnn.allow_tf32 = False
        self.folder, self.quick = folder, quick
        self.asks = {"info": self.info, "variants": self.variants, "copy": self.copy}

    def sync(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def release(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # -- answers to questions

    def info(self) -> dict[str, Any]:
        gpu = self.device.type == "cuda"
        return {
            "version": torch.__version__, "cuda": torch.version.cuda,
            "name": torch.cuda.get_device_name() if gpu else "cpu",
            "triton": _version("triton"), "transformers": _version("transformers"),
        }  # fmt: skip

    def variants(self, case: str) -> dict[str, Any]:
        """The variants that this side has of a case."""
        given = self.cases[case]
        found = ["eager", "compile"]
        if given.part == "model" and _version("transformers") is None:
            return {"variants": [], "missing": "transformers is not installed"}
        triton = self.device.type == "cuda" and _version("triton") is not None
        if given.op in TRITON and triton:
            found.append("triton")
        return {"variants": found}

    def copy(self, budget: float) -> dict[str, Any]:
        """GB/s of PyTorch's own copy of 512 MiB, bytes read and written."""
        n = (512 << 20) // 4 if self.device.type == "cuda" else (64 << 20) // 4
        x = torch.randn(n, device=self.device)
        y = torch.empty_like(x)
        times = clock.measure(lambda: y.copy_(x), self.sync, budget)
        return clock.summary(times, "gbs", 8.0 * n)

    # -- what is prepared

    def prepare(self, case: Case, variant: str) -> Any:
        if case.part == "model":
            from gpulab.torch_llama import Llama

            return Llama(self.folder, self.device, cases.decoder(self.quick), variant == "compile")
        if case.part == "train":
            return Stepper(cases.trainee(self.quick), self.device, variant == "compile")
        return self.op(case, variant)

    def op(self, case: Case, variant: str) -> Prepared:
        inputs = operands(case, self.device)
        fn = OPS[case.op]
        if variant == "triton":
            from gpulab import triton_ops

            fn = triton_ops.OPS[case.op]
            want, got = OPS[case.op](*inputs).float(), fn(*inputs).float()
            error = float((want - got).abs().max())
            if not error <= 0.02 * float(want.abs().max()):
                raise ValueError(f"the Triton kernel is wrong by {error}")
        elif variant == "compile":
            fn = torch.compile(fn, dynamic=False)

        def call() -> object:
            with torch.inference_mode():
                return fn(*inputs)

        return call, self.sync

    # -- what is timed

    def time(self, case: Case, made: Any, budget: float) -> dict[str, Any]:
        if case.part == "model":
            call = made.prefill if case.op == "prefill" else made.decode
            times = clock.measure(call, self.sync, budget, warm=2)
            median = clock.summary(times)["median_ms"] / 1e3
            return clock.summary(times) | {"tok_s": round(case.shape[0] / median, 2)}
        if case.part == "train":
            times = clock.measure(made.step, self.sync, budget, warm=2)
            median = clock.summary(times)["median_ms"] / 1e3
            tokens = cases.trainee(self.quick).tokens
            return clock.summary(times) | {
                "tok_s": round(tokens / median, 1),
                "loss_first": round(made.losses[0], 4), "loss_last": round(made.losses[-1], 4),
            }  # fmt: skip
        return super().time(case, made, budget)


def _version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    if importlib.util.find_spec(package) is None:
        return None
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    serve(Torch(sys.argv[1], sys.argv[2], "quick" in sys.argv[3:]))
