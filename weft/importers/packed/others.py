"""Layers of MLX (affine, mxfp4) and bitsandbytes (nf4, int8).

https://github.com/ml-explore/mlx, https://github.com/bitsandbytes-foundation/bitsandbytes.
"""

from __future__ import annotations

import numpy as np

from weft.core.errors import FileFormatError
from weft.core.packed import TABLES, Form
from weft.importers.hf_config import Fields, parse_json
from weft.importers.packed.layer import LayerTensors, Read, e8m0, unpacked

_STATE = "weight.quant_state.bitsandbytes__"


def mlx(layer: LayerTensors, group: int) -> Read:
    """weight uint32 [N, K * bits / 32], a dense stream; scales and biases [N, K / group], floats
    (scales of mxfp4: uint8 exponents, and no biases). A scale may be negative."""
    words = layer.take("weight", (np.uint32,), None, None)
    n = len(words)
    if "biases" not in layer:
        found = layer.take("scales", (np.uint8,), n, None)
        if (found == 255).any():
            layer.fail("a scale is 255, which is NaN: the file is damaged")
        parts = {"codes": words.view(np.uint8), "scales": e8m0(found)}
        return layer.packed(Form(4, group, "e2m1"), parts, n, 8 * words.shape[1])
    scales = layer.floats("scales", n, None)
    lows = layer.floats("biases", n, scales.shape[1])
    k = group * scales.shape[1]
    bits = 32 * words.shape[1] // max(k, 1)
    if bits not in (2, 3, 4, 5, 6, 8) or 32 * words.shape[1] != k * bits:
        layer.fail(
            f"{words.shape[1]} words and {scales.shape[1]} scales a row do not make groups of "
            f"{group} weights of 2 to 6 or 8 bits"
        )
    form = Form(bits, group, shift="low")
    whole = 8 % bits == 0
    parts = (
        {"codes": words.view(np.uint8)} if whole else layer.codes(form, unpacked(words, bits, k))
    )
    return layer.packed(form, {**parts, "scales": scales, "lows": lows}, n, k)


def int8(layer: LayerTensors) -> Read:
    """bitsandbytes: weight int8 [N, K], SCB float32 [N]: the value of code 127."""
    weight = layer.take("weight", (np.int8,), None, None)
    n, k = weight.shape
    scales = layer.floats("SCB", n).astype(np.float32) * np.float32(1 / 127)
    codes = np.ascontiguousarray(weight).view(np.uint8) ^ np.uint8(128)
    return layer.packed(Form(8, k, offset=128), {"codes": codes, "scales": scales[:, None]}, n, k)


def four_bits(layer: LayerTensors) -> Read:
    """bitsandbytes: weight uint8 [N * K / 2, 1], row-major, the even element in the high bits;
    a scale for every `blocksize` elements, whatever rows they are in. Unpacked where K is not
    whole blocks, and where the 16 values are not those of nf4."""
    kind = next((n for n in layer.tensors if n.startswith(_STATE)), _STATE)
    state = _state(layer, kind)
    shape = state.integers("shape", 1, 1 << 31)
    if len(shape) != 2:
        layer.fail(f"quant_state: shape is {list(shape)}; expected [N, K]")
    n, k = shape
    block = state.integer("blocksize", 16, 4096)
    raw = layer.take("weight", (np.uint8,), -(-n * k // 2), 1).reshape(-1)
    if n * k % block or block % 2:
        layer.fail(f"quant_state: {n} x {k} weights are not whole blocks of {block}")
    scales = _absmax(layer, state, n * k // block)
    values = layer.floats("weight.quant_map", 16).astype(np.float32)
    if k % block == 0 and np.array_equal(values, np.array(TABLES["nf4"], np.float32)):
        parts = {"codes": (raw << 4 | raw >> 4).reshape(n, -1), "scales": scales.reshape(n, -1)}
        return layer.packed(Form(4, block, "nf4"), parts, n, k)
    flat = np.stack([raw >> 4, raw & 15], axis=1).reshape(-1, block)
    with np.errstate(over="ignore"):  # the code that widens it looks for infinities
        return Read(None, plain=(values[flat] * scales[:, None]).reshape(n, k))


def _state(layer: LayerTensors, name: str) -> Fields:
    raw = layer.take(name, (np.uint8,), None)
    where = f"{layer.where}: {name}"
    try:
        found = parse_json(raw[: 1 << 16].tobytes(), where)
    except FileFormatError as e:
        layer.fail(str(e))
    if not isinstance(found, dict):
        layer.fail(f"{name} is not a JSON object")
    return Fields(found, where)


def _absmax(layer: LayerTensors, state: Fields, count: int) -> np.ndarray:
    """float32 [count], quantised themselves where there is a nested_absmax."""
    if "weight.nested_absmax" not in layer:
        return layer.floats("weight.absmax", count).astype(np.float32)
    codes = layer.take("weight.absmax", (np.uint8,), count)
    block = state.integer("nested_blocksize", 16, 1 << 16)
    top = layer.floats("weight.nested_absmax", -(-count // block)).astype(np.float32)
    values = layer.floats("weight.nested_quant_map", 256).astype(np.float32)
    offset = np.float32(state.number("nested_offset", -1e30, 1e30))
    sizes: np.ndarray = values[codes] * np.repeat(top, block)[:count] + offset
    return sizes
