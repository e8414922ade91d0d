"""Running sums, products and extremes along an axis (`scan`), and the product over axes (`prod`).

A scan joins an element with everything before it, by "sum", "prod", "max" or "min" (NaN wins).
"linear" is the recurrence y[i] = a[i] y[i-1] + x[i], with operands x and a. Narrow floats (f16 and
bf16) are joined in f32 and rounded once; integers wrap. In "linear" and `times` a zero factor
always gives zero, also times an infinity, which a long product may have reached.

The gradients are scans again (Blelloch, "Prefix sums and their applications", 1990). A sum's
gradient is the sum in the other direction, and that of a product or extreme is a recurrence. None
of them divides by a possible zero, so all can be differentiated again everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import axes_of, axis_of, canonical_axis, same, want

OPS = ("sum", "prod", "max", "min", "linear")
State = tuple[Value, ...]  # the state of a run of elements; see `joined`


def scan(
    x: Value,
    op: str = "sum",
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
    factor: Value | None = None,
) -> Value:
    """The elements of x up to each one along an axis, joined by `op` (of OPS); without itself when
    `exclusive`, from the last one on when `reverse`. "linear" takes its factors a as `factor`."""
    operands = (x,) if factor is None else (x, factor)
    at = axis_of("scan", axis, len(aval(x).shape))
    return f.call("scan", *operands, op=op, axis=at, exclusive=exclusive, reverse=reverse)


def prod(x: Value, axes: int | Sequence[int] | None = None) -> Value:
    """The product over the axes (all by default), in x's dtype; the axes disappear."""
    found = tuple(sorted(axes_of("prod", axes, len(aval(x).shape))))
    return f.call("prod", x, axes=found) if found else x


def times(x: Value, y: Value) -> Value:
    """x * y, where zero times anything is zero (its derivative is that of x * y)."""
    return f.call("times", x, y)


def accumulator(dtype: dt.DType) -> dt.DType:
    """Returns the dtype in which a scan of `dtype` is joined: f32 for narrow floats, 32 bits for
    integers."""
    if dtype.is_float:
        return dt.compute_dtype(dtype)
    return dtype if dtype.itemsize >= 4 else dt.int32


def empty(op: str, dtype: dt.DType) -> float | int:
    """Returns the result for no elements, in a compute dtype."""
    if op in ("sum", "linear"):
        return 0
    if op == "prod":
        return 1
    if dtype.is_float:
        return -math.inf if op == "max" else math.inf
    info = np.iinfo(dtype.numpy)
    return int(info.min if op == "max" else info.max)


# -- what a scan is ------------------------------------------------------------------------------


def scan_abstract(
    x: Aval, *factor: Aval, op: str, axis: int, exclusive: bool, reverse: bool
) -> Aval:
    """Raises unless op, axis and operands make a scan; the result is like x."""
    if op not in OPS:
        raise UsageError(f"scan: no operation {op!r}; expected one of {', '.join(OPS)}")
    want("scan", x, "float" if op == "linear" else "numeric")
    canonical_axis("scan", axis, len(x.shape))
    if len(factor) != (op == "linear"):
        raise UsageError(f"scan: {op!r} with {1 + len(factor)} operands; only 'linear' takes two")
    if op == "linear" and exclusive:
        raise UsageError("scan: 'linear' includes each element; shift its result instead")
    same("scan", x, *factor)
    return x


_UFUNC: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def _scan_numpy(
    x: np.ndarray, *factor: np.ndarray, op: str, axis: int, exclusive: bool, reverse: bool
) -> np.ndarray:
    """Sums and products of floats run in float64: the oracle's rounding errors do not add up."""
    y: np.ndarray
    if op == "linear" or not x.size:
        y = _scan(x, *factor, op=op, axis=axis, exclusive=exclusive, reverse=reverse)
        return y
    wide = x.astype(np.float64) if dt.as_dtype(x.dtype).is_float else x
    wide = np.flip(wide, axis) if reverse else wide
    y = _UFUNC[op].accumulate(wide, axis=axis, dtype=wide.dtype)
    if exclusive:
        first = np.full_like(np.take(y, [0], axis), empty(op, dt.as_dtype(x.dtype)))
        y = np.concatenate([first, np.delete(y, -1, axis)], axis)
    y = np.flip(y, axis) if reverse else y
    return y.astype(x.dtype)


def _scan(x: Value, *factor: Value, op: str, axis: int, exclusive: bool, reverse: bool) -> Value:
    """log2(n) rounds, each joining every element's run with the one before it (Hillis and Steele,
    "Data parallel algorithms", 1986)."""
    state = running(op, lifted(op, x, *factor), axis, reverse)
    if exclusive:
        state = shifted_state(op, state, axis, 1, reverse)
    return narrowed(op, finished(op, state), aval(x).dtype)


def lifted(op: str, x: Value, *factor: Value) -> State:
    """The state of one element each: the value, for "linear" the factor and the value, for the
    product of floats a mantissa and an exponent to base 2 (in which no product overflows)."""
    wide = [f.cast(v, accumulator(aval(v).dtype)) for v in (*factor, x)]
    if op == "prod" and aval(x).dtype.is_float:
        return (wide[0], f.full_like(wide[0], 0))
    return tuple(wide)


def identity(op: str, state: State) -> tuple[float | int, ...]:
    """The state of no elements."""
    if op == "linear":
        return (1, 0)
    first = empty(op, aval(state[0]).dtype)
    return (first, 0) if len(state) == 2 else (first,)


def joined(op: str, s: State, t: State) -> State:
    """The state of the elements of s followed by those of t."""
    if op == "linear":
        return f.mul(s[0], t[0]), f.add(times(t[0], s[1]), t[1])
    if op == "prod":
        return (f.mul(s[0], t[0]), *(f.add(a, b) for a, b in zip(s[1:], t[1:])))
    join: Callable[..., Value] = {"sum": f.add, "max": f.maximum, "min": f.minimum}[op]
    return (join(s[0], t[0]),)


def finished(op: str, state: State) -> Value:
    """Returns the value that a state encodes."""
    if op == "prod" and len(state) == 2:
        return f.mul(state[0], f.pow_(f.full_like(state[0], 2), state[1]))
    return state[-1]


def narrowed(op: str, out: Value, dtype: dt.DType) -> Value:
    """A scan's values in its own dtype, also what no elements gave in the wider accumulator's."""
    if op in ("max", "min") and dtype.is_int and dtype.itemsize < 4:
        clip = f.maximum if op == "max" else f.minimum
        out = clip(out, empty(op, dtype))
    return f.cast(out, dtype)


def running(op: str, state: State, axis: int, reverse: bool = False) -> State:
    """The inclusive scan of states."""
    step = 1
    while step < aval(state[0]).shape[axis]:
        state = joined(op, shifted_state(op, state, axis, step, reverse), state)
        step *= 2
    return state


def shifted_state(op: str, state: State, axis: int, by: int, reverse: bool) -> State:
    fills = identity(op, state)
    return tuple(shifted(v, axis, by, fill, reverse) for v, fill in zip(state, fills))


def shifted(x: Value, axis: int, by: int, fill: float | int, reverse: bool = False) -> Value:
    """Element i is x's element i - by (i + by when `reverse`), or `fill` where there is none."""
    shape = aval(x).shape
    starts, stops = [0] * len(shape), list(shape)
    low, high = [0] * len(shape), [0] * len(shape)
    by = min(by, shape[axis])
    if reverse:
        starts[axis], high[axis] = by, by
    else:
        stops[axis], low[axis] = shape[axis] - by, by
    return f.pad(f.slice_(x, starts, stops), low, high, fill)


# -- derivatives of a scan -----------------------------------------------------------------------


def _scan_vjp(
    g: Value, out: Value, x: Value, *factor: Value,
    op: str, axis: int, exclusive: bool, reverse: bool,
) -> Sequence[Any]:  # fmt: skip
    if op == "sum":
        return (scan(g, "sum", axis, exclusive, not reverse),)
    narrow = aval(x).dtype
    g, out, x = (f.cast(v, dt.compute_dtype(narrow)) for v in (g, out, x))
    if op == "linear":
        a = f.cast(factor[0], aval(g).dtype)
        back = scan(g, op, axis, False, not reverse, shifted(a, axis, 1, 1, not reverse))
        before = shifted(out, axis, 1, 0, reverse)
        return f.cast(back, narrow), lambda: f.cast(times(back, before), narrow)
    if exclusive:  # the inclusive scan, shifted by one
        g = shifted(g, axis, 1, 0, not reverse)
    if exclusive or (op == "prod" and narrow != aval(x).dtype):  # also where it was rounded
        out = scan(x, op, axis, False, reverse)
    gradient = _prod_slope if op == "prod" else _extreme_slope
    return (f.cast(gradient(g, out, x, axis, reverse), narrow),)


def _prod_slope(g: Value, out: Value, x: Value, axis: int, reverse: bool) -> Value:
    """Returns the gradient by x[i]: the sum of g y from i on, over x[i]. Where that is zero, it is
    the product of the elements before i times the sum over j >= i of g[j] and the factors between i
    and j."""
    whole = scan(times(g, out), "sum", axis, False, not reverse)
    before = shifted(out, axis, 1, 1, reverse)
    factor = shifted(x, axis, 1, 1, not reverse)
    after = scan(g, "linear", axis, False, not reverse, factor)
    return _over(whole, x, times(before, after))


def _over(whole: Value, x: Value, other: Value) -> Value:
    """whole / x where that says something; `other` where a factor is zero or out of range."""
    vague = f.bitwise_or(f.equal(whole, 0), f.equal(x, 0))
    plain = f.bitwise_and(f.bitwise_xor(vague, True), f.less(f.abs_(whole), math.inf))
    return f.where(plain, f.div(whole, f.where(plain, x, 1)), other)


def _extreme_slope(g: Value, out: Value, x: Value, axis: int, reverse: bool) -> Value:
    """An element has the gradients of its run: from where it becomes the extreme (a later one of
    the same value takes over, and every NaN) to where another does."""
    won = f.bitwise_or(f.equal(x, out), f.isnan(x))
    goes_on = shifted(f.where(won, f.full_like(g, 0), 1), axis, 1, 1, not reverse)
    return f.where(won, scan(g, "linear", axis, False, not reverse, goes_on), 0)


# -- the product over axes -----------------------------------------------------------------------


def _prod_abstract(x: Aval, *, axes: tuple[int, ...]) -> Aval:
    want("prod", x, "numeric")
    for axis in axes:
        canonical_axis("prod", axis, len(x.shape))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"prod: axes {list(axes)} name one axis twice")
    return Aval(tuple(d for i, d in enumerate(x.shape) if i not in axes), x.dtype)


def _prod_numpy(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    wide = x.astype(np.float64) if dt.as_dtype(x.dtype).is_float else x
    return np.asarray(np.prod(wide, axis=axes, dtype=wide.dtype)).astype(x.dtype)


def _prod(x: Value, *, axes: tuple[int, ...]) -> Value:
    """log2(n) rounds that multiply the first half by the second."""
    out = f.cast(x, accumulator(aval(x).dtype))
    for axis in axes:
        out = _halved(out, axis)
    kept = _prod_abstract(aval(x), axes=axes).shape
    return f.cast(f.reshape(out, kept), aval(x).dtype)


def _halved(x: Value, axis: int) -> Value:
    shape = list(aval(x).shape)
    if not shape[axis]:
        shape[axis] = 1
        return f.full_like(
            f.pad(x, [0] * len(shape), [int(i == axis) for i in range(len(shape))]), 1
        )
    while (n := aval(x).shape[axis]) > 1:
        half = n // 2
        first, second = (part(x, axis, k * half, half) for k in (0, 1))
        pair = f.mul(first, second)
        x = f.concat([pair, part(x, axis, n - 1, 1)], axis) if n % 2 else pair
    return x


def part(x: Value, axis: int, start: int, length: int) -> Value:
    """Elements start..start+length-1 along an axis."""
    shape = aval(x).shape
    starts = [start if i == axis else 0 for i in range(len(shape))]
    return f.slice_(x, starts, [start + length if i == axis else d for i, d in enumerate(shape)])


def _prod_vjp(g: Value, out: Value, x: Value, *, axes: tuple[int, ...]) -> Sequence[Any]:
    """Returns the gradient by x[i]: g y / x[i], or the product of the elements before i and after
    it."""
    shape, narrow = aval(x).shape, aval(x).dtype
    if 0 in shape:
        return (f.full_like(x, 0),)
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    order = (*kept, *axes)
    lead = tuple(shape[i] for i in kept)
    g, out, x = (f.cast(v, dt.compute_dtype(narrow)) for v in (g, out, x))
    rows = f.reshape(f.transpose(x, order), (*lead, -1))
    g, out = (f.broadcast(f.reshape(v, (*lead, 1)), aval(rows).shape) for v in (g, out))
    rest = [scan(rows, "prod", -1, True, reverse) for reverse in (False, True)]
    others = f.where(f.isnan(out), f.mul(*rest), times(*rest))  # NaN: an infinity met a zero
    slope = _over(times(g, out), rows, f.mul(g, others))
    back = sorted(range(len(order)), key=lambda i: order[i])
    moved = f.transpose(f.reshape(slope, tuple(shape[i] for i in order)), back)
    return (f.cast(moved, narrow),)


def _times_abstract(x: Aval, y: Aval) -> Aval:
    want("times", x, "float")
    same("times", x, y)
    return x


def _times(x: Value, y: Value) -> Value:
    nothing = f.bitwise_or(f.equal(x, 0), f.equal(y, 0))
    return f.where(nothing, 0, f.mul(x, y))


def _times_vjp(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    return (lambda: times(g, y)), (lambda: times(g, x))


_SCAN = {"op": None, "axis": None, "exclusive": False, "reverse": False}
register_composite(Composite("times", _times_abstract, _times, {}, vjp=_times_vjp))
register_composite(Composite("scan", scan_abstract, _scan, _SCAN, _scan_numpy, _scan_vjp))
register_composite(Composite("prod", _prod_abstract, _prod, {"axes": None}, _prod_numpy, _prod_vjp))
