"""Values that do not satisfy a JSON schema, as alternatives that a grammar can say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from weft.models.grammar.schema_logic import KINDS, dependent, without
from weft.models.grammar.schema_numbers import unsupported
from weft.models.grammar.schema_patterns import HIDDEN, others
from weft.models.grammar.schema_sets import Sets

Given = Mapping[str, Any]
_TURNED = {
    "minimum": ("number", "exclusiveMaximum"), "maximum": ("number", "exclusiveMinimum"),
    "exclusiveMinimum": ("number", "maximum"), "exclusiveMaximum": ("number", "minimum"),
}  # fmt: skip
_COUNTS = {
    "minLength": ("string", "maxLength", -1), "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1), "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}  # fmt: skip


class Complement:
    """`yes` says a schema in llguidance's keywords, `target` resolves a reference."""

    def __init__(
        self, yes: Callable[[Any, str], Any], target: Callable[[str], Any], sets: Sets
    ) -> None:
        self._yes, self._target, self._sets = yes, target, sets
        self._leads: list[str] = []
        self._unsaid: list[str] = []

    def __call__(self, given: Any, where: str) -> Any:
        """A schema of values that do not satisfy `given`. Raises UsageError where no alternative
        says any."""
        if isinstance(given, bool):
            return not given
        before, self._unsaid = self._unsaid, []
        found = self._sets.any_of(self._alternatives(given, where))
        unsaid, self._unsaid = sorted(set(self._unsaid)), before
        if found is False and unsaid:
            raise unsupported(f"not, or oneOf, of {', '.join(unsaid)[:80]}",
                              where, "alternatives that say what may come")  # fmt: skip
        return found

    def _no(self, given: Any, where: str) -> Any:
        if isinstance(given, bool):
            return not given
        return self._sets.any_of(self._alternatives(given, where))

    def _alternatives(self, given: Given, where: str) -> Iterator[Any]:
        self._sets.step()
        for key, value in given.items():
            said = _RULES.get(key)
            if said is not None:
                yield from said(self, given, value, where)
            elif key in _TURNED and isinstance(value, int | float):
                yield {"type": _TURNED[key][0], _TURNED[key][1]: value}
            elif key in _COUNTS and isinstance(value, int | float):
                kind, other, step = _COUNTS[key]
                if value + step >= 0:
                    yield {"type": kind, other: int(value) + step}
            elif key in _UNSAID:
                self._unsaid.append(key)
        for name, one in dependent(given):
            yield self._sets.all_of([{"type": "object", "required": [name]}, self._no(one, where)])
        if "if" in given:
            test = given["if"]
            yield self._sets.all_of(
                [self._yes(test, where), self._no(given.get("then", True), where)]
            )
            yield self._sets.all_of(
                [self._no(test, where), self._no(given.get("else", True), where)]
            )

    def _type(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        named = value if isinstance(value, list) else [value]
        if "integer" in named and "number" not in named:
            self._unsaid.append("type integer")  # numbers that are not integers
        known = {"number" if kind == "integer" else kind for kind in named}
        if left := [kind for kind in KINDS if kind not in known]:
            yield {"type": left}

    def _const(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        yield from self._enum(given, [value], where)

    def _enum(self, given: Given, values: Any, where: str) -> Iterator[Any]:
        if not isinstance(values, list):
            return
        texts = [one for one in values if isinstance(one, str)]
        numbers = sorted({v for v in values if isinstance(v, int | float) and v is not True
                          and v is not False})  # fmt: skip
        if not any(HIDDEN.search(text) for text in texts):
            yield {"type": "string"} | ({"pattern": f"^{others(texts)}$"} if texts else {})
        else:  # llguidance drops such characters from a pattern
            self._unsaid.append("texts with control characters")
        if numbers:
            yield {"type": "number", "exclusiveMaximum": numbers[0]}
            yield from ({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
                        for low, high in pairwise(numbers)
                        if high - low > 1e-6 * max(abs(low), abs(high)))  # fmt: skip
            yield {"type": "number", "exclusiveMinimum": numbers[-1]}
        else:
            yield {"type": "number"}
        bools = [flag for flag in (False, True) if not any(one is flag for one in values)]
        yield {"enum": bools} if bools else False
        yield {"type": "null"} if None not in values else False
        lists = [_shape(one) for one in values if isinstance(one, list)]
        objects = [_shape(one) for one in values if isinstance(one, Mapping)]
        yield self._sets.all_of([{"type": "array"}, *(self._no(one, where) for one in lists)])
        yield self._sets.all_of([{"type": "object"}, *(self._no(one, where) for one in objects)])

    def _required(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        for name in value if isinstance(value, list) else ():
            yield {"type": "object"} | without(name)

    def _properties(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        for name, one in value.items() if isinstance(value, Mapping) else ():
            wrong = self._no(one, where)
            if wrong is not False:
                yield {"type": "object", "required": [name], "properties": {name: wrong}}

    def _items(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        before = given.get("prefixItems", [])
        wrong = self._no(value, where)
        if wrong is not False:
            yield {"type": "array", "prefixItems": [True] * len(before) + [wrong],
                   "minItems": len(before) + 1}  # fmt: skip

    def _prefix(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        for i, one in enumerate(value if isinstance(value, list) else ()):
            wrong = self._no(one, where)
            if wrong is not False:
                yield {"type": "array", "prefixItems": [True] * i + [wrong], "minItems": i + 1}

    def _contains(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        if "minContains" in given or "maxContains" in given:
            self._unsaid.append("minContains or maxContains")
            return
        yield {"type": "array", "items": self._no(value, where)}

    def _any(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        yield self._sets.all_of(self._no(one, where) for one in value)

    def _one(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        yield from self._any(given, value, where)
        for i, one in enumerate(value):
            for other in value[i + 1 :]:
                yield self._sets.all_of([self._yes(one, where), self._yes(other, where)])

    def _all(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        for one in value:
            yield self._no(one, where)

    def _not(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        yield self._yes(value, where)

    def _ref(self, given: Given, value: Any, where: str) -> Iterator[Any]:
        if value in self._leads:
            raise unsupported(f"not, or oneOf, of a schema that leads to itself ({value})", where,
                              "alternatives that say what may come")  # fmt: skip
        self._leads.append(value)
        try:
            found = self._no(self._target(value), where)
        finally:
            self._leads.pop()
        yield found


_RULES: dict[str, Callable[[Complement, Given, Any, str], Iterator[Any]]] = {
    "type": Complement._type, "const": Complement._const, "enum": Complement._enum,
    "required": Complement._required, "properties": Complement._properties,
    "items": Complement._items, "prefixItems": Complement._prefix,
    "contains": Complement._contains, "anyOf": Complement._any, "oneOf": Complement._one,
    "allOf": Complement._all, "not": Complement._not, "$ref": Complement._ref,
}  # fmt: skip
_UNSAID = {"pattern", "format", "multipleOf", "patternProperties", "additionalProperties",
           "propertyNames", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}  # fmt: skip


def _shape(value: Any) -> Any:
    """A schema that only `value` satisfies, list by list and object by object."""
    if isinstance(value, list):
        items = [_shape(one) for one in value]
        more = {"prefixItems": items} if items else {}
        return {"type": "array", "minItems": len(items), "maxItems": len(items), **more}
    if isinstance(value, Mapping):
        return {"type": "object", "required": list(value), "maxProperties": len(value),
                "properties": {name: _shape(one) for name, one in value.items()}}  # fmt: skip
    return {"const": value}
