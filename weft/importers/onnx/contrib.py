"""Operators of com.microsoft, which exporters and optimisers of ONNX Runtime write (attention is in
attention.py)."""

from __future__ import annotations

from typing import Any

import weft
from weft.core import dtypes as dt
from weft.importers.onnx.activations import fused
from weft.importers.onnx.linear import gemm, scaled_product
from weft.importers.onnx.nets import conv
from weft.importers.onnx.quantised import integer_product, reals
from weft.importers.onnx.recurrent import lstm
from weft.importers.onnx.table import MICROSOFT, NodeCall, op
from weft.tensor.core import Tensor

# -- normalisation -----------------------------------------------------------------------------


@op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    call: NodeCall, x: Tensor, skip: Tensor, scale: Tensor, shift: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:  # fmt: skip
    total = x + skip if bias is None else x + skip + bias
    made = weft.functional.layer_norm(total, scale, shift, call.get("epsilon", 1e-12))
    return made, None, None, total


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(
    call: NodeCall, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    made = weft.functional.rms_norm(total, scale, call.get("epsilon", 1e-12))
    return made, None, None, total


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(
    call: NodeCall, ids: Tensor, segments: Tensor | None, words: Tensor, positions: Tensor,
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
def fused_matmul(call: NodeCall, a: Tensor, b: Tensor) -> Tensor:
    """alpha A B with the last two axes of either swapped (trans), or (transBatch) with its first
    axis, of rows, moved to the last position but one."""
    if call.get("transBatchA", 0):
        a = weft.moveaxis(a, 0, -2)
    if call.get("transBatchB", 0):
        b = weft.moveaxis(b, 0, -2)
    a = a.mT if call.get("transA", 0) else a
    b = b.mT if call.get("transB", 0) else b
    return scaled_product(a, b, call.get("alpha", 1.0))


@op("FusedConv", domain=MICROSOFT)
def fused_conv(
    call: NodeCall, x: Tensor, w: Tensor, b: Tensor | None = None, more: Tensor | None = None
) -> Tensor:
    made: Tensor = conv(call, x, w, b)
    made = made if more is None else made + more
    params = call.get("activation_params") or ()
    return fused(made, call.get("activation", ""), params[:1], params[1:2])


@op("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: NodeCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    given = (call.get(f"activation_{name}") for name in ("alpha", "beta"))
    alphas, betas = ([] if v is None else [v] for v in given)
    return fused(gemm(call, a, b, c), call.get("activation", ""), alphas, betas)


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    call: NodeCall, a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, za: Tensor | None = None,
    zb: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    out = integer_product(a, b, za, zb).cast(dt.float32) * (sa * sb)
    return out if bias is None else out + bias


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    call: NodeCall, a: Tensor, b: Tensor, sb: Tensor, zb: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from weft.importers.onnx.quantised import dynamic_quantize

    code, scale, zero = dynamic_quantize(call, a)
    made: Tensor = matmul_integer_to_float(call, code, b, scale, sb, zero, zb, bias)
    return made


@op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    call: NodeCall, x: Tensor, w: Tensor, r: Tensor, b: Any, lengths: Any, h: Any, c: Any,
    peep: Any, sw: Tensor, zw: Tensor, sr: Tensor, zr: Tensor,
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
