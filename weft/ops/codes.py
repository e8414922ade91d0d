"""Integers with one scale for a tensor or a channel (ONNX's QuantizeLinear and DequantizeLinear),
and convolutions of them: exact sums of products of codes, which the compiler makes of float ones
between the two (compile/codes).
"""

from __future__ import annotations

import math
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.conv import Sides, Sizes, window_counts
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.windows import windows

QUANTIZE, DEQUANTIZE = "quantize_linear", "dequantize_linear"
CONV, CONV_LAST, DEPTHWISE_LAST = "conv_codes", "conv_codes_last", "depthwise_codes_last"
BYTES = (dt.int8, dt.uint8)
FOUR = 4  # codes that one instruction multiplies
_EXACT = 512  # products of bytes whose sum a float32 holds exactly


# -- codes and reals ------------------------------------------------------------------------------


def quantize_linear(x: Value, scale: Value, zero: Value) -> Value:
    """Returns x[...] as codes of zero's dtype (int8 or uint8): x / scale, rounded half to even,
    plus zero.

    Codes saturate at the ends of the dtype's range; NaN gives 0. scale (float32) and zero have x's
    rank, and its size or 1 along each axis; or they are scalars.
    """
    return f.call(QUANTIZE, x, scale, zero)


def dequantize_linear(codes: Value, scale: Value, zero: Value) -> Value:
    """(codes - zero) * scale in float32; codes are int8, uint8 or int32, zero has their dtype.
    Shapes as in quantize_linear."""
    return f.call(DEQUANTIZE, codes, scale, zero)


def _parts(name: str, x: Aval, scale: Aval, zero: Aval) -> None:
    for part in (scale, zero):
        fits = len(part.shape) == len(x.shape)
        fits = fits and all(a in (1, b) for a, b in zip(part.shape, x.shape))
        if part.shape and not fits:
            raise ShapeError(
                f"{name}: {part!r} does not fit {x!r}; expected its sizes or 1, or no axes"
            )
    if scale.dtype != dt.float32:
        raise DTypeError(f"{name}: scale {scale.dtype.name}; expected float32")


def _quantize_abstract(x: Aval, scale: Aval, zero: Aval) -> Aval:
    _parts(QUANTIZE, x, scale, zero)
    if x.dtype != dt.float32 or zero.dtype not in BYTES:
        raise DTypeError(f"{QUANTIZE}: x {x!r}, zero {zero!r}; expected float32, and int8 or uint8")
    return Aval(x.shape, zero.dtype)


def _quantize(x: Value, scale: Value, zero: Value) -> Value:
    shape = aval(x).shape
    wide = f.round_(f.div(x, f.broadcast(scale, shape)))
    wide = f.add(wide, f.broadcast(f.cast(zero, dt.float32), shape))
    return f.cast(wide, aval(zero).dtype)  # the cast saturates


def _dequantize_abstract(codes: Aval, scale: Aval, zero: Aval) -> Aval:
    _parts(DEQUANTIZE, codes, scale, zero)
    if codes.dtype != zero.dtype or codes.dtype not in (*BYTES, dt.int32):
        raise DTypeError(
            f"{DEQUANTIZE}: codes {codes!r}, zero {zero!r}; expected one of int8, uint8, int32"
        )
    return Aval(codes.shape, dt.float32)


def _dequantize(codes: Value, scale: Value, zero: Value) -> Value:
    shape = aval(codes).shape
    whole = f.sub(f.cast(codes, dt.int32), f.broadcast(f.cast(zero, dt.int32), shape))
    return f.mul(f.cast(whole, dt.float32), f.broadcast(scale, shape))


# -- convolutions ---------------------------------------------------------------------------------


def _wants(name: str, x: Aval, w: Aval, start: Aval, channels: int, kind: dt.DType) -> None:
    if x.dtype not in BYTES or w.dtype != dt.int8 or start != Aval((channels,), kind):
        raise DTypeError(
            f"{name}: x {x!r}, weight {w!r}, start {start!r}; expected codes, int8 and "
            f"{kind.name}[{channels}]"
        )


def _conv_abstract(
    x: Aval, w: Aval, start: Aval, *, stride: Sizes, padding: Sides, dilation: Sizes, groups: int,
    zero: int,
) -> Aval:  # fmt: skip
    """Shape rule of `conv` for codes: start[O] plus the exact sum of products.

    The result is int32 (float32 where there is one channel per group). The padding has the value
    `zero`.
    """
    deep = _is_deep(x.shape, w.shape, groups)
    _wants(CONV, x, w, start, w.shape[0], dt.float32 if deep else dt.int32)
    if len(x.shape) != len(w.shape) or not (deep or (groups == 1 and x.shape[1] == w.shape[1])):
        raise ShapeError(f"{CONV}: x {x!r}, weight {w!r}, groups {groups}")
    size = window_counts(CONV, x.shape[2:], w.shape[2:], stride, padding, dilation)
    return Aval((x.shape[0], w.shape[0], *size), start.dtype)


def _is_deep(x: Sizes, w: Sizes, groups: int) -> bool:
    """True if each channel is convolved by itself."""
    return w[1] == 1 and groups == x[1] == w[0]


def _conv(
    x: Value, w: Value, start: Value, *, stride: Sizes, padding: Sides, dilation: Sizes,
    groups: int, zero: int,
) -> Value:  # fmt: skip
    low, high = ((0, 0, *(p[i] for p in padding)) for i in (0, 1))
    x = f.pad(f.cast(x, dt.float32), low, high, float(zero))
    n, c, *_ = aval(x).shape
    o, _, *kernel = aval(w).shape
    rank = len(kernel)
    for i in reversed(range(rank)):
        x = windows(x, i + 2, kernel[i], stride[i], dilation[i])
    size = aval(x).shape[3::2]
    places = tuple(range(2, 2 + 2 * rank, 2))
    bias = f.reshape(start, (1, o, *([1] * rank)))
    if groups > 1 or aval(start).dtype == dt.float32:
        ones = (d if i % 2 == 0 else 1 for i, d in enumerate(aval(x).shape[2:]))
        weights = f.reshape(f.cast(w, dt.float32), (1, c, *ones))
        total = f.sum_(f.mul(x, f.broadcast(weights, aval(x).shape)), places)
        return f.add(total, f.broadcast(bias, aval(total).shape))
    rows = f.transpose(x, (0, *range(3, 3 + 2 * rank, 2), 1, *places))
    rows = f.reshape(rows, (n * math.prod(size), -1))
    total = exact_product(rows, f.transpose(f.reshape(w, (o, -1))))
    back = f.transpose(f.reshape(total, (n, *size, o)), (0, 1 + rank, *range(1, 1 + rank)))
    return f.add(back, f.broadcast(bias, aval(back).shape))


def exact_product(x: Value, w: Value) -> Value:
    """x[M, K] w[K, N] of codes in int32: float32 holds the sums of a few."""
    (m, k), n = aval(x).shape, aval(w).shape[1]
    more = -k % _EXACT if k > _EXACT else 0
    x, w = f.cast(x, dt.float32), f.cast(w, dt.float32)
    if more:
        x, w = f.pad(x, (0, 0), (0, more)), f.pad(w, (0, 0), (more, 0))
    parts = (k + more) // _EXACT or 1
    x = f.transpose(f.reshape(x, (m, parts, -1)), (1, 0, 2))
    return f.sum_(f.cast(f.dot(x, f.reshape(w, (parts, -1, n))), dt.int32), (0,))


# -- with channels last ---------------------------------------------------------------------------


def _last_abstract(
    x: Aval, w: Aval, start: Aval, *, channels: int, kernel: Sizes, stride: Sizes, padding: Sides,
    dilation: Sizes, zero: int,
) -> Aval:  # fmt: skip
    """x[N, H, W, C] with C a multiple of 4; w[B, K / 4, L, 4] holds B bands of L outputs each, of
    which the first `channels` are real. Gives start[channels] plus the sums."""
    depth = math.prod(kernel) * x.shape[-1]
    _wants(CONV_LAST, x, w, start, channels, dt.int32)
    fits = len(x.shape) == len(w.shape) == 4 and x.shape[-1] % FOUR == 0
    if not fits or w.shape[1::2] != (depth // FOUR, FOUR) or channels > w.shape[0] * w.shape[2]:
        raise ShapeError(f"{CONV_LAST}: x {x!r}, weight {w!r}, {channels} channels")
    size = window_counts(CONV_LAST, x.shape[1:3], kernel, stride, padding, dilation)
    return Aval((x.shape[0], *size, channels), dt.int32)


def _seen(
    x: Value, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes, zero: int
) -> Value:
    """The windows of x in f32: [N, KH, H', KW, W', C]."""
    low, high = ((0, *(p[i] for p in padding), 0) for i in (0, 1))
    x = f.pad(f.cast(x, dt.float32), low, high, float(zero))
    for i in (1, 0):
        x = windows(x, i + 1, kernel[i], stride[i], dilation[i])
    return x


def _last(x: Value, w: Value, start: Value, *, channels: int, **window: Any) -> Value:
    seen = f.transpose(_seen(x, **window), (0, 2, 4, 1, 3, 5))
    n, high, wide, *rest = aval(seen).shape
    bands, fours, lanes, _ = aval(w).shape
    columns = f.reshape(f.transpose(w, (1, 3, 0, 2)), (fours * FOUR, bands * lanes))
    columns = f.slice_(columns, (0, 0), (fours * FOUR, channels))
    total = exact_product(f.reshape(seen, (n * high * wide, math.prod(rest))), columns)
    total = f.reshape(total, (n, high, wide, channels))
    return f.add(total, f.broadcast(start, aval(total).shape))


def _depthwise_abstract(
    x: Aval, w: Aval, start: Aval, *, kernel: Sizes, stride: Sizes, padding: Sides, dilation: Sizes,
    zero: int,
) -> Aval:  # fmt: skip
    """w[KH KW, C] holds one code per place and channel. Gives whole numbers in float32."""
    _wants(DEPTHWISE_LAST, x, w, start, x.shape[-1], dt.float32)
    if len(x.shape) != 4 or w.shape != (math.prod(kernel), x.shape[-1]):
        raise ShapeError(f"{DEPTHWISE_LAST}: x {x!r}, weight {w!r}")
    size = window_counts(DEPTHWISE_LAST, x.shape[1:3], kernel, stride, padding, dilation)
    return Aval((x.shape[0], *size, x.shape[-1]), dt.float32)


def _depthwise(x: Value, w: Value, start: Value, *, kernel: Sizes, **window: Any) -> Value:
    seen = _seen(x, kernel=kernel, **window)
    shape = aval(seen).shape
    weights = f.reshape(f.cast(w, dt.float32), (1, kernel[0], 1, kernel[1], 1, shape[-1]))
    total = f.sum_(f.mul(seen, f.broadcast(weights, shape)), (1, 3))
    return f.add(total, f.broadcast(start, aval(total).shape))


register_composite(Composite(QUANTIZE, _quantize_abstract, _quantize, {}))
register_composite(Composite(DEQUANTIZE, _dequantize_abstract, _dequantize, {}))
_WINDOW: dict[str, Any] = {"stride": None, "padding": None, "dilation": None, "zero": 0}
register_composite(Composite(CONV, _conv_abstract, _conv, {**_WINDOW, "groups": 1}))
_WINDOW["kernel"] = None
register_composite(Composite(CONV_LAST, _last_abstract, _last, {**_WINDOW, "channels": None}))
register_composite(Composite(DEPTHWISE_LAST, _depthwise_abstract, _depthwise, _WINDOW))
