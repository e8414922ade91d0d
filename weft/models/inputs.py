"""What a decoder's steps are fed besides the checkpoint, made on the host.

Apart from `decoder`, so that a compiled model runs without importing what traces one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft.core.dtypes import DType, float32, int8
from weft.models.config import DecoderConfig
from weft.models.rope import query_growth, rope_tables


def with_tables(
    c: DecoderConfig, weights: Mapping[str, np.ndarray], context: int
) -> dict[str, np.ndarray]:
    """The weights plus the tables by position (float32 [context, ...]), bound like them."""
    return {**weights, **tables(c, context)}


def tables(c: DecoderConfig, context: int) -> dict[str, np.ndarray]:
    """The tables by position: each rope's cos and sin, and what queries grow by."""
    out = {}
    for i, rope in enumerate(c.ropes):
        out[f"rope.{i}.cos"], out[f"rope.{i}.sin"] = rope_tables(rope, c.head_dim, context)
    if c.query_growth:
        out["query_growth"] = query_growth(c, context)
    return out


def cache_rows(
    c: DecoderConfig, slot: np.ndarray, pos: np.ndarray, context: int, size: int
) -> np.ndarray:
    """`Rows.at` for n rows, padded with -1 to `size` rows: int32 [size * G]."""
    at = np.full((size, c.kv_heads), -1, np.int32)
    heads = np.arange(c.kv_heads, dtype=np.int64)
    at[: len(slot)] = (slot.astype(np.int64)[:, None] * c.kv_heads + heads) * context + pos[:, None]
    return at.reshape(-1)


def planes(c: DecoderConfig) -> dict[str, tuple[int, DType]]:
    """What is kept of a position under one key/value head, by name: how many of which dtype."""
    made = {"keys": (c.head_dim, c.kv_dtype), "values": (c.head_dim, c.kv_dtype)}
    return made | {"scales": (2, float32)} if c.kv_dtype is int8 else made


def states(c: DecoderConfig, slots: int, context: int) -> dict[str, tuple[tuple[int, ...], DType]]:
    """What a decoder keeps of `slots` sequences between steps: shape and dtype of each plane of
    each layer, [S, G, L, ...]."""
    return {
        f"{kind}.{i}": ((slots, c.kv_heads, context, width), dtype)
        for kind, (width, dtype) in planes(c).items()
        for i in range(c.layers)
    }


def position_bytes(c: DecoderConfig) -> int:
    """Bytes that one position of one sequence takes."""
    sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in states(c, 1, 1).values())
    return sum(sizes)
