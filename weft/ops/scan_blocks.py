"""A long scan in blocks, and a long product: the compiler makes them from `scan` and `prod`.

`scan_totals` joins the elements of each block; `scan_carries` joins the totals before each block,
one after the other; `scan_blocks` scans each block from its carry; `scan_joined` joins all totals.
Blocks are counted in the order of the scan, from the last element when `reverse`. Totals and
carries have a last axis for the parts of a state (see `scan`), whose meaning is private to the op.
One worker scans the last `tail` blocks from the carry before them, so their totals are given as
those of no elements.
"""

from __future__ import annotations

from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import canonical_axis
from weft.ops.scan import (
    State,
    accumulator,
    finished,
    identity,
    joined,
    lifted,
    narrowed,
    part,
    running,
    scan_abstract,
    shifted_state,
)


def parts(op: str, dtype: dt.DType) -> int:
    """Returns how many numbers the state of a run of `dtype` has."""
    return 2 if op == "linear" or (op == "prod" and dtype.is_float) else 1


def _totals_abstract(
    x: Aval, *factor: Aval, op: str, axis: int, reverse: bool, block: int, tail: int = 0
) -> Aval:
    scan_abstract(x, *factor, op=op, axis=axis, exclusive=False, reverse=reverse)
    shape = list(x.shape)
    if block < 1 or not 0 <= tail <= -(-shape[axis] // block):
        raise ShapeError(f"scan_totals: blocks of {block} elements, the last {tail} together")
    shape[axis] = -(-shape[axis] // block)
    return Aval((*shape, parts(op, x.dtype)), accumulator(x.dtype))


def _totals(
    x: Value, *factor: Value, op: str, axis: int, reverse: bool, block: int, tail: int = 0
) -> Value:
    rows = _in_blocks(op, lifted(op, x, *factor), axis, reverse, block)
    ends = _ends(running(op, rows, axis + 1), axis)
    count = aval(ends[0]).shape[axis]
    return _packed(_only(op, ends, axis, 0, count - tail))


def _ends(rows: State, axis: int) -> State:
    """Returns the last state of each block of running states."""
    shape = aval(rows[0]).shape
    ends = (part(v, axis + 1, shape[axis + 1] - 1, 1) for v in rows)
    return tuple(f.reshape(v, (*shape[: axis + 1], *shape[axis + 2 :])) for v in ends)


def _only(op: str, state: State, axis: int, start: int, stop: int) -> State:
    """The states from start to stop along an axis, those of no elements elsewhere."""
    shape = aval(state[0]).shape
    low, high = [0] * len(shape), [0] * len(shape)
    low[axis], high[axis] = start, shape[axis] - stop
    kept = (part(v, axis, start, stop - start) for v in state)
    return tuple(f.pad(v, low, high, fill) for v, fill in zip(kept, identity(op, state)))


def _carries_abstract(totals: Aval, *, op: str, axis: int, exclusive: bool) -> Aval:
    canonical_axis("scan_carries", axis, len(totals.shape) - 1)
    return totals


def _carries(totals: Value, *, op: str, axis: int, exclusive: bool) -> Value:
    state = running(op, _unpacked(totals), axis)
    return _packed(shifted_state(op, state, axis, 1, False))


def _joined_abstract(totals: Aval, *, op: str, axis: int, dtype: dt.DType) -> Aval:
    canonical_axis("scan_joined", axis, len(totals.shape) - 1)
    return Aval((*totals.shape[:axis], *totals.shape[axis + 1 : -1]), dtype)


def _joined(totals: Value, *, op: str, axis: int, dtype: dt.DType) -> Value:
    state = running(op, _unpacked(totals), axis)
    last = aval(totals).shape[axis] - 1
    out = finished(op, tuple(part(v, axis, last, 1) for v in state))
    shape = aval(out).shape
    return f.cast(f.reshape(out, (*shape[:axis], *shape[axis + 1 :])), dtype)


def _blocks_abstract(
    x: Aval,
    *more: Aval,
    op: str,
    axis: int,
    exclusive: bool,
    reverse: bool,
    block: int,
    tail: int = 0,
) -> Aval:
    *factor, carries = more
    cut = {"reverse": reverse, "block": block, "tail": tail}
    totals = _totals_abstract(x, *factor, op=op, axis=axis, **cut)  # type: ignore[arg-type]
    if carries != totals:
        raise ShapeError(f"scan_blocks: carries {carries!r}; expected {totals!r}")
    return scan_abstract(x, *factor, op=op, axis=axis, exclusive=exclusive, reverse=reverse)


def _blocks(
    x: Value, *more: Value, op: str, axis: int, exclusive: bool, reverse: bool, block: int,
    tail: int = 0,
) -> Value:  # fmt: skip
    *factor, carries = more
    rows = running(op, _in_blocks(op, lifted(op, x, *factor), axis, reverse, block), axis + 1)
    before = _unpacked(carries)
    if tail:  # carries are constant from the tail's first block on
        count = aval(before[0]).shape[axis]
        ends = running(op, _only(op, _ends(rows, axis), axis, count - tail, count), axis)
        before = joined(op, before, shifted_state(op, ends, axis, 1, False))
    if exclusive:
        rows = shifted_state(op, rows, axis + 1, 1, False)
    wide = aval(rows[0]).shape
    lead = (*wide[: axis + 1], 1, *wide[axis + 2 :])
    carried = tuple(f.broadcast(f.reshape(v, lead), wide) for v in before)
    out = finished(op, joined(op, carried, rows))
    shape = aval(x).shape
    flat = f.reshape(out, (*shape[:axis], wide[axis] * block, *shape[axis + 1 :]))
    flat = part(flat, axis, 0, shape[axis])
    return narrowed(op, _turned(flat, axis) if reverse else flat, aval(x).dtype)


# -- states in blocks ----------------------------------------------------------------------------


def _in_blocks(op: str, state: State, axis: int, reverse: bool, block: int) -> State:
    """The axis as blocks of a length, the last filled up with the state of no elements."""
    shape = aval(state[0]).shape
    count = -(-shape[axis] // block)
    wide = (*shape[:axis], count, block, *shape[axis + 1 :])
    low = [0] * len(shape)
    high = [count * block - shape[axis] if i == axis else 0 for i in range(len(shape))]
    turned = tuple(_turned(v, axis) for v in state) if reverse else state
    return tuple(
        f.reshape(f.pad(v, low, high, fill), wide) for v, fill in zip(turned, identity(op, state))
    )


def _turned(x: Value, axis: int) -> Value:
    shape = aval(x).shape
    if 0 in shape:
        return x
    at = [i == axis for i in range(len(shape))]
    starts = [d - 1 if turn else 0 for turn, d in zip(at, shape)]
    stops = [-1 if turn else d for turn, d in zip(at, shape)]
    return f.slice_(x, starts, stops, [-1 if turn else 1 for turn in at])


def _packed(state: State) -> Value:
    columns = [f.reshape(v, (*aval(v).shape, 1)) for v in state]
    return f.concat(columns, -1)


def _unpacked(packed: Value) -> State:
    shape = aval(packed).shape
    columns = (part(packed, len(shape) - 1, k, 1) for k in range(shape[-1]))
    return tuple(f.reshape(v, shape[:-1]) for v in columns)


_START: dict[str, Any] = {"op": None, "axis": None, "exclusive": False}
_BLOCK: dict[str, Any] = {"op": None, "axis": None, "reverse": False, "block": None, "tail": 0}
register_composite(Composite("scan_totals", _totals_abstract, _totals, _BLOCK))
register_composite(Composite("scan_carries", _carries_abstract, _carries, _START))
register_composite(
    Composite("scan_joined", _joined_abstract, _joined, {"op": None, "axis": None, "dtype": None})
)
register_composite(Composite("scan_blocks", _blocks_abstract, _blocks, _BLOCK | _START))
