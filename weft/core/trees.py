"""Nested values as a flat list of leaves and how they nest.

Lists, tuples, mappings and dataclasses hold others; the caller says what a leaf is; everything else
counts by its value. Nothing here recurses, so memory alone limits how deep values nest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import UsageError

_LEAF, _VALUE = -1, -2  # take the place of a number of parts
_END = object()  # on a stack: the innermost container has no more parts


class Tree(NamedTuple):
    """The structure that `flatten` found, each container before its parts.

    `marks` is hashable where the values are. Two are equal if their trees nest alike and hold equal
    values. `makers` rebuilds the tree.
    """

    marks: tuple[Any, ...]
    makers: list[tuple[int, Any]]  # (number of parts, their function), or a leaf, or a value


def flatten(x: Any, is_leaf: Callable[[Any], bool], what: str) -> tuple[list[Any], Tree]:
    """The leaves in `x` in order, and how they nest. Raises UsageError, which begins with `what`,
    where something holds itself."""
    leaves: list[Any] = []
    marks: list[Any] = []
    makers: list[tuple[int, Any]] = []
    stack: list[Any] = [x]
    around: list[Any] = []  # the containers whose parts are being visited
    inside: set[int] = set()  # their ids
    while stack:
        x = stack.pop()
        if x is _END:
            inside.discard(id(around.pop()))
        elif is_leaf(x):
            leaves.append(x)
            marks.append(_LEAF)
            makers.append((_LEAF, None))
        elif (opened := _opened(x)) is None:
            marks.append(_exact(x))
            makers.append((_VALUE, x))
        else:
            mark, make, parts = opened
            if id(x) in inside:
                raise UsageError(f"{what}: a {type(x).__name__} holds itself; nesting must end")
            marks.append(mark)
            makers.append((len(parts), make))
            inside.add(id(x))
            around.append(x)
            stack.append(_END)
            stack.extend(reversed(parts))
    return leaves, Tree(tuple(marks), makers)


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The inverse of `flatten`: what nested so, with these leaves."""
    made: list[Any] = []  # built parts, in reverse: the next one to use is last
    at = len(leaves)
    for count, make in reversed(tree.makers):
        if count == _LEAF:
            at -= 1
            made.append(leaves[at])
        elif count == _VALUE:
            made.append(make)
        else:
            made.append(make([made.pop() for _ in range(count)]))
    return made[0]


def paths(tree: Tree) -> list[str]:
    """Returns, for each leaf, the indices, keys and fields that lead to it, each after a "_"."""
    found: list[str] = []
    under: list[tuple[str, Iterator[Any]]] = [("", iter([None]))]
    for mark, (count, _) in zip(tree.marks, tree.makers):
        while (name := next(under[-1][1], _END)) is _END:
            under.pop()
        path = under[-1][0] if name is None else f"{under[-1][0]}_{name}"
        if count == _LEAF:
            found.append(path)
        elif count >= 0:
            names = range(count) if len(mark) == 2 else [k[1] for k in mark[2]]
            under.append((path, iter(names)))
    return found


def values(tree: Tree) -> list[Any]:
    """Returns the values that are neither containers nor leaves, in order."""
    return [value for count, value in tree.makers if count == _VALUE]


def _opened(x: Any) -> tuple[tuple[Any, ...], Callable[[list[Any]], Any], list[Any]] | None:
    """(what it is, what makes it of its parts, the parts); None of what holds nothing."""
    kind = type(x)
    if isinstance(x, list | tuple):
        return (kind, len(x)), getattr(kind, "_make", kind), list(x)
    if isinstance(x, Mapping):
        keys = list(x)
        return (dict, len(x), tuple(map(_exact, keys))), partial(_dict, keys), list(x.values())
    if _is_record(x):
        names = [f.name for f in dataclasses.fields(x)]
        parts = [getattr(x, name) for name in names]
        return (kind, len(names), tuple(map(_exact, names))), partial(_record, kind, names), parts
    return None


def _is_record(x: Any) -> bool:
    """True for a dataclass that compares by value. Callables and dataclasses that compare by
    identity are passed on as objects."""
    kind: Any = type(x)
    by_value = kind.__eq__ is not object.__eq__
    return hasattr(kind, "__dataclass_fields__") and by_value and not callable(x)


def _dict(keys: list[Any], parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(keys, parts))


def _record(kind: type, names: list[str], parts: list[Any]) -> Any:
    """A dataclass with these fields: frozen ones too, and without its own __init__."""
    made: Any = object.__new__(kind)
    for name, part in zip(names, parts):
        object.__setattr__(made, name, part)
    return made


def _exact(x: Any) -> tuple[type, Any]:
    """Returns a key, which is equal for the same value only: 0 is not 0.0 or False, -0.0 is not
    0.0, and a NaN equals itself."""
    return (type(x), repr(x) if isinstance(x, float | complex | np.generic) else x)
