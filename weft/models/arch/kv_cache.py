"""A decoder's cache of keys and values, and attention over it.

A layer's cache is two planes [G, pages, PAGE, D] (key/value heads, pages, positions of a page,
components), with keys after RoPE, or one whose keys are the values too (`latent`). A table has each
slot's pages. Narrow floats are rounded once when stored. Values beyond float16 become NaN, which
shows in the logits. An infinity could be hidden by a zero weight.

The int8 form is symmetric, with a scale in float32 per row of D components: code = round(x /
scale), scale = max |x| / 127. A third plane [G, pages, PAGE, 2] holds the scales of keys and of
values.
Attention reads code * scale in float32.

Keys have a few large components, which would cost the others of their row precision. So keys and
queries are multiplied by an orthonormal Hadamard matrix if D is a power of two, which leaves q . k
unchanged (Ashkboos et al., "QuaRot", arXiv:2404.00456).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float16, float32, int8, int32
from weft.models.arch.config import DecoderConfig
from weft.ops.attention import PAGE, cache_shape

Value = Any  # np.ndarray, graph Node or Tracked
Cache = tuple[Value, ...]  # planes of a layer
MOST = 127.0
LEAST = 2.0**-100  # least maximum of a row; a device may flush the scale of a smaller one to 0
_LEAST_INFINITE = 65520.0  # the smallest number that rounds beyond float16


def store(c: DecoderConfig, cache: Cache, at: Value, k: Value, v: Value | None) -> Cache:
    """Writes k and v [N, G, D] (None: the keys are the values too) to the cache and returns it.
    `at` [N * G] are rows of each plane's view [G * pages * PAGE, ...]; negative rows are
    skipped."""
    fresh: Cache
    if c.kv_dtype is int8 and v is None:
        k, scale = quantized(ops.cast(k, float32))
        fresh = (k, ops.concat((scale, scale), -1))
    elif c.kv_dtype is int8:
        (k, k_scale), (v, v_scale) = quantized(turned(k)), quantized(v)
        fresh = (k, v, ops.concat((k_scale, v_scale), -1))
    else:
        fresh = tuple(narrowed(x, c.kv_dtype) for x in (k, v) if x is not None)
    return tuple(written(plane, at, x) for plane, x in zip(cache, fresh, strict=True))


def attend(
    c: DecoderConfig, cache: Cache, q: Value, slot: Value, pos: Value, table: Value, window: int,
    sinks: Value | None = None,
) -> Value:  # fmt: skip
    """Returns attention of q [N, H, D] over a layer's cache, [N, H, D]. Row n sees positions 0 ..
    pos[n] of slot[n], the last `window` of them if window > 0, and each head's sink [H]. `table`
    [slots, columns] has the pages of each slot."""
    more = (table,) if sinks is None else (table, ops.cast(sinks, float32))
    length = cache_shape(ops.aval(cache[0]), [ops.aval(x) for x in more])[2]
    window = window if window < length else 0
    if c.chunked and window:
        slot, pos, table = _chunks(slot, pos, table, window)
        more, window = (table, *more[1:]), 0
    q, count = _query(c, cache, q), _both(c, cache)
    return ops.call(
        "cached_attention", q, cache[0], cache[count - 1], slot, pos, *cache[count:], *more,
        scale=c.scale, window=window, softcap=c.attn_softcap,
    )  # fmt: skip


def _chunks(slot: Value, pos: Value, table: Value, size: int) -> tuple[Value, Value, Value]:
    """Returns slots, positions and table of the same rows as if each chunk of a text were a slot. A
    chunk is whole pages, so it is a part of a row of the table."""
    slots, columns = ops.aval(table).shape
    each = size // PAGE
    count = -(-columns // each)
    table = ops.pad(table, (0, 0), (0, count * each - columns))
    number = ops.floor_divide(ops.maximum(pos, 0), size)
    place = ops.sub(pos, ops.mul(number, size))
    return ops.add(ops.mul(slot, count), number), place, ops.reshape(table, (slots * count, each))


def _both(c: DecoderConfig, cache: Cache) -> int:
    """Returns the number of planes with keys and values: one if the keys are the values too."""
    return len(cache) - (c.kv_dtype is int8)


def _query(c: DecoderConfig, cache: Cache, q: Value) -> Value:
    """Returns queries as they meet the cached keys."""
    if c.kv_dtype is not int8:
        return narrowed(q, c.kv_dtype)
    return turned(q) if _both(c, cache) == 2 else ops.cast(q, float32)


def weights(
    c: DecoderConfig, cache: Cache, q: Value, pos: Value, table: Value, window: int,
    sinks: Value | None = None, first: Value | None = None,
) -> Value:  # fmt: skip
    """Returns the weights that `attend` gives to positions, float32 [N, H, L], for rows of slot 0:
    the softmax of the scores, in one piece, of all L positions of the table. A sink has a part of
    the sum and no column. `first` [N] has the first position that each row sees, in place of a
    window."""
    groups, _, size, depth = ops.aval(cache[0]).shape
    n, heads, _ = ops.aval(q).shape
    length = ops.aval(table).shape[1] * size
    q = _query(c, cache, q)
    k = _rows(c, cache, 0, table)
    share = heads // groups
    q = ops.reshape(ops.cast(q, float32), (n, groups, share, depth))
    q = ops.reshape(ops.transpose(q, (1, 0, 2, 3)), (groups, n * share, depth))
    scores = ops.mul(ops.dot(q, ops.transpose(k, (0, 2, 1)), float32), c.scale)
    scores = ops.reshape(scores, (groups, n, share, length))
    scores = ops.reshape(ops.transpose(scores, (1, 0, 2, 3)), (n, heads, length))
    if c.attn_softcap:
        scores = ops.mul(ops.tanh(ops.mul(scores, 1.0 / c.attn_softcap)), c.attn_softcap)
    number, shape = ops.iota((n, heads, length), 2, int32), (n, heads, length)
    at = ops.broadcast(ops.reshape(pos, (n, 1, 1)), shape)
    seen = ops.less_equal(number, at)
    if first is not None:
        low = ops.broadcast(ops.reshape(first, (n, 1, 1)), shape)
        seen = ops.bitwise_and(seen, ops.less_equal(low, number))
    elif window:
        low = ops.sub(at, ops.remainder(at, window) if c.chunked else window - 1)
        seen = ops.bitwise_and(seen, ops.less_equal(low, number))
    scores = ops.where(seen, scores, -1e30)
    if sinks is not None:
        sink = ops.reshape(ops.cast(sinks, float32), (1, heads, 1))
        scores = ops.concat([scores, ops.broadcast(sink, (n, heads, 1))], 2)
    return ops.slice_(ops.call("softmax", scores), (0, 0, 0), shape)


def _rows(c: DecoderConfig, cache: Cache, which: int, table: Value) -> Value:
    """Returns the keys (`which` 0) or values (1) of slot 0, float32 [G, L, D]."""
    groups, pages, size, _ = ops.aval(cache[0]).shape
    count = ops.aval(table).shape[1]
    begins = ops.mul(ops.slice_(table, (0, 0), (1, count)), size)
    place = ops.add(ops.broadcast(begins, (size, count)), ops.iota((size, count), 0, int32))
    place = ops.reshape(ops.transpose(place), (count * size,))

    def read(plane: Value) -> Value:
        wide = ops.aval(plane).shape[3]
        rows = ops.reshape(plane, (groups, pages * size, wide))
        return ops.cast(ops.gather(rows, place, 1), float32)

    found = read(cache[min(which, _both(c, cache) - 1)])
    if c.kv_dtype is not int8:
        return found
    scale = ops.slice_(read(cache[-1]), (0, 0, which), (groups, count * size, which + 1))
    return ops.mul(found, ops.broadcast(scale, ops.aval(found).shape))


def attended(
    c: DecoderConfig, cache: Cache, q: Value, first: Value, last: Value, table: Value
) -> Value:
    """Returns attention of q[N, H, D] of rows of slot 0 over the positions from first[N] to
    last[N], in one piece: float32 [N, H, D]."""
    n, heads, depth = ops.aval(q).shape
    v = _rows(c, cache, 1, table)
    groups, length, _ = ops.aval(v).shape
    share = heads // groups
    by = weights(c, cache, q, last, table, 0, None, first)
    # Rows beyond the last one written may hold anything, and nothing times NaN is NaN.
    shape = (groups, length, depth)
    number = ops.iota(shape, 1, int32)
    end = ops.broadcast(ops.reshape(ops.max_(last, 0), (1, 1, 1)), shape)
    v = ops.where(ops.less_equal(number, end), v, 0.0)
    by = ops.transpose(ops.reshape(by, (n, groups, share, length)), (1, 0, 2, 3))
    out = ops.dot(ops.reshape(by, (groups, n * share, length)), v, float32)
    out = ops.transpose(ops.reshape(out, (groups, n, share, depth)), (1, 0, 2, 3))
    return ops.reshape(out, (n, heads, depth))


def quantized(x: Value) -> tuple[Value, Value]:
    """Returns codes (int8) of x [..., D] in float32 and their scales [..., 1]. Rows below LEAST
    become zeros; rows with infinity or NaN get a NaN scale."""
    shape = ops.aval(x).shape
    top = ops.max_(ops.abs_(x), -1)
    scale = ops.where(ops.less(top, LEAST), 0.0, ops.mul(top, 1 / MOST))
    scale = ops.where(ops.less(top, math.inf), scale, math.nan)
    scale = ops.reshape(scale, (*shape[:-1], 1))
    by = ops.where(ops.equal(scale, 0.0), 1.0, scale)
    codes = ops.round_(ops.div(x, ops.broadcast(by, shape)))
    codes = ops.maximum(ops.minimum(codes, MOST), -MOST)
    return ops.cast(codes, int8), scale


def turned(x: Value) -> Value:
    """Returns x [N, H, D] in float32, times a Hadamard matrix over the square root of D
    (Sylvester's, which is symmetric); only cast if D is not a power of two."""
    n, heads, depth = ops.aval(x).shape
    x = ops.cast(x, float32)
    if depth & (depth - 1):
        return x
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < depth:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    by = ops.const(matrix * np.float32(depth**-0.5))
    return ops.reshape(ops.dot(ops.reshape(x, (n * heads, depth)), by), (n, heads, depth))


def narrowed(x: Value, dtype: DType) -> Value:
    """Returns x in the dtype of a float cache."""
    if dtype is float16:
        x = ops.where(ops.less(ops.abs_(x), _LEAST_INFINITE), x, math.nan)
    return ops.cast(x, dtype)


def written(plane: Value, at: Value, new: Value) -> Value:
    """Returns a plane [..., D] with new [N, D] in its rows `at` [N]; negative rows are skipped."""
    shape = ops.aval(plane).shape
    flat = ops.reshape(plane, (-1, shape[-1]))
    return ops.reshape(ops.update(flat, at, ops.reshape(new, (-1, shape[-1]))), shape)
