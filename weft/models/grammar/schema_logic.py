"""Keywords of JSON schemas that llguidance does not have, said in those that it has.

A schema becomes one that allows the same values or fewer, never others. So `not`, `if`,
`dependentSchemas`, `contains` and `oneOf` are alternatives (anyOf); unevaluatedProperties and
unevaluatedItems close each alternative. A keyword that no alternative expresses is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.models.grammar.schema_numbers import Schema, unsupported
from weft.models.grammar.schema_sets import Sets

KINDS = ("null", "boolean", "number", "string", "array", "object")
NOT_ARRAYS = {"type": ["null", "boolean", "number", "string", "object"]}
NOT_OBJECTS = {"type": ["null", "boolean", "number", "string", "array"]}
PLACES = 4  # the items of `contains` begin within so many

Given = Mapping[str, Any]


def without(name: str) -> Schema:
    """Objects without a property, and whatever is not an object."""
    return {"properties": {name: False}}


def dependent(given: Given) -> list[tuple[str, Any]]:
    """The demands that a property brings: the property, the schema."""
    found = []
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, one in given.get(key, {}).items():
            found.append((name, {"required": one} if isinstance(one, list) else one))
    return found


def counted(given: Given, name: str, default: int | None, where: str) -> int | None:
    """A number of items, such as minContains."""
    value = given.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise UsageError(f"{where}/{name} of the JSON schema is {str(value)[:40]}; expected an "
                         "integer from 0 on")  # fmt: skip
    return int(value)


def containing(
    given: Given, where: str, item: Any, other: Callable[[], Any]
) -> list[tuple[Schema, range]]:
    """Alternatives for `contains`, and where each has the items that it asks for. `item` is one of
    these, `other()` one that is not."""
    least = counted(given, "minContains", 1, where) or 0
    most = counted(given, "maxContains", None, where)
    if most is not None and most < least:
        return [(NOT_ARRAYS, range(0))]
    if most is None and least == 0:
        return [({}, range(0))]
    if max(least, most or 0) > 64:
        raise unsupported("minContains or maxContains above 64", where, "minItems or maxItems")
    rest = True if most is None else other()
    sizes = range(least, (least if most is None else min(most, least + PLACES)) + 1)
    made = [(NOT_ARRAYS, range(0))]
    for size in sizes:
        for first in range(PLACES if size else 1):
            items = [rest] * first + [item] * size
            one: Schema = {"type": "array", "minItems": len(items)}
            one |= {"prefixItems": items} if items else {}
            one |= {} if most is None else {"items": rest}
            made.append((one, range(first, first + size)))
    return made


def names(given: Any, where: str, sets: Sets) -> Any:
    """A schema of the objects whose names satisfy `given` (propertyNames). Raises UsageError for
    what no pattern of names says."""
    if given is True or given == {}:
        return True
    if given is False:
        return {"maxProperties": 0}
    given = {key: value for key, value in given.items() if key not in ("title", "description")}
    kind = given.pop("type", "string")
    if kind != "string" and "string" not in kind:
        return {"maxProperties": 0}
    listed = [given.pop("const")] if "const" in given else given.pop("enum", None)
    made: list[Any] = []
    if isinstance(listed, list):
        known = [one for one in listed if isinstance(one, str)]
        made.append({"properties": dict.fromkeys(known, True), "additionalProperties": False})
    patterns = [given.pop("pattern")] if "pattern" in given else []
    low, high = given.pop("minLength", 0), given.pop("maxLength", "")
    if low or high != "":
        patterns.append(f"^(?s:.){{{low},{high}}}$")
    made += [{"patternProperties": {p: True}, "additionalProperties": False} for p in patterns]
    if isinstance(given.get("allOf"), list):
        made += [names(one, where, sets) for one in given.pop("allOf")]
    if isinstance(given.get("anyOf"), list):
        made.append(sets.any_of(names(one, where, sets) for one in given.pop("anyOf")))
    if given:
        raise unsupported(f"propertyNames with {', '.join(sorted(given))[:60]}", where,
                          "enum, pattern or lengths there")  # fmt: skip
    return sets.all_of({"type": "object"} | one if isinstance(one, dict) else one for one in made)


def subsets(given: Sequence[Any]) -> list[list[Any]]:
    """The choices among alternatives of which several may hold: all of up to three, else single
    ones."""
    if len(given) > 3:
        return [[one] for one in given]
    masks = range(1, 1 << len(given))
    return [[one for i, one in enumerate(given) if mask >> i & 1] for mask in masks]
