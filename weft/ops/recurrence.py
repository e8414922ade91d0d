"""A linear recurrence: a memory of one matrix for each head, which fades, learns and is read.

It is the state of layers without a cache of keys and values. The state spaces of Mamba (Gu and Dao,
arXiv:2312.00752) and Mamba 2 (Dao and Gu, arXiv:2405.21060) are such layers. So is the gated delta
rule (Yang, Kautz and Hatamizadeh, arXiv:2412.06464), which stores only the part of a key's value
that the memory lacks.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval


def _abstract(
    q: Aval, k: Aval, v: Aval, decay: Aval, *more: Aval, tiled: bool, scale: float
) -> tuple[Aval, Aval]:
    given = (q, k, v, decay, *more)
    *rate, slot, memory = more if 2 <= len(more) <= 3 else (v, v)
    ok = len(q.shape) == len(v.shape) == 3 and q.shape == k.shape and len(memory.shape) == 4
    if ok:
        (n, groups, depth), (_, heads, width) = q.shape, v.shape
        ok = groups > 0 and heads % groups == 0 and v.shape[0] == n
        ok = ok and decay.shape in [(n, heads, depth, width)[:rank] for rank in (2, 3, 4)]
        ok = ok and all(x.shape == (n, heads) for x in rate) and slot.shape == (n,)
        ok = ok and memory.shape[0] > 0 and memory.shape[1:] == (heads, depth, width)
    if not ok:
        raise ShapeError(
            f"recurrence: got {', '.join(map(repr, given))}; expected q and k [N,G,K], v [N,H,V] "
            "with H a multiple of G, decay [N,H], [N,H,K] or [N,H,K,V], for the delta rule a rate "
            "[N,H], slot [N], memory [S,H,K,V]"
        )
    if any(x.dtype != dt.float32 for x in (q, k, v, decay, *rate, memory)):
        raise DTypeError("recurrence: all operands but the slots are float32; cast the operand")
    if slot.dtype != dt.int32:
        raise DTypeError(f"recurrence: slots are int32, not {slot.dtype}")
    return v, memory


def _recurrence(
    q: Value, k: Value, v: Value, decay: Value, *more: Value, tiled: bool, scale: float
) -> tuple[Value, Value]:
    """Returns each row's reading [N,H,V], and the memories after all rows.

    `more` is slot and memory, or rate, slot and memory. Row n, in order, works on the memory M of
    its slot. It does M = decay M, then M += k v, or with a rate M += k (rate (v - k M)), and reads
    scale q M. A slot of -1 - s is slot s, emptied first. The rows of a slot are adjacent. Head h
    shares key h // (H / G), or h % G where heads are `tiled`. The decay is one number for a head,
    for an element of its keys, or for an element of its memory.
    """
    *rates, slot, memory = more
    (n, groups, depth), (_, heads, width) = aval(q).shape, aval(v).shape
    share = heads // groups

    def row(x: Value, i: int) -> Value:
        return f.slice_(x, (i, *(0,) * (len(aval(x).shape) - 1)), (i + 1, *aval(x).shape[1:]))

    def vectors(x: Value, i: int) -> Value:
        """Returns the key of each head [1,H,1,K]."""
        one = (1, 1, groups, depth) if tiled else (1, groups, 1, depth)
        full = (1, share, groups, depth) if tiled else (1, groups, share, depth)
        return f.reshape(f.broadcast(f.reshape(row(x, i), one), full), (1, heads, 1, depth))

    def factors(x: Value, i: int) -> Value:
        return f.reshape(row(x, i), (1, *aval(x).shape[1:], 1, 1)[:4])

    full = (1, heads, depth, width)
    out = []
    for i in range(n):
        begins = f.less(row(slot, i), 0)
        at = f.where(begins, f.sub(-1, row(slot, i)), row(slot, i))
        begins = f.broadcast(f.reshape(begins, (1, 1, 1, 1)), full)
        m = f.where(begins, 0.0, f.gather(memory, at))
        m = f.mul(m, f.broadcast(factors(decay, i), full))
        key, learned = vectors(k, i), f.reshape(row(v, i), (1, heads, 1, width))
        for rate in rates:
            error = f.sub(learned, f.dot(key, m))
            learned = f.mul(error, f.broadcast(factors(rate, i), aval(error).shape))
        m = f.add(m, f.dot(f.swap_last(key), learned))
        out.append(f.reshape(f.mul(f.dot(vectors(q, i), m), scale), (1, heads, width)))
        memory = f.update(memory, at, m)
    return (f.concat(out, 0) if out else f.mul(v, 0.0)), memory


_PARAMS = {"tiled": False, "scale": 1.0}
register_composite(Composite("recurrence", _abstract, _recurrence, _PARAMS, carries=(-1, 1)))
