"""oneOf of JSON schemas, where its alternatives exclude one another.

llguidance 1.9.1 knows that only of some alternatives, and of none that are references, as pydantic
writes them. Where no value satisfies two of them, oneOf means what anyOf does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

Given = Mapping[str, Any]
Values = frozenset[tuple[str, Any]]
"""Values with their types, since Python has True equal 1."""

_KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})
_NAMES = 64  # most properties of an object that are compared
_LEADS = 8  # references that lead to references


class Choices:
    """Compares alternatives. `parts` resolves references. Each list of a schema is read once, so
    the time is linear in the schemas' size."""

    def __init__(self, parts: Callable[[str], Given | None]) -> None:
        self._parts = parts
        self._listed: dict[int, tuple[Given, Values | None]] = {}

    def apart(self, alternatives: Sequence[Given]) -> list[Given] | None:
        """`alternatives` of which no value satisfies two, or None where that is not sure. Where
        objects differ by the constants of a property, each has to have it."""
        made = list(alternatives)
        met: dict[str, list[int]] = {}
        for i, one in enumerate(made):
            for kind in self._kinds(one):
                met.setdefault(kind, []).append(i)
        for kind, found in met.items():
            if len(found) == 1 or _differ(self._values(made[i]) for i in found):
                continue
            name = self._name([made[i] for i in found]) if kind == "object" else None
            if name is None:
                return None
            for i in found:
                requiring = self._requiring(made[i], name)
                if requiring is None:
                    return None
                made[i] = requiring
        return made

    def _name(self, alternatives: Sequence[Given]) -> str | None:
        """A property by whose constants objects differ."""
        for name in islice(_properties(self._followed(alternatives[0])), _NAMES):
            inner = (_properties(self._followed(one)).get(name) for one in alternatives)
            if _differ(map(self._values, inner)):
                return name
        return None

    def _requiring(self, one: Given, name: str) -> Given | None:
        """An alternative that requires a property."""
        required = self._followed(one).get("required", [])
        if not isinstance(required, list):
            return None
        return one if name in required else {"allOf": [one, {"required": [name]}]}

    def _values(self, one: object) -> Values | None:
        """The values that a schema allows at most, where it lists them and none is a list or an
        object."""
        if not isinstance(one, Mapping):
            return None
        one = self._followed(one)
        if id(one) not in self._listed:
            listed = [one["const"]] if "const" in one else one.get("enum")
            values = None
            if isinstance(listed, list) and not any(isinstance(v, list | dict) for v in listed):
                values = frozenset((_kind(v), v) for v in listed)
            self._listed[id(one)] = one, values
        return self._listed[id(one)][1]

    def _kinds(self, one: Given) -> frozenset[str]:
        """The types of values that a schema may allow."""
        one = self._followed(one)
        values = self._values(one)
        if values is not None:
            return frozenset(kind for kind, _ in values)
        named = one.get("type")
        named = named if isinstance(named, list) else [named]
        found = frozenset("number" if kind == "integer" else str(kind) for kind in named)
        return found if found <= _KINDS else _KINDS

    def _followed(self, one: Given) -> Given:
        """The schema that a reference leads to; others as they are."""
        for _ in range(_LEADS):
            ref = one.get("$ref")
            found = self._parts(ref) if isinstance(ref, str) else None
            if found is None:
                break
            one = found
        return one


def _properties(one: Given) -> Given:
    found = one.get("properties")
    return found if isinstance(found, Mapping) else {}


def _differ(given: Iterable[Values | None]) -> bool:
    """True if there are values of each, and no two have one in common."""
    seen: set[tuple[str, Any]] = set()
    for values in given:
        if values is None or not seen.isdisjoint(values):
            return False
        seen |= values
    return True


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return "string" if isinstance(value, str) else "number"
