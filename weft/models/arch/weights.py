"""The weights of a model: a Weight by role until it is read, then Weights, the arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import NamedTuple

import numpy as np

from weft.core.packed import Form, Packed
from weft.models.arch.config import Kind, WeightSpec

Forms = tuple[tuple[str, Form], ...]  # role -> form of its parts
Value = np.ndarray | Packed


class Weight(NamedTuple):
    """A weight that is read on demand, anew each time: `read` returns what the file holds, and
    `changes`, one after another, make the model's weight of it."""

    spec: WeightSpec
    read: Callable[[], Value]
    changes: tuple[Callable[[Value], Value], ...] = ()

    def value(self) -> Value:
        """Returns the weight, read now."""
        value = self.read()
        for change in self.changes:
            value = change(value)
        return value

    def then(self, change: Callable[[Value], Value]) -> Weight:
        """Returns the weight with one more change."""
        return self._replace(changes=(*self.changes, change))

    def of(self, value: Value) -> Weight:
        """Returns the weight with another value, which is in memory already."""
        return self._replace(read=lambda: value, changes=())


def held(value: Value, kind: Kind = "matrix") -> Weight:
    """Returns a weight that is in memory and in no checkpoint."""
    return Weight(WeightSpec("", value.shape, kind), lambda: value)


class Weights(Mapping[str, np.ndarray]):
    """The arrays of a model by name; `forms` lists the packed weights. In files and buffers each
    part of a packed weight is a separate array, named "3.q.w.codes", "3.q.w.scales", ...

    Each weight is read once, in order. A part of a packed weight is held until it is taken (`take`)
    for a device, which then has the only copy. If it is looked up later, it is made again.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._packed: dict[str, Weight] = {}
        self._owners: dict[str, str] = {}  # part -> role
        self._held: dict[str, np.ndarray] = {}
        # Parts of the last weight read again that were not looked up yet.
        self._again: dict[str, np.ndarray] = {}
        self._more: Mapping[str, np.ndarray] = {}
        forms = []
        for role, weight in weights.items():
            value = weight.value()
            if isinstance(value, Packed):
                parts = _parts(role, value)
                self._held |= parts
                self._owners |= dict.fromkeys(parts, role)
                self._packed[role] = weight
                forms.append((role, value.form))
            else:
                self._held[role] = value
        self.forms: Forms = tuple(forms)
        self.outlines: Mapping[str, np.ndarray] = _outlines(self._held)

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Weights:
        """Returns weights that are in memory, by role."""
        return cls({role: held(value) for role, value in values.items()})

    def beside(self, arrays: Mapping[str, np.ndarray]) -> Weights:
        """Returns these weights and other arrays as one. Taking from one frees it in both."""
        both = copy(self)
        both._more = {**self._more, **arrays}
        both.outlines = {**self.outlines, **_outlines(arrays)}
        return both

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)

    def __contains__(self, name: object) -> bool:
        return name in self.outlines

    def __getitem__(self, name: str) -> np.ndarray:
        for arrays in (self._held, self._more):
            if name in arrays:
                return arrays[name]
        if name not in self._again:
            role = self._owners[name]
            value = self._packed[role].value()
            assert isinstance(value, Packed)
            self._again.clear()
            self._again |= _parts(role, value)
        return self._again.pop(name)

    def take(self, name: str) -> np.ndarray:
        """Returns an array for a device, and lets it go if it is a part of a packed weight."""
        value = self[name]
        if name in self._owners:
            self._held.pop(name, None)
        return value


def _parts(role: str, packed: Packed) -> dict[str, np.ndarray]:
    return {f"{role}.{part}": packed.parts[part] for part in packed.form.parts}


def _outlines(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays of the same shapes, dtypes and nbytes without content."""
    return {k: np.broadcast_to(np.empty((), v.dtype), v.shape) for k, v in arrays.items()}
