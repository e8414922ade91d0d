"""conv2d and max_pool2d: sums and maxima over the taps of a window, as composites whose bodies are
slices, one concat and one dot; so gradients need neither scatter nor a rule for the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo

from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.tape import pull_through

Pair = tuple[int, int]


def window_size(
    name: str, size: Sequence[int], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Pair:
    """How many windows fit along each of two axes. Raises ShapeError when none does."""
    out = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation):
        if min(k, s, d) < 1 or p < 0:
            raise ShapeError(
                f"{name}: kernel {k}, stride {s}, dilation {d} are >= 1, padding {p} >= 0"
            )
        reach = d * (k - 1) + 1
        if n + 2 * p < reach:
            raise ShapeError(f"{name}: a window of {reach} does not fit {n} + 2 x {p} of padding")
        out.append((n + 2 * p - reach) // s + 1)
    return out[0], out[1]


def taps(
    x: Value, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, fill: float = 0.0
) -> list[Value]:
    """For each place of the window, row by row, what x [N, H, W, C] has there: [N, H', W', C]."""
    n, h, w, c = aval(x).shape
    rows, columns = window_size("window", (h, w), kernel, stride, padding, dilation)
    x = f.pad(x, (0, *padding, 0), (0, *padding, 0), fill)
    out = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            a, b = i * dilation[0], j * dilation[1]
            stops = (n, a + (rows - 1) * stride[0] + 1, b + (columns - 1) * stride[1] + 1, c)
            out.append(f.slice_(x, (0, a, b, 0), stops, (1, *stride, 1)))
    return out


def channels_last(x: Value) -> Value:
    """[N, C, H, W] as [N, H, W, C]."""
    return f.transpose(x, (0, 2, 3, 1))


def channels_first(x: Value) -> Value:
    """[N, H, W, C] as [N, C, H, W]."""
    return f.transpose(x, (0, 3, 1, 2))


# -- convolution ----------------------------------------------------------------------------------


def _conv_abstract(
    x: Aval, w: Aval, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Aval:
    want("conv2d", x, "float")
    ok = len(x.shape) == len(w.shape) == 4 and x.dtype == w.dtype and groups > 0
    if not ok or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ShapeError(
            f"conv2d: x {x!r}, weight {w!r}, groups {groups}; expected [N, C, H, W] and "
            "[O, C / groups, KH, KW] of one dtype, with O a multiple of groups"
        )
    kernel = (w.shape[2], w.shape[3])
    size = window_size("conv2d", x.shape[2:], kernel, stride, padding, dilation)
    return Aval((x.shape[0], w.shape[0], *size), x.dtype)


def _conv2d(
    x: Value, w: Value, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Value:
    """The windows of x side by side as the rows of a matrix, times the weights (im2col: Chellapilla
    et al. 2006); with one channel per group, a sum of products tap by tap. Windows are taken of
    x in f32, so that its gradient, a sum over windows, is rounded once."""
    o, per, kh, kw = aval(w).shape
    seen = taps(channels_last(compute(x)), (kh, kw), stride, padding, dilation)
    n, h, width, c = aval(seen[0]).shape
    if per == 1 and o == c == groups:
        return channels_first(_depthwise(seen, w))
    rows, depth = n * h * width, kh * kw * per
    columns = [f.reshape(t, (rows, groups, per)) for t in seen]
    matrix = f.cast(f.concat(columns, 2), aval(w).dtype)  # [rows, groups, depth]
    weights = f.transpose(f.reshape(w, (groups, o // groups, per, kh, kw)), (0, 3, 4, 2, 1))
    if groups == 1:
        out = f.dot(f.reshape(matrix, (rows, depth)), f.reshape(weights, (depth, o)))
    else:
        weights = f.reshape(weights, (groups, depth, o // groups))
        out = f.transpose(f.dot(f.transpose(matrix, (1, 0, 2)), weights), (1, 0, 2))
    return channels_first(f.reshape(out, (n, h, width, o)))


def _depthwise(seen: list[Value], w: Value) -> Value:
    """The sum over taps of what they see times one weight per channel."""
    rows = compute(f.transpose(f.reshape(w, (aval(w).shape[0], len(seen)))))
    total = None
    for i, tap in enumerate(seen):
        shape = aval(tap).shape
        row = f.reshape(f.slice_(rows, (i, 0), (i + 1, shape[3])), (shape[3],))
        part = f.mul(tap, f.broadcast(row, shape))
        total = part if total is None else f.add(total, part)
    return f.cast(total, aval(w).dtype)


# -- maxima ---------------------------------------------------------------------------------------


def _pool_abstract(x: Aval, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Aval:
    want("max_pool2d", x, "float")
    if len(x.shape) != 4 or any(2 * p > k for p, k in zip(padding, kernel)):
        raise ShapeError(
            f"max_pool2d: x {x!r}, kernel {kernel}, padding {padding}; expected [N, C, H, W] and "
            "a padding of at most half the kernel"
        )
    size = window_size("max_pool2d", x.shape[2:], kernel, stride, padding, dilation)
    return Aval((*x.shape[:2], *size), x.dtype)


def _seen(x: Value, params: dict[str, Any]) -> list[Value]:
    """The taps in f32, with the dtype's lowest number around."""
    lowest = float(finfo(np.dtype(aval(x).dtype.numpy)).min)
    return taps(channels_last(compute(x)), **params, fill=lowest)


def _max_pool2d(x: Value, **params: Any) -> Value:
    """The largest of each window; NaN wins."""
    first, *rest = _seen(x, params)
    for tap in rest:
        first = f.maximum(first, tap)
    return f.cast(channels_first(first), aval(x).dtype)


def _max_pool_vjp(g: Value, out: Value, x: Value, **params: Any) -> Sequence[Any]:
    """The first tap that is the largest gets the gradient, as in PyTorch."""

    def chosen(x: Value) -> Value:
        total, taken = None, None
        for tap in _seen(x, params):
            hit = f.equal(tap, channels_last(compute(out)))
            new = hit if taken is None else f.bitwise_and(hit, f.bitwise_xor(taken, True))
            taken = hit if taken is None else f.bitwise_or(taken, hit)
            part = f.where(new, tap, 0)
            total = part if total is None else f.add(total, part)
        return f.cast(channels_first(total), aval(x).dtype)

    return (lambda: pull_through(chosen, g, (x,))[0],)


_ONE, _NONE = (1, 1), (0, 0)
register_composite(
    Composite(
        "conv2d",
        _conv_abstract,
        _conv2d,
        {"stride": _ONE, "padding": _NONE, "dilation": _ONE, "groups": 1},
    )
)
register_composite(
    Composite(
        "max_pool2d",
        _pool_abstract,
        _max_pool2d,
        {"kernel": None, "stride": None, "padding": _NONE, "dilation": _ONE},
        vjp=_max_pool_vjp,
    )
)
