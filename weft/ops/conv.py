"""conv2d: a composite whose body is movement and one dot, so that gradients need neither scatter
nor a rule for the convolution, and code does not grow with the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.windows import windows

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
    """The weights times the windows of x, side by side as the columns of a matrix (im2col:
    Chellapilla et al. 2006); with one channel per group, the sum of products. Windows are taken of
    x in f32, so that its gradient, a sum over windows, is rounded once."""
    o, per, kh, kw = aval(w).shape
    seen = f.pad(compute(x), (0, 0, *padding), (0, 0, *padding))
    for i, size in ((1, kw), (0, kh)):
        seen = windows(seen, i + 2, size, stride[i], dilation[i])
    n, c, _, high, _, wide = aval(seen).shape
    if per == 1 and o == c == groups:
        return _depthwise(seen, w)
    depth, count = per * kh * kw, high * wide
    seen = f.transpose(seen, (0, 1, 2, 4, 3, 5))  # [N, C, KH, KW, H', W']
    matrix = f.cast(f.reshape(seen, (n, groups, depth, count)), aval(w).dtype)
    weights = f.reshape(w, (1, groups, o // groups, depth))
    weights = f.broadcast(weights, (n, groups, o // groups, depth))
    return f.reshape(f.dot(weights, matrix), (n, o, high, wide))


def _depthwise(seen: Value, w: Value) -> Value:
    """The sum over windows [N, C, KH, H', KW, W'] times one weight per channel and place."""
    shape = aval(seen).shape
    kernel = f.reshape(compute(w), (1, shape[1], shape[2], 1, shape[4], 1))
    return f.cast(f.sum_(f.mul(seen, f.broadcast(kernel, shape)), (2, 4)), aval(w).dtype)


_ONE, _NONE = (1, 1), (0, 0)
register_composite(
    Composite(
        "conv2d",
        _conv_abstract,
        _conv2d,
        {"stride": _ONE, "padding": _NONE, "dilation": _ONE, "groups": 1},
    )
)
