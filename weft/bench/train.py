"""`weft bench train`: one training step of the peers' GPT (forward, backward and AdamW as one
Program), by the peers' names and rules, with the share of the FMA peak that it reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import weft
from weft.bench import profile as steps
from weft.bench.roofline import Roofline
from weft.bench.timing import peak_rss_mib, summary
from weft.conform.gpt import GptSizes, Trainer
from weft.core import dtypes as dt
from weft.core.errors import DeviceError
from weft.program.session import Session


@dataclass(frozen=True)
class TrainBenchOptions:
    """The options of the measurement. `dtype` is that of matrix products; weights and optimiser
    stay float32. With `startup` the first step is timed in two separate processes: with an empty
    code cache, then with the cache that the first one left."""

    device: str = "cpu"
    dtype: str = "float32"
    steps: int = 20
    warm: int = 3
    startup: bool = True
    checkpoint: bool = False
    shape: GptSizes = field(default_factory=GptSizes)


def trainer(o: TrainBenchOptions, checkpoint: bool | None = None) -> Trainer:
    """The model, its optimiser and the compiled step."""
    on = o.checkpoint if checkpoint is None else checkpoint
    return Trainer(o.shape, o.device, dt.as_dtype(o.dtype), on)


def run(
    o: TrainBenchOptions, measure: Callable[[], Roofline], note: Callable[[str], None]
) -> dict[str, Any]:
    """Times training steps, then measures the roofline. `peak_share`: the step's matmul FLOPs over
    its time and the measured f32 FMA peak."""
    train = trainer(o)
    begin = time.perf_counter()
    losses = [train.step()]
    first = {"first_step_s": round(time.perf_counter() - begin, 2)}
    losses += [train.step() for _ in range(o.warm)]
    seconds = []
    for _ in range(o.steps):
        begin = time.perf_counter()
        losses.append(train.step())
        seconds.append(time.perf_counter() - begin)
        note(f"step {len(seconds)} of {o.steps}: {seconds[-1] * 1e3:.1f} ms, loss {losses[-1]:.4f}")
    peak = peak_rss_mib()
    if o.startup:
        first = startup(o)
    other = {}
    if o.checkpoint:
        plain = trainer(o, checkpoint=False)
        plain.step()
        other["arena_kept_mib"] = _mib(plain.arena_bytes())
    roof = measure()
    step = summary(seconds)
    rate = o.shape.matmul_flops / (step["median_ms"] * 1e6)
    step["tok_s"] = round(o.shape.tokens / step["median_ms"] * 1e3, 1)
    step["gflops"] = round(rate, 1)
    step["peak_share"] = round(rate / roof.gflops, 3)
    return {
        "bench": "train", "peer": "weft", "version": weft.__version__, "device": o.device,
        "dtype": o.dtype, "params_m": round(train.size() / 1e6, 3), **first,
        "loss_first": round(losses[0], 4), "loss_last": round(losses[-1], 4),
        "peak_rss_mib": peak, "arena_mib": _mib(train.arena_bytes()), **other,
        "peak_gflops": round(roof.gflops, 1), "read_gbs": round(roof.read_gbs, 1),
        "peak_tile_gflops": round(roof.tile_gflops, 1),
        "results": {"step": step},
    }  # fmt: skip


def _mib(nbytes: int) -> float:
    return round(nbytes / 2**20, 1)


def profile(o: TrainBenchOptions, roof: Roofline, trace: Path | None) -> list[dict[str, Any]]:
    """Times each kernel of the step's Program alone; writes a Chrome trace if asked to."""
    train = trainer(o)
    train.step()
    (session,) = train.compiled.sessions()
    assert isinstance(session, Session)
    times = steps.profile(session, ())
    if trace is not None:
        steps.write_trace(trace, {"train": times})
    return steps.totals(times, roof)


# -- the first step, in processes of their own ----------------------------------------------------

_CHILD = "import sys; from weft.bench.train import first_step; first_step(sys.argv[1])"


def startup(o: TrainBenchOptions) -> dict[str, float]:
    """Seconds of the first step (trace, compile, run) with an empty code cache, then with a warm
    one. Raises DeviceError when the child process fails."""
    given = json.dumps(asdict(o))
    found = {}
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        env = {**os.environ, "WEFT_CACHE": folder}
        for key in ("first_step_s", "cached_first_step_s"):
            command = [sys.executable, "-c", _CHILD, given]
            child = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if child.returncode:
                raise DeviceError(f"bench train: a first step in a process of its own failed: "
                                  f"{child.stderr.strip().splitlines()[-1:]}")  # fmt: skip
            found[key] = round(float(child.stdout), 2)
    return found


def first_step(given: str) -> None:
    """Prints the seconds that the first step takes here (what the child process runs)."""
    fields = json.loads(given)
    train = trainer(TrainBenchOptions(**{**fields, "shape": GptSizes(**fields["shape"])}))
    begin = time.perf_counter()
    train.step()
    print(time.perf_counter() - begin)
