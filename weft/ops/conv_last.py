"""Convolutions of images whose channels are last, [N, H, W, C], by weights in the order that
kernels read them: what the compiler makes of `conv` (compile/channels_last). Their sums are
products over k = (place in the window row by row, channel), in the order of core/order.
"""

from __future__ import annotations

import math
from typing import Any

from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.conv import Sides, Sizes, window_counts
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.windows import windows

CONV, DEPTHWISE = "conv_last", "depthwise_last"


def _abstract(
    x: Aval, w: Aval, *, channels: int, kernel: Sizes, stride: Sizes, padding: Sides,
    dilation: Sizes,
) -> Aval:  # fmt: skip
    """w[B, K, L] holds B bands of L outputs each, of which the first `channels` are real."""
    want(CONV, x, "float")
    depth = math.prod(kernel) * x.shape[-1]
    fits = len(x.shape) == 4 and len(w.shape) == 3 and w.dtype == x.dtype and w.shape[1] == depth
    if not fits or not 0 < channels <= w.shape[0] * w.shape[2]:
        raise ShapeError(
            f"{CONV}: x {x!r}, weight {w!r}, {channels} channels; expected [N, H, W, C] and "
            f"[B, {depth}, L] of one dtype, with B L at least the channels"
        )
    size = window_counts(CONV, x.shape[1:3], kernel, stride, padding, dilation)
    return Aval((x.shape[0], *size, channels), x.dtype)


def _conv(x: Value, w: Value, *, channels: int, **window: Any) -> Value:
    """The windows as rows [N H' W', K], times the weights."""
    seen = f.transpose(_seen(x, **window), (0, 2, 4, 1, 3, 5))
    n, high, wide, *rest = aval(seen).shape
    depth = math.prod(rest)
    rows = f.reshape(f.cast(seen, aval(w).dtype), (n * high * wide, depth))
    bands, _, lanes = aval(w).shape
    columns = f.reshape(f.transpose(w, (1, 0, 2)), (depth, bands * lanes))
    columns = f.slice_(columns, (0, 0), (depth, channels))
    return f.reshape(f.dot(rows, columns), (n, high, wide, channels))


def _seen(x: Value, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes) -> Value:
    """The windows of x in f32: [N, KH, H', KW, W', C]."""
    low, high = ((0, *(p[i] for p in padding), 0) for i in (0, 1))
    x = f.pad(compute(x), low, high)
    for i in (1, 0):
        x = windows(x, i + 1, kernel[i], stride[i], dilation[i])
    return x


def _depthwise_abstract(
    x: Aval, w: Aval, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes
) -> Aval:
    """w[KH KW, C] holds one number per place and channel."""
    want(DEPTHWISE, x, "float")
    if len(x.shape) != 4 or w != Aval((math.prod(kernel), x.shape[-1]), x.dtype):
        raise ShapeError(
            f"{DEPTHWISE}: x {x!r}, weight {w!r}; expected [N, H, W, C] and "
            f"[{math.prod(kernel)}, C] of one dtype"
        )
    size = window_counts(DEPTHWISE, x.shape[1:3], kernel, stride, padding, dilation)
    return Aval((x.shape[0], *size, x.shape[-1]), x.dtype)


def _depthwise(x: Value, w: Value, *, kernel: Sizes, **window: Any) -> Value:
    seen = _seen(x, kernel=kernel, **window)
    shape = aval(seen).shape
    weights = f.reshape(compute(w), (1, kernel[0], 1, kernel[1], 1, shape[-1]))
    return f.cast(f.sum_(f.mul(seen, f.broadcast(weights, shape)), (1, 3)), aval(x).dtype)


_WINDOW: dict[str, Any] = {"kernel": None, "stride": None, "padding": None, "dilation": None}
register_composite(Composite(CONV, _abstract, _conv, {**_WINDOW, "channels": None}))
register_composite(Composite(DEPTHWISE, _depthwise_abstract, _depthwise, _WINDOW))
