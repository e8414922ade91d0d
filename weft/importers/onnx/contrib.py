"""Operators of com.microsoft, which exporters and optimisers of ONNX Runtime write (attention is in
attention.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import weft
from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.core.packed import Form
from weft.importers.onnx.linear import product
from weft.importers.onnx.nets import conv
from weft.importers.onnx.quantised import codes, integer_product, reals, zero_of
from weft.importers.onnx.recurrent import lstm
from weft.importers.onnx.table import MICROSOFT, Call, op
from weft.ops.packed import dequantize
from weft.tensor.core import Tensor

# -- activations and normalisation ----------------------------------------------------------------


@op("Gelu", domain=MICROSOFT)
def gelu(call: Call, x: Tensor) -> Tensor:
    return x.gelu()


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(call: Call, x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias).gelu()


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return (x if bias is None else x + bias).gelu("tanh")


@op("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call, x: Tensor) -> Tensor:
    return x * (x * call.get("alpha", 1.702)).sigmoid()


@op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, shift: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:  # fmt: skip
    total = x + skip if bias is None else x + skip + bias
    made = weft.functional.layer_norm(total, scale, shift, call.get("epsilon", 1e-12))
    return made, None, None, total


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    made = weft.functional.rms_norm(total, scale, call.get("epsilon", 1e-12))
    return made, None, None, total


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(
    call: Call, ids: Tensor, segments: Tensor | None, words: Tensor, positions: Tensor,
    kinds: Tensor | None, scale: Tensor, shift: Tensor, mask: Tensor | None = None,
    at: Tensor | None = None,
) -> Any:  # fmt: skip
    total = words.take(ids.cast(dt.int32), 0)
    total = total + (
        positions[: ids.shape[1]] if at is None else positions.take(at.cast(dt.int32), 0)
    )
    if segments is not None and kinds is not None:
        total = total + kinds.take(segments.cast(dt.int32), 0)
    made = weft.functional.layer_norm(total, scale, shift, call.get("epsilon", 1e-12))
    count = weft.zeros((ids.shape[0],), dt.int32) if mask is None else mask.cast(dt.int32).sum(1)
    return made, count, total


# -- products -------------------------------------------------------------------------------------


@op("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if call.get("transBatchA", 0) or call.get("transBatchB", 0):
        raise UsageError("FusedMatMul with transBatchA or transBatchB")
    a = a.mT if call.get("transA", 0) else a
    b = b.mT if call.get("transB", 0) else b
    return product(a, b) * call.get("alpha", 1.0)


@op("FusedConv", domain=MICROSOFT)
def fused_conv(
    call: Call, x: Tensor, w: Tensor, b: Tensor | None = None, more: Tensor | None = None
) -> Tensor:
    made: Tensor = conv(call, x, w, b)
    made = made if more is None else made + more
    kind = call.get("activation", "")
    params = call.get("activation_params") or []
    if kind in ("", "Relu", "Sigmoid", "Tanh"):
        return getattr(made, kind.lower())() if kind else made
    if kind == "LeakyRelu":
        return (made < 0).where(made * params[0], made)
    if kind == "Clip":
        return made.maximum(params[0]).minimum(params[1])
    if kind == "HardSigmoid":
        return (made * params[0] + params[1]).maximum(0.0).minimum(1.0)
    raise UsageError(f"FusedConv with the activation {kind!r:.40}")


def _unpacked_zeros(zeros: Tensor, n: int, groups: int, bits: int) -> Tensor:
    """Zero points [N, groups] packed into bytes along each row, the first in the lowest bits."""
    each = 8 // bits
    rows = zeros.reshape(n, -1, 1)
    parts = [(rows >> (i * bits)) & ((1 << bits) - 1) for i in range(each)]
    return weft.concat(parts, axis=2).reshape(n, -1)[:, :groups]


def packed_matrix(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, k: int, block: int, bits: int
) -> Tensor:
    """The float32 matrix [N, K] that packed blocks [N, blocks, bytes] stand for: weft's own form
    of packed weights, which products look through."""
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
        found = zeros.reshape(n, groups) if bits == 8 else _unpacked_zeros(zeros, n, groups, bits)
        parts = {"codes": flat, "scales": table, "zeros": found}
    made = Tensor(dequantize(form, {name: part.value for name, part in parts.items()}))
    return made if made.shape[1] == k else made.narrow(1, 0, k)


@op("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    call: Call, x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None = None,
    order: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if order is not None:
        raise UsageError("MatMulNBits with g_idx: weights whose groups are not in order")
    bits = call.get("bits", 4)
    matrix = packed_matrix(weight, scales, zeros, call.need("K"), call.need("block_size"), bits)
    out = (x.cast(dt.float32) @ matrix.T).cast(x.dtype)
    return out if bias is None else out + bias


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    call: Call, a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, za: Tensor | None = None,
    zb: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    out = integer_product(a, b, za, zb).cast(dt.float32) * (sa * sb)
    return out if bias is None else out + bias


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    call: Call, a: Tensor, b: Tensor, sb: Tensor, zb: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from weft.importers.onnx.quantised import dynamic_quantize

    code, scale, zero = dynamic_quantize(call, a)
    made: Tensor = matmul_integer_to_float(call, code, b, scale, sb, zero, zb, bias)
    return made


@op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Any, lengths: Any, h: Any, c: Any, peep: Any,
    sw: Tensor, zw: Tensor, sr: Tensor, zr: Tensor,
) -> Any:  # fmt: skip
    """Weights [directions, inputs, 4 H] of bytes; the products are of reals, as those of ONNX
    Runtime are within the rounding of the activations to bytes."""
    wide = [
        reals(v, _per_direction(s), _per_direction(z)).transpose(1, 2)
        for v, s, z in ((w, sw, zw), (r, sr, zr))
    ]
    return lstm(call, x, *wide, b, lengths, h, c, peep)


def _per_direction(v: Tensor) -> Tensor:
    return v.reshape(v.shape[0], 1, -1) if v.ndim else v


# -- codes in, codes out --------------------------------------------------------------------------


def _of_two(name: str, join: Callable[[Tensor, Tensor], Tensor]) -> None:
    def run(
        call: Call, a: Tensor, sa: Tensor, za: Any, b: Tensor, sb: Tensor, zb: Any, sy: Tensor,
        zy: Any = None,
    ) -> Tensor:  # fmt: skip
        return codes(join(reals(a, sa, za), reals(b, sb, zb)), sy, zero_of(call, zy, a))

    op(name, domain=MICROSOFT)(run)


_of_two("QLinearAdd", operator.add)
_of_two("QLinearMul", operator.mul)


@op("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    call: Call, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    return codes(reals(x, sx, zx).sigmoid(), sy, zero_of(call, zy, x))


@op("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    call: Call, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    wide = reals(x, sx, zx)
    made = (wide < 0).where(wide * call.get("alpha", 0.01), wide)
    return codes(made, sy, zero_of(call, zy, x))


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    call: Call, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Tensor
) -> Tensor:
    axes = tuple(range(1, x.ndim - 1)) if call.get("channels_last", 0) else tuple(range(2, x.ndim))
    return codes(reals(x, sx, zx).mean(axes, keepdims=True), sy, zy)


@op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(call: Call, sy: Tensor, zy: Tensor, *parts: Tensor) -> Tensor:
    wide = [reals(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return codes(weft.concat(wide, axis=call.need("axis")), sy, zy)


@op("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    call: Call, data: Tensor, indices: Tensor, scales: Tensor, zeros: Tensor | None = None
) -> Tensor:
    """Rows of a table of 4 or 8 bits in blocks along its last axis, as reals."""
    bits, block = call.get("bits", 4), call.get("block_size", 128)
    if call.get("gather_axis", 0) != 0 or call.get("quantize_axis", 1) % data.ndim != data.ndim - 1:
        raise UsageError("GatherBlockQuantized along other axes than rows of blocks")
    at = indices.cast(dt.int32)
    rows, scale = data.take(at, 0), scales.take(at, 0)
    packed = data.dtype == dt.uint8 and bits < 8
    if packed:
        rows = weft.stack([(rows >> (i * bits)) & ((1 << bits) - 1) for i in range(8 // bits)], -1)
        rows = rows.reshape(*at.shape, *data.shape[1:-1], data.shape[-1] * (8 // bits))
    wide = rows.cast(dt.float32)
    width = wide.shape[-1]
    if zeros is not None:
        shift = zeros.take(at, 0)
        if packed:
            shift = weft.stack(
                [(shift >> (i * bits)) & ((1 << bits) - 1) for i in range(8 // bits)], -1
            )
            shift = shift.reshape(*shift.shape[:-2], -1)[..., : scale.shape[-1]]
        wide = wide - weft.repeat(shift.cast(dt.float32), block, axis=-1)[..., :width]
    elif data.dtype == dt.uint8:
        wide = wide - float(1 << (bits - 1))
    return (wide * weft.repeat(scale.cast(dt.float32), block, axis=-1)[..., :width]).cast(
        scales.dtype
    )
