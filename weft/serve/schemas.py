"""JSON schemas as llguidance keeps them.

llguidance 1.9.1 reads numbers as float64, takes some keywords without keeping them, and drops
others without a word. `kept` rewrites a schema so that every answer which llguidance lets through
satisfies the original (draft 2020-12, as the jsonschema package reads it). It may let through less:
numbers within a rounding of an exclusive bound, control characters that need \\u00XX. It refuses by
name what it cannot rewrite so.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from weft.core.errors import UsageError
from weft.serve.schema_patterns import FORMATS, others, translated

Schema = dict[str, Any]

SCHEMAS = ("additionalProperties", "items")  # keywords whose value is a schema
LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")  # a list of schemas
MAPS = ("properties", "patternProperties", "$defs", "definitions")  # schemas by name
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
PLAIN = {
    "type", "enum", "const", "$ref", "required", "minProperties", "maxProperties", "minItems",
    "maxItems", "uniqueItems", "minLength", "maxLength", "pattern", "format",
}  # fmt: skip
INERT = {
    "$schema", "$id", "id", "$anchor", "$comment", "$vocabulary", "title", "description", "default",
    "examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding",
    "contentMediaType", "contentSchema", "markdownDescription", "propertyOrdering", "externalDocs",
    "xml", "discriminator", "errorMessage", "enumNames", "enumDescriptions", "strict", "name",
}  # fmt: skip
KNOWN = {"additionalItems", *SCHEMAS, *LISTS, *MAPS, *NUMBERS, *PLAIN, *INERT}
DIGITS = 15  # that float64 always tells apart, and llguidance keeps
LARGEST = Fraction(2**63 - 1024)  # the largest float64 that its expressions hold
EXACT = 2**53  # integers up to here are float64
ESCAPES = 'nrbtf\\"'
_HIDDEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # what JSON writes with \u alone
_LONE = re.compile(r"[\ud800-\udfff]")


def kept(schema: Schema) -> tuple[Schema, str]:
    """`schema` rewritten, and the letters that may follow a backslash in its texts. Raises
    UsageError, naming what llguidance would not keep."""
    parts = dict(_schemas(schema, "#"))
    hidden = any(_holds(part.get("const"), part.get("enum")) for part in parts.values())
    made = _Rewriting(hidden).schema(schema, "#")
    _check_refs(parts)
    return dict(made), ESCAPES + "u" * hidden


class _Rewriting:
    """Goes through a schema and those in it; `where` is a JSON pointer to what it is at. hidden:
    whether \\u may stand in texts, and so in names."""

    def __init__(self, hidden: bool) -> None:
        self._hidden = hidden

    def schema(self, given: object, where: str) -> Any:
        if isinstance(given, bool):
            return given
        if not isinstance(given, Mapping):
            raise UsageError(f"{where} of the JSON schema is {str(given)[:40]!r}; expected an "
                             "object, true or false")  # fmt: skip
        made = dict(given)
        unknown = sorted(k for k in made if k not in KNOWN and not str(k).startswith("x-"))
        if unknown:
            raise UsageError(f"{where} of the JSON schema has {', '.join(unknown)[:100]}, which is "
                             "not supported: leave it out, or say it otherwise")  # fmt: skip
        if isinstance(made.get("items"), list):  # draft 7's words
            made["prefixItems"] = made.pop("items")
            if "additionalItems" in made:
                made["items"] = made["additionalItems"]
        made.pop("additionalItems", None)
        for name in LISTS:
            if name in made:
                made[name] = [
                    self.schema(one, f"{where}/{name}/{i}")
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
        self._texts(made, where)
        self._arrays(made, where)
        self._objects(made, where)
        if any(name in made for name in NUMBERS):
            _numbers(made, where)
        _check_literals(made, where)
        return made

    def _texts(self, made: Schema, where: str) -> None:
        patterns = []
        if "pattern" in made:
            patterns.append(translated(_typed(made, "pattern", str, where)))
        form = made.get("format")
        if "format" in made and not _may_be(made, "string"):
            del made["format"]  # it says nothing of other types
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
            raise _unsupported("uniqueItems", where, "maxItems, or an object of booleans")

    def _objects(self, made: Schema, where: str) -> None:
        for name in ("minProperties", "maxProperties"):
            _count(made, name, where)
        required = _typed(made, "required", list, where) if "required" in made else []
        if not all(isinstance(name, str) for name in required):
            raise UsageError(f"{where}/required of the JSON schema holds other things than names")
        least = made.get("minProperties", 0)
        if least <= len(set(required)):
            made.pop("minProperties", None)
        elif least > 1:  # llguidance counts a name that comes twice twice
            raise _unsupported("minProperties", where, "required")
        if "patternProperties" in made:
            # Names that a pattern leaves out are held to additionalProperties.
            exact = made.get("additionalProperties") is not False
            found = made["patternProperties"]
            changed = {translated(pattern, exact): one for pattern, one in found.items()}
            if len(changed) < len(found):
                raise _unsupported("patternProperties", where, "patterns that differ")
            made["patternProperties"] = changed
        if self._hidden and made.get("additionalProperties") is not False:
            self._close(made, where)

    def _close(self, made: Schema, where: str) -> None:
        """Guards names that may be spelt by \\u, which llguidance does not know among the others: a
        pattern of all others does."""
        if "patternProperties" in made:
            raise _unsupported("control characters in const or enum beside patternProperties",
                               where, "additionalProperties false")  # fmt: skip
        if any(quote in name for name in made.get("properties", ()) for quote in '"\\'):
            raise _unsupported("control characters in const or enum beside a name with quotes",
                               where, "additionalProperties false")  # fmt: skip
        if made.get("properties"):
            pattern = f"^{others([*made['properties']])}$"
            made["patternProperties"] = {pattern: made.get("additionalProperties", {})}
            made["additionalProperties"] = False


def _numbers(made: Schema, where: str) -> None:
    """Inclusive bounds of at most DIGITS digits, inside the ones that are asked for."""
    whole = made.get("type") != "number" and not _may_be(made, "number")
    low, high = _bounds(made, whole, where)
    step = made.get("multipleOf")
    if step is not None:
        _check_step(step, where)
        if not whole or isinstance(step, float):
            low = max(Fraction(-EXACT), -Fraction(EXACT) if low is None else low)
            high = min(Fraction(EXACT), Fraction(EXACT) if high is None else high)
    if low is not None and high is not None and low > high:
        raise UsageError(f"no number satisfies {where} of the JSON schema: its bounds leave none "
                         "that llguidance tells apart")  # fmt: skip
    for name in NUMBERS[:4]:
        made.pop(name, None)
    if whole:
        made |= _range(low, high)
        return
    left_out = [
        float(n)
        for n in [*_beginnings(high), *(-n for n in _beginnings(low and -low))]
        if (low is None or low <= n) and (high is None or n <= high)
        and (step is None or n % Fraction(step) == 0)
    ]  # fmt: skip
    if left_out:
        either = {"anyOf": [_range(low, high), {"enum": left_out}]}
        made["allOf"] = [*made.get("allOf", ()), either]
    else:
        made |= _range(low, high)


def _range(low: Fraction | None, high: Fraction | None) -> Schema:
    bounds = {"minimum": low, "maximum": high}
    return {
        name: int(b) if b.denominator == 1 else float(b)
        for name, b in bounds.items()
        if b is not None
    }


def _beginnings(bound: Fraction | None) -> Iterator[Fraction]:
    """The numbers that llguidance forgets below a positive bound: 0.2 and 0.24 below 0.245."""
    if bound is None or bound <= 0:
        return
    for digits in range(1, DIGITS):
        found = Fraction(math.floor(bound * 10**digits), 10**digits)
        if found == bound:
            return
        if (found * 10 ** (digits - 1)).denominator > 1:
            yield found


def _check_step(step: object, where: str) -> None:
    exact = _number(step, "multipleOf", where)
    if exact <= 0:
        raise UsageError(f"{where}/multipleOf of the JSON schema is {step}; expected more than 0")
    if Fraction(step) != exact:  # type: ignore[call-overload]
        raise _unsupported(f"multipleOf {step} (readers that compute in binary disagree on its "
                           "multiples)", where, "an integer of that unit")  # fmt: skip


def _bounds(made: Schema, whole: bool, where: str) -> tuple[Fraction | None, Fraction | None]:
    """The least and the greatest number that may come (None: there is none)."""
    ends: list[Fraction | None] = []
    pairs = ((1, "minimum", "exclusiveMinimum"), (-1, "maximum", "exclusiveMaximum"))
    for sign, plain, other in pairs:
        found = []
        for name in (plain, other):
            if name not in made:
                continue
            if isinstance(made[name], bool):  # draft 4: whether the other bound is exclusive
                raise _unsupported(f"{name} {str(made[name]).lower()}", where, "a number")
            _number(made[name], name, where)
            found.append(_least(sign * made[name], name == other, whole))
        end = max(found, default=None)
        if end is not None and end > LARGEST:
            raise _unsupported(f"{plain} or {other} beyond 2^63", where, "a smaller one")
        ends.append(None if end is None else sign * max(end, -LARGEST))
    return ends[0], ends[1]


def _least(bound: int | float, exclusive: bool, whole: bool) -> Fraction:
    """The least number that those above the bound (or, unless exclusive, it) may begin at: of
    integers a float64, of others one of at most DIGITS digits."""
    exact = Fraction(str(bound))
    if whole:
        unit = Fraction(1)
    else:
        unit = Fraction(10) ** (len(str(abs(math.floor(exact)))) - DIGITS)
    found = unit * (math.floor(exact / unit) + 1 if exclusive else math.ceil(exact / unit))
    if abs(found) > LARGEST:
        return found
    if whole:
        return Fraction(_above(int(found)))
    while float(found) < bound or (exclusive and float(found) == bound):
        found += max(unit, Fraction(math.ulp(float(found))))
    return found


def _above(number: int) -> int:
    """The least integer from `number` on that float64 holds."""
    found = float(number)
    return int(found if found >= number else math.nextafter(found, math.inf))


def _number(value: object, name: str, where: str) -> Fraction:
    """The number as it is written in decimals."""
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not abs(value) <= sys.float_info.max:  # type: ignore[arg-type]
        raise UsageError(f"{where}/{name} of the JSON schema is {str(value)[:40]}; expected a "
                         "number that float64 holds")  # fmt: skip
    return Fraction(str(value))


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


def _may_be(made: Schema, kind: str) -> bool:
    """True if a value of this type may satisfy the schema's own type."""
    given = made.get("type")
    return given is None or given == kind or (isinstance(given, list) and kind in given)


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
    return any(isinstance(one, str) and _HIDDEN.search(one) for one in _leaves(*values))


def _check_literals(made: Schema, where: str) -> None:
    """Raises UsageError for what llguidance would write as something else."""
    for one in _leaves(made.get("const"), made.get("enum")):
        if isinstance(one, int | float) and not abs(one) <= EXACT:
            raise _unsupported(f"the number {str(one)[:30]} in const or enum", where,
                               "one that float64 holds exactly (up to 2^53), or text")  # fmt: skip
        if isinstance(one, str) and (found := _LONE.search(one)):
            raise _unsupported(f"U+{ord(found[0]):04X}, half a character, in const or enum", where,
                               "whole ones")  # fmt: skip


def _unsupported(what: str, where: str, instead: str) -> UsageError:
    return UsageError(f"{where} of the JSON schema has {what}, which is not supported; use "
                      f"{instead}")  # fmt: skip


def _pointer(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _check_refs(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UsageError for references to parts that are no schemas, which nobody rewrote."""
    for where, one in found.items():
        ref = one.get("$ref")
        if isinstance(ref, str) and ref.startswith("#/") and unquote(ref) not in found:
            raise UsageError(f"{where}/$ref of the JSON schema is {ref[:60]!r}, where there is no "
                             "schema; put it in $defs")  # fmt: skip


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
