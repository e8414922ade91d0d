"""conv and conv_transpose over images of any rank.

They are composites whose bodies are movement and one dot. So gradients need neither a scatter nor a
rule for the convolution, and code does not grow with the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.conv_phases import BROAD, PHASES, Axis, in_phases
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.tape import pull_through
from weft.ops.windows import windows

Sizes = tuple[int, ...]
Sides = tuple[tuple[int, int], ...]  # zeros before and after, per spatial axis


def window_counts(
    name: str, size: Sequence[int], kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes
) -> Sizes:
    """Returns the number of windows that fit along each axis. Raises ShapeError when none does."""
    if not len(size) == len(kernel) == len(stride) == len(padding) == len(dilation):
        raise ShapeError(
            f"{name}: kernel {kernel}, stride {stride}, padding {padding} and dilation {dilation} "
            f"for {len(size)} axes; expected one each per axis"
        )
    out = []
    for n, k, s, sides, d in zip(size, kernel, stride, padding, dilation):
        if min(k, s, d) < 1 or min(sides) < 0:
            raise ShapeError(
                f"{name}: kernel {k}, stride {s}, dilation {d} are >= 1, padding {sides} >= 0"
            )
        reach, wide = d * (k - 1) + 1, n + sum(sides)
        if wide < reach:
            p = f"2 x {sides[0]}" if sides[0] == sides[1] else f"{sides[0]} + {sides[1]}"
            raise ShapeError(f"{name}: a window of {reach} does not fit {n} + {p} of padding")
        out.append((wide - reach) // s + 1)
    return tuple(out)


def padded(x: Value, padding: Sides, value: float = 0.0) -> Value:
    """x[N, C, ...] with `value` around its spatial axes."""
    low, high = ([0, 0, *(p[i] for p in padding)] for i in (0, 1))
    return f.pad(x, low, high, value)


# -- convolution ----------------------------------------------------------------------------------


def _abstract(
    x: Aval, w: Aval, *, stride: Sizes, padding: Sides, dilation: Sizes, groups: int
) -> Aval:
    want("conv", x, "float")
    ok = len(x.shape) == len(w.shape) > 2 and x.dtype == w.dtype and groups > 0
    if not ok or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ShapeError(
            f"conv: x {x!r}, weight {w!r}, groups {groups}; expected [N, C, ...] and "
            "[O, C / groups, ...] of one dtype and rank, with O a multiple of groups"
        )
    size = window_counts("conv", x.shape[2:], w.shape[2:], stride, padding, dilation)
    return Aval((x.shape[0], w.shape[0], *size), x.dtype)


def _conv(
    x: Value, w: Value, *, stride: Sizes, padding: Sides, dilation: Sizes, groups: int
) -> Value:
    """The weights times the windows of x, side by side as the columns of a matrix (im2col:
    Chellapilla et al. 2006); with one channel per group, the sum of products. Windows are taken of
    x in f32, so that its gradient, a sum over windows, is rounded once."""
    o, per, *kernel = aval(w).shape
    seen = _seen(compute(x), kernel, stride, padding, dilation)
    n, c, *pairs = aval(seen).shape  # per axis: the kernel's size, then the result's
    if per == 1 and o == c == groups:
        return _depthwise(seen, w)
    matrix = _columns(seen, groups, aval(w).dtype)
    depth = aval(matrix).shape[2]
    weights = f.reshape(w, (1, groups, o // groups, depth))
    weights = f.broadcast(weights, (n, groups, o // groups, depth))
    return f.reshape(f.dot(weights, matrix), (n, o, *pairs[1::2]))


def _columns(seen: Value, groups: int, dtype: Any) -> Value:
    """Windows [N, C, K0, S0, K1, S1, ...] as the columns of matrices [N, groups, C / groups K0
    K1 ..., S0 S1 ...]."""
    n, c, *pairs = aval(seen).shape
    places, results = (range(2 + i, 2 + len(pairs), 2) for i in (0, 1))
    depth, count = c // groups * math.prod(pairs[::2]), math.prod(pairs[1::2])
    seen = f.transpose(seen, (0, 1, *places, *results))
    return f.cast(f.reshape(seen, (n, groups, depth, count)), dtype)


def _seen(x: Value, kernel: Sequence[int], stride: Sizes, padding: Sides, dilation: Sizes) -> Value:
    """The windows of x[N, C, ...]: [N, C, K0, S0, K1, S1, ...]."""
    x = padded(x, padding)
    for i in reversed(range(len(kernel))):
        x = windows(x, i + 2, kernel[i], stride[i], dilation[i])
    return x


def _depthwise(seen: Value, w: Value) -> Value:
    """The sum over windows [N, C, K0, S0, K1, S1, ...] times one weight per channel and place."""
    shape = aval(seen).shape
    ones = (d if i % 2 == 0 else 1 for i, d in enumerate(shape[2:]))
    kernel = f.reshape(compute(w), (1, shape[1], *ones))
    places = tuple(range(2, len(shape), 2))
    return f.cast(f.sum_(f.mul(seen, f.broadcast(kernel, shape)), places), aval(w).dtype)


def _vjp(g: Value, out: Value, x: Value, w: Value, **params: Any) -> Sequence[Any]:
    """It is linear in x, whose gradient is a transposed convolution of g, and in w."""
    size, kernel = aval(x).shape[2:], aval(w).shape[2:]
    sides = zip(size, kernel, params["stride"], params["padding"], params["dilation"])
    more = tuple((n + sum(p) - d * (k - 1) - 1) % s for n, k, s, p, d in sides)
    return (
        lambda: f.call("conv_transpose", g, w, output_padding=more, **params),
        lambda: _weight_gradient(g, x, w, **params),
    )


def _weight_gradient(
    g: Value, x: Value, w: Value, *, stride: Sizes, padding: Sides, dilation: Sizes, groups: int
) -> Value:
    """The gradient of conv's weights w, where that of its result is g: the products of g with
    the windows of x, rounded once."""
    (n, o, *size), shape, wide = aval(g).shape, aval(w).shape, dt.compute_dtype(aval(w).dtype)
    seen = _seen(compute(x), shape[2:], stride, padding, dilation)
    if shape[1] == 1 and o == aval(x).shape[1] == groups:
        ones = (d if i % 2 else 1 for i, d in enumerate(aval(seen).shape[2:]))
        by = f.broadcast(f.reshape(compute(g), (n, o, *ones)), aval(seen).shape)
        made = f.sum_(f.mul(seen, by), (0, *range(3, 3 + 2 * len(size), 2)))
    else:
        matrix = f.swap_last(_columns(seen, groups, aval(w).dtype))
        rows = f.reshape(g, (n, groups, o // groups, math.prod(size)))
        made = f.sum_(f.dot(rows, matrix, wide), (0,))
    return f.cast(f.reshape(made, shape), aval(w).dtype)


# -- transposed convolution -----------------------------------------------------------------------


def _image(
    size: Sequence[int], kernel: Sequence[int], stride: Sizes, padding: Sides,
    output_padding: Sizes, dilation: Sizes,
) -> Sizes:  # fmt: skip
    """The size of the image whose convolution gives `size`."""
    sides = zip(size, kernel, stride, padding, output_padding, dilation)
    return tuple((n - 1) * s - sum(p) + d * (k - 1) + more + 1 for n, k, s, p, more, d in sides)


def _transpose_abstract(
    x: Aval, w: Aval, *, stride: Sizes, padding: Sides, output_padding: Sizes, dilation: Sizes,
    groups: int,
) -> Aval:  # fmt: skip
    want("conv_transpose", x, "float")
    ok = len(x.shape) == len(w.shape) > 2 and x.dtype == w.dtype and groups > 0
    if not ok or x.shape[1] != w.shape[0] or w.shape[0] % groups:
        raise ShapeError(
            f"conv_transpose: x {x!r}, weight {w!r}, groups {groups}; expected [N, C, ...] and "
            "[C, O / groups, ...] of one dtype and rank, with C a multiple of groups"
        )
    rank = len(x.shape) - 2
    if not len(stride) == len(padding) == len(output_padding) == len(dilation) == rank:
        raise ShapeError(
            f"conv_transpose: stride {stride}, padding {padding}, output_padding {output_padding} "
            f"and dilation {dilation} for {rank} axes; expected one each per axis"
        )
    if any(not 0 <= more < max(s, d) for more, s, d in zip(output_padding, stride, dilation)):
        raise ShapeError(
            f"conv_transpose: output_padding {output_padding}; expected less than the stride "
            f"{stride} or the dilation {dilation}"
        )
    size = _image(x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation)
    if min(size) < 1:
        raise ShapeError(f"conv_transpose: {x!r} with padding {padding} leaves an image {size}")
    return Aval((x.shape[0], w.shape[1] * groups, *size), x.dtype)


def _conv_transpose(
    x: Value, w: Value, *, stride: Sizes, padding: Sides, output_padding: Sizes, dilation: Sizes,
    groups: int,
) -> Value:  # fmt: skip
    """The gradient of conv with respect to its image, given that of its result (Dumoulin and Visin
    2016, ch. 4): each element of x spreads over the window that a convolution would have read."""
    kernel, size = aval(w).shape[2:], aval(x).shape[2:]
    image = _image(size, kernel, stride, padding, output_padding, dilation)
    axes = [Axis(*a) for a in zip(size, kernel, stride, padding, dilation, image)]
    (c, per), overlap = aval(w).shape[:2], any(axis.overlap for axis in axes)
    broad = per >= BROAD or (per == 1 and c == groups)
    if broad and overlap and math.prod(stride) <= PHASES:
        return in_phases(x, w, axes, groups)
    return _spread(x, w, axes, groups)


def _spread(x: Value, w: Value, axes: Sequence[Axis], groups: int) -> Value:
    """The sum of the products of each element of x at each place of its window."""
    c, per, *kernel = aval(w).shape
    n, _, *size = aval(x).shape
    image, stride, padding, dilation = zip(
        *((a.image, a.stride, a.sides, a.dilation) for a in axes)
    )
    counts = window_counts("conv_transpose", image, tuple(kernel), stride, padding, dilation)
    depth, count, rank = per * math.prod(kernel), math.prod(size), len(kernel)
    weights = f.swap_last(f.reshape(w, (1, groups, c // groups, depth)))
    weights = f.broadcast(weights, (n, groups, depth, c // groups))
    spread = f.dot(weights, f.reshape(x, (n, groups, c // groups, count)))
    spread = f.reshape(compute(spread), (n, per * groups, *kernel, *size))
    order = [2 + i + j * rank for i in range(rank) for j in (0, 1)]
    spread = f.transpose(spread, (0, 1, *order))
    # output_padding may make room for one more window, which no element of x has
    more = [m for k, s in zip(counts, size) for m in (0, k - s)]
    spread = f.pad(spread, (0,) * (2 + 2 * rank), (0, 0, *more))
    zeros = f.broadcast(f.const(0.0, aval(spread).dtype), (n, per * groups, *image))
    sides = (tuple(kernel), stride, padding, dilation)
    return f.cast(pull_through(lambda z: _seen(z, *sides), spread, (zeros,))[0], aval(x).dtype)


def _transpose_vjp(
    g: Value, out: Value, x: Value, w: Value, *, output_padding: Sizes, **params: Any
) -> Sequence[Any]:
    """It is linear in x, whose gradient is the convolution of g, and in w."""
    size = aval(x).shape
    image, kernel = aval(out).shape[2:], aval(w).shape[2:]
    counts = window_counts("conv_transpose", image, kernel, **{k: params[k] for k in _WINDOW})
    more = [m - d for m, d in zip(counts, size[2:])]  # windows that no element of x has

    def back() -> Value:
        made = f.call("conv", g, w, **params)
        return f.slice_(made, (0,) * len(size), size) if any(more) else made

    def weights() -> Value:
        rows = f.pad(x, (0,) * len(size), (0, 0, *more)) if any(more) else x
        return _weight_gradient(rows, g, w, **params)

    return back, weights


_WINDOW = ("stride", "padding", "dilation")
_PARAMS: dict[str, Any] = {"stride": None, "padding": None, "dilation": None, "groups": 1}
register_composite(Composite("conv", _abstract, _conv, _PARAMS, vjp=_vjp))
_BACK = {**_PARAMS, "output_padding": None}
register_composite(
    Composite("conv_transpose", _transpose_abstract, _conv_transpose, _BACK, vjp=_transpose_vjp)
)
