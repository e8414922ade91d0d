"""GPTQ's layers (AutoGPTQ, GPTQModel) and AWQ's (AutoAWQ, "gemm").

Both hold integers in int32 words and multiply (code - zero) by a float16 scale; GPTQ packs along K,
AWQ along N. Layouts: https://github.com/ModelCloud/GPTQModel, https://github.com/casper-hansen/AutoAWQ.
"""

from __future__ import annotations

import numpy as np

from weft.core.packed import Form
from weft.importers.packed.layer import LayerTensors, Read, unpacked

_INTS = (np.int32,)
TURNED = 1 << 18  # weights transposed at a time: they stay in the cache
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # field of a word that holds its column


def gptq(layer: LayerTensors, first_version: bool) -> Read:
    """qweight int32 [K * bits / 32, N], qzeros int32 [G, N * bits / 32], scales [G, N], g_idx int32
    [K]; `first_version` files store zeros less one. The bits and the group are what the shapes
    say. A g_idx that is not in order must give every group as many columns: act-order."""
    words = layer.take("qweight", _INTS, None, None)
    n = words.shape[1]
    scales = layer.floats("scales", None, n)
    groups = len(scales)
    stored = layer.take("qzeros", _INTS, groups, None)
    bits = layer.whole(32 * stored.shape[1], n, "bits of zeros")
    if bits not in (2, 3, 4, 8):
        layer.fail(f"{bits} bits per weight; read are 2, 3, 4 and 8")
    k = layer.whole(32 * len(words), bits, "bits of a column") if len(words) else 0
    group = layer.whole(k, groups, "columns") if k else 0
    zeros = unpacked(stored, bits, n)
    if first_version:
        zeros = zeros + np.uint8(1) & np.uint8((1 << bits) - 1)
    codes = np.ascontiguousarray(words.T)
    order = layer.order("g_idx", k, group) if "g_idx" in layer else None
    if bits == 3 or order is not None:
        parts = layer.codes(Form(bits, group), unpacked(codes, bits, k), order)
    else:
        parts = {"codes": codes.view(np.uint8)}
    read = _with_zeros(layer, Form(bits, group), parts, scales, zeros, k)
    return read._replace(order=order)


def _with_zeros(
    layer: LayerTensors, form: Form, parts: dict[str, np.ndarray],
    scales: np.ndarray, zeros: np.ndarray, k: int,
) -> Read:  # fmt: skip
    """Scales and zeros are [G, N]. One zero for all is the form's offset."""
    n = scales.shape[1]
    parts = {**parts, "scales": scales.T}
    if (zeros == zeros[0, 0]).all():
        return layer.packed(form._replace(offset=int(zeros[0, 0])), parts, n, k)
    return layer.packed(form._replace(shift="zero"), {**parts, "zeros": zeros.T}, n, k)


def awq(layer: LayerTensors) -> Read:
    """qweight int32 [K, N / 8], qzeros int32 [G, N / 8], scales [G, N]: 4 bits."""
    words = layer.take("qweight", _INTS, None, None)
    k, n = words.shape[0], 8 * words.shape[1]
    scales = layer.floats("scales", None, n)
    stored = layer.take("qzeros", _INTS, len(scales), words.shape[1])
    form = Form(4, layer.whole(k, len(scales), "rows"))
    zeros = _columns(stored)
    if k % 8:
        parts = layer.codes(form, _columns(words).T)
    else:
        parts = {"codes": _turned(words).view(np.uint8)}
    return _with_zeros(layer, form, parts, scales, zeros, k)


def _turned(words: np.ndarray) -> np.ndarray:
    """AWQ's int32 [K, N / 8] as GPTQ has them, turned: uint32 [N, K / 8], the first k lowest.
    Squares of 8 x 8 codes are transposed: halves of halves of halves (Hacker's Delight, 7-3)."""
    k, n = words.shape[0], 8 * words.shape[1]
    out = np.empty((words.shape[1], 8, k // 8), np.uint32)
    step = max(1, TURNED // (8 * n)) * 8
    for start in range(0, k, step):
        x = np.array(words[start : start + step]).view(np.uint32).reshape(-1, 8, words.shape[1])
        for half, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
            pairs, shift = x.reshape(len(x), -1, 2, half, x.shape[2]), np.uint32(4 * half)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            apart = (a >> shift ^ b) & np.uint32(mask)
            b ^= apart
            a ^= apart << shift
        for column, field in enumerate(_AWQ):
            out[:, column, start // 8 : start // 8 + len(x)] = x[:, field].T
    return out.reshape(n, -1)


def _columns(words: np.ndarray) -> np.ndarray:
    """Codes uint8 [R, 8 * W] of int32 [R, W], in the order of columns."""
    out = np.empty((*words.shape, 8), np.uint8)
    for column, field in enumerate(_AWQ):
        out[:, :, column] = words >> np.int32(4 * field) & np.int32(15)
    return out.reshape(len(words), -1)
