"""Packed weights in the compressed-tensors format, which vLLM and transformers read.

https://github.com/vllm-project/compressed-tensors. Integers are "pack-quantized": codes in int32
words along K, the first in the lowest bits; fp8 is "float-quantized".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.errors import UsageError
from weft.core.packed import Form, Packed, pack, unpack


def check_form(form: Form) -> None:
    """Raises UsageError for a form that the format cannot hold."""
    whole = form.values == "int" and len(form.planes) == 1 and form.shift != "low"
    if not whole and form.values != "e4m3":
        name = form.values if form.values != "int" else f"int{form.bits}"
        name = f"q{form.bits}_k" if form.super_group else name
        raise UsageError(f"compressed-tensors does not hold {name}; name int4, int8 or fp8")


def tensors_of(name: str, weight: Packed) -> dict[str, np.ndarray]:
    """Returns the tensors of the linear layer `name` ("model.layers.0.mlp.up_proj")."""
    form, parts = weight
    codes = parts["codes"]
    if form.values == "e4m3":
        whole = codes.view(ml_dtypes.float8_e4m3fn)
        return {f"{name}.weight": whole, f"{name}.weight_scale": parts["scales"]}
    check_form(form)
    n, k = len(codes), codes.shape[1] * 8 // form.bits
    found = {
        f"{name}.weight_packed": _words(codes),
        f"{name}.weight_scale": parts["scales"],
        f"{name}.weight_shape": np.array([n, k], np.int64),
    }
    if form.shift == "zero":  # packed along N
        per = 32 // form.bits
        zeros = np.pad(parts["zeros"].T, ((0, 0), (0, -n % per)))
        found[f"{name}.weight_zero_point"] = _words(pack(zeros, form.bits)).T
    return found


def packed_from(tensors: Mapping[str, np.ndarray], name: str, form: Form) -> Packed:
    """Reads the tensors that `tensors_of` wrote."""
    scales = tensors[f"{name}.weight_scale"]
    if form.values == "e4m3":
        return Packed(form, {"codes": tensors[f"{name}.weight"].view(np.uint8), "scales": scales})
    n, k = (int(size) for size in tensors[f"{name}.weight_shape"])
    codes = np.ascontiguousarray(tensors[f"{name}.weight_packed"]).view(np.uint8)
    parts = {"codes": codes[:, : k * form.bits // 8], "scales": scales}
    if form.shift == "zero":
        words = np.ascontiguousarray(tensors[f"{name}.weight_zero_point"].T)
        parts["zeros"] = np.ascontiguousarray(unpack(words.view(np.uint8), form.bits)[:, :n].T)
    return Packed(form, parts)


def _words(codes: np.ndarray) -> np.ndarray:
    """Returns bytes [N, B] as int32 [N, ceil(B / 4)]."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4)))
    return np.ascontiguousarray(padded).view("<i4")


def quantization_config(forms: Mapping[str, Form], plain: list[str]) -> dict[str, Any]:
    """Returns `quantization_config` of config.json: `forms` by the names of linear layers, `plain`
    the names of layers that stay unquantised."""
    by_form: dict[Form, list[str]] = {}
    for name, form in forms.items():
        by_form.setdefault(form, []).append(name)
    several = len(by_form) > 1
    groups = {
        f"group_{i}": {
            "targets": sorted(names) if several else ["Linear"],
            "weights": _arguments(form),
            "input_activations": None,
            "output_activations": None,
            "format": _format(form),
        }
        for i, (form, names) in enumerate(by_form.items())
    }
    formats = {_format(form) for form in by_form}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": sorted(plain),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _format(form: Form) -> str:
    return "float-quantized" if form.values == "e4m3" else "pack-quantized"


def _arguments(form: Form) -> dict[str, Any]:
    whole = form.group not in (8, 16, 32, 64, 128)
    return {
        "num_bits": form.bits,
        "type": "float" if form.values == "e4m3" else "int",
        "symmetric": form.shift != "zero",
        "strategy": "channel" if whole else "group",
        "group_size": None if whole else form.group,
        "block_structure": None,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
