"""How many layers each rank gets: by its memory and by how fast it reads it.

A token's time on a rank is about the bytes of its weights over the speed at which it streams them
(decoding does little else). The slowest rank then has as little to do as its memory and the others
allow.
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
from weft.models.config import DecoderConfig
from weft.models.decoder_names import decoder_layout
from weft.program.device import Device

ROWS, COLUMNS, TIMES = 2048, 4096, 7  # of the matrix that is streamed to measure: 32 MiB
SHARE = 0.7  # of free memory for weights; the rest is for caches and what steps need
WEIGHTS = (".safetensors", ".gguf")


class Measure(NamedTuple):
    """What a rank has: bytes of memory for weights, bytes that it streams in a second."""

    memory: float
    speed: float


def measure(device: Device, beside: int) -> Measure:
    """Of this rank, which shares its machine with `beside` - 1 others."""
    from weft.tensor.compiled import compile as compiled
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


class Sizes(NamedTuple):
    """Bytes of each layer's weights, of the embedding, of the output layer (0 where it is the
    embedding), and how many a token reads of both."""

    layers: tuple[float, ...]
    ends: float
    read: float


def sizes(c: DecoderConfig, path: Path) -> Sizes:
    """Of the model in a folder or a file, as if all its weights took as many bytes an element."""
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
    return Sizes(tuple(n * each for n in layers), sum(tops.values()) * each, head * each)


def place(s: Sizes, ranks: Sequence[Measure]) -> list[int]:
    """How many layers each rank gets, at least one: of all ways that fit the one whose slowest rank
    is quickest. Raises OutOfMemoryError where none fits."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # by the first layer not placed
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
