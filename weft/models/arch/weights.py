"""The weights of a model: a Weight by role until it is read, then Weights, the arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import NamedTuple

import numpy as np

from weft.core.packed import Form, Packed
from weft.host.mapped import MappedFile, mapped_files
from weft.host.pages import Trimmer, base_of, spend
from weft.models.arch.config import Kind, WeightSpec

Forms = tuple[tuple[str, Form], ...]  # role -> form of its parts
Value = np.ndarray | Packed


class Known(NamedTuple):
    """The facts about a weight that is not read yet: arrays of its shapes and dtypes, without
    content, and the file that alone determines the content."""

    outline: Value
    file: MappedFile


class Place(NamedTuple):
    """The origin of an array's content: a file, and the first byte there, None if the array is made
    of several parts of it."""

    file: MappedFile
    start: int | None


class Weight(NamedTuple):
    """A weight that is read on demand, again each time: `read` returns the content of the file, and
    `changes`, one after another, make the model's weight of it. `kept` is True if others hold the
    result of `read`. A weight that is slow to make, or a copy, says by `known` what it
    will be."""

    spec: WeightSpec
    read: Callable[[], Value]
    changes: tuple[Callable[[Value], Value], ...] = ()
    kept: bool = False
    known: Known | None = None

    def value(self) -> Value:
        """Returns the weight, read now."""
        value = self.read()
        for change in self.changes:
            value = change(value)
        return value

    def then(self, change: Callable[[Value], Value], alike: bool = False) -> Weight:
        """Returns the weight with one more change; `alike` says that shapes and dtypes stay."""
        known = self.known if alike else None
        return self._replace(changes=(*self.changes, change), known=known)

    def copied(self, file: MappedFile) -> Weight:
        """Returns a weight that `file` alone determines, to be read when it is looked up: changes
        will make a copy of it."""
        value = self.read()
        assert isinstance(value, np.ndarray)
        return self._replace(known=Known(_outlines({"": value})[""], file))

    def of(self, value: Value) -> Weight:
        """Returns the weight with another value, which is in memory already."""
        return self._replace(read=lambda: value, changes=(), kept=True, known=None)


def held(value: Value, kind: Kind = "matrix") -> Weight:
    """Returns a weight that is in memory and in no checkpoint."""
    return Weight(WeightSpec("", value.shape, kind), lambda: value, kept=True)


class Weights(Mapping[str, np.ndarray]):
    """The arrays of a model by name; `forms` lists the packed weights. In files and buffers each
    part of a packed weight is a separate array, named "3.q.w.codes", "3.q.w.scales", ...

    Each weight is read once, in order, but a `known` one not before its first array is looked up.
    An array that is not a view of a file is held until it is taken (`take`) for a device, which
    then has the only copy. If it is looked up later, it is made again. `files` are the mapped files
    behind the weights; `origins` names the file of each array that is not read yet.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._made: dict[str, Weight] = {}  # weights that can be read again, by role
        self._owners: dict[str, str] = {}  # their arrays -> role
        self._held: dict[str, np.ndarray] = {}
        self._unread: set[str] = set()  # roles
        self._shown: set[str] = set()  # arrays that somebody else may hold
        # Arrays of the last weight read again that were not looked up yet.
        self._again: dict[str, np.ndarray] = {}
        self._more: Mapping[str, np.ndarray] = {}
        self._freed = Trimmer()
        self.origins: dict[str, MappedFile] = {}
        forms: list[tuple[str, Form]] = []
        outlines: dict[str, np.ndarray] = {}
        for role, weight in weights.items():
            known = weight.known
            value = weight.value() if known is None else known.outline
            arrays = _arrays(role, value)
            outlines |= arrays if known else _outlines(arrays)
            if not weight.kept:
                self._owners |= dict.fromkeys(arrays, role)
                self._made[role] = weight
            if isinstance(value, Packed):
                forms.append((role, value.form))
            if known is None:
                self._held |= arrays
                self._freed.add(value.nbytes)  # at most as much as this was freed meanwhile
            else:
                self._unread.add(role)
                self.origins |= dict.fromkeys(arrays, known.file)
        self.forms: Forms = tuple(forms)
        self.files: list[MappedFile] = mapped_files(self._held.values())
        self.outlines: Mapping[str, np.ndarray] = outlines

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
        self._shown.add(name)
        return self._get(name)

    def _get(self, name: str) -> np.ndarray:
        for arrays in (self._held, self._more):
            if name in arrays:
                return arrays[name]
        role = self._owners[name]
        if role in self._unread:
            self._unread.discard(role)
            self._held |= _arrays(role, self._made[role].value())
            return self._held[name]
        if name not in self._again:
            self._again.clear()
            self._again |= _arrays(role, self._made[role].value())
        return self._again.pop(name)

    def place(self, name: str) -> Place | None:
        """Returns the place of an array's content in a file; None if no file determines it."""
        if name in self.origins:
            return Place(self.origins[name], None)
        held = self._held.get(name)
        if held is None or not isinstance(file := base_of(held), MappedFile):
            return None
        if not held.flags.c_contiguous:
            return None
        return Place(file, held.ctypes.data - np.frombuffer(file, np.uint8, 1).ctypes.data)

    def take(self, name: str) -> np.ndarray:
        """Returns an array for a device, and lets it go if it can be made again."""
        if name not in self._owners:
            return self._get(name)
        seen = name in self._held and name in self._shown
        value = self._get(name)
        self._held.pop(name, None)
        if not seen:
            spend(value)
        self._freed.add(value.nbytes)
        return value


def _arrays(role: str, value: Value) -> dict[str, np.ndarray]:
    if not isinstance(value, Packed):
        return {role: value}
    return {f"{role}.{part}": value.parts[part] for part in value.form.parts}


def _outlines(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays of the same shapes, dtypes and nbytes without content."""
    return {k: np.broadcast_to(np.empty((), v.dtype), v.shape) for k, v in arrays.items()}
