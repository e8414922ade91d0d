"""The inputs of a decoder's steps besides the checkpoint's weights, made on the host.

This is separate from `decoder`, so that a compiled model runs without importing tracing code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from weft.core.dtypes import DType, float32, int8
from weft.core.order import KEYS
from weft.core.records import dataclass
from weft.models.arch.config import DecoderConfig
from weft.models.arch.encoder_config import VectorConfig
from weft.models.arch.rope import query_growth, rope_tables
from weft.models.arch.weights import Weights

CHUNK = 512  # most rows per step
PAGE = KEYS  # positions per page (see `weft.ops.attention`)


@dataclass(frozen=True)
class Stacked:
    """Low-rank adapters, of which each row uses one or none: their names, in the order of their
    numbers, and their matrices by role (`adapter_stack.stacked`)."""

    names: tuple[str, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


NO_ADAPTERS = Stacked()


def with_tables(
    c: VectorConfig, weights: Weights, context: int, stacked: Stacked = NO_ADAPTERS
) -> Weights:
    """Returns the weights, the adapters, and the tables by position (float32 [context, ...])."""
    return weights.beside({**stacked.arrays, **tables(c, context)})


def tables(c: VectorConfig, context: int) -> dict[str, np.ndarray]:
    """Returns the tables by position: each rope's cos and sin, and the growth of queries."""
    out = {}
    for i, rope in enumerate(c.ropes):
        out[f"rope.{i}.cos"], out[f"rope.{i}.sin"] = rope_tables(rope, c.head_dim, context)
    if isinstance(c, DecoderConfig) and c.query_growth:
        out["query_growth"] = query_growth(c, context)
    return out


def columns(context: int) -> int:
    """Returns how many pages a sequence of `context` positions takes."""
    return -(-context // PAGE)


def kv_counts(c: DecoderConfig, window: bool = False) -> list[int]:
    """Returns the numbers of key/value heads that the caches have; with `window`, those of layers
    that keep only their window."""
    if window:
        return sorted({c.layer(i).kv_heads for i in c.caches if slides(c, i)})
    return sorted({c.layer(i).kv_heads for i in c.caches if not slides(c, i)} or {c.kv_heads})


def slides(c: DecoderConfig, i: int) -> bool:
    """Returns True if the cache of layer i keeps only its window. Layers that attend to it have the
    same window."""
    return bool(c.kv_window and c.window(i))


def kept_window(c: DecoderConfig, context: int) -> int:
    """Returns the `kv_window` for a context: the widest window, or 0 if pages for it would be as
    many as those of the whole context."""
    widest = max((c.window(i) for i in c.caches), default=0)
    return widest if widest and _sliding(widest) + columns(widest) < columns(context) else 0


def window_pages(c: DecoderConfig, slots: int, pages: int) -> int:
    """Returns the number of pages for layers that keep only their window, where others have
    `pages`. They suffice for a step of each of `slots` sequences and one more window, so a sequence
    can resume from the end of a prompt."""
    return min(pages, slots * _sliding(c.kv_window) + columns(c.kv_window)) if c.kv_window else 0


def _sliding(window: int) -> int:
    """Returns the most pages that a step of one sequence reads and writes in a layer with a window:
    from the first position that a sequence resumed from the last full page sees."""
    return columns(window - 1 + CHUNK) + 2


def planes(c: DecoderConfig, i: int) -> dict[str, tuple[int, DType]]:
    """Returns what layer i stores per position and key/value head: name -> (count, dtype). Latents
    are keys and values at once."""
    size = c.layer(i).head_dim
    made = {"keys": (size, c.kv_dtype)}
    if c.latent is None or not c.latent.absorbed:
        made["values"] = size, c.kv_dtype
    return made | {"scales": (2, float32)} if c.kv_dtype is int8 else made


def states(
    c: DecoderConfig, slots: int, context: int, pages: int
) -> dict[str, tuple[tuple[int, ...], DType]]:
    """Returns shape and dtype of the state that a decoder keeps for `slots` sequences between
    steps.

    Each layer with attention has planes [G, pages, PAGE, ...] (`window_pages` of them if it keeps
    only its window): consecutive pages of a sequence are adjacent, head by head. Each short
    convolution has its last rows [S, R, C], each recurrence a memory [S, H, K, V]. Both are
    float32, because they are small and every later token depends on them.
    """
    short = window_pages(c, slots, pages)
    made: dict[str, tuple[tuple[int, ...], DType]] = {
        f"{kind}.{i}": ((c.layer(i).kv_heads, short if slides(c, i) else pages, PAGE, width), dtype)
        for i in c.caches
        for kind, (width, dtype) in planes(c, i).items()
    }
    for i in c.keepers:
        channels, memory = c.kept(i)
        if channels:
            made[f"conv.{i}"] = ((slots, ring(c, context), channels), float32)
        if memory is not None:
            made[f"memory.{i}"] = ((slots, *memory), float32)
    return made


def by_slot(name: str) -> bool:
    """Returns True for a state that is kept by slot; others are in pages."""
    return name.startswith(("conv.", "memory."))


def ring(c: DecoderConfig, context: int) -> int:
    """Returns how many of its last rows a short convolution keeps: those that the next row needs,
    and a step's more if a sequence may resume from an earlier row (see `intact`)."""
    return min(context, c.conv_taps - 1 + (0 if c.recurs else CHUNK))


def remembers(c: DecoderConfig) -> bool:
    """Returns True if a sequence has more state than keys and values."""
    return bool(c.conv_taps or c.recurs)


def intact(c: DecoderConfig, context: int, fed: int, count: int) -> bool:
    """Returns True if a sequence of `fed` rows can resume from row `count`: no convolution has lost
    rows that it needs. The memory of a recurrence can only resume from its last row. Keys and
    values alone can resume from any row, also from one that another sequence fed."""
    if not remembers(c):
        return True
    if c.recurs or count > fed:
        return fed == count
    kept = ring(c, context)
    return fed <= kept or fed - count <= kept - c.conv_taps + 1


def cache_bytes(c: DecoderConfig, slots: int, pages: int) -> int:
    """Returns the bytes of keys and values in `pages` pages for `slots` sequences."""
    sizes = (
        math.prod(shape) * dtype.itemsize
        for name, (shape, dtype) in states(c, slots, 1, pages).items()
        if not by_slot(name)
    )
    return sum(sizes)


def position_bytes(c: DecoderConfig) -> int:
    """Returns the bytes that one more position of one sequence takes, in every layer."""
    return sum(
        c.layer(i).kv_heads * count * dtype.itemsize
        for i in c.caches
        for count, dtype in planes(c, i).values()
    )
