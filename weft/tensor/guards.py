"""Guards on Python objects: what a trace read of modules and optimisers, and if it still holds.

A trace is valid for the attributes it read. Reading them again at every call would cost more than
the call, so every write to a watched object leaves one mark, and only after a new one are the
attributes compared. Attributes that hold lists, dicts and the like change without a write; these
few are compared at every call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import TraceError
from weft.tensor.base import CURRENT

if TYPE_CHECKING:
    from weft.tensor.base import TensorBase

MISSING = type("Missing", (), {"__repr__": lambda _: "nothing"})()  # no such attribute
NUMBERS = (bool, int, float, complex, str, bytes, np.generic)  # compared by value
DEPTH, LONGEST = 4, 1000  # containers nested deeper, or longer, count by identity

Members = Callable[[dict[str, Any]], Any]  # a part of an object's attributes, to be compared whole


class _Changes:
    # a mark instead of a count: two threads that increment a count could leave it unchanged
    latest = object()


def changed() -> None:
    """Notes that something changed which a guard may have read."""
    _Changes.latest = object()


class Watched:
    """An object whose attributes a trace may depend on: a function that was compiled while it read
    them is traced again when they change, and its earlier Program serves when they change back."""

    def __getattribute__(self, name: str) -> Any:
        if CURRENT.trace is not None:
            CURRENT.trace.facts.read(self, name)
        elif name == "__dict__":
            changed()  # the caller may write to the dict
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        had = attributes(self).get(name, MISSING)
        object.__setattr__(self, name, value)
        if had is not value:
            self._wrote(name)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._wrote(name)

    def _wrote(self, name: str) -> None:
        changed()
        if CURRENT.trace is not None:
            CURRENT.trace.facts.wrote(self, name)


class Noted(dict[Any, Any]):
    """A dict that notes its changes, so that calls do not have to compare it."""

    def _noting(method: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            out = method(self, *args, **kwargs)
            changed()
            return out

        return call

    __setitem__ = _noting(dict.__setitem__)
    __delitem__ = _noting(dict.__delitem__)
    __ior__ = _noting(dict.__ior__)
    clear = _noting(dict.clear)
    pop = _noting(dict.pop)
    popitem = _noting(dict.popitem)
    setdefault = _noting(dict.setdefault)
    update = _noting(dict.update)


def attributes(owner: Any) -> dict[str, Any]:
    """An object's own attributes, without a note that all of them were read."""
    found: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    return found


def has_own(owner: Watched, name: str) -> bool:
    """True if the object itself, not its class, has an attribute of this name."""
    if CURRENT.trace is not None:
        CURRENT.trace.facts.read(owner, name)
    return name in attributes(owner)


def members(owner: Watched, select: Members) -> Any:
    """select(attributes of owner), noted as read: the trace depends on what this gives."""
    inside = attributes(owner)
    found = select(inside)
    if CURRENT.trace is not None:
        CURRENT.trace.facts.selected(owner, select, found)
    return found


class TraceReads:
    """The values that one trace read of watched objects and of tensors from outside."""

    def __init__(self) -> None:
        self._met: set[tuple[int, Any]] = set()  # read, or written before it was read
        # alive, so that an id stays theirs: owners, their classes, where their attributes are
        self._owners: dict[int, tuple[Watched, type, dict[str, Any]]] = {}
        self._read: list[tuple[Watched, dict[str, Any], str, Any]] = []
        self._loose: list[tuple[Watched, dict[str, Any], str, Any]] = []  # changed without a note
        self._selected: list[tuple[dict[str, Any], Members, Any]] = []
        self._tensors: list[tuple[TensorBase, bool, Any, Any, Any, Any]] = []
        # names that were written after the trace read them
        self._written: list[tuple[Watched, str]] = []
        self._held = True  # the result of the last comparison
        self._stamp: object = None  # the last change before that comparison

    # -- while tracing

    def read(self, owner: Watched, name: str) -> None:
        """Notes the value of an attribute."""
        key = (id(owner), name)
        if key in self._met or (name[:2] == "__" and name != "__dict__"):
            return
        self._met.add(key)
        inside = self._owner(owner)
        value = inside if name == "__dict__" else inside.get(name, MISSING)
        loose = name != "__dict__" and _changes_unseen(value)
        facts = self._loose if loose else self._read
        facts.append((owner, inside, name, _copied(value)))

    def selected(self, owner: Watched, select: Members, found: Any) -> None:
        """Notes what a part of an object's attributes was."""
        if (key := (id(owner), select)) not in self._met:
            self._met.add(key)
            self._selected.append((self._owner(owner), select, found))

    def wrote(self, owner: Watched, name: str) -> None:
        """Notes that the traced function itself sets an attribute."""
        key = (id(owner), name)
        if key in self._met:
            self._written.append((owner, name))
        else:
            self._met.add(key)
            self._owner(owner)

    def _owner(self, owner: Watched) -> dict[str, Any]:
        """Notes an owner; its attributes."""
        known = (owner, type(owner), attributes(owner))
        return self._owners.setdefault(id(owner), known)[2]

    def tensor(self, tensor: TensorBase) -> None:
        """Notes of a tensor from outside if it requires gradients, its dtype and its hooks."""
        if (key := (id(tensor), TraceReads)) not in self._met:
            self._met.add(key)
            facts = (
                tensor._leaf, tensor.dtype, tensor._value.dtype, tensor._hooks, tensor._view
            )  # fmt: skip
            self._tensors.append((tensor, *facts))

    def check_written(self) -> None:
        """Raises TraceError for an attribute that was read, then set to a value of this trace: the
        next call would have to read what this one computed."""
        for owner, name in self._written:
            value = attributes(owner).get(name)
            if getattr(value, "is_traced", False):
                raise TraceError(
                    f"a traced function read {_called(owner, name)}, then set it to a tensor it "
                    "computed, which no later call would see; make it a buffer (register_buffer, "
                    "then .assign(...) in the function), or pass it and return it"
                )

    # -- afterwards

    def holds(self) -> bool:
        """True if everything that was read is as it was."""
        if self._stamp is not _Changes.latest:
            self._stamp = _Changes.latest  # first: a change meanwhile is seen next time
            self._held = self._difference() is None
        return self._held and (not self._loose or self._changed_in(self._loose) is None)

    def difference(self) -> str | None:
        """Names something that differs from what was read; None if nothing does."""
        return self._difference() or self._changed_in(self._loose)

    def _difference(self) -> str | None:
        for tensor, leaf, dtype, given, hooks, view in self._tensors:
            if tensor._view is not view:
                return f"what {tensor.name or tensor._known()} shares its content with"
            if tensor._hooks is not hooks:
                return f"the hooks of {tensor.name or tensor._known()}"
            if tensor._leaf is not leaf:
                return f"requires_grad of {tensor.name or tensor._known()}"
            if tensor._value.dtype is not given and tensor.dtype is not dtype:
                return f"the dtype of {tensor.name or tensor._known()}"
        for owner, kind, inside in self._owners.values():
            if type(owner) is not kind:
                return f"the class of a {kind.__name__}"
            if attributes(owner) is not inside:
                return f"the __dict__ of a {kind.__name__}"
        for inside, select, then in self._selected:
            if not _same(select(inside), then):
                return "the members of a module"
        return self._changed_in(self._read)

    def _changed_in(self, facts: list[tuple[Watched, dict[str, Any], str, Any]]) -> str | None:
        for owner, inside, name, then in facts:
            now = inside if name == "__dict__" else inside.get(name, MISSING)
            if now is not then and not _same(now, then):
                return _called(owner, name)
        return None


def _called(owner: Watched, name: str) -> str:
    return f"{type(owner).__name__}.{name}"


def _inside(value: Any) -> Mapping[Any, Any] | None:
    """The fields of a plain record; None for other objects."""
    if isinstance(value, SimpleNamespace) or dataclasses.is_dataclass(value):
        return getattr(value, "__dict__", None)
    return None


def _changes_unseen(value: Any, depth: int = DEPTH) -> bool:
    """True for a container that may change without a note."""
    if isinstance(value, Noted) or not depth:
        return False
    if isinstance(value, list | dict | set | bytearray):
        return len(value) <= LONGEST
    if isinstance(value, tuple):
        return len(value) <= LONGEST and any(_changes_unseen(v, depth - 1) for v in value)
    return _inside(value) is not None and not isinstance(value, type)


def _copied(value: Any, depth: int = DEPTH) -> Any:
    """A copy of a container, to be compared with it later; other values themselves."""
    if not depth or isinstance(value, type):
        return value
    if isinstance(value, dict):
        short = isinstance(value, Noted) or len(value) <= LONGEST
        return {k: _copied(v, depth - 1) for k, v in value.items()} if short else value
    if isinstance(value, list) and len(value) <= LONGEST:
        return [_copied(v, depth - 1) for v in value]
    if isinstance(value, tuple) and _changes_unseen(value, depth):
        return tuple(_copied(v, depth - 1) for v in value)
    if isinstance(value, set | bytearray) and len(value) <= LONGEST:
        return value.copy()
    fields = _inside(value)
    return value if fields is None else _Fields(value, _copied(dict(fields), depth - 1))


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields of a record as they were."""

    owner: Any
    fields: dict[str, Any]


def _same(now: Any, then: Any) -> bool:
    """True if a value is what it was: numbers and text by value, containers by their parts, all
    else by identity."""
    if now is then:
        return True
    if isinstance(then, _Fields):
        return now is then.owner and _same(_inside(now), then.fields)
    if isinstance(then, dict):
        return (
            isinstance(now, dict)
            and list(now) == list(then)
            and all(map(_same, now.values(), then.values()))
        )
    if type(now) is not type(then):
        return False
    if isinstance(then, NUMBERS):
        return repr(now) == repr(then)  # repr also tells nan and -0.0 apart
    if isinstance(then, list | tuple):
        return len(now) == len(then) and all(map(_same, now, then))
    if isinstance(then, set | bytearray | frozenset):
        return bool(now == then)
    return False
