"""Integers that encode reals: quantisation, and products of integers with zero points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.importers.onnx.linear import product
from weft.importers.onnx.nets import convolution, sides_of, steps_of, windows_of
from weft.importers.onnx.table import MICROSOFT, NodeCall, Value, is_host, op
from weft.importers.onnx.values import INT4, NUMPY, UINT4, numpy_dtype
from weft.ops.codes import DEQUANTIZE, QUANTIZE
from weft.tensor.core import Tensor


def _spread(x: Value, part: Value, axis: int, block: int) -> Value:
    """A scale or zero point as broad as x: one for all, one per slice of an axis, or per block."""
    if part.size == 1:
        return part.reshape(())
    if part.ndim == 1 and not block:
        return part.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    a = axis % x.ndim
    if part.ndim != x.ndim:
        raise ShapeError(f"scales {list(part.shape)} for {list(x.shape)}")
    size = block or -(-x.shape[a] // part.shape[a])
    xp = np if is_host(part) else weft
    wide = xp.repeat(part, size, axis=a)
    key = tuple(slice(0, x.shape[a]) if i == a else slice(None) for i in range(x.ndim))
    return wide[key]


_RANGES = {UINT4: (0, 15), INT4: (-8, 7),
           np.dtype(np.uint8): (0, 255), np.dtype(np.int8): (-128, 127),
           np.dtype(np.uint16): (0, 65535), np.dtype(np.int16): (-32768, 32767)}  # fmt: skip


@op("QuantizeLinear", raw=True)
@op("QuantizeLinear", domain=MICROSOFT, raw=True)
def quantize_linear(call: NodeCall, x: Value, scale: Value, zero: Value = None) -> Value:
    """x / scale to the nearest even integer, plus the zero point, within the type's range."""
    code = call.get("output_dtype", 0)
    target = (
        NUMPY[code] if code in NUMPY else np.dtype(np.uint8) if zero is None else numpy_dtype(zero)
    )
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    low, high = _RANGES[target]
    if target.itemsize == 2:  # the type exists only on the host
        x, scale = call.host(x, "what is quantised"), call.host(scale, "the scale")
        ratio = np.rint(x.astype(np.float32) / _spread(x, scale, axis, block).astype(np.float32))
        shift = 0 if zero is None else _spread(x, call.host(zero, "the zero point"), axis, block)
        return np.clip(ratio + shift, low, high).astype(target)
    narrow = target in (UINT4, INT4)
    stored = {UINT4: dt.uint8, INT4: dt.int8}.get(target) or dt.as_dtype(target)
    x = call.tensor(x).cast(dt.float32)
    parts = _placed(call, x, scale, zero, stored, axis, block)
    if parts is not None and not narrow:
        return x._call(QUANTIZE, *parts)
    wide = x / _spread(x, call.tensor(scale), axis, block).cast(dt.float32)
    made = wide.round()
    if zero is not None:
        made = made + _spread(x, call.tensor(_plain(zero)), axis, block).cast(dt.float32)
    return made.maximum(float(low)).minimum(float(high)).cast(stored)


def _placed(
    call: NodeCall, x: Tensor, scale: Value, zero: Value, stored: Any, axis: int, block: int
) -> tuple[Tensor, Tensor] | None:
    """Scale and zero point as the operands of quantize_linear and its reverse: numbers in the graph
    where the file has one for all (also of zeros); None where each is of a block."""
    if block or any(part is not None and part.ndim > 1 for part in (scale, zero)):
        return None
    found = []
    for part, kind in ((scale, dt.float32), (zero, stored)):
        host = np.zeros(1) if part is None else part
        if isinstance(part, Tensor) and not part.is_traced:
            host = call.host(part, "a scale or zero point")
        if is_host(host) and host.size and (host == host.flat[0]).all():
            found.append(weft.full((), host.flat[0].item(), kind))
        else:
            found.append(_spread(x, call.tensor(_plain(part)), axis, 0).cast(kind))
    return found[0], found[1]


def _plain(x: Value) -> Value:
    """4-bit numbers of NumPy's extension types as bytes."""
    if is_host(x) and x.dtype in (INT4, UINT4):
        return x.astype(np.int8 if x.dtype == INT4 else np.uint8)
    return x


@op("DequantizeLinear", raw=True)
@op("DequantizeLinear", domain=MICROSOFT, raw=True)
def dequantize_linear(call: NodeCall, x: Value, scale: Value, zero: Value = None) -> Value:
    """(x - zero point) * scale, in the scale's type."""
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    if is_host(x) and x.dtype.itemsize == 2:
        scale = call.host(scale, "the scale")
        shift = 0 if zero is None else _spread(x, call.host(zero, "the zero point"), axis, block)
        made = (x.astype(np.int32) - shift) * _spread(x, scale, axis, block)
        return call.tensor(made.astype(scale.dtype))
    codes = call.tensor(_plain(x))
    parts = _placed(call, codes, scale, zero, codes.dtype, axis, block)
    code = call.get("output_dtype", 0)
    if parts is not None and codes.dtype in (dt.int8, dt.uint8, dt.int32):
        kind = dt.as_dtype(NUMPY[code]) if code in NUMPY else dt.as_dtype(scale.dtype)
        return codes._call(DEQUANTIZE, *parts).cast(kind)
    scale = call.tensor(scale)
    wide = codes.cast(dt.float32)
    if zero is not None:
        shift = call.tensor(_plain(zero))
        if codes.dtype == dt.int32:  # beyond 2^24 floats are not exact
            wide = (codes - _spread(codes, shift, axis, block)).cast(dt.float32)
        else:
            wide = wide - _spread(codes, shift, axis, block).cast(dt.float32)
    made = wide * _spread(codes, scale, axis, block).cast(dt.float32)
    return made.cast(dt.as_dtype(NUMPY[code]) if code in NUMPY else scale.dtype)


@op("DynamicQuantizeLinear")
def dynamic_quantize(call: NodeCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x as uint8 with the scale and zero point of its own range, which has 0 in it."""
    low, high = x.min().minimum(0.0), x.max().maximum(0.0)
    scale = (high - low) / 255.0
    scale = (low == high).where(1.0, scale)  # ONNX Runtime's rule
    zero = (-low / scale).round().maximum(0.0).minimum(255.0)
    made = ((x / scale).round() + zero).maximum(0.0).minimum(255.0)
    return made.cast(dt.uint8), scale, zero.cast(dt.uint8)


# -- products of integers -------------------------------------------------------------------------


def _rows(zero: Tensor, last: bool) -> Tensor:
    """A zero point per row (or column) as broad as a matrix."""
    if zero.ndim == 0 or zero.size == 1:
        return zero.reshape(())
    return zero if zero.ndim > 1 or last else zero.unsqueeze(-1)


def integer_product(a: Tensor, b: Tensor, za: Tensor | None, zb: Tensor | None) -> Tensor:
    """(a - za) @ (b - zb) in int32: products of bytes, then sums of rows and columns."""
    if (za is not None and za.ndim > 1) or (zb is not None and zb.ndim > 1):
        return _wide_product(a, b, za, zb)
    if (a.dtype, b.dtype) == (dt.uint8, dt.int8):  # bytes of one type are multiplied as they are
        a = (a.cast(dt.int32) - 128).cast(dt.int8)
        za = (0 if za is None else za.cast(dt.int32)) - weft.full((), 128, dt.int32)
    out = a.matmul(b, dt.int32)
    depth = a.shape[-1]
    left = None if za is None else _rows(za.cast(dt.int32), False)
    right = None if zb is None else _rows(zb.cast(dt.int32), True)
    if left is not None:
        out = out - left * b.sum(-2, b.ndim > 1, dt.int32)
    if right is not None:
        out = out - a.sum(-1, a.ndim > 1, dt.int32) * right
    if left is not None and right is not None:
        out = out + left * right * depth
    return out


def _wide_product(a: Tensor, b: Tensor, za: Tensor | None, zb: Tensor | None) -> Tensor:
    x, y = a.cast(dt.int32), b.cast(dt.int32)
    x = x if za is None else x - za.cast(dt.int32)
    y = y if zb is None else y - zb.cast(dt.int32)
    return product(x, y)


@op("MatMulInteger")
def matmul_integer(
    call: NodeCall, a: Tensor, b: Tensor, za: Tensor | None = None, zb: Tensor | None = None
) -> Tensor:
    return integer_product(a, b, za, zb)


def _requantized(acc: Tensor, scale: Tensor, out_scale: Tensor, out_zero: Tensor) -> Tensor:
    """Sums of integers as codes of another scale."""
    info = weft.iinfo(out_zero.dtype)
    wide = (acc.cast(dt.float32) * (scale / out_scale.cast(dt.float32))).round()
    made = wide + out_zero.cast(dt.float32)
    return made.maximum(float(info.min)).minimum(float(info.max)).cast(out_zero.dtype)


@op("QLinearMatMul")
def qlinear_matmul(
    call: NodeCall,
    a: Tensor,
    sa: Tensor,
    za: Tensor,
    b: Tensor,
    sb: Tensor,
    zb: Tensor,
    sy: Tensor,
    zy: Tensor,
) -> Tensor:
    if sa.size == 1 and sb.ndim < 2:
        left, right = _dequantized(call, a, sa, za, -1), _dequantized(call, b, sb, zb, -1)
        return _quantized(call, left @ right, sy, zy)
    acc = integer_product(a, b, za, zb)
    scale = _rows(sa.cast(dt.float32), False) * _rows(sb.cast(dt.float32), True)
    return _requantized(acc, scale, sy.reshape(()), zy.reshape(()))


def _dequantized(call: NodeCall, x: Tensor, scale: Value, zero: Value, axis: int) -> Tensor:
    """Codes as reals; of the scale and zero point there are one, or one per slice of an axis."""
    parts = _placed(call, x, scale, zero, x.dtype, axis, 0)
    if parts is None:
        raise ShapeError(f"scales {list(scale.shape)} for {list(x.shape)}")
    return x._call(DEQUANTIZE, *parts)


def _quantized(call: NodeCall, x: Tensor, scale: Value, zero: Value) -> Tensor:
    """Reals as codes of the zero point's type."""
    parts = _placed(call, x, scale, zero, dt.as_dtype(zero.dtype), 1, 0)
    if parts is None:
        raise ShapeError(f"scales {list(scale.shape)} for {list(x.shape)}")
    return x._call(QUANTIZE, *parts)


def _convolved(call: NodeCall, x: Tensor, w: Tensor) -> Tensor:
    """The convolution of reals with the node's attributes."""
    strides, dilations = steps_of(call, x, w)
    sides = sides_of(call, x.shape[2:], w.shape[2:], strides, dilations)
    return convolution(x, w, None, strides, sides, dilations, call.get("group", 1))


def _signed(x: Tensor, zero: Tensor | None) -> tuple[Tensor, Tensor]:
    """Bytes and their zero point (int32) as signed ones."""
    shift = weft.full((), 0, dt.int32) if zero is None else zero.cast(dt.int32)
    if x.dtype == dt.int8:
        return x, shift
    return (x.cast(dt.int32) - 128).cast(dt.int8), shift - 128


@op("ConvInteger")
def conv_integer(
    call: NodeCall, x: Tensor, w: Tensor, zx: Tensor | None = None, zw: Tensor | None = None
) -> Tensor:
    """A product of the weights with the windows as columns, both bytes, summed in int32."""
    strides, dilations = steps_of(call, x, w)
    groups, kernel = call.get("group", 1), w.shape[2:]
    sides = sides_of(call, x.shape[2:], kernel, strides, dilations)
    n, c, o = x.shape[0], x.shape[1], w.shape[0]
    if groups < 1 or c != w.shape[1] * groups or o % groups:
        raise ShapeError(f"{list(x.shape)} by {list(w.shape)} in {groups} groups")
    x, zx = _signed(x, zx)
    w, zw = _signed(w, zw)
    seen = windows_of(x, zx.reshape(()), kernel, strides, sides, dilations)
    count = seen.shape[3:]
    columns = seen.reshape(n, groups, c // groups * math.prod(kernel), math.prod(count))
    rows = w.reshape(groups, o // groups, -1)
    shift = (zw.expand(o) if zw.size == 1 else zw).reshape(groups, o // groups, 1)
    out = rows.matmul(columns, dt.int32)
    out = out - shift * columns.cast(dt.int32).sum(-2, keepdims=True)
    out = out - (rows.cast(dt.int32).sum(-1, keepdims=True) - shift * rows.shape[-1]) * zx
    return out.reshape(n, o, *count)


@op("QLinearConv")
def qlinear_conv(
    call: NodeCall, x: Tensor, sx: Tensor, zx: Tensor, w: Tensor, sw: Tensor, zw: Tensor,
    sy: Tensor, zy: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    wide = _dequantized(call, x, sx, zx, 1), _dequantized(call, w, sw, zw, 0)
    out = _convolved(call, *wide)
    if bias is not None:
        real = bias.cast(dt.float32) * (sx.reshape(()) * sw)
        out = out + real.reshape([1, -1, *([1] * (x.ndim - 2))])
    return _quantized(call, out, sy, zy)


def reals(x: Tensor, scale: Tensor, zero: Any) -> Tensor:
    """Codes with one scale as reals."""
    wide = x.cast(dt.float32)
    return (wide if zero is None else wide - zero.cast(dt.float32)) * scale


def zero_of(call: NodeCall, zero: Any, like: Tensor) -> Tensor:
    """A zero point; where it is left out, 0 of the type of codes `like`."""
    return call.tensor(np.zeros((), like.dtype.numpy)) if zero is None else zero


def codes(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Reals as codes with one scale and the zero point's type."""
    return _requantized(x, weft.full((), 1.0, dt.float32), scale, zero)
