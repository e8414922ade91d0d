"""Reductions: sum max argmax. Reduced axes disappear; sum keeps its dtype.

Sums of f16 and bf16 run in f32 and round once; integers wrap. Both max and argmax treat NaN as the
largest (the first NaN wins); ties go to the first index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.functions import Value
from weft.ops.primitive import Aval, Primitive, aval, register
from weft.ops.rules import canonical_axis, countable, in_f32, want, wide


def _kept(op: str, x: Aval, axes: tuple[int, ...]) -> tuple[int, ...]:
    for axis in axes:
        canonical_axis(op, axis, len(x.shape))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op}: axes {list(axes)} name one axis twice")
    return tuple(d for i, d in enumerate(x.shape) if i not in axes)


def refuse_empty(op: str, shape: Sequence[int], axes: Sequence[int]) -> None:
    """Raises ShapeError if a result would be the extreme of no elements."""
    kept = [d for i, d in enumerate(shape) if i not in axes]
    if any(shape[a] == 0 for a in axes) and 0 not in kept:
        raise ShapeError(f"{op}: no elements along axes {list(axes)} of {list(shape)}")


def _sum_abstract(x: Aval, *, axes: tuple[int, ...]) -> Aval:
    want("sum", x, "numeric")
    return Aval(_kept("sum", x, axes), x.dtype)


def _max_abstract(x: Aval, *, axes: tuple[int, ...]) -> Aval:
    want("max", x, "numeric")
    out = _kept("max", x, axes)
    refuse_empty("max", x.shape, axes)
    return Aval(out, x.dtype)


def _argmax_abstract(x: Aval, *, axis: int) -> Aval:
    want("argmax", x, "numeric")
    out = _kept("argmax", x, (axis,))
    refuse_empty("argmax", x.shape, (axis,))
    countable("argmax", x.shape[axis])
    return Aval(out, dt.int32)


def _sum_numpy(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    out: np.ndarray = np.add.reduce(x, axis=axes, dtype=x.dtype)  # np.sum without its wrapper
    return out


def _max_numpy(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    out = tuple(d for i, d in enumerate(x.shape) if i not in axes)
    return np.zeros(out, x.dtype) if 0 in out else np.maximum.reduce(x, axis=axes)


def _argmax_numpy(x: np.ndarray, *, axis: int) -> np.ndarray:
    out = tuple(d for i, d in enumerate(x.shape) if i != axis)
    found = np.zeros(out) if 0 in out else np.argmax(wide(x), axis=axis)
    return np.asarray(found).astype(np.int32)


# -- derivatives (see VjpRule) -------------------------------------------------------------------


def _along(g: Value, like: Value, axes: tuple[int, ...]) -> Value:
    """A reduction over `axes` of `like`, repeated along them again."""
    shape = aval(like).shape
    kept = tuple(1 if i in axes else d for i, d in enumerate(shape))
    return f.broadcast(f.reshape(g, kept), shape)


def _sum_vjp(g: Value, out: Value, x: Value, *, axes: tuple[int, ...]) -> Sequence[Any]:
    return (_along(g, x, axes),)


def _is_top(x: Value, top: Value) -> Value:
    """Returns the bool mask of elements equal to the largest, `top`; a NaN counts."""
    return f.bitwise_or(f.equal(x, top), f.isnan(x))


def _max_vjp(g: Value, out: Value, x: Value, *, axes: tuple[int, ...]) -> Sequence[Any]:
    top = _is_top(x, _along(out, x, axes))
    d = aval(g).dtype
    count = f.sum_(f.cast(top, dt.compute_dtype(d)), axes)  # float16 ends at 65,504
    share = f.cast(f.div(f.cast(g, dt.compute_dtype(d)), count), d)
    return (f.where(top, _along(share, x, axes), 0),)


register(Primitive("sum", "reduce", _sum_abstract, in_f32(_sum_numpy), vjp=_sum_vjp))
register(Primitive("max", "reduce", _max_abstract, in_f32(_max_numpy), vjp=_max_vjp))
register(Primitive("argmax", "reduce", _argmax_abstract, _argmax_numpy))
