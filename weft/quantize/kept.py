"""Quantises weights while loading: `weft.load(folder, quant="int4")`.

The search for scales runs once, always on the CPU, so every device gets the same bits. The result
is stored in weft's cache directory under the content of the model's files, and mapped from there
the next time. A cached file that is damaged or belongs to another user is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import DTypeError, ModelError, ShapeError, UsageError
from weft.core.packed import Form, Packed
from weft.host.mapped import MappedFile, mapped_files, release
from weft.host.pages import Trimmer
from weft.host.progress import progress
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Weight
from weft.models.weights.content import FileIdentity, model_digests
from weft.models.weights.kept_tensors import PACKED
from weft.models.weights.weight_dtypes import Config
from weft.quantize.packing import Packing, Target
from weft.quantize.schemes import Scheme, bits_per_weight

VERSION = 2  # version of the search's results; increase it to discard cached ones
OUTER = "int8"  # scheme of embeddings and the output matrix


def quantised(
    folder: Path, config: Config, weights: Mapping[str, Weight], scheme: str
) -> tuple[Config, Mapping[str, Weight]]:
    """Returns the model with linear layers in `scheme`, embeddings and the output matrix in int8,
    and its config, in which matrices are [N, K]. Raises UsageError for an unknown scheme or packed
    weights, ModelError for weights that are not finite."""
    Scheme(scheme)  # before reading anything
    packing = Packing(config, {"matrix": scheme, "experts": scheme, "embed": OUTER, "head": OUTER})
    shapes: dict[str, tuple[int, int]] = {}  # of the matrices that are packed
    targets: dict[str, Target] = {}
    files: dict[int, MappedFile] = {}
    for role, weight in weights.items():
        value = weight.value()
        if isinstance(value, Packed):
            raise UsageError(f"{folder}: the weights are quantised already; load it without quant")
        files |= {id(file): file for file in mapped_files([value])}
        if (target := packing.target(role, value)) is not None:
            targets[role] = target
            n, k = packing.matrix(role, value).shape
            shapes[role] = n, k
    if not targets:
        raise ModelError(f"{folder}: no matrix has rows that {scheme} packs; load it without quant")
    forms = {role: form for role, (form, _) in targets.items()}
    key = _key(folder, scheme)
    found = None if key is None else _read(key, forms, shapes)
    if found is None and key is not None:
        made = _Made(packing, weights, forms)
        sizes = {role: n * k for role, (n, k) in shapes.items()}
        nbytes = sum(int(bits_per_weight(*t) * sizes[r] / 8) for r, t in targets.items())
        about = {"source": str(folder.resolve()), "scheme": scheme}
        with progress(f"quantising {folder.name} to {scheme}"):
            PACKED.save(key, made, about, nbytes, lambda: _unchanged(folder, scheme, key, files))
        found = _read(key, forms, shapes)
    turned: dict[str, Any] = {"transposed": False} if isinstance(config, DecoderConfig) else {}
    done = {role: weight.then(partial(packing.matrix, role)) for role, weight in weights.items()}
    if found is None:  # nowhere to keep them: each is packed when it is read
        done |= {role: weights[role].then(partial(packing.packed, role)) for role in forms}
    else:
        done |= {role: weights[role].of(value) for role, value in found.items()}
    return replace(config, **turned), done


class _Made(Mapping[str, np.ndarray]):
    """The parts of packed weights by name, in order; a weight is packed when its first part is
    looked up, and let go after the last."""

    def __init__(
        self, packing: Packing, weights: Mapping[str, Weight], forms: Mapping[str, Form]
    ) -> None:
        self._packing, self._weights, self._forms = packing, weights, forms
        self._parts: dict[str, np.ndarray] = {}
        self._freed = Trimmer()

    def __iter__(self) -> Iterator[str]:
        return (f"{role}.{part}" for role, form in self._forms.items() for part in form.parts)

    def __len__(self) -> int:
        return sum(len(form.parts) for form in self._forms.values())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._parts:
            role = name.rpartition(".")[0]
            value = self._weights[role].value()
            assert isinstance(value, np.ndarray)
            made = self._packing.packed(role, value)
            release(value)
            self._parts = {f"{role}.{part}": value for part, value in made.parts.items()}
            self._freed.add(2 * made.nbytes)
        return self._parts.pop(name)


def _unchanged(folder: Path, scheme: str, key: str, files: Mapping[int, MappedFile]) -> bool:
    """Returns True if the key still describes the files behind the weights, which are at their
    paths."""
    if _key(folder, scheme) != key:
        return False
    try:
        return all(
            FileIdentity.of(f.status) == FileIdentity.of(f.path.stat()) for f in files.values()
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
    key: str, forms: Mapping[str, Form], shapes: Mapping[str, tuple[int, int]]
) -> dict[str, Packed] | None:
    """Reads the cached weights of a key; returns None unless all of them fit."""
    kept = PACKED.load(key)
    if kept is None:
        return None
    out = {}
    try:
        for role, form in forms.items():
            parts = {p: kept[f"{role}.{p}"] for p in form.parts}
            form.check(parts, *shapes[role])
            out[role] = Packed(form, parts)
    except (KeyError, ShapeError, DTypeError):
        return None
    return out
