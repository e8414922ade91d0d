"""The values that the steps of a foreign graph read and make, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import FileFormatError, ShapeError
from weft.importers.ports import Ref


def refs(value: Any) -> list[str]:
    """The names of the Refs in nested arguments."""
    found: list[str] = []
    stack = [value]
    while stack:
        x = stack.pop()
        if isinstance(x, Ref):
            found.append(x.name)
        elif isinstance(x, list | tuple):
            stack.extend(x)
        elif isinstance(x, Mapping):
            stack.extend(x.values())
        elif isinstance(x, slice):
            stack.extend((x.start, x.stop, x.step))
    return found


def last_uses(
    given: Sequence[str],
    steps: Sequence[tuple[str, list[str], str | tuple[str, ...]]],
    results: Sequence[str],
) -> list[list[str]]:
    """For each step, the values that no later step reads. A step is its operator, the values it
    reads and the values it makes. Raises FileFormatError for a step that reads a value which
    nothing before it made, and for a name made twice."""
    known = set(given)
    if len(known) < len(given):
        raise FileFormatError("two inputs or tensors have one name")
    for op, reads, out in steps:
        missing = [r for r in reads if r not in known]
        if missing:
            raise FileFormatError(f"{op}: reads {missing[0]!r}, which nothing before it made")
        made = _made(out)
        twice = [n for n in made if n in known] or len(set(made)) < len(made)
        if twice:
            raise FileFormatError(f"{op}: {made} is made twice")
        known |= set(made)
    needed = set(results)
    if needed - known:
        raise FileFormatError(f"the result reads {min(needed - known)!r}, which no step made")
    drops: list[list[str]] = []
    for _, reads, out in reversed(steps):
        drops.append([])
        for name in dict.fromkeys([*reads, *_made(out)]):
            if name not in needed:
                needed.add(name)
                drops[-1].append(name)
    return drops[::-1]


def _made(out: str | tuple[str, ...]) -> list[str]:
    return [n for n in ((out,) if isinstance(out, str) else out) if n]


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Returns nested arguments with values instead of Refs."""
    kind = type(value)
    if kind is Ref:
        return values[value.name]
    if kind is tuple or kind is list:
        return kind([filled(x, values) for x in value])
    if kind is dict:
        return {k: filled(x, values) for k, x in value.items()}
    if kind is slice:
        return slice(*(filled(x, values) for x in (value.start, value.stop, value.step)))
    return value


def keep_results(out: str | tuple[str, ...], made: Any, values: dict[str, Any]) -> None:
    if not out:
        return
    if isinstance(out, str):
        values[out] = made
        return
    if len(made) != len(out):
        raise ShapeError(f"gives {len(made)} results, {len(out)} are expected")
    values |= {name: x for name, x in zip(out, made) if name}
