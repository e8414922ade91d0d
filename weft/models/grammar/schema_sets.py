"""Unions and intersections of JSON schemas.

llguidance intersects schemas too, but neither lists nor objects whose parts lead to themselves, as
the schema of any JSON does. So intersections are made here, part by part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import Any

from weft.core.errors import UsageError
from weft.models.grammar.schema_numbers import Schema

_LISTS = {"prefixItems", "items"}
_OBJECTS = {"properties", "patternProperties", "additionalProperties"}
_LARGER = {"minItems", "minLength", "minProperties", "minimum", "exclusiveMinimum"}
_SMALLER = {"maxItems", "maxLength", "maxProperties", "maximum", "exclusiveMaximum"}
_PLAIN = re.compile(r"\^?(?:[\w -]|\[[\w-]+\][*+]?|\(\?s:\.\)\{\d+,\d*\}|\\.|\.)*[*+]?\$?")


STEPS = 20_000
FEW = 16  # alternatives that are compared, to leave out doubles


class CannotMerge(Exception):
    """Two schemas whose intersection is left to llguidance."""


class Sets:
    """Unions and intersections, in at most STEPS steps for one schema."""

    def __init__(self) -> None:
        self._left = STEPS

    def step(self) -> None:
        """Counts a step. Raises UsageError beyond the last."""
        self._left -= 1
        if self._left < 0:
            raise UsageError(f"the JSON schema takes over {STEPS} steps to write not, if, oneOf "
                             "and the like as alternatives; simplify it")  # fmt: skip

    def any_of(self, alternatives: Iterable[Any]) -> Any:
        """The schema of values that satisfy one alternative."""
        found: list[Any] = []
        for one in alternatives:
            self.step()
            if one is True or one == {}:
                return True
            if one is not False and (len(found) > FEW or one not in found):
                found.append(one)
        return found[0] if len(found) == 1 else {"anyOf": found} if found else False

    def all_of(self, schemas: Iterable[Any]) -> Any:
        """The schema of values that satisfy every schema."""
        return reduce(self.both, schemas, True)

    def both(self, one: Any, other: Any) -> Any:
        """The schema of values that satisfy two."""
        self.step()
        if one is False or other is False:
            return False
        if one is True or one == {}:
            return other
        if other is True or other == {}:
            return one
        for a, b in ((one, other), (other, one)):
            if "anyOf" in a and _meet(a["anyOf"], b):
                rest = self.both({k: v for k, v in a.items() if k != "anyOf"}, b)
                return self.any_of(self.both(rest, alternative) for alternative in a["anyOf"])
        try:
            return self._merged(one, other)
        except CannotMerge:
            return {"allOf": [*_members(one), *_members(other)]}

    def _merged(self, one: Schema, other: Schema) -> Any:
        made = dict(one)
        left: list[Any] = []
        for key, value in other.items():
            if key in _LISTS | _OBJECTS:
                continue
            if key not in made or made[key] == value:
                made[key] = value
            elif key == "type":
                made[key] = _types(made[key], value)
                if not made[key]:
                    return False
            elif key == "required" and isinstance(value, list) and isinstance(made[key], list):
                made[key] = list(dict.fromkeys([*made[key], *value]))
            elif not (_number(value) and _number(made[key])) and key in _LARGER | _SMALLER:
                left.append({key: value})
            elif key in _LARGER:
                made[key] = max(made[key], value)
            elif key in _SMALLER:
                made[key] = min(made[key], value)
            elif key == "allOf":
                made[key] = [*made[key], *value]
            else:
                left.append({key: value})
        if _LISTS & other.keys():
            self._lists(made, one, other)
        if _OBJECTS & other.keys():
            self._objects(made, one, other)
        if left:
            made["allOf"] = [*made.get("allOf", ()), *left]
        required = made.get("required")
        known = made.get("properties", {})
        if isinstance(required, list) and any(known.get(str(name)) is False for name in required):
            return _not_a(made, "object")
        return made

    def _lists(self, made: Schema, one: Schema, other: Schema) -> None:
        first, second = one.get("prefixItems", []), other.get("prefixItems", [])
        rest, others = one.get("items", True), other.get("items", True)
        size = max(len(first), len(second))
        items = [
            self.both(
                first[i] if i < len(first) else rest, second[i] if i < len(second) else others
            )
            for i in range(size)
        ]
        if items:
            made["prefixItems"] = items
        if "items" in one or "items" in other:
            made["items"] = self.both(rest, others)

    def _objects(self, made: Schema, one: Schema, other: Schema) -> None:
        named: dict[str, Any] = {}
        patterns: dict[str, Any] = {}
        for a, b in ((one, other), (other, one)):
            for name, inner in a.get("properties", {}).items():
                named.setdefault(name, self.both(inner, self._of_name(b, name)))
            for pattern, inner in a.get("patternProperties", {}).items():
                theirs = b.get("patternProperties", {})
                further = b.get("additionalProperties", True)
                patterns.setdefault(pattern, self.both(inner, theirs.get(pattern, further)))
        if named:
            made["properties"] = named
        if patterns:
            made["patternProperties"] = patterns
        if "additionalProperties" in one or "additionalProperties" in other:
            made["additionalProperties"] = self.both(
                one.get("additionalProperties", True), other.get("additionalProperties", True)
            )

    def _of_name(self, one: Schema, name: str) -> Any:
        """The demands of a schema of objects on a property. Raises CannotMerge for patterns that do
        not show plainly whether they match."""
        found = [one["properties"][name]] if name in one.get("properties", {}) else []
        for pattern, inner in one.get("patternProperties", {}).items():
            if not _PLAIN.fullmatch(pattern):
                raise CannotMerge
            if re.search(pattern, name[:1000]):
                found.append(inner)
        return self.all_of(found) if found else one.get("additionalProperties", True)


def _members(one: Schema) -> list[Any]:
    return one["allOf"] if set(one) == {"allOf"} else [one]


def _keys(one: Any) -> set[str]:
    """The keywords of a schema and those about the same value in it."""
    if not isinstance(one, dict):
        return set()
    inner = [*one.get("anyOf", ()), *one.get("allOf", ())]
    return set(one) | {key for alternative in inner for key in _keys(alternative)}


def _meet(alternatives: list[Any], other: Schema) -> bool:
    """True if alternatives and a schema say something of the same lists or objects, or of types."""
    theirs = {key for one in alternatives for key in _keys(one)}
    keys = _keys(other)
    return any(group & theirs and group & keys for group in (_LISTS, _OBJECTS, {"type"}))


def _not_a(made: Schema, kind: str) -> Any:
    """A schema without the values of a type."""
    named = made.get("type", ["null", "boolean", "number", "string", "array", "object"])
    left = [k for k in (named if isinstance(named, list) else [named]) if k != kind]
    return {**made, "type": left} if left else False


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _types(one: Any, other: Any) -> Any:
    mine, theirs = (set(t if isinstance(t, list) else [t]) for t in (one, other))
    found = mine & theirs
    for a, b in ((mine, theirs), (theirs, mine)):
        if "integer" in a and "number" in b:
            found.add("integer")
    found -= {"integer"} if "number" in found else set()
    listed = sorted(found)
    return listed[0] if len(listed) == 1 else listed
