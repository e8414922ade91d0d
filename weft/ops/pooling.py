"""max_pool2d and sum_pool2d: windows of images [N, C, H, W]. Those of few places are joined place
by place; those of more along W and then along H, as their gradients always are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo

from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.conv import Pair, window_size
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.tape import pull_through
from weft.ops.windows import windows

FEW = 16  # places of a window that code is written out for


def _abstract(name: str) -> Callable[..., Aval]:
    def abstract(x: Aval, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Aval:
        want(name, x, "float")
        if len(x.shape) != 4 or any(2 * p > k for p, k in zip(padding, kernel)):
            raise ShapeError(
                f"{name}: x {x!r}, kernel {kernel}, padding {padding}; expected [N, C, H, W] and "
                "a padding of at most half the kernel"
            )
        size = window_size(name, x.shape[2:], kernel, stride, padding, dilation)
        return Aval((*x.shape[:2], *size), x.dtype)

    return abstract


def _place_by_place(
    join: Callable[..., Value], x: Value, fill: float,
    *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
) -> Value:  # fmt: skip
    """What each place of the window sees, row by row, joined."""
    wide = f.pad(compute(x), (0, 0, *padding), (0, 0, *padding), fill)
    n, c, *size = aval(wide).shape
    rows, columns = window_size("window", size, kernel, stride, (0, 0), dilation)
    total = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            a, b = i * dilation[0], j * dilation[1]
            stops = (n, c, a + (rows - 1) * stride[0] + 1, b + (columns - 1) * stride[1] + 1)
            seen = f.slice_(wide, (0, 0, a, b), stops, (1, 1, *stride))
            total = seen if total is None else join(total, seen)
    return f.cast(total, aval(x).dtype)


# -- maxima ---------------------------------------------------------------------------------------


def _around(x: Value) -> float:
    """The dtype's lowest number: what lies around an image of which maxima are taken."""
    return float(finfo(np.dtype(aval(x).dtype.numpy)).min)


def _max_pool2d(x: Value, **params: Any) -> Value:
    """The largest of each window; NaN wins."""
    if math.prod(params["kernel"]) <= FEW:
        return _place_by_place(f.maximum, x, _around(x), **params)
    return _two_maxima(x, **params)


def _two_maxima(x: Value, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Value:
    """The largest along W, then of those along H. The first of equals is then the first in the
    first row that has it, which gets the gradient, as in PyTorch."""
    wide = f.pad(compute(x), (0, 0, *padding), (0, 0, *padding), _around(x))
    for i in (1, 0):
        at = {"axis": i + 2, "size": kernel[i], "stride": stride[i], "dilation": dilation[i]}
        wide = f.call("window_max", wide, **at)
    return f.cast(wide, aval(x).dtype)


def _max_pool_vjp(g: Value, out: Value, x: Value, **params: Any) -> Sequence[Any]:
    return (lambda: pull_through(lambda x: _two_maxima(x, **params), g, (x,))[0],)


# -- sums -----------------------------------------------------------------------------------------


def _sum_pool2d(x: Value, **params: Any) -> Value:
    """The sum of each window, in f32."""
    if math.prod(params["kernel"]) <= FEW:
        return _place_by_place(f.add, x, 0.0, **params)
    return _two_sums(x, **params)


def _two_sums(x: Value, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Value:
    total = f.pad(compute(x), (0, 0, *padding), (0, 0, *padding))
    for i in (1, 0):
        total = f.sum_(windows(total, i + 2, kernel[i], stride[i], dilation[i]), i + 2)
    return f.cast(total, aval(x).dtype)


def _sum_pool_vjp(g: Value, out: Value, x: Value, **params: Any) -> Sequence[Any]:
    return (lambda: pull_through(lambda x: _two_sums(x, **params), g, (x,))[0],)


_PARAMS: dict[str, Any] = {"kernel": None, "stride": None, "padding": (0, 0), "dilation": (1, 1)}
for _name, _body, _vjp in (
    ("max_pool2d", _max_pool2d, _max_pool_vjp),
    ("sum_pool2d", _sum_pool2d, _sum_pool_vjp),
):
    register_composite(Composite(_name, _abstract(_name), _body, _PARAMS, vjp=_vjp))
