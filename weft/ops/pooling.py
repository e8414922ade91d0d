"""max_pool and sum_pool: windows of images [N, C, ...] of any rank. Those of few places are joined
place by place, those of more axis by axis, the last one first, as their gradients always are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.conv import Sides, Sizes, padded, window_counts
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.tape import pull_through
from weft.ops.windows import least, windows

FEW = 16  # windows of up to this many places are unrolled


def _abstract(name: str) -> Callable[..., Aval]:
    def abstract(x: Aval, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes) -> Aval:
        want(name, x, "numeric" if name == "max_pool" else "float")
        if len(x.shape) < 3:
            raise ShapeError(f"{name}: x {x!r}; expected [N, C, ...]")
        size = window_counts(name, x.shape[2:], kernel, stride, padding, dilation)
        return Aval((*x.shape[:2], *size), x.dtype)

    return abstract


def _place_by_place(
    join: Callable[..., Value], x: Value, fill: float,
    *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes,
) -> Value:  # fmt: skip
    """Joins the values under each place of the window with `join`, place by place, row by row."""
    wide = padded(compute(x), padding, fill)
    n, c, *size = aval(wide).shape
    counts = window_counts("window", size, kernel, stride, ((0, 0),) * len(kernel), dilation)
    total = None
    for place in itertools.product(*map(range, kernel)):
        starts = [i * d for i, d in zip(place, dilation)]
        stops = [a + (m - 1) * s + 1 for a, m, s in zip(starts, counts, stride)]
        seen = f.slice_(wide, (0, 0, *starts), (n, c, *stops), (1, 1, *stride))
        total = seen if total is None else join(total, seen)
    return f.cast(total, aval(x).dtype)


def _axis_by_axis(
    join: Callable[..., Value], x: Value, fill: float, **params: Sequence[Any]
) -> Value:
    """The same along the last axis, then of what that gave along the one before, and so on."""
    rank = len(params["kernel"])
    none: dict[str, Any] = {"kernel": 1, "stride": 1, "padding": (0, 0), "dilation": 1}
    for i in reversed(range(rank)):
        at = {k: tuple(params[k][j] if j == i else none[k] for j in range(rank)) for k in params}
        x = _place_by_place(join, x, fill, **at)
    return x


# -- maxima ---------------------------------------------------------------------------------------


def _max_pool(x: Value, **params: Any) -> Value:
    """The largest of each window; NaN wins."""
    if math.prod(params["kernel"]) <= FEW:
        return _place_by_place(f.maximum, x, least(aval(x).dtype), **params)
    if max(params["kernel"]) <= FEW:
        return _axis_by_axis(f.maximum, x, least(aval(x).dtype), **params)
    return _maxima(x, **params)


def _maxima(x: Value, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes) -> Value:
    """Returns the largest along the last axis, then the largest of the results along the axis
    before, and so on. Among equals it is the first in the first row that has it, which gets the
    gradient, as in PyTorch."""
    wide = compute(x)
    for i in reversed(range(len(kernel))):
        at = {"axis": i + 2, "size": kernel[i], "stride": stride[i], "dilation": dilation[i]}
        wide = f.call("window_max", wide, **at, low=padding[i][0], high=padding[i][1])
    return f.cast(wide, aval(x).dtype)


def _max_pool_vjp(g: Value, out: Value, x: Value, **params: Any) -> Sequence[Any]:
    return (lambda: pull_through(lambda x: _maxima(x, **params), g, (x,))[0],)


# -- sums -----------------------------------------------------------------------------------------


def _sum_pool(x: Value, **params: Any) -> Value:
    """The sum of each window, in f32."""
    if math.prod(params["kernel"]) <= FEW:
        return _place_by_place(f.add, x, 0.0, **params)
    return _sums(x, **params)


def _sums(x: Value, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes) -> Value:
    total = padded(compute(x), padding)
    for i in reversed(range(len(kernel))):
        total = f.sum_(windows(total, i + 2, kernel[i], stride[i], dilation[i]), i + 2)
    return f.cast(total, aval(x).dtype)


def _sum_pool_vjp(g: Value, out: Value, x: Value, **params: Any) -> Sequence[Any]:
    return (lambda: pull_through(lambda x: _sums(x, **params), g, (x,))[0],)


_PARAMS: dict[str, Any] = {"kernel": None, "stride": None, "padding": None, "dilation": None}
for _name, _body, _vjp in (
    ("max_pool", _max_pool, _max_pool_vjp),
    ("sum_pool", _sum_pool, _sum_pool_vjp),
):
    register_composite(Composite(_name, _abstract(_name), _body, _PARAMS, vjp=_vjp))
