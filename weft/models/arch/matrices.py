"""Packed weights of a model. In files and buffers each part is a separate array, named
"3.q.w.codes", "3.q.w.scales", ...; to the model the weight "3.q.w" is one float32 matrix."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from weft.core.packed import Form, Packed

Forms = tuple[tuple[str, Form], ...]  # role -> form of its parts


def parted(weights: Mapping[str, np.ndarray | Packed]) -> tuple[Mapping[str, np.ndarray], Forms]:
    """Returns every array by name, including the parts of packed weights, and the forms of the
    packed ones. Reads one weight at a time."""
    arrays: dict[str, np.ndarray] = {}
    owners: dict[str, str] = {}
    forms = []
    for role, value in weights.items():
        if isinstance(value, Packed):
            parts = _parts(role, value)
            arrays |= parts
            owners |= dict.fromkeys(parts, role)
            forms.append((role, value.form))
        else:
            arrays[role] = value
    return (Parts(weights, arrays, owners) if forms else arrays), tuple(forms)


def _parts(role: str, packed: Packed) -> dict[str, np.ndarray]:
    return {f"{role}.{part}": packed.parts[part] for part in packed.form.parts}


class Parts(Mapping[str, np.ndarray]):
    """The arrays of a model with packed weights, by name. A part is held until a device has its own
    copy of it (`let_go`); later access makes it again from `weights`."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray | Packed],
        arrays: dict[str, np.ndarray],
        owners: Mapping[str, str],
    ) -> None:
        self._weights, self._held, self._owners = weights, arrays, owners
        self._outlines = {name: _outline(array) for name, array in arrays.items()}
        # Parts of the last weight read that were not taken yet.
        self._read: dict[str, np.ndarray] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._outlines)

    def __len__(self) -> int:
        return len(self._outlines)

    def __contains__(self, name: object) -> bool:
        return name in self._outlines

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._held.get(name)
        if found is None:
            found = self._read.pop(name, None)
        if found is None:
            role = self._owners[name]
            value = self._weights[role]
            assert isinstance(value, Packed)
            read = self._read = _parts(role, value)
            found = read.pop(name)
        return found

    def outlines(self) -> Mapping[str, np.ndarray]:
        return self._outlines

    def let_go(self, name: str) -> None:
        """Stops holding a part; other arrays stay."""
        if name in self._owners:
            self._held.pop(name, None)


def _outline(array: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.empty((), array.dtype), array.shape)


def outlines(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns arrays with the same shapes, dtypes and nbytes, without reading anything."""
    return arrays.outlines() if isinstance(arrays, Parts) else arrays


def joined(*maps: Any) -> Mapping[str, Any]:
    """Returns mappings joined into one; the first with a name takes precedence. Reads on access."""
    return ChainMap(*maps)


class Lent(Mapping[str, Any]):
    """Weights for a device, each handed out as many times as `uses` says and then let go."""

    def __init__(self, weights: Mapping[str, Any], uses: Counter[str]) -> None:
        self._weights, self._uses = weights, uses
        self._packed = [m for m in getattr(weights, "maps", (weights,)) if isinstance(m, Parts)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __getitem__(self, name: str) -> Any:
        value = self._weights[name]
        self._uses[name] -= 1
        if self._uses[name] <= 0:
            for parts in self._packed:
                parts.let_go(name)
        return value


class Chosen(Mapping[str, Any]):
    """The weights whose roles `wants` accepts; the others are not read."""

    def __init__(self, weights: Mapping[str, Any], wants: Callable[[str], bool]) -> None:
        self._weights, self._roles = weights, dict.fromkeys(filter(wants, weights))

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def __contains__(self, role: object) -> bool:
        return role in self._roles

    def __getitem__(self, role: str) -> Any:
        if role not in self._roles:
            raise KeyError(role)
        return self._weights[role]


def owner(forms: Forms, name: str) -> str:
    """Returns the role of the weight that an array belongs to."""
    role, _, part = name.rpartition(".")
    return role if any(role == r and part in form.parts for r, form in forms) else name


def whole(forms: Forms, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | Packed]:
    """Returns the weights by role, packed ones as Packed: the reverse of `parted`."""
    parts = {f"{role}.{part}" for role, form in forms for part in form.parts}
    found: dict[str, np.ndarray | Packed] = {r: x for r, x in arrays.items() if r not in parts}
    for role, form in forms:
        found[role] = Packed(form, {part: arrays[f"{role}.{part}"] for part in form.parts})
    return found


def bits(forms: Forms, arrays: Mapping[str, np.ndarray]) -> float:
    """Returns the mean bits per element of the packed weights, including scales."""
    found = [x for x in whole(forms, outlines(arrays)).values() if isinstance(x, Packed)]
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
