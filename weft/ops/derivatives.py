"""Derivatives of the primitives: (grad, out, *operands, **attributes) -> one entry per operand,
each None (no gradient), a gradient, or a function that makes one when it is wanted.

They are ordinary ops, so a derivative runs wherever its primitive does, and can be differentiated
again. The table at the end hands them to the records in `primitive.PRIMITIVES`. Formulas: Griewank
& Walther 2008; ties of maximum, minimum and max share the gradient, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.ops import binary, dot, indexing, movement, reduce, unary  # noqa: F401  (their records)
from weft.ops import functions as f
from weft.ops.primitive import PRIMITIVES, VjpRule, aval
from weft.ops.rules import countable

Value = Any
Ints = tuple[int, ...]


def _zeros(like: Value) -> Value:
    return f.full_like(like, 0)


# -- elementwise ----------------------------------------------------------------------------------


def _abs(g: Value, out: Value, x: Value) -> Sequence[Any]:
    below = f.where(f.less(x, 0), f.neg(g), 0)
    return (f.where(f.less(_zeros(x), x), g, below),)


def _flat(g: Value, out: Value, x: Value) -> Sequence[Any]:
    """floor and round are constant almost everywhere."""
    return (_zeros(g),)


def _cast(g: Value, out: Value, x: Value, *, dtype: Any) -> Sequence[Any]:
    return (f.cast(g, aval(x).dtype) if aval(x).dtype.is_float else None,)


def _erf(g: Value, out: Value, x: Value) -> Sequence[Any]:
    return (f.mul(g, f.mul(f.exp(f.neg(f.mul(x, x))), 2.0 / math.sqrt(math.pi))),)


def _ndtr(g: Value, out: Value, x: Value) -> Sequence[Any]:
    bell = f.exp(f.mul(f.mul(x, x), -0.5))
    return (f.mul(g, f.mul(bell, 1.0 / math.sqrt(2.0 * math.pi))),)


def _tanh(g: Value, out: Value, x: Value) -> Sequence[Any]:
    return (f.mul(g, f.sub(1.0, f.mul(out, out))),)


def _pow(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    def base() -> Value:
        slope = f.mul(y, f.pow_(x, f.sub(y, 1.0)))
        return f.mul(g, f.where(f.equal(y, 0), 0, slope))

    def exponent() -> Value:
        at_zero = f.bitwise_and(f.equal(x, 0), f.less_equal(_zeros(y), y))
        return f.where(at_zero, 0, f.mul(g, f.mul(out, f.log(f.where(at_zero, 1, x)))))

    return base, exponent


def _remainder(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    """x - floor(x / y) y: the floor is constant almost everywhere."""
    return g, lambda: f.neg(f.mul(g, f.floor_divide(x, y)))


def _floor_divide(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    return _zeros(g), _zeros(g)


def _unless(g: Value, loses: Value, ties: Value) -> Value:
    """The share of an operand of maximum or minimum; a NaN passes the gradient on."""
    return f.where(loses, 0, f.where(ties, f.mul(g, 0.5), g))


def _maximum(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    same = f.equal(x, y)
    return (lambda: _unless(g, f.less(x, y), same)), (lambda: _unless(g, f.less(y, x), same))


def _minimum(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    same = f.equal(x, y)
    return (lambda: _unless(g, f.less(y, x), same)), (lambda: _unless(g, f.less(x, y), same))


def _where(g: Value, out: Value, cond: Value, a: Value, b: Value) -> Sequence[Any]:
    return None, (lambda: f.where(cond, g, 0)), (lambda: f.where(cond, 0, g))


# -- movement -------------------------------------------------------------------------------------


def _transpose(g: Value, out: Value, x: Value, *, perm: Ints) -> Sequence[Any]:
    back = sorted(range(len(perm)), key=lambda i: perm[i])
    return (f.transpose(g, back),)


def _broadcast(g: Value, out: Value, x: Value, *, shape: Ints) -> Sequence[Any]:
    old = aval(x).shape
    new = len(shape) - len(old)
    axes = [*range(new), *(i + new for i, d in enumerate(old) if d == 1 and shape[i + new] != 1)]
    return (f.reshape(f.sum_(g, axes), old) if axes else f.reshape(g, old),)


def _slice(
    g: Value, out: Value, x: Value, *, starts: Ints, stops: Ints, steps: Ints
) -> Sequence[Any]:
    """The elements go back where they came from: turned round, spread out, then padded."""
    shape = list(aval(g).shape)
    if 0 in shape:
        return (_zeros(x),)
    if any(s < 0 for s in steps):
        flips = [-1 if s < 0 else 1 for s in steps]
        first = [n - 1 if s < 0 else 0 for n, s in zip(shape, steps)]
        last = [-1 if s < 0 else n for n, s in zip(shape, steps)]
        g = f.slice_(g, first, last, flips)
    low = [a + (n - 1) * s if s < 0 else a for a, s, n in zip(starts, steps, shape)]
    for axis, step in enumerate(map(abs, steps)):
        if step > 1 and shape[axis] > 1:
            g, shape[axis] = _spread(g, axis, step), (shape[axis] - 1) * step + 1
    high = [d - a - n for d, a, n in zip(aval(x).shape, low, shape)]
    return (f.pad(g, low, high),)


def _spread(x: Value, axis: int, step: int) -> Value:
    """x with step - 1 zeros between neighbours along an axis."""
    shape = aval(x).shape
    n, rank = shape[axis], len(shape)
    x = f.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    x = f.pad(x, [0] * (rank + 1), [step - 1 if i == axis + 1 else 0 for i in range(rank + 1)])
    x = f.reshape(x, (*shape[:axis], n * step, *shape[axis + 1 :]))
    stops = [d if i != axis else (n - 1) * step + 1 for i, d in enumerate(shape)]
    return f.slice_(x, [0] * rank, stops)


def _pad(g: Value, out: Value, x: Value, *, low: Ints, high: Ints, value: Any) -> Sequence[Any]:
    return (f.slice_(g, low, [a + d for a, d in zip(low, aval(x).shape)]),)


def _concat(g: Value, out: Value, *xs: Value, axis: int) -> Sequence[Any]:
    shape = aval(g).shape
    parts, at = [], 0
    for x in xs:
        size = aval(x).shape[axis]
        starts = [at if i == axis else 0 for i in range(len(shape))]
        stops = [at + size if i == axis else d for i, d in enumerate(shape)]
        parts.append(lambda a=starts, z=stops: f.slice_(g, a, z))
        at += size
    return parts


# -- reductions, dot ------------------------------------------------------------------------------


def _along(g: Value, like: Value, axes: Ints) -> Value:
    """A reduction over `axes` of `like`, repeated along them again."""
    shape = aval(like).shape
    kept = tuple(1 if i in axes else d for i, d in enumerate(shape))
    return f.broadcast(f.reshape(g, kept), shape)


def _sum(g: Value, out: Value, x: Value, *, axes: Ints) -> Sequence[Any]:
    return (_along(g, x, axes),)


def is_top(x: Value, top: Value) -> Value:
    """Where x is the largest, given that (bool): a NaN is."""
    return f.bitwise_or(f.equal(x, top), f.isnan(x))


def _max(g: Value, out: Value, x: Value, *, axes: Ints) -> Sequence[Any]:
    top = is_top(x, _along(out, x, axes))
    count = f.sum_(f.cast(top, aval(g).dtype), axes)
    return (f.where(top, _along(f.div(g, count), x, axes), 0),)


def _dot(g: Value, out: Value, a: Value, b: Value, *, out_dtype: Any) -> Sequence[Any]:
    d = aval(a).dtype
    g = f.cast(g, d)
    return (lambda: f.dot(g, f.swap_last(b), d)), (lambda: f.dot(f.swap_last(a), g, d))


# -- indexing -------------------------------------------------------------------------------------


def _gather(g: Value, out: Value, x: Value, idx: Value, *, axis: int) -> Sequence[Any]:
    """Rows are added up where they were taken from, in their order; those from outside drop."""
    shape, taken = aval(x).shape, aval(idx).shape
    if shape[axis] == 0:
        return _zeros(x), None
    count = math.prod(taken)
    at = f.reshape(idx, (count,))
    flat = f.reshape(g, (*shape[:axis], count, *shape[axis + 1 :]))
    order = (axis, *(i for i in range(len(shape)) if i != axis))
    rows = f.transpose(flat, order)
    zeros = f.full_like(f.transpose(x, order), 0)
    back = sorted(range(len(order)), key=lambda i: order[i])
    return f.transpose(f.scatter_add(zeros, at, rows), back), None


def _rows_of(g: Value, idx: Value) -> Value:
    """Rows idx of g; zeros for those outside."""
    n = aval(g).shape[0]
    count = aval(idx).shape[0]
    if n == 0:
        rank = len(aval(g).shape)
        return f.pad(g, [0] * rank, [count, *[0] * (rank - 1)])
    inside = f.bitwise_and(f.less_equal(_zeros(idx), idx), f.less(idx, n))
    shape = (count, *aval(g).shape[1:])
    keep = f.broadcast(f.reshape(inside, (count, *(1 for _ in shape[1:]))), shape)
    return f.where(keep, f.gather(g, idx), 0)


def _scatter_add(g: Value, out: Value, x: Value, idx: Value, upd: Value) -> Sequence[Any]:
    return g, None, lambda: _rows_of(g, idx)


def _update(g: Value, out: Value, x: Value, idx: Value, value: Value) -> Sequence[Any]:
    return (lambda: f.update(g, idx, _zeros(value))), None, lambda: _rows_of(g, idx)


def _sort(
    g: Value, out: Value, x: Value, *, axis: int, descending: bool, indices: bool
) -> Sequence[Any]:
    """Each element of the gradient goes back along the inverse permutation."""
    order = f.sort(x, axis, descending, indices=True)
    inverse = f.sort(order, axis, indices=True)
    shape = aval(x).shape
    n, rank = shape[axis], len(shape)
    perm = (*(i for i in range(rank) if i != axis), axis)
    moved = tuple(shape[p] for p in perm)
    rows = math.prod(moved[:-1])
    if not rows * n:
        return (g,)
    countable("sort", rows * n)
    start = f.mul(f.iota((rows, n), 0, dt.int32), n)
    at = f.add(f.reshape(f.transpose(inverse, perm), (rows, n)), start)
    flat = f.reshape(f.transpose(g, perm), (rows * n,))
    back = sorted(range(rank), key=lambda i: perm[i])
    return (f.transpose(f.reshape(f.gather(flat, at), moved), back),)


_TABLE: dict[str, VjpRule] = {
    "neg": lambda g, out, x: (f.neg(g),),
    "abs": _abs,
    "floor": _flat,
    "round": _flat,
    "sqrt": lambda g, out, x: (f.mul(g, f.div(0.5, out)),),
    "exp": lambda g, out, x: (f.mul(g, out),),
    "log": lambda g, out, x: (f.div(g, x),),
    "sin": lambda g, out, x: (f.mul(g, f.cos(x)),),
    "cos": lambda g, out, x: (f.neg(f.mul(g, f.sin(x))),),
    "tanh": _tanh,
    "erf": _erf,
    "ndtr": _ndtr,
    "cast": _cast,
    "add": lambda g, out, x, y: (g, g),
    "sub": lambda g, out, x, y: (g, lambda: f.neg(g)),
    "mul": lambda g, out, x, y: (lambda: f.mul(g, y), lambda: f.mul(g, x)),
    "div": lambda g, out, x, y: (
        lambda: f.div(g, y),
        lambda: f.neg(f.mul(g, f.div(out, y))),
    ),
    "remainder": _remainder,
    "floor_divide": _floor_divide,
    "pow": _pow,
    "maximum": _maximum,
    "minimum": _minimum,
    "where": _where,
    "reshape": lambda g, out, x, *, shape: (f.reshape(g, aval(x).shape),),
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "sum": _sum,
    "max": _max,
    "dot": _dot,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "update": _update,
    "sort": _sort,
}

for _name, _rule in _TABLE.items():
    PRIMITIVES[_name] = replace(PRIMITIVES[_name], vjp=_rule)
