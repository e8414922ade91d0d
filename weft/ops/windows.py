"""Windows along an axis as movement alone: code stays as short for a window of 1,000 elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import canonical_axis
from weft.ops.scan import part
from weft.ops.tape import pull_through


def windows(x: Value, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Value:
    """The axis as two: place in the window, and window. out[..., k, w, ...] is x's element
    w * stride + k * dilation along the axis."""
    shape = aval(x).shape
    count = (shape[axis] - dilation * (size - 1) - 1) // stride + 1
    if dilation == 1 and stride >= size:
        return _apart(x, axis, size, stride, count)
    rows = f.reshape(x, (*shape[:axis], 1, *shape[axis:]))
    rows = f.broadcast(rows, (*shape[:axis], size, *shape[axis:]))
    length = (count - 1) * stride + 1
    wide = f.call("skewed", rows, axis=axis, by=dilation, length=length)
    stops = aval(wide).shape
    steps = [stride if i == axis + 1 else 1 for i in range(len(stops))]
    return f.slice_(wide, [0] * len(stops), stops, steps)


def _apart(x: Value, axis: int, size: int, stride: int, count: int) -> Value:
    """Windows that share no element: the axis cut into lengths of the stride."""
    shape = aval(x).shape
    more = max(count * stride - shape[axis], 0)
    x = f.pad(x, [0] * len(shape), [more if i == axis else 0 for i in range(len(shape))])
    x = part(x, axis, 0, count * stride)
    rows = f.reshape(x, (*shape[:axis], count, stride, *shape[axis + 1 :]))
    order = list(range(len(shape) + 1))
    order[axis], order[axis + 1] = axis + 1, axis
    return f.transpose(part(rows, axis + 1, 0, size), order)


# -- skewed: row k of [..., K, M, ...] from its element k * by on ---------------------------------


def _abstract(x: Aval, *, axis: int, by: int, length: int) -> Aval:
    canonical_axis("skewed", axis + 1, len(x.shape))
    rows, width = x.shape[axis : axis + 2]
    if axis < 0 or by < 0 or length < 0 or (rows and (rows - 1) * by + length > width):
        raise ShapeError(f"skewed: {length} elements by {by} of {list(x.shape)} at axis {axis}")
    return Aval((*x.shape[: axis + 1], length, *x.shape[axis + 2 :]), x.dtype)


def _numpy(x: np.ndarray, *, axis: int, by: int, length: int) -> np.ndarray:
    strides = list(x.strides)
    strides[axis] += by * strides[axis + 1]
    shape = (*x.shape[: axis + 1], length, *x.shape[axis + 2 :])
    if not x.size:
        return np.zeros(shape, x.dtype)
    return np.array(np.lib.stride_tricks.as_strided(x, shape, strides))


def _body(x: Value, *, axis: int, by: int, length: int) -> Value:
    """Rows one behind the other, cut again into rows that are longer by `by`."""
    shape = aval(x).shape
    rows, width = shape[axis : axis + 2]
    if not rows:
        return part(x, axis + 1, 0, length)
    flat = f.reshape(x, (*shape[:axis], rows * width, *shape[axis + 2 :]))
    rank = len(shape) - 1
    flat = f.pad(flat, [0] * rank, [rows * by if i == axis else 0 for i in range(rank)])
    longer = f.reshape(flat, (*shape[: axis + 1], width + by, *shape[axis + 2 :]))
    return part(longer, axis + 1, 0, length)


def _vjp(g: Value, out: Value, x: Value, *, axis: int, by: int, length: int) -> Sequence[Any]:
    """Returns the gradient: rows shift the opposite way, starting from the last row."""
    shape = aval(x).shape
    rank, (rows, width) = len(shape), shape[axis : axis + 2]
    if 0 in shape or not length:
        return (f.full_like(x, 0),)
    low = [(rows - 1) * by if i == axis + 1 else 0 for i in range(rank)]
    high = [width - length if i == axis + 1 else 0 for i in range(rank)]
    padded = f.pad(_flipped(g, axis), low, high)
    return (_flipped(f.call("skewed", padded, axis=axis, by=by, length=width), axis),)


def _flipped(x: Value, axis: int) -> Value:
    shape = aval(x).shape
    at = [i == axis for i in range(len(shape))]
    starts = [d - 1 if turn else 0 for turn, d in zip(at, shape)]
    stops = [-1 if turn else d for turn, d in zip(at, shape)]
    return f.slice_(x, starts, stops, [-1 if turn else 1 for turn in at])


# -- the largest of each window ------------------------------------------------------------------


def least(dtype: dt.DType) -> float | int:
    """The value around an image whose maxima are taken: minus infinity, or the least integer."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def greatest(dtype: dt.DType) -> float | int:
    """The same of minima."""
    return math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)


def _max_abstract(x: Aval, *, axis: int, low: int, high: int, **params: int) -> Aval:
    wide = (*x.shape[:axis], x.shape[axis] + low + high, *x.shape[axis + 1 :])
    return Aval(_max_shape(wide, axis, **params), x.dtype)


def _max_shape(
    shape: Sequence[int], axis: int, size: int, stride: int, dilation: int
) -> tuple[int, ...]:
    count = (shape[axis] - dilation * (size - 1) - 1) // stride + 1
    return (*shape[:axis], count, *shape[axis + 1 :])


def _around(x: Value, axis: int, low: int, high: int) -> Value:
    """x with `low` and `high` elements before and after along an axis, which are never the first of
    the largest."""
    known = aval(x)
    before, after = ([n if i == axis else 0 for i in range(len(known.shape))] for n in (low, high))
    return f.pad(x, before, after, least(known.dtype))


def _max(x: Value, *, axis: int, low: int, high: int, **params: int) -> Value:
    return f.max_(windows(_around(x, axis, low, high), axis, **params), axis)


def _max_vjp(
    g: Value, out: Value, x: Value, *, axis: int, low: int, high: int, **params: int
) -> Sequence[Any]:
    """The first of equals gets the gradient, and padding none of it."""

    def seen(x: Value) -> Value:
        return windows(_around(x, axis, low, high), axis, **params)

    wide = seen(x)
    shape, one = aval(wide).shape, (*aval(out).shape[:axis], 1, *aval(out).shape[axis:])
    place, window = (f.iota(shape, axis + i, dt.int32) for i in (0, 1))
    if low or high:
        top = f.broadcast(f.reshape(out, one), shape)
        at = f.add(f.mul(place, params["dilation"]), f.mul(window, params["stride"]))
        real = f.bitwise_and(f.less_equal(f.full_like(at, low), at),
                             f.less(at, low + aval(x).shape[axis]))  # fmt: skip
        top = f.bitwise_or(f.equal(wide, top), f.isnan(wide))
        found = f.argmax(f.cast(f.bitwise_and(top, real), dt.int32), axis)
    else:
        found = f.argmax(wide, axis)
    first = f.broadcast(f.reshape(found, one), shape)
    back = f.where(f.equal(place, first), f.broadcast(f.reshape(g, one), shape), 0)
    return (lambda: pull_through(seen, back, (x,))[0],)


_MAX: dict[str, Any] = {"axis": None, "size": None, "stride": 1, "dilation": 1, "low": 0, "high": 0}
register_composite(Composite("window_max", _max_abstract, _max, _MAX, vjp=_max_vjp))

_PARAMS: dict[str, Any] = {"axis": None, "by": None, "length": None}
register_composite(Composite("skewed", _abstract, _body, _PARAMS, _numpy, _vjp, kind="movement"))
