"""Attention of encoders whose scores depend on the distance of query and key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import float32, int32
from weft.models.arch.encoder_config import Relative

Value = Any  # np.ndarray or graph Node
MASKED = -1e30


def biased_attention(
    q: Value, k: Value, v: Value, bias: Value, lengths: Value, scale: float
) -> Value:
    """Returns softmax(q k^T scale + bias) v over each row's first `lengths` [B] keys. q, k, v and
    the result are [B, H, T, D], the bias is [B or 1, H, T, T]."""
    batch, heads, length, _ = ops.aval(q).shape
    shape = (batch, heads, length, length)
    scores = ops.mul(ops.dot(q, ops.transpose(k, (0, 1, 3, 2)), float32), scale)
    scores = ops.add(scores, ops.broadcast(bias, shape))
    inside = ops.less(
        ops.iota(shape, 3, int32), ops.broadcast(ops.reshape(lengths, (batch, 1, 1, 1)), shape)
    )
    scores = ops.call("softmax", ops.where(inside, scores, MASKED))
    return ops.dot(scores, v, float32)


def by_distance(x: Value) -> Value:
    """Returns y[..., q, k] = x[..., q, k - q + T - 1], [..., T, T], for x[..., T, 2 T - 1].
    Reshapes alone move each row by its number (Dai et al., arXiv:1901.02860)."""
    *lead, length, wide = ops.aval(x).shape
    ends = (0,) * len(lead)
    flat = ops.reshape(ops.pad(x, (*ends, 0, 0), (*ends, 0, 1)), (*lead, length * (wide + 1)))
    flat = ops.slice_(flat, (*ends, length - 1), (*lead, length - 1 + length * wide))
    rows = ops.reshape(flat, (*lead, length, wide))
    return ops.slice_(rows, (*ends, 0, 0), (*lead, length, length))


def bucket_bias(table: Value, how: Relative, length: int) -> Value:
    """Returns the bias [1, H, T, T] of a table [buckets, H] (T5, MPNet)."""
    rows = ops.cast(ops.gather(table, ops.const(t5_buckets(how, length))), float32)
    wide, heads = ops.aval(rows).shape
    rows = ops.reshape(ops.transpose(rows, (1, 0)), (1, heads, 1, wide))
    return by_distance(ops.broadcast(rows, (1, heads, length, wide)))


def falling_bias(heads: int, length: int) -> Value:
    """Returns the bias [1, H, T, T] of ALiBi on both sides: minus each head's slope times the
    distance (Press et al., arXiv:2108.12409)."""
    distance = np.abs(np.arange(-(length - 1), length, dtype=np.float32))
    rows = -np.array(slopes(heads), np.float32)[:, None] * distance
    wide = 2 * length - 1
    rows = ops.const(rows.reshape(1, heads, 1, wide))
    return by_distance(ops.broadcast(rows, (1, heads, length, wide)))


def slopes(heads: int) -> list[float]:
    """Returns ALiBi's slope of each head: powers of 2^(-8 / H); between two powers of two, those of
    the lower one and every other of the higher one."""
    whole: int = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return found if whole == heads else found + slopes(2 * whole)[::2][: heads - whole]


def t5_buckets(how: Relative, length: int) -> np.ndarray:
    """Returns the bucket of each distance key - query from -(T - 1) to T - 1, int32 (Raffel et al.,
    arXiv:1910.10683): half are exact, the others grow with the logarithm."""
    distance = np.arange(-(length - 1), length)
    half = how.buckets // 2
    exact = half // 2
    near = np.abs(distance)
    far = np.log(np.maximum(near, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(how.distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + far.astype(np.int64), half - 1)
    return ((distance > 0) * half + np.where(near < exact, near, far)).astype(np.int32)


def span_rows(how: Relative, length: int) -> np.ndarray:
    """Returns the row of DeBERTa's table for each distance query - key from -(T - 1) to T - 1,
    int32 (He et al., arXiv:2006.03654)."""
    distance = np.arange(-(length - 1), length)
    span = how.buckets or how.distance
    if how.buckets:
        mid = how.buckets // 2
        near = np.where(np.abs(distance) < mid, mid - 1, np.abs(distance)).astype(np.float32)
        top = np.log(np.float32((how.distance - 1) / mid))
        far = np.ceil(np.log(near / np.float32(mid)) / top * np.float32(mid - 1)) + mid
        distance = np.where(near <= mid, distance, far * np.sign(distance)).astype(np.int64)
    return np.clip(distance + span, 0, 2 * span - 1).astype(np.int32)


def disentangled(
    how: Relative, table: Value, q: Value, k: Value, scale: float, length: int,
    project: Callable[[str, Value], Value],
) -> Value:  # fmt: skip
    """Returns DeBERTa's scores of contents against distances, [B, H, T, T]: queries with distances'
    keys ("c2p"), and keys with distances' queries ("p2c"). The function project("q" or "k", rows)
    gives them as [rows, H, D]. `table` is [2 span, hidden]."""
    batch = ops.aval(q).shape[0]
    rows = span_rows(how, length)
    total = None
    for kind, content, role in (("c2p", q, "k"), ("p2c", k, "q")):
        if kind not in how.kinds:
            continue
        # Columns are distances of the other token and the content's: k - q for queries' rows.
        order = rows[::-1] if kind == "c2p" else rows
        far = project(role, ops.gather(table, ops.const(np.ascontiguousarray(order))))
        wide, heads, depth = ops.aval(far).shape
        far = ops.reshape(ops.transpose(far, (1, 2, 0)), (1, heads, depth, wide))
        far = ops.broadcast(far, (batch, heads, depth, wide))
        found = by_distance(ops.mul(ops.dot(content, far, float32), scale))
        found = found if kind == "c2p" else ops.transpose(found, (0, 1, 3, 2))
        total = found if total is None else ops.add(total, found)
    return total


def causal_buckets(how: Relative, length: int) -> np.ndarray:
    """Returns the bucket of each distance query - key from 0 to T - 1 in a T5 decoder, int32: half
    are exact, the others grow with the logarithm."""
    back = np.arange(length)
    exact = how.buckets // 2
    far = np.log(np.maximum(back, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(how.distance / exact)) * np.float32(how.buckets - exact)
    far = np.minimum(exact + far.astype(np.int64), how.buckets - 1)
    return np.where(back < exact, back, far).astype(np.int32)
