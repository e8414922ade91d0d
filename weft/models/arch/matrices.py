"""Packed weights of a model. In files and buffers each part is a separate array, named
"3.q.w.codes", "3.q.w.scales", ...; to the model the weight "3.q.w" is one float32 matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.core.packed import Form, Packed
from weft.models.arch.weights import Forms, Value, Weights


def owner(forms: Forms, name: str) -> str:
    """Returns the role of the weight that an array belongs to."""
    role, _, part = name.rpartition(".")
    return role if any(role == r and part in form.parts for r, form in forms) else name


def whole(forms: Forms, arrays: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """Returns the weights by role, packed ones as Packed."""
    parts = {f"{role}.{part}" for role, form in forms for part in form.parts}
    found: dict[str, Value] = {r: x for r, x in arrays.items() if r not in parts}
    for role, form in forms:
        found[role] = Packed(form, {part: arrays[f"{role}.{part}"] for part in form.parts})
    return found


def bits(forms: Forms, weights: Weights) -> float:
    """Returns the mean bits per element of the packed weights, including scales."""
    found = [x for x in whole(forms, weights.outlines).values() if isinstance(x, Packed)]
    return 8 * sum(x.nbytes for x in found) / sum(math.prod(x.shape) for x in found)


def matrices(forms: Forms, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the weights by role: arrays (or Nodes) unchanged, packed ones dequantised on each
    access."""
    return Matrices(dict(forms), arrays) if forms else arrays


class Matrices(Mapping[str, Any]):
    """The weights by role, where `forms` lists the packed ones."""

    def __init__(self, forms: Mapping[str, Form], arrays: Mapping[str, Any]) -> None:
        self.forms, self._arrays = forms, arrays
        parts = {f"{role}.{part}" for role, form in forms.items() for part in form.parts}
        self._roles = [*(role for role in arrays if role not in parts), *forms]

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def __getitem__(self, role: str) -> Any:
        return self.after(role) if role in self.forms else self._arrays[role]

    def after(self, role: str, *values: Any) -> Any:
        """Dequantises a packed weight, only after `values` are computed."""
        from weft import ops  # here, because loading a model does not need tracing
        from weft.ops.packed import dequantize

        form = self.forms[role]
        parts = {part: self._arrays[f"{role}.{part}"] for part in form.parts}
        if values:
            parts = {part: ops.call("barrier", x, *values) for part, x in parts.items()}
        return dequantize(form, parts)
