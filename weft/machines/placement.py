"""Decides how many layers each rank gets, from its memory and memory bandwidth.

The time for a token on a rank is about the bytes of its weights over its streaming speed, which
dominates decoding. The slowest rank gets as little work as the memories allow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from weft.core.errors import OutOfMemoryError
from weft.models.arch.config import DecoderConfig
from weft.models.weights.decoder_names import decoder_layout
from weft.program.device import Device

# Shape of the matrix that is streamed to measure speed (32 MiB), repetitions.
ROWS, COLUMNS, TIMES = 2048, 4096, 7
SHARE = 0.7  # share of free memory for weights; caches and steps need the rest
WEIGHTS = (".safetensors", ".gguf")


class Measure(NamedTuple):
    """A rank's memory for weights in bytes, and its streaming speed in bytes per second."""

    memory: float
    speed: float


def measure(device: Device, beside: int) -> Measure:
    """Measures this rank, which shares its machine with `beside` - 1 others."""
    from weft.tensor.compiling import compile as compiled
    from weft.tensor.core import tensor

    w = tensor(np.ones((ROWS, COLUMNS), np.float32)).to(device)
    product = compiled(lambda x: x @ w, device=device)
    x = np.ones((1, ROWS), np.float32)
    seconds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        product(x)
        seconds.append(time.perf_counter() - began)
    free = device.free_memory() or math.inf
    return Measure(SHARE * free / beside, ROWS * COLUMNS * 4 / median(seconds[1:]))


class LayerBytes(NamedTuple):
    """Bytes of each layer's weights, of embedding and output layer together (one matrix if tied),
    and of the part of both that a token reads."""

    layers: tuple[float, ...]
    ends: float
    read: float


def sizes(c: DecoderConfig, path: Path) -> LayerBytes:
    """Returns the sizes of the model in a folder or a file, assuming equal bytes per element."""
    layers, tops = [0.0] * c.layers, {"embed": 0.0, "head": 0.0}
    for role, spec in decoder_layout(c).weights.items():
        first, count = role.partition(".")[0], float(math.prod(spec.shape))
        if first.isdecimal():
            layers[int(first)] += count
        else:
            name = first if first in tops else "embed"
            tops[name] += count
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.suffix in WEIGHTS]
    each = sum(f.stat().st_size for f in files) / (sum(layers) + sum(tops.values()))
    head = tops["head"] or tops["embed"]
    return LayerBytes(tuple(n * each for n in layers), sum(tops.values()) * each, head * each)


def place(s: LayerBytes, ranks: Sequence[Measure]) -> list[int]:
    """Returns the number of layers of each rank, at least one. Among the divisions that fit, the
    slowest rank is the fastest possible. Raises OutOfMemoryError if none fits."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # keyed by the first unplaced layer
    for r, rank in enumerate(ranks):
        last, found = len(s.layers) - (len(ranks) - 1 - r), best
        best = {}
        for begin, (slowest, split) in found.items():
            held, read = (s.ends, s.read) if r == 0 else (0.0, 0.0)
            for end in range(begin + 1, last + 1):
                held, read = held + s.layers[end - 1], read + s.layers[end - 1]
                if held > rank.memory:
                    break
                worst = max(slowest, read / rank.speed)
                if end not in best or worst < best[end][0]:
                    best[end] = worst, [*split, end - begin]
    if len(s.layers) not in best:
        need, have = sum(s.layers) + s.ends, sum(rank.memory for rank in ranks)
        raise OutOfMemoryError(
            f"the weights take {need:,.0f} bytes; {len(ranks)} ranks have {have:,.0f} for them, in "
            "runs of whole layers: start more ranks, or say how many layers each takes (--split)"
        )
    return best[len(s.layers)][1]
