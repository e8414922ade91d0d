"""`weft bench ops`: single operations, compiled, compared with the device's own roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.backends import registry
from weft.bench.roofline import Roofline
from weft.bench.timing import peak_rss_mib, summary, time_calls
from weft.tensor import functional as F

_16M = 1 << 24


@dataclass(frozen=True)
class OpBenchmark:
    """One benchmark: a function of f32 tensors, the shapes of its inputs, its work. `work` is
    FLOPs ("gflops", as the peers' scripts count them) or bytes read once and written once
    ("gbs"); `flops` and `nbytes` are the least work, which the roofline share is taken from."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    unit: str
    work: float
    flops: float
    nbytes: float


def cases(sizes: Sequence[int] = (128, 256, 512, 1024)) -> list[OpBenchmark]:
    """The peers' cases, with matmuls of the given sizes."""

    def rows(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> OpBenchmark:
        nbytes = 8.0 * np.prod(shapes[0])
        return OpBenchmark(name, fn, shapes, "gbs", nbytes, 0, nbytes)

    found = []
    for n in sizes:
        flops, nbytes = 2.0 * n**3, 12.0 * n * n
        name = f"matmul_{n}"
        found.append(
            OpBenchmark(name, lambda x, y: x @ y, ((n, n),) * 2, "gflops", flops, flops, nbytes)
        )
    for r, c in ((4096, 4096), (512, 768)):
        found.append(rows(f"softmax_{r}x{c}", F.softmax, (r, c)))
        found.append(rows(f"layernorm_{r}x{c}", F.layer_norm, (r, c), (c,), (c,)))
    found.append(rows("gelu_erf_16m", F.gelu, (_16M,)))
    found.append(rows("gelu_tanh_16m", lambda x: F.gelu(x, approximate="tanh"), (_16M,)))
    h, t, d = 12, 1024, 64
    full, name = 4.0 * h * t * t * d, "attn_causal_1x12x1024x64"
    half, nbytes, shapes = full / 2 * (t + 1) / t, 16.0 * h * t * d, ((1, h, t, d),) * 3
    attend = lambda q, k, v: F.attention(q, k, v, causal=True)  # noqa: E731
    found.append(OpBenchmark(name, attend, shapes, "gflops_full", full, half, nbytes))
    return found


def run_case(
    case: OpBenchmark, device: str, roofline: Roofline, repeats: int, budget: float
) -> dict[str, Any]:
    """Times one case on a device: the peers' keys plus "roofline", the share of it reached."""
    rng = np.random.default_rng(0)
    inputs = [weft.tensor(rng.standard_normal(s, dtype=np.float32)).to(device) for s in case.shapes]
    compiled = weft.compile(case.fn, device=device)
    wait = None if registry.get(device).synchronous else compiled.sync
    times = time_calls(lambda: compiled(*inputs), repeats, budget, sync=wait)
    result = summary(times)
    result[case.unit] = round(case.work / (result["median_ms"] * 1e6), 2)
    result["roofline"] = round(
        roofline.share(case.flops, case.nbytes, result["median_ms"] / 1e3), 3
    )
    return result


def run(
    device: str,
    roofline: Roofline,
    only: Sequence[str] = (),
    sizes: Sequence[int] = (128, 256, 512, 1024),
    repeats: int = 30,
    budget: float = 2.0,
    progress: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Every case whose name contains one of `only` (all when empty)."""
    results = {}
    for case in cases(sizes):
        if only and not any(o in case.name for o in only):
            continue
        results[case.name] = run_case(case, device, roofline, repeats, budget)
        if progress:
            progress(case.name, results[case.name])
    return {
        "bench": "micro",
        "peer": "weft",
        "version": weft.__version__,
        "device": device,
        "peak_gflops": round(roofline.gflops, 1),
        "read_gbs": round(roofline.read_gbs, 1),
        "peak_rss_mib": peak_rss_mib(),
        "results": results,
    }
