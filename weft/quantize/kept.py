"""Quantises weights while loading: `weft.load(folder, quant="int4")`.

The search for scales runs once, always on the CPU, so every device gets the same bits. The result
is stored in weft's cache directory under the content of the model's files, and mapped from there
the next time. A cached file that is damaged or belongs to another user is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import DTypeError, ModelError, ShapeError, UsageError
from weft.core.packed import Form, Packed
from weft.host.mapped import mapped_files
from weft.host.progress import progress
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Weight, Weights
from weft.models.weights.content import FileIdentity, model_digests
from weft.models.weights.kept_tensors import Tensors
from weft.models.weights.weight_dtypes import Config
from weft.quantize.packing import Packing
from weft.quantize.schemes import Scheme

VERSION = 2  # version of the search's results; increase it to discard cached ones
KEPT = Tensors("quantised", 32 << 30)
OUTER = "int8"  # scheme of embeddings and the output matrix


def quantised(
    folder: Path, config: Config, weights: Mapping[str, Weight], scheme: str
) -> tuple[Config, Mapping[str, Weight]]:
    """Returns the model with linear layers in `scheme`, embeddings and the output matrix in int8,
    and its config, in which matrices are [N, K]. Raises UsageError for an unknown scheme or packed
    weights, ModelError for weights that are not finite."""
    Scheme(scheme)  # before reading anything
    packing = Packing(config, {"matrix": scheme, "experts": scheme, "embed": OUTER, "head": OUTER})
    plain: dict[str, np.ndarray] = {}
    forms: dict[str, Form] = {}
    for role, weight in weights.items():
        value = weight.value()
        if isinstance(value, Packed):
            raise UsageError(f"{folder}: the weights are quantised already; load it without quant")
        plain[role] = value
        if (target := packing.target(role, value)) is not None:
            forms[role] = target[0]
    if not forms:
        raise ModelError(f"{folder}: no matrix has rows that {scheme} packs; load it without quant")
    flat = {role: packing.matrix(role, value) for role, value in plain.items()}
    key = _key(folder, scheme)
    found = None if key is None else _read(key, forms, flat)
    if found is None:
        with progress(f"quantising {folder.name} to {scheme}"):
            found = {role: packing.packed(role, plain[role]) for role in forms}
        if key is not None and _key(folder, scheme) == key and _as_mapped(plain.values()):
            KEPT.save(key, Weights.of(found), {"source": str(folder.resolve()), "scheme": scheme})
            found = _read(key, forms, flat) or found  # mapped, to free the memory
    turned: dict[str, Any] = {"transposed": False} if isinstance(config, DecoderConfig) else {}
    return replace(config, **turned), {r: weights[r].of(found.get(r, v)) for r, v in flat.items()}


def _as_mapped(weights: Iterable[np.ndarray]) -> bool:
    """Returns True if the files behind the weights are still at their paths; otherwise the key
    describes other files."""
    try:
        return all(
            FileIdentity.of(f.status) == FileIdentity.of(f.path.stat())
            for f in mapped_files(weights)
        )
    except OSError:
        return False


# -- the cache ------------------------------------------------------------------------------------


def _key(folder: Path, scheme: str) -> str | None:
    """Returns the cache key: the content of the model's files. Returns None if they cannot be
    read."""
    try:
        return json.dumps([VERSION, scheme, model_digests(folder)])
    except OSError:
        return None


def _read(
    key: str, forms: Mapping[str, Form], weights: Mapping[str, np.ndarray]
) -> dict[str, Packed] | None:
    """Reads the cached weights of a key; returns None unless all of them fit."""
    kept = KEPT.load(key)
    if kept is None:
        return None
    out = {}
    try:
        for role, form in forms.items():
            parts = {p: kept[f"{role}.{p}"] for p in form.parts}
            form.check(parts, *weights[role].shape)
            out[role] = Packed(form, parts)
    except (KeyError, ShapeError, DTypeError):
        return None
    return out
