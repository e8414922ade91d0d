"""Arrays of different items and objects with a bounded number of names, as lists of all values.

No grammar compares the items of a long array. llguidance does not count names that an object may
leave out."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations, islice, permutations
from typing import Any

from weft.models.grammar.schema_numbers import Schema
from weft.models.grammar.schema_refs import INERT

MOST = 400  # arrays that are spelt out: all of five values or fewer
_BESIDE = {"type", "items", "minItems", "maxItems", "uniqueItems"}
_ITEM = {"type", "enum", "const"}
_OPTIONAL = 6  # names that an object may leave out: all choices of them are spelt out
_NAMED = {"type", "properties", "required", "additionalProperties", "minProperties",
          "maxProperties"}  # fmt: skip
_PARTS = {"$defs", "definitions"}


def distinct(given: Schema) -> Schema:
    """A schema of arrays with `uniqueItems`, whose items are of a few values (enum, const,
    booleans, null), as an enum of all such arrays. Any other schema as it is."""
    if given.get("uniqueItems") is not True or given.get("type") not in ("array", ["array"]):
        return given
    least, most = given.get("minItems", 0), given.get("maxItems")
    values = None if given.keys() - _BESIDE - _PARTS - INERT else _values(given.get("items"))
    if values is None or not (_is_count(least) and (most is None or _is_count(most))):
        return given
    lengths = range(int(least), min(len(values), len(values) if most is None else int(most)) + 1)
    arrays = (list(one) for n in lengths for one in permutations(values, n))
    found = list(islice(arrays, MOST + 1))
    if not 0 < len(found) <= MOST:
        return given
    return {**_without(given, _BESIDE), "enum": found}


def counted(given: Schema) -> Schema:
    """A schema of objects with `minProperties` or `maxProperties`, whose names are listed and few,
    as alternatives in which every name is required. Any other schema as it is."""
    least, most = given.get("minProperties", 0), given.get("maxProperties")
    named, required = given.get("properties"), given.get("required", [])
    if given.get("type") not in ("object", ["object"]) or given.keys() - _NAMED - _PARTS - INERT:
        return given
    if given.get("additionalProperties") is not False or not (isinstance(named, dict) and named):
        return given
    if not (_is_count(least) and _is_count(len(named) if most is None else most)):
        return given
    if not isinstance(required, list) or not all(one in named for one in required):
        return given
    optional = [name for name in named if name not in required]
    if _between(len(set(required)), least, None) and _between(len(named), 0, most):
        return {name: v for name, v in given.items() if name != "maxProperties"}
    if len(optional) > _OPTIONAL:
        return given
    counts = (n for n in range(len(optional) + 1) if _between(n + len(set(required)), least, most))
    found = [{*required, *more} for n in counts for more in combinations(optional, n)]
    objects = [{"type": "object", "properties": {n: v for n, v in named.items() if n in names},
                "required": [n for n in named if n in names], "additionalProperties": False}
               for names in found]  # fmt: skip
    return {**_without(given, _NAMED), "anyOf": objects} if objects else given


def _without(given: Schema, left_out: set[str]) -> Schema:
    return {name: value for name, value in given.items() if name not in left_out}


def _between(count: int, least: float, most: float | None) -> bool:
    return least <= count and (most is None or count <= most)


def _values(items: Any) -> list[Any] | None:
    """The values that a schema has, each once; None for one that does not list them."""
    if not isinstance(items, dict) or items.keys() - _ITEM - INERT:
        return None
    kinds = items.get("type")
    listed = items.get("enum", [items["const"]] if "const" in items else None)
    if listed is None:
        listed = {"boolean": [False, True], "null": [None]}.get(str(kinds))
    elif "const" in items and "enum" in items:
        return None
    if not isinstance(listed, list):
        return None
    names = [kinds] if isinstance(kinds, str) else kinds
    if names is not None and not isinstance(names, list):
        return None
    right = [one for one in listed if names is None or (_KINDS.keys() >= set(names)
             and any(_KINDS[name](one) for name in names))]  # fmt: skip
    return list({_same(one): one for one in right}.values())


_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda one: one is None,
    "boolean": lambda one: isinstance(one, bool),
    "integer": lambda one: _number(one) and one == int(one),
    "number": lambda one: _number(one),
    "string": lambda one: isinstance(one, str),
    "array": lambda one: isinstance(one, list),
    "object": lambda one: isinstance(one, dict),
}


def _number(one: Any) -> bool:
    return isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1 << 53


def _is_count(one: Any) -> bool:
    return _number(one) and one >= 0 and one == int(one)


def _same(one: Any) -> str:
    """A text that two values share where JSON schema holds them equal: 1 and 1.0."""
    return json.dumps(_plain(one), sort_keys=True)


def _plain(one: Any) -> Any:
    if isinstance(one, dict):
        return {name: _plain(value) for name, value in one.items()}
    if isinstance(one, list):
        return [_plain(value) for value in one]
    return float(one) if _number(one) else one
