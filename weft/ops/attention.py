"""The attention composites, with bodies that materialise the scores (templates never do)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.core.order import KEYS
from weft.graph.ir import Node
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import MASKED, compute
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want


def _check(op: str, ok: bool, given: tuple[Aval, ...], expected: str) -> None:
    if not ok:
        raise ShapeError(f"{op}: got {', '.join(map(repr, given))}; expected {expected}")


def _values(op: str, q: Aval, k: Aval, v: Aval, *indices: Aval) -> None:
    for x in (q, k, v):
        want(op, x, "float")
    if not q.dtype == k.dtype == v.dtype:
        raise DTypeError(f"{op}: q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; cast to one dtype")
    for i in indices:
        if i.dtype != dt.int32:
            raise DTypeError(f"{op}: lengths, slots and positions are int32, not {i.dtype}")


def _attention_abstract(
    q: Aval, k: Aval, v: Aval, *lengths: Aval,
    causal: bool, scale: float, window: int, softcap: float,
) -> Aval:  # fmt: skip
    _values("attention", q, k, v, *lengths)
    ok = len(q.shape) == len(k.shape) == 4 and k.shape == v.shape and len(lengths) <= 1
    ok = ok and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    ok = ok and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    ok = ok and all(n.shape == q.shape[:1] for n in lengths)
    expected = "q [B,H,T,D], k and v [B,G,S,D] with H a multiple of G, lengths [B]"
    _check("attention", ok, (q, k, v, *lengths), expected)
    return q


PAGE = KEYS  # positions of a page: it holds one block of keys, which kernels take at once


def beside(more: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Splits the operands of `cached_attention` after the fifth into scales, page table and sinks.
    They come in this order, and their ranks tell them apart."""
    ranks = [len((x if isinstance(x, Aval | Node) else aval(x)).shape) for x in more]
    scales, table, sinks = ([x for x, r in zip(more, ranks) if r == axes] for axes in (4, 2, 1))
    return scales, table, sinks


def cache_shape(kc: Any, more: Sequence[Any]) -> tuple[int, int, int]:
    """(slots, key/value heads, positions of a slot) of a cache, in pages or not, by the keys and
    what `cached_attention` takes after the fifth operand: Nodes or Avals."""
    for table in beside(more)[1]:
        return table.shape[0], kc.shape[0], table.shape[1] * kc.shape[2]
    slots, groups, length, _ = kc.shape
    return slots, groups, length


def _cached_abstract(
    q: Aval, kc: Aval, vc: Aval, slot: Aval, pos: Aval, *more: Aval,
    scale: float, window: int, softcap: float,
) -> Aval:  # fmt: skip
    scales, table, sinks = beside(more)
    if scales:
        given = tuple(x.dtype.name for x in (q, kc, vc, *scales))
        if given != ("float32", "int8", "int8", "float32"):
            raise DTypeError(
                f"cached_attention: scales are for int8 caches in float32, not {given}"
            )
        kc, vc = (Aval(x.shape, dt.float32) for x in (kc, vc))
    _values("cached_attention", q, kc, vc, slot, pos, *table)
    for x in sinks:
        want("cached_attention", x, "float")
    ok = len(q.shape) == 3 and len(kc.shape) == 4 and kc.shape == vc.shape
    groups = kc.shape[0 if table else 1] if ok else 0
    ok = ok and q.shape[2] == kc.shape[3] and groups > 0 and q.shape[1] % groups == 0
    ok = ok and slot.shape == pos.shape == q.shape[:1]
    ok = ok and [*scales, *table, *sinks] == list(more)
    ok = ok and max(len(scales), len(table), len(sinks)) <= 1
    ok = ok and all(kc.shape[2] == PAGE and 0 not in (kc.shape[1], *x.shape) for x in table)
    ok = ok and all(x.shape == (*kc.shape[:3], 2) for x in scales)
    ok = ok and all(x.shape == q.shape[1:2] for x in sinks)
    expected = (
        "q [N,H,D], caches [S,G,L,D] with H a multiple of G, slot and pos [N], of int8 caches "
        f"scales [S,G,L,2], of pages [G,pages,{PAGE},D] a table [slots,C], perhaps sinks [H]"
    )
    _check("cached_attention", ok, (q, kc, vc, slot, pos, *more), expected)
    return q


def _attend(
    q: Value, k: Value, v: Value, mask: Value | None, scale: float, softcap: float,
    sinks: Value | None = None,
) -> Value:  # fmt: skip
    """Computes softmax(q k^T scale) v in f32 for q[B,G,R,D], k and v [B,G,S,D], mask[B,G,R,S].

    The mask is bool, False where a key is hidden; a row that sees no key gives zeros. The scores
    sinks[B,G,R] are those of one more key per row, whose value is zero.
    """
    kt, v = f.swap_last(compute(k)), compute(v)
    scores = f.mul(f.dot(compute(q), kt), scale)
    if softcap:
        scores = f.mul(f.tanh(f.mul(scores, 1.0 / softcap)), softcap)
    if mask is not None:
        scores = f.where(mask, scores, MASKED)
    shape = aval(scores).shape
    column = (*shape[:-1], 1)
    best = f.max_(scores, -1)
    best = best if sinks is None else f.maximum(best, sinks)
    top = f.broadcast(f.reshape(best, column), shape)
    weights = f.exp(f.sub(scores, top))
    if mask is not None:
        weights = f.where(mask, weights, 0.0)
    total = f.sum_(weights, -1)
    total = total if sinks is None else f.add(total, f.exp(f.sub(sinks, best)))
    total = f.reshape(total, column)
    total = f.where(f.equal(total, 0.0), 1.0, total)
    out = f.dot(weights, v)
    return f.div(out, f.broadcast(total, aval(out).shape))


def _visible(query: Value, key: Value, window: int) -> Value:
    """Keys at or before the query's position, and no more than `window` of them (0: all)."""
    seen = f.less_equal(key, query)
    if window:
        seen = f.bitwise_and(seen, f.less(query, f.add(key, window)))
    return seen


def _attention(
    q: Value, k: Value, v: Value, *lengths: Value,
    causal: bool, scale: float, window: int, softcap: float,
) -> Value:  # fmt: skip
    """Scaled dot-product attention (Vaswani et al. 2017), grouped queries (Ainslie et al. 2023)."""
    b, h, t, d = aval(q).shape
    g, s = aval(k).shape[1:3]
    if 0 in (b, h, t, d, s):
        return f.full_like(q, 0)
    rows = h // g * t  # heads of one group are adjacent: one matrix product per group
    mask = seen_keys(q, k, lengths, causal, window)
    out = _attend(f.reshape(q, (b, g, rows, d)), k, v, mask, scale, softcap)
    return f.cast(f.reshape(out, (b, h, t, d)), aval(q).dtype)


def seen_keys(
    q: Value, k: Value, lengths: Sequence[Value], causal: bool, window: int
) -> Value | None:
    """Returns the keys that each row sees as bool [B,G,H/G*T,S], or None where every row sees all.
    Takes q[B,H,T,D], k[B,G,S,D] and perhaps one lengths[B]."""
    b, h, t, _ = aval(q).shape
    g, s = aval(k).shape[1:3]
    full = (b, g, h // g, t, s)
    key = f.iota(full, 4, dt.int32)
    mask = None
    if causal or window:
        query = f.add(f.iota(full, 3, dt.int32), s - t)
        mask = _visible(query, key, window) if causal else _near(query, key, window)
    for n in lengths:
        inside = f.less(key, f.broadcast(f.reshape(n, (b, 1, 1, 1, 1)), full))
        mask = inside if mask is None else f.bitwise_and(mask, inside)
    return None if mask is None else f.reshape(mask, (b, g, h // g * t, s))


def _near(query: Value, key: Value, window: int) -> Value:
    """Keys less than `window` positions away on either side (a window without causality)."""
    after = f.less(query, f.add(key, window))
    return f.bitwise_and(after, f.less(key, f.add(query, window)))


def of_slots(cache: Value, slot: Value, more: Sequence[Value], which: int) -> Value:
    """The keys (`which` 0) or values (1) of each row's slot [N,G,L,D], in f32: codes of int8 times
    the scale of their row, where there are scales; put together where they are in pages."""
    scales, table, _ = beside(more)
    found = _of_slots(cache, slot, table)
    if not scales:
        return compute(found)
    shape = aval(found).shape
    lead = shape[:-1]
    by = f.slice_(_of_slots(scales[0], slot, table), (0, 0, 0, which), (*lead, which + 1))
    return f.mul(f.cast(found, dt.float32), f.broadcast(by, shape))


def _of_slots(plane: Value, slot: Value, table: Sequence[Value]) -> Value:
    """Returns the content of each row's slot in a plane [S,G,L,W], or [G,pages,PAGE,W] with a
    table."""
    if not table:
        return f.gather(plane, slot)
    groups, pages, page, width = aval(plane).shape
    slots, columns = aval(table[0]).shape
    which = f.gather(table[0], f.minimum(f.maximum(slot, 0), slots - 1))
    which = f.minimum(f.maximum(f.reshape(which, (-1,)), 0), pages - 1)
    found = f.reshape(f.gather(plane, which, 1), (groups, -1, columns, page, width))
    found = f.transpose(found, (1, 0, 2, 3, 4))
    return f.reshape(found, (-1, groups, columns * page, width))


def _cached_attention(
    q: Value, kc: Value, vc: Value, slot: Value, pos: Value, *more: Value,
    scale: float, window: int, softcap: float,
) -> Value:  # fmt: skip
    """Row n attends to keys 0..pos[n] of cache slot[n], the last `window` of them if window > 0.
    Caches of int8 have a scale per row: scales[S,G,L,2] of keys and of values. With a table[slots,
    C] a cache is [G,pages,PAGE,D] (Kwon et al., arXiv:2309.06180): position p of slot s is row p %
    PAGE of page table[s, p // PAGE]. Where there are sinks[H], each head sees one more key
    with that score and no value (Xiao et al., arXiv:2309.17453)."""
    sinks = beside(more)[2]
    n, h, d = aval(q).shape
    _, g, length = cache_shape(aval(kc), [aval(x) for x in more])
    if 0 in (n, h, d, length):
        return f.full_like(q, 0)
    full = (n, g, h // g, length)
    at = f.broadcast(f.reshape(pos, (n, 1, 1, 1)), full)
    mask = _visible(at, f.iota(full, 3, dt.int32), window)
    k, v = (of_slots(x, slot, more, i) for i, x in enumerate((kc, vc)))
    extra = [f.broadcast(f.reshape(compute(x), (1, g, h // g)), (n, g, h // g)) for x in sinks]
    out = _attend(f.reshape(q, (n, g, h // g, d)), k, v, mask, scale, softcap, *extra)
    return f.cast(f.reshape(out, (n, h, d)), aval(q).dtype)


register_composite(
    Composite(
        "attention",
        _attention_abstract,
        _attention,
        {"causal": False, "scale": None, "window": 0, "softcap": 0.0},
    )
)
register_composite(
    Composite(
        "cached_attention",
        _cached_abstract,
        _cached_attention,
        {"scale": None, "window": 0, "softcap": 0.0},
    )
)
