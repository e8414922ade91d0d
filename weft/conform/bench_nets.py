"""`weft bench nets`: convolution nets with random weights, compiled, beside the roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft
from weft import nn
from weft.backends import registry
from weft.conform import nets
from weft.conform.roofline import Roofline
from weft.conform.timing import peak_rss_mib, summary, time_calls

BATCHES = {"resnet50": (1, 8), "mobilenet_v3": (1,), "yolo": (1,)}


def cases() -> dict[str, tuple[str, int]]:
    """Name of a case -> net and batch."""
    return {
        net if n == 1 else f"{net}_b{n}": (net, n) for net, many in BATCHES.items() for n in many
    }


def run_case(net: str, batch: int, device: str, roofline: Roofline, repeats: int, budget: float
             ) -> dict[str, Any]:  # fmt: skip
    """Times a net: the keys of `summary`, "gflops" of its convolutions and products, "roofline",
    their share of the peak, and "launches"."""
    size = nets.IMAGES[net]
    image = np.random.default_rng(0).standard_normal((batch, 3, size, size), dtype=np.float32)
    x = weft.tensor(image).to(device)
    compiled = weft.compile(nets.build(net, nn, weft.cat), device=device, frozen=True)
    compiled(x)
    wait = None if registry.get(device).synchronous else compiled.sync
    result = summary(time_calls(lambda: compiled(x), repeats, budget, sync=wait))
    (program,) = compiled.programs()
    dispatched = [s.kernel for s in program.steps if hasattr(s, "kernel")]
    flops = float(sum(program.kernels[k].flops for k in dispatched))
    result["gflops"] = round(flops / (result["median_ms"] * 1e6), 2)
    result["roofline"] = round(roofline.share(flops, 0.0, result["median_ms"] / 1e3), 3)
    result["launches"] = len(program.steps)
    return result


def run(
    device: str, roofline: Roofline, only: Sequence[str] = (), repeats: int = 20,
    budget: float = 5.0, progress: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every case whose name contains one of `only` (all when empty)."""
    results = {}
    for name, (net, batch) in cases().items():
        if only and not any(o in name for o in only):
            continue
        results[name] = run_case(net, batch, device, roofline, repeats, budget)
        if progress:
            progress(name, results[name])
    return {
        "bench": "nets", "peer": "weft", "version": weft.__version__, "device": device,
        "peak_gflops": round(roofline.gflops, 1), "read_gbs": round(roofline.read_gbs, 1),
        "peak_rss_mib": peak_rss_mib(), "results": results,
    }  # fmt: skip
