"""Applies an adapter to the weights of a decoder: merged into them, or alongside packed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.errors import ModelError
from weft.core.packed import Packed, dequantized
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Value, Weight, held
from weft.models.weights.adapters import TABLES, Adapter, is_adapter


def added(
    config: DecoderConfig, weights: Mapping[str, Weight], adapter: Adapter
) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    """Returns config and weights of the model with the adapter. It is merged, except into packed
    weights, since merging would undo the packing. There its low-rank matrices stay separate, in
    float32. Raises ModelError."""
    if any(isinstance(_outline(weight), Packed) for weight in weights.values()):
        beside: dict[str, np.ndarray] = {}
        for role in (role for role in adapter.roles if role not in TABLES):
            beside |= _beside(config, adapter, role, weights[f"{role}.w"])
        config = replace(config, adapter_scale=adapter.scale)
        weights = {**weights, **{key: held(value, "adapter") for key, value in beside.items()}}
        tables = {k: v for k, v in adapter.weights.items() if k.split(".")[0] in TABLES}
        adapter = replace(adapter, weights=tables, magnitudes={})
        rest = adapter.shared, adapter.own, adapter.rows, adapter.experts, adapter.biases
        if not (tables or any(rest)):
            return config, weights
    values = {role: w.value() for role, w in weights.items() if not is_adapter(role)}
    config, whole = merged(config, values, adapter)
    kept = {role: weight for role, weight in weights.items() if is_adapter(role)}
    for role, value in whole.items():
        kept[role] = weights[role].of(value) if role in weights else held(value, "head")
    return config, kept


def _outline(weight: Weight) -> Value:
    return weight.value() if weight.known is None else weight.known.outline


def _beside(
    config: DecoderConfig, adapter: Adapter, role: str, weight: Weight
) -> dict[str, np.ndarray]:
    """Returns the arrays of a layer that stay separate from its weight."""
    a, b = adapter.weights[f"{role}.lora_a"], adapter.weights[f"{role}.lora_b"]
    made = {f"{role}.lora_a": a, f"{role}.lora_b": b}
    factor = row_factors(config, adapter, role, weight.value())
    if factor is not None:
        made |= {f"{role}.lora_b": b * factor[:, None], f"{role}.lora_m": factor}
    return made


def merged(
    config: DecoderConfig, weights: Mapping[str, Value], adapter: Adapter
) -> tuple[DecoderConfig, dict[str, Any]]:
    """Returns config and weights of the model with the adapter added, in their own dtypes, without
    other adapters. The output layer is no longer tied to the embedding if the adapter changes one
    of them. Raises ModelError."""
    out: dict[str, Any] = {r: value for r, value in weights.items() if not is_adapter(r)}
    shared = dict(adapter.shared)
    if config.tied and "head" in shared:  # one tensor under two names
        shared["embed"] = shared.pop("head")
    _replace(out, shared)
    rows = dict(adapter.rows)
    if "embed" in rows:
        _set_rows(out, "embed", *rows.pop("embed"))
    if config.tied and any(role in TABLES for role in (*adapter.own, *adapter.roles, *rows)):
        config, out["head"] = replace(config, tied=False), out["embed"]
    _replace(out, adapter.own)
    for role, (ids, values) in rows.items():
        _set_rows(out, role, ids, values)
    for role in adapter.roles:
        key = role if role in TABLES else f"{role}.w"
        before = _floats(out, key, "adapts")
        a, b = adapter.weights[f"{role}.lora_a"], adapter.weights[f"{role}.lora_b"]
        factor = row_factors(config, adapter, role, before)
        change = (b @ a) * np.float32(adapter.scale)
        turned = config.transposed and role not in TABLES
        whole = before.astype(np.float32) + (change.T if turned else change)
        if factor is not None:
            whole *= factor if turned else factor[:, None]
        out[key] = whole.astype(before.dtype)
    for role, bias in adapter.biases.items():
        if f"{role}.b" not in out:
            raise ModelError(f"the adapter has a bias for layer {role!r}, where the model has none")
        before = _floats(out, f"{role}.b", "adapts")
        out[f"{role}.b"] = (before.astype(np.float32) + bias).astype(before.dtype)
    for key, (a, b) in adapter.experts.items():
        before = _floats(out, key, "adapts")
        change = np.matmul(b, a) * np.float32(adapter.scale)
        out[key] = (before.astype(np.float32) + change).astype(before.dtype)
    return config, out


def _replace(out: dict[str, Value], values: Mapping[str, np.ndarray]) -> None:
    for key, value in values.items():
        out[key] = value.astype(_floats(out, key, "replaces", packed=True).dtype)


def _set_rows(out: dict[str, Value], key: str, ids: Sequence[int], rows: np.ndarray) -> None:
    made = _floats(out, key, "changes rows of").copy()
    made[list(ids)] = rows
    out[key] = made


def _floats(out: Mapping[str, Value], key: str, does: str, packed: bool = False) -> np.ndarray:
    """Returns a weight of floats; of a packed one, if `packed`, an array like it in float16."""
    value = out[key]
    if not isinstance(value, Packed):
        return value
    if packed:
        return np.empty(0, np.float16)
    raise ModelError(
        f"the adapter {does} {key!r}, which is packed: merge the adapter into a model of floats"
    )


def row_factors(
    config: DecoderConfig, adapter: Adapter, role: str, weight: Value
) -> np.ndarray | None:
    """Returns the factor of each row of a layer with DoRA, float32 [out]; None without. Raises
    ModelError for a row of zeros."""
    if role not in adapter.magnitudes:
        return None
    value = dequantized(*weight) if isinstance(weight, Packed) else weight
    matrix = value.astype(np.float32)
    matrix = matrix.T if config.transposed else matrix
    change = adapter.weights[f"{role}.lora_b"] @ adapter.weights[f"{role}.lora_a"]
    norms = np.linalg.norm(matrix + np.float32(adapter.scale) * change, axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.asarray(adapter.magnitudes[role] / norms, np.float32)
    if not all_finite(factor):
        raise ModelError(f"layer {role!r}: DoRA divides by the norm of a row, and one is 0")
    return factor
