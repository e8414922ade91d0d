"""Weights quantised on the way in: `weft.load(folder, quant="int4")`.

Scales are searched for once, on the CPU whatever device plays the model: the same bits everywhere.
What comes of it is kept in weft's cache directory, and mapped from there the next time. A file
there that is damaged is made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.errors import (
    DTypeError,
    FileFormatError,
    ModelError,
    ShapeError,
    StorageError,
    UsageError,
)
from weft.core.files import default_directory
from weft.core.packed import Form, Packed
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models.config import DecoderConfig
from weft.models.matrices import parted
from weft.models.progress import progress
from weft.models.quantize.packing import Packing
from weft.models.quantize.schemes import Scheme
from weft.models.quantize.source import stamps
from weft.models.weight_dtypes import Config

VERSION = 1  # of what a search gives: another finds nothing that was kept
OUTER = "int8"  # of embeddings and the output matrix

Weights = Mapping[str, np.ndarray | Packed]


def quantised(
    folder: Path, config: Config, weights: Weights, scheme: str
) -> tuple[Config, Weights]:
    """The model with its linear layers in `scheme`, embeddings and the output matrix in int8; its
    config, in which matrices are [N, K]. Raises UsageError for another scheme and for weights that
    are packed, ModelError for weights that are not finite."""
    Scheme(scheme)  # before anything is read
    packing = Packing(config, {"matrix": scheme, "experts": scheme, "embed": OUTER, "head": OUTER})
    plain: dict[str, np.ndarray] = {}
    forms: dict[str, Form] = {}
    for role, value in weights.items():
        if isinstance(value, Packed):
            raise UsageError(f"{folder}: the weights are quantised already; load it without quant")
        plain[role] = value
        if (target := packing.target(role, value)) is not None:
            forms[role] = target[0]
    if not forms:
        raise ModelError(f"{folder}: no matrix has rows that {scheme} packs; load it without quant")
    flat = {role: packing.matrix(role, value) for role, value in plain.items()}
    path = _path(folder, scheme)
    found = None if path is None else _read(path, forms, flat)
    if found is None:
        with progress(f"quantising {folder.name} to {scheme}"):
            found = {role: packing.packed(role, plain[role]) for role in forms}
        if path is not None:
            found = _write(path, forms, flat, found)
    turned: dict[str, Any] = {"transposed": False} if isinstance(config, DecoderConfig) else {}
    return replace(config, **turned), {r: found.get(r, v) for r, v in flat.items()}


# -- the cache ------------------------------------------------------------------------------------


def _path(folder: Path, scheme: str) -> Path | None:
    """Where the parts are kept: by the files that they are made of. None where nothing is."""
    home = default_directory()
    if home is None:
        return None
    key = json.dumps([VERSION, scheme, str(folder.resolve()), stamps(folder)])
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return home / "quantised" / f"{name}.safetensors"


def _read(
    path: Path, forms: Mapping[str, Form], weights: Mapping[str, np.ndarray]
) -> dict[str, Packed] | None:
    """What the file holds, where all of it fits."""
    try:
        if not path.exists():
            return None
        file = SafetensorsFile(path)
        out = {}
        for role, form in forms.items():
            parts = {p: file[f"{role}.{p}"] for p in form.parts}
            form.check(parts, *weights[role].shape)
            if not all_finite(parts["scales"]):
                return None
            out[role] = Packed(form, parts)
        return out
    except (FileFormatError, KeyError, ShapeError, DTypeError, OSError):
        return None


def _write(
    path: Path, forms: Mapping[str, Form], weights: Mapping[str, np.ndarray],
    found: dict[str, Packed],
) -> dict[str, Packed]:  # fmt: skip
    """The parts, mapped from the file that now holds them; as they are where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(path, parted(found)[0])
    except (StorageError, OSError):
        return found
    return _read(path, forms, weights) or found
