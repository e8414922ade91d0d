"""Packed weights among a model's: in files and buffers each part is an array of its own, named
"3.q.w.codes", "3.q.w.scales", ...; to the model the weight "3.q.w" is one float32 matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.core.packed import Form, Packed

Forms = tuple[tuple[str, Form], ...]  # role -> how its parts are read


def parted(weights: Mapping[str, np.ndarray | Packed]) -> tuple[dict[str, np.ndarray], Forms]:
    """Every array by its name, the parts of packed weights among them, and the packed ones' forms.
    One weight at a time is asked for."""
    arrays: dict[str, np.ndarray] = {}
    forms = []
    for role, value in weights.items():
        if isinstance(value, Packed):
            arrays |= {f"{role}.{part}": value.parts[part] for part in value.form.parts}
            forms.append((role, value.form))
        else:
            arrays[role] = value
    return arrays, tuple(forms)


def owner(forms: Forms, name: str) -> str:
    """The role of the weight that an array belongs to."""
    role, _, part = name.rpartition(".")
    return role if any(role == r and part in form.parts for r, form in forms) else name


def whole(forms: Forms, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | Packed]:
    """The weights by role, packed ones as such: the reverse of `parted`."""
    parts = {f"{role}.{part}" for role, form in forms for part in form.parts}
    found: dict[str, np.ndarray | Packed] = {r: x for r, x in arrays.items() if r not in parts}
    for role, form in forms:
        found[role] = Packed(form, {part: arrays[f"{role}.{part}"] for part in form.parts})
    return found


def bits(forms: Forms, arrays: Mapping[str, np.ndarray]) -> float:
    """Bits that an element of the packed weights takes on average, scales and all."""
    found = [x for x in whole(forms, arrays).values() if isinstance(x, Packed)]
    return 8 * sum(x.nbytes for x in found) / sum(math.prod(x.shape) for x in found)


def matrices(forms: Forms, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights by role: arrays (or Nodes) as they are, packed ones dequantised whenever they are
    asked for."""
    return Matrices(dict(forms), arrays) if forms else arrays


class Matrices(Mapping[str, Any]):
    """What `matrices` gives where some are packed; `forms` says which."""

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
        """A packed weight, dequantised once `values` are computed and for no use before."""
        from weft import ops  # here: what only loads a model does not trace
        from weft.ops.packed import dequantize

        form = self.forms[role]
        parts = {part: self._arrays[f"{role}.{part}"] for part in form.parts}
        if values:
            parts = {part: ops.call("barrier", x, *values) for part, x in parts.items()}
        return dequantize(form, parts)
