"""Weights of 2, 4 or 8 bits in blocks with scales, as com.microsoft packs them."""

from __future__ import annotations

from typing import Any

import weft
from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.core.packed import Form
from weft.importers.onnx.table import MICROSOFT, NodeCall, op
from weft.ops.packed import dequantize
from weft.tensor.core import Tensor


def unpacked_codes(x: Tensor, bits: int) -> Tensor:
    """Codes packed into bytes along the last axis, the first in the lowest bits, one by one."""
    if bits == 8:
        return x
    if bits not in (2, 4):
        raise UsageError(f"codes of {bits} bits; weft reads 2, 4 and 8")
    parts = [(x >> (i * bits)) & ((1 << bits) - 1) for i in range(8 // bits)]
    return weft.stack(parts, -1).reshape(*x.shape[:-1], -1)


def packed_matrix(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, k: int, block: int, bits: int
) -> Tensor:
    """The float32 matrix [N, K] that packed blocks [N, blocks, bytes] encode, in weft's own form of
    packed weights, which products read directly."""
    n, groups = weight.shape[0], -(-k // block)
    table = scales.reshape(n, groups).cast(dt.float32)
    flat = weight.reshape(n, -1)
    if zeros is None:
        form = Form(bits, block, offset=1 << (bits - 1))
        parts = {"codes": flat, "scales": table}
    elif zeros.dtype.is_float:
        form = Form(bits, block, shift="low")
        parts = {"codes": flat, "scales": table}
        parts["lows"] = -(zeros.reshape(n, groups).cast(dt.float32) * table)
    else:
        form = Form(bits, block, shift="zero")
        found = unpacked_codes(zeros.reshape(n, -1), bits)[:, :groups]
        parts = {"codes": flat, "scales": table, "zeros": found}
    made = Tensor(dequantize(form, {name: part.value for name, part in parts.items()}))
    return made if made.shape[1] == k else made.narrow(1, 0, k)


def _by_column(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, order: Tensor, k: int, bits: int
) -> Tensor:
    """The matrix [N, K] whose column i has the scale and the zero point number order[i]."""
    n = weight.shape[0]
    table = scales.reshape(n, -1).cast(dt.float32)
    codes = unpacked_codes(weight.reshape(n, -1), bits)[:, :k].cast(dt.float32)
    if zeros is None:
        shift: Any = float(1 << (bits - 1))
    elif zeros.dtype.is_float:
        shift = zeros.reshape(n, -1).cast(dt.float32).take(order, 1)
    else:
        shift = unpacked_codes(zeros.reshape(n, -1), bits)[:, : table.shape[1]]
        shift = shift.cast(dt.float32).take(order, 1)
    made: Tensor = codes - shift
    return made * table.take(order, 1)


@op("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    call: NodeCall, x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None = None,
    order: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    bits, k = call.get("bits", 4), call.need("K")
    if order is None:
        matrix = packed_matrix(weight, scales, zeros, k, call.need("block_size"), bits)
    else:
        matrix = _by_column(weight, scales, zeros, order.cast(dt.int32), k, bits)
    out = (x.cast(dt.float32) @ matrix.T).cast(x.dtype)
    return out if bias is None else out + bias


@op("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    call: NodeCall, data: Tensor, indices: Tensor, scales: Tensor, zeros: Tensor | None = None
) -> Tensor:
    """Rows of a table of 4 or 8 bits in blocks along its last axis, as reals."""
    bits, block = call.get("bits", 4), call.get("block_size", 128)
    if call.get("gather_axis", 0) != 0 or call.get("quantize_axis", 1) % data.ndim != data.ndim - 1:
        raise UsageError("GatherBlockQuantized along other axes than rows of blocks")
    at = indices.cast(dt.int32)
    rows, scale = data.take(at, 0), scales.take(at, 0)
    packed = data.dtype == dt.uint8 and bits < 8
    rows = unpacked_codes(rows, bits) if packed else rows
    wide = rows.cast(dt.float32)
    width = wide.shape[-1]
    if zeros is not None:
        shift = zeros.take(at, 0)
        shift = unpacked_codes(shift, bits)[..., : scale.shape[-1]] if packed else shift
        wide = wide - weft.repeat(shift.cast(dt.float32), block, axis=-1)[..., :width]
    elif data.dtype == dt.uint8:
        wide = wide - float(1 << (bits - 1))
    spread = weft.repeat(scale.cast(dt.float32), block, axis=-1)[..., :width]
    return (wide * spread).cast(scales.dtype)
