"""JSON schemas as llguidance keeps them.

llguidance 1.9.1 reads numbers as float64, takes some keywords without keeping them, and drops
others without a word. `kept` rewrites a schema so that every answer which llguidance lets through
satisfies the original (draft 2020-12, as the jsonschema package reads it), and every number in it
is one of float64's. It may let through less: no number beyond 2^63 or with an exponent, none
within a rounding of an exclusive bound, no control characters that need \\u00XX. It refuses by
name what it cannot rewrite so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from weft.core.errors import UsageError
from weft.models.grammar.schema_choices import Choices
from weft.models.grammar.schema_numbers import EXACT, NUMBERS, Schema, bound, may_be, unsupported
from weft.models.grammar.schema_patterns import FORMATS, FREE, HIDDEN, NARROWER, others, translated
from weft.models.grammar.schema_plain import plain
from weft.models.grammar.schema_refs import inert
from weft.models.grammar.schema_unique import counted, distinct

SCHEMAS = ("additionalProperties", "items")  # keywords whose value is a schema
LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")  # a list of schemas
MAPS = ("properties", "patternProperties", "$defs", "definitions")  # schemas by name
TOGETHER = ("allOf", "anyOf", "oneOf")  # schemas of the same value
FIXED = {"$ref", "const", "enum"}  # one that has these bounds its numbers
INSIDE = {"properties", "patternProperties", "items", "prefixItems"}  # schemas of a value's parts
ESCAPES = 'nrbtf\\"'
_LONE = re.compile(r"[\ud800-\udfff]")


def kept(schema: Schema) -> tuple[Schema, str]:
    """`schema` rewritten, and the letters that may follow a backslash in its texts. Raises
    UsageError, naming what llguidance would not keep."""
    try:
        schema = plain(schema)
    except RecursionError:
        raise UsageError("the references of the JSON schema are nested too deeply") from None
    parts = dict(_schemas(schema, "#"))
    hidden = any(_holds(part.get("const"), part.get("enum")) for part in parts.values())
    made = _Rewriting(parts, hidden).whole(schema)
    return made, ESCAPES + "u" * hidden


class _Rewriting:
    """Rewrites a schema and those in it, `parts` by their JSON pointers; `where` is the pointer to
    the present one. hidden: True if \\u may occur in texts, and so in names."""

    def __init__(self, parts: Mapping[str, Mapping[str, Any]], hidden: bool) -> None:
        self._parts, self._hidden = parts, hidden
        self._choices = Choices(lambda ref: parts.get(unquote(ref)))
        self._name = "any"  # name of the definition of any JSON whose numbers are float64's
        while f"#/$defs/{self._name}" in parts:
            self._name += "-"

    def whole(self, given: Schema) -> Schema:
        """The schema that is not in another."""
        made = self.schema(given, "#")
        kinds = ["null", "boolean", "number", "string", "array", "object"]
        more = {self._name: self.schema({"type": kinds}, "#")}
        return {**made, "$defs": {**made.get("$defs", {}), **more}}

    @property
    def _any(self) -> Schema:
        return {"$ref": f"#/$defs/{self._name}"}

    def schema(self, given: object, where: str, within: bool = False) -> Any:
        """A schema rewritten. within: another one bounds the numbers of the same value."""
        if isinstance(given, bool):
            return self._any if given and not within else given
        if not isinstance(given, Mapping):
            raise UsageError(f"{where} of the JSON schema is {str(given)[:40]!r}; expected an "
                             "object, true or false")  # fmt: skip
        made = counted(distinct(dict(given)))
        if not within and all(map(inert, made)):
            return made | self._any
        exclusive = self._exclude(made)
        together = [one for name in TOGETHER for one in _listed(made, name)]
        fixed = any(FIXED & one.keys() for one in [made, *_listed(made, "allOf")])
        here = not (within or fixed) and (not together or "allOf" in made or INSIDE & made.keys())
        within = within or fixed or bool(here)
        for name in LISTS:
            if name in made:
                made[name] = [
                    self.schema(one, f"{where}/{name}/{i}", within and name in TOGETHER)
                    for i, one in enumerate(_typed(made, name, list, where))
                ]
        for name in SCHEMAS:
            if name in made:
                made[name] = self.schema(made[name], f"{where}/{name}")
        for name in MAPS:
            if name in made:
                made[name] = {
                    key: self.schema(one, f"{where}/{name}/{_pointer(key)}")
                    for key, one in _typed(made, name, dict, where).items()
                }
        if here:
            self._bound(made, together)
        self._texts(made, where)
        self._arrays(made, where)
        self._objects(made, where)
        numeric = may_be(made, "number") or may_be(made, "integer")
        if any(name in made for name in NUMBERS) or (here and numeric):
            bound(made, where)
        _check_literals(made, where)
        if exclusive and "anyOf" in made:
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": made.pop("oneOf")}]
        elif exclusive:
            made["anyOf"] = made.pop("oneOf")
        return made

    def _exclude(self, made: Schema) -> bool:
        """Narrows the alternatives of oneOf so that no value satisfies two. True if that worked."""
        given = made.get("oneOf")
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            return False
        found = self._choices.apart(given)
        made["oneOf"] = given if found is None else found
        return found is not None

    def _bound(self, made: Schema, together: Sequence[Mapping[str, Any]]) -> None:
        """Keeps numbers that float64 cannot hold out of the parts without a schema of their own.
        Parts named by the schemas `together` with it are left to these schemas."""
        if may_be(made, "array") and not any("items" in one for one in together):
            made.setdefault("items", self._any)
        if may_be(made, "object") and "additionalProperties" not in made:
            made["additionalProperties"] = self._any
            names = () if "patternProperties" in made else self._names(together)
            if known := dict.fromkeys(names, True) | made.get("properties", {}):
                made["properties"] = known

    def _names(self, schemas: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """The names of the parts of values that some schemas know."""
        level, seen = [*schemas], set[str]()
        while level:
            one = level.pop()
            names = one.get("properties")
            yield from names if isinstance(names, Mapping) else ()
            level += [inner for name in TOGETHER for inner in _listed(one, name)]
            ref = unquote(str(one.get("$ref")))
            if ref in self._parts and ref not in seen:
                seen.add(ref)
                level.append(self._parts[ref])

    def _texts(self, made: Schema, where: str) -> None:
        patterns = []
        if "pattern" in made:
            patterns.append(translated(_typed(made, "pattern", str, where)))
        form = made.get("format")
        if isinstance(form, str) and form in NARROWER:
            form = made["format"] = NARROWER[form]
        if "format" in made and not may_be(made, "string"):
            del made["format"]  # the format applies to texts only
        elif isinstance(form, str) and form in FREE:
            del made["format"]
        elif isinstance(form, str) and form in FORMATS:
            del made["format"]
            patterns.append(FORMATS[form])
        if patterns:
            made["pattern"] = patterns[0]
            more = [{"pattern": p} for p in patterns[1:]]
            if more:
                made["allOf"] = [*made.get("allOf", ()), *more]
        for name in ("minLength", "maxLength"):
            _count(made, name, where)

    def _arrays(self, made: Schema, where: str) -> None:
        for name in ("minItems", "maxItems"):
            _count(made, name, where)
        if made.pop("uniqueItems", False) and made.get("maxItems", 2) > 1:
            raise unsupported("uniqueItems", where, "items of up to five values (enum), "
                              "maxItems, or an object of booleans")  # fmt: skip

    def _objects(self, made: Schema, where: str) -> None:
        for name in ("minProperties", "maxProperties"):
            _count(made, name, where)
        required = _typed(made, "required", list, where) if "required" in made else []
        if not all(isinstance(name, str) for name in required):
            raise UsageError(f"{where}/required of the JSON schema holds other things than names")
        least = made.get("minProperties", 0)
        if least <= len(set(required)):
            made.pop("minProperties", None)
        elif least > 1:  # llguidance counts a repeated name twice
            raise unsupported("minProperties", where, "required")
        if "patternProperties" in made:
            # Names that a pattern leaves out are held to additionalProperties.
            exact = made.get("additionalProperties") is not False
            found = made["patternProperties"]
            changed = {translated(pattern, exact): one for pattern, one in found.items()}
            if len(changed) < len(found):
                raise unsupported("patternProperties", where, "patterns that differ")
            made["patternProperties"] = changed
        if self._hidden and made.get("additionalProperties") is not False:
            self._close(made, where)

    def _close(self, made: Schema, where: str) -> None:
        """Guards names that may be spelt by \\u, which llguidance does not know among the others: a
        pattern of all others does."""
        if "patternProperties" in made:
            raise unsupported("control characters in const or enum together with patternProperties",
                               where, "additionalProperties false")  # fmt: skip
        if any(quote in name for name in made.get("properties", ()) for quote in '"\\'):
            raise unsupported("control characters in const or enum together with a name with "
                              "quotes",
                               where, "additionalProperties false")  # fmt: skip
        if made.get("properties"):
            pattern = f"^{others([*made['properties']])}$"
            made["patternProperties"] = {pattern: made.get("additionalProperties", {})}
            made["additionalProperties"] = False


def _count(made: Schema, name: str, where: str) -> None:
    value = made.get(name, 0)
    if isinstance(value, float) and value.is_integer():
        value = made[name] = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise UsageError(f"{where}/{name} of the JSON schema is {str(value)[:40]}; expected an "
                         "integer from 0 on")  # fmt: skip


def _typed(made: Schema, name: str, kind: type, where: str) -> Any:
    if not isinstance(made[name], kind):
        expected = "a list" if kind is list else "an object" if kind is dict else "text"
        raise UsageError(f"{where}/{name} of the JSON schema is {str(made[name])[:40]!r}; expected "
                         f"{expected}")  # fmt: skip
    return made[name]


def _leaves(*values: object) -> Iterator[object]:
    """The parts of some values that are neither an object nor a list, names included."""
    level = list(values)
    while level:
        one = level.pop()
        if isinstance(one, Mapping):
            level += [*one.values(), *one]
        elif isinstance(one, list):
            level += one
        else:
            yield one


def _holds(*values: object) -> bool:
    return any(isinstance(one, str) and HIDDEN.search(one) for one in _leaves(*values))


def _check_literals(made: Schema, where: str) -> None:
    """Raises UsageError for what llguidance would write as something else."""
    for one in _leaves(made.get("const"), made.get("enum")):
        if isinstance(one, int | float) and not abs(one) <= EXACT:
            raise unsupported(f"the number {str(one)[:30]} in const or enum", where,
                               "one that float64 holds exactly (up to 2^53), or text")  # fmt: skip
        if isinstance(one, str) and (found := _LONE.search(one)):
            raise unsupported(f"U+{ord(found[0]):04X}, half a character, in const or enum", where,
                               "whole ones")  # fmt: skip


def _listed(made: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = made.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _pointer(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _schemas(one: object, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(one, bool):
        yield where, {}
    if not isinstance(one, Mapping):
        return
    yield where, one
    for name in SCHEMAS:
        if name in one:
            yield from _schemas(one[name], f"{where}/{name}")
    for name in LISTS:
        inside = one.get(name)
        for i, inner in enumerate(inside if isinstance(inside, list) else ()):
            yield from _schemas(inner, f"{where}/{name}/{i}")
    for name in MAPS:
        inside = one.get(name)
        for key, inner in inside.items() if isinstance(inside, Mapping) else ():
            yield from _schemas(inner, f"{where}/{name}/{_pointer(key)}")
