"""Layers of compressed-tensors (vLLM, llm-compressor) and Hugging Face's fp8.

https://github.com/vllm-project/compressed-tensors. Integers are held plus 2^(bits - 1).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from weft.core.packed import Form
from weft.importers.packed.layer import LayerTensors, Read, block_scales, e8m0, unpacked

E4M3 = ml_dtypes.float8_e4m3fn


def pack_quantized(layer: LayerTensors) -> Read:
    """weight_packed int32 [N, K * bits / 32], weight_scale [N, G], weight_shape [2] = (N, K);
    weight_zero_point int32 [N * bits / 32, G] where there are zeros, packed along N."""
    n, k = _shape(layer)
    words = layer.take("weight_packed", (np.int32,), n, None)
    bits = 32 * words.shape[1] // max(k, 1)
    if bits not in (1, 2, 3, 4, 5, 6, 8) or words.shape[1] != -(-k * bits // 32):
        layer.fail(
            f"tensor 'weight_packed' has {words.shape[1]} words for {k} columns; expected 1 to 6 "
            "or 8 bits each, without gaps"
        )
    scales = layer.floats("weight_scale", n, None)
    group = layer.whole(k, scales.shape[1], "columns")
    order = None
    if "weight_g_idx" in layer and not (layer.tensors["weight_g_idx"] == -1).all():
        order = layer.order("weight_g_idx", k, group)
    form = Form(bits, group, offset=1 << bits - 1)
    if order is None and 8 % bits == 0 and 32 * words.shape[1] == k * bits:
        parts = {"codes": words.view(np.uint8)}
    else:
        parts = layer.codes(form, unpacked(words, bits, k), order)
    parts["scales"] = scales
    if "weight_zero_point" in layer:
        stored = layer.take("weight_zero_point", (np.int32,), -(-n * bits // 32), scales.shape[1])
        parts["zeros"] = unpacked(stored.T, bits, n).T
        form = form._replace(offset=0, shift="zero")
    return layer.packed(form, parts, n, k)._replace(order=order)


def _shape(layer: LayerTensors) -> tuple[int, int]:
    n, k = (int(v) for v in layer.take("weight_shape", (np.int64, np.int32), 2))
    if not (0 < n < 1 << 31 and 0 < k < 1 << 31):
        layer.fail(f"tensor 'weight_shape' says {n} x {k}")
    return n, k


def eight_bits(layer: LayerTensors, block: tuple[int, int] | None, scale: str) -> Read:
    """weight [N, K] int8 or F8_E4M3; the scale multiplies: one for all, [N, 1], [N, G], or, where
    `block` is given, one for every block. weight_zero_point int8, of the scale's shape, may go
    with int8."""
    weight = layer.take("weight", (np.int8, E4M3), None, None)
    n, k = weight.shape
    size = layer.tensors[scale].size if scale in layer else 0
    if size == 1:
        found = np.broadcast_to(
            layer.floats(scale, *layer.tensors[scale].shape).reshape(1, 1), (n, 1)
        )
        group, scales = k, found
    elif block is not None:
        group, scales = block_scales(layer, scale, block, n, k)
    else:
        scales = layer.floats(scale, n, None)
        group = layer.whole(k, scales.shape[1], "columns")
    codes = np.ascontiguousarray(weight).view(np.uint8)
    if weight.dtype == E4M3:
        _no_zeros(layer)
        return layer.packed(Form(8, group, "e4m3"), {"codes": codes, "scales": scales}, n, k)
    parts = {"codes": codes ^ np.uint8(128), "scales": scales}
    form = Form(8, group, offset=128)
    if "weight_zero_point" in layer:
        shape = layer.tensors[scale].shape
        zeros = layer.take("weight_zero_point", (np.int8,), *shape).reshape(
            -1, shape[-1] if shape else 1
        )
        if zeros.any():
            if block is not None and size > 1:
                layer.fail("zero points of blocks are not read")
            form = form._replace(shift="zero")
            parts["zeros"] = np.broadcast_to(zeros, scales.shape)
    return layer.packed(form, parts, n, k)


def fp4(layer: LayerTensors) -> Read:
    """weight_packed uint8 [N, K / 2], E2M1, the even column in the low bits. nvfp4: weight_scale
    F8_E4M3 [N, K / 16], divided by weight_global_scale; mxfp4: uint8 exponents [N, K / 32]."""
    codes = layer.take("weight_packed", (np.uint8,), None, None)
    n, k = codes.shape[0], 2 * codes.shape[1]
    if "weight_global_scale" not in layer:
        found = layer.take("weight_scale", (np.uint8,), n, None)
        scales = _no_nan(layer, found)
    else:
        top = layer.floats("weight_global_scale", *layer.tensors["weight_global_scale"].shape)
        found = layer.take("weight_scale", (E4M3,), n, None)
        if top.size != 1 or not top.all():
            layer.fail("tensor 'weight_global_scale' must be one number, not 0")
        with np.errstate(over="ignore"):
            scales = found.astype(np.float32) / top.astype(np.float32).reshape(1, 1)
        if not np.isfinite(scales).all():
            layer.fail("tensor 'weight_scale' holds NaN, or overflows: the file is damaged")
    group = layer.whole(k, found.shape[1], "columns")
    _no_zeros(layer)
    return layer.packed(Form(4, group, "e2m1"), {"codes": codes, "scales": scales}, n, k)


def _no_zeros(layer: LayerTensors) -> None:
    if "weight_zero_point" in layer and layer.tensors["weight_zero_point"].astype(bool).any():
        layer.fail("floats with a zero point are not read")


def mxfp4_experts(layer: LayerTensors) -> Read:
    """gpt-oss: blocks uint8 [E, N, K / 32, 16], scales uint8 [E, N, K / 32]: the experts' rows one
    after the other, [E * N, K]."""
    blocks = layer.take("blocks", (np.uint8,), None, None, None, 16)
    rows, groups = blocks.shape[0] * blocks.shape[1], blocks.shape[2]
    found = layer.take("scales", (np.uint8,), *blocks.shape[:3])
    scales = _no_nan(layer, found).reshape(rows, groups)
    parts = {"codes": blocks.reshape(rows, groups * 16), "scales": scales}
    return layer.packed(Form(4, 32, "e2m1"), parts, rows, groups * 32)


def _no_nan(layer: LayerTensors, exponents: np.ndarray) -> np.ndarray:
    if (exponents == 255).any():
        layer.fail("a scale of MXFP4 is 255, which is NaN: the file is damaged")
    return e8m0(exponents)
