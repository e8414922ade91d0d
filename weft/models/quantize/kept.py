"""Weights quantised on the way in: `weft.load(folder, quant="int4")`.

Scales are searched for once; what comes of it is kept in weft's cache directory, and mapped from
there the next time. A file there that is damaged is made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from weft.models.quantize.schemes import Scheme, flat
from weft.models.quantize.search import Search
from weft.models.quantize.source import is_packable, stamps
from weft.models.training.model import is_matrix

VERSION = 1  # of what a search gives: another finds nothing that was kept
OUTER = "int8"  # of embeddings and the output matrix
_OUTER = ("embed", "layer_embed", "head")

Weights = Mapping[str, np.ndarray | Packed]


def quantised(
    folder: Path, config: DecoderConfig, weights: Weights, scheme: str
) -> tuple[DecoderConfig, Weights]:
    """The model with its linear layers in `scheme`, embeddings and the output matrix in int8; its
    config, in which matrices are [N, K]. Raises UsageError for another scheme and for weights that
    are packed, ModelError for weights that are not finite."""
    Scheme(scheme)  # before anything is read
    flat: dict[str, np.ndarray] = {}
    for role, value in weights.items():
        if isinstance(value, Packed):
            raise UsageError(f"{folder}: the weights are quantised already; load it without quant")
        flat[role] = _matrix(config, role, value)
    config = replace(config, transposed=False)
    forms = {r: f for r, v in flat.items() if (f := _form(r, v, scheme)) is not None}
    if not forms:
        raise ModelError(f"{folder}: no matrix has rows that {scheme} packs; load it without quant")
    path = _path(folder, scheme)
    found = None if path is None else _read(path, forms, flat)
    if found is None:
        with progress(f"quantising {folder.name} to {scheme}"):
            found = _searched(flat, forms, scheme)
        if path is not None:
            found = _write(path, forms, flat, found)
    return config, {r: found.get(r, v) for r, v in flat.items()}


def _matrix(config: DecoderConfig, role: str, value: np.ndarray) -> np.ndarray:
    turned = config.transposed and role[0].isdigit() and is_matrix(role)
    return value.T if turned else flat(role, value)


def _form(role: str, value: np.ndarray, scheme: str) -> Form | None:
    outer = role in _OUTER
    if value.ndim != 2 or not (outer or is_packable(role)):
        return None
    return Scheme(OUTER if outer else scheme).form(value.shape[1])


def _searched(
    weights: Mapping[str, np.ndarray], forms: Mapping[str, Form], scheme: str
) -> dict[str, Packed]:
    searches: dict[Form, Search] = {}
    out = {}
    for role, form in forms.items():
        if form not in searches:
            name = OUTER if role in _OUTER else scheme
            searches[form] = Search(form, Scheme(name).scale_dtype)
        out[role] = Packed(form, searches[form](weights[role]))
    return out


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
