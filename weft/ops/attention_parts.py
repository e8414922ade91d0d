"""cached_attention in parts of the cache that are merged: the compiler uses it for decoding steps.

A part gives its weighted values before the division, its largest score and its sum of weights.
Parts are scaled to the largest score of all and added (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018). Where a row sees no key of a part, the three are 0, LEAST and 0.
"""

from __future__ import annotations

from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.attention import _cached_abstract, _visible, cache_shape, of_slots
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import MASKED, compute
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval

LEAST = -1e29  # a maximum below every score's, and above what hidden scores become


def _parts_abstract(
    q: Aval, kc: Aval, vc: Aval, slot: Aval, pos: Aval, *more: Aval, part: int, **params: Any
) -> tuple[Aval, Aval]:
    _cached_abstract(q, kc, vc, slot, pos, *more, **params)
    if part < 1:
        raise ShapeError(f"cached_attention_parts: parts of {part} keys")
    n, heads, depth = q.shape
    lead = (n, heads, -(-cache_shape(kc, more)[2] // part))
    return Aval((*lead, depth), dt.float32), Aval((*lead, 2), dt.float32)


def _parts(
    q: Value, kc: Value, vc: Value, slot: Value, pos: Value, *more: Value,
    part: int, scale: float, window: int, softcap: float,
) -> tuple[Value, Value]:  # fmt: skip
    """A part's sums of weighted values [N,H,P,D], and its maximum and sum of weights [N,H,P,2], all
    f32. Three outputs would be more buffers than WebGPU may bind."""
    n, h, d = aval(q).shape
    _, g, length = cache_shape(aval(kc), [aval(x) for x in more])
    parts = -(-length // part)
    full = (n, g, h // g, parts * part)
    scores = f.dot(
        compute(f.reshape(q, (n, g, h // g, d))), f.swap_last(of_slots(kc, slot, more, 0))
    )
    scores = f.mul(scores, scale)
    if softcap:
        scores = f.mul(f.tanh(f.mul(scores, 1.0 / softcap)), softcap)
    extra = parts * part - length
    scores = f.pad(scores, (0, 0, 0, 0), (0, 0, 0, extra))
    key = f.iota(full, 3, dt.int32)
    at = f.broadcast(f.reshape(pos, (n, 1, 1, 1)), full)
    seen = f.bitwise_and(_visible(at, key, window), f.less(key, length))
    shape = (n, g, h // g, parts, part)
    scores = f.reshape(f.where(seen, scores, MASKED), shape)
    top = f.maximum(f.max_(scores, -1), LEAST)
    column = f.broadcast(f.reshape(top, (*shape[:-1], 1)), shape)
    weights = f.where(f.reshape(seen, shape), f.exp(f.sub(scores, column)), 0.0)
    v = f.pad(of_slots(vc, slot, more, 1), (0, 0, 0, 0), (0, 0, extra, 0))
    v = f.reshape(v, (n, g, parts, part, d))
    sums = f.transpose(f.dot(f.transpose(weights, (0, 1, 3, 2, 4)), v), (0, 1, 3, 2, 4))
    stats = [f.reshape(x, (*shape[:-1], 1)) for x in (top, f.sum_(weights, -1))]
    lead = (n, h, parts)
    return f.reshape(sums, (*lead, d)), f.reshape(f.concat(stats, -1), (*lead, 2))


def _merge_abstract(sums: Aval, stats: Aval) -> Aval:
    fits = len(sums.shape) == 4 and stats.shape == (*sums.shape[:3], 2)
    if not fits or sums.dtype != dt.float32 or stats.dtype != dt.float32:
        given = f"{sums!r} and {stats!r}"
        raise ShapeError(f"attention_merge: got {given}; expected f32 [N,H,P,D] and [N,H,P,2]")
    n, heads, _, depth = sums.shape
    return Aval((n, heads, depth), dt.float32)


def _merge(sums: Value, stats: Value) -> Value:
    """The parts' weighted values over their sum of weights, [N,H,D] (f32); zeros for no key."""
    n, h, p, d = aval(sums).shape
    top, total = (
        f.reshape(f.slice_(stats, (0, 0, 0, i), (n, h, p, i + 1)), (n, h, p)) for i in range(2)
    )
    best = f.broadcast(f.reshape(f.max_(top, -1), (n, h, 1)), (n, h, p))
    by = f.exp(f.sub(top, best))
    total = f.sum_(f.mul(by, total), -1)
    wide_by = f.broadcast(f.reshape(by, (n, h, p, 1)), (n, h, p, d))
    sums = f.sum_(f.mul(wide_by, sums), 2)
    total = f.where(f.equal(total, 0.0), 1.0, total)
    return f.div(sums, f.broadcast(f.reshape(total, (n, h, 1)), (n, h, d)))


register_composite(
    Composite(
        "cached_attention_parts",
        _parts_abstract,
        _parts,
        {"scale": None, "window": 0, "softcap": 0.0, "part": None},
    )
)
register_composite(Composite("attention_merge", _merge_abstract, _merge, {}))
