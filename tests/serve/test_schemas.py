"""Every keyword of JSON schema that is taken is kept: what a grammar lets through satisfies the
schema as the jsonschema package reads it, at the borders too; the others are refused by name."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import jsonschema
import numpy as np
import pytest
from schema_kit import PATTERNS, TEXTS, Schema, compiled, drawn, takes

from weft.core.errors import UsageError


def finite(text: str) -> Any:
    assert math.isfinite(float(text)), text
    return json.loads(text)


def valid(schema: Schema, value: Any) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    try:
        return bool(jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value))
    except OverflowError:  # a multiple of 0.5 that is infinite
        return False


NUMBERS: list[Any] = [
    0, 1, -1, 7, 100, -0.5, 0.25, 0.1, 0.3, 12.75, 100.5, 0.001, -99.99, 1e-7, 5e-324, 1e16, 2**53,
    2**53 + 1, 2**53 + 2, 2**63, -(2**63), 2**63 - 1, 1e21, 1e308, 0.30000000000000004, 123456.789,
]  # fmt: skip
NAMES = ["a", "b", "a b", "é", "\n", '"', "x_1", "x_", "\x01", "/", "<think>"]


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    kinds = [numbers, strings, literals, plain]
    if depth > 0:
        kinds += [arrays, objects, objects, combined, combined]
    return rng.choice(kinds)(rng, depth - 1)


def some(rng: random.Random, share: float = 0.4) -> bool:
    return rng.random() < share


def plain(rng: random.Random, depth: int) -> Schema:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}, {}])


def numbers(rng: random.Random, depth: int) -> Schema:
    made: Schema = {}
    if some(rng, 0.9):
        made["type"] = rng.choice(["number", "integer", ["integer", "null"], ["string", "number"]])
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if some(rng, 0.3):
            near = rng.choice([rng.randint(-20, 20), round(rng.uniform(-3, 3), rng.randint(0, 4))])
            made[name] = rng.choice([near, near, rng.choice(NUMBERS)])
    if some(rng, 0.15):
        made["multipleOf"] = rng.choice([1, 2, 3, 7, 0.5, 0.25, 2.5, 0.1, 10.0])
    return made


def strings(rng: random.Random, depth: int) -> Schema:
    made: Schema = {"type": "string"} if some(rng, 0.9) else {}
    if some(rng):
        made["minLength"] = rng.randint(0, 3)
    if some(rng):
        made["maxLength"] = rng.randint(1, 5)
    if some(rng):
        made["pattern"] = rng.choice(PATTERNS)
    if some(rng, 0.2):
        made["format"] = rng.choice(["date", "ipv4", "ipv6", "uuid", "email", "date-time", "time",
                                     "hostname", "duration", "uri"])  # fmt: skip
    return made


def literals(rng: random.Random, depth: int) -> Schema:
    values = [rng.choice([*TEXTS, *NUMBERS, True, False, None, [], {}, [1, "a"], {"a": [0.5]}])
              for _ in range(rng.randint(1, 4))]  # fmt: skip
    made: Schema = {"const": values[0]} if some(rng, 0.3) else {"enum": values}
    if some(rng, 0.3):
        more: list[Schema] = [
            {"type": "string"},
            {"type": "integer"},
            {"type": "number"},
            {"minimum": 1},
            {"maxLength": 1},
            {"type": ["null", "array"]},
        ]
        made |= rng.choice(more)
    return made


def arrays(rng: random.Random, depth: int) -> Schema:
    made: Schema = {"type": "array"} if some(rng, 0.9) else {}
    if some(rng, 0.7):
        made["items"] = rng.choice([random_schema(rng, depth), random_schema(rng, 0), False])
    if some(rng, 0.3):
        made["prefixItems"] = [random_schema(rng, 0) for _ in range(rng.randint(1, 2))]
    if some(rng):
        made["minItems"] = rng.randint(0, 2)
    if some(rng):
        made["maxItems"] = rng.choice([0, 1, 2, 3, 2.0])
    if some(rng, 0.15):
        made["uniqueItems"] = some(rng)
    return made


def objects(rng: random.Random, depth: int) -> Schema:
    made: Schema = {"type": "object"} if some(rng, 0.9) else {}
    if some(rng, 0.8):
        names = rng.sample(NAMES, rng.randint(0, 3))
        made["properties"] = {name: random_schema(rng, depth) for name in names}
    if some(rng):
        made["required"] = rng.sample(NAMES, rng.randint(0, 2))
    if some(rng, 0.6):
        made["additionalProperties"] = rng.choice([False, True, random_schema(rng, 0)])
    if some(rng, 0.25):
        patterns = rng.sample(["^x_", "^[ab]$", r"\d$", "n", r"^\s$", "^z.*$"], rng.randint(1, 2))
        made["patternProperties"] = {p: random_schema(rng, 0) for p in patterns}
    if some(rng, 0.15):
        made["minProperties"] = rng.randint(0, 2)
    if some(rng, 0.15):
        made["maxProperties"] = rng.randint(0, 2)
    return made


def combined(rng: random.Random, depth: int) -> Schema:
    kind = rng.choice(["anyOf", "anyOf", "allOf", "oneOf", "$ref"])
    parts = [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]
    if kind == "$ref":
        made: Schema = {"$ref": "#/$defs/one"}
    else:
        made = {kind: parts}
    return made | (numbers(rng, 0) if some(rng, 0.2) else {})


def borders(schema: Any, rng: random.Random, defs: Schema, depth: int = 4) -> Iterator[str]:
    """JSON texts at the borders of what the schema's keywords allow, inside and outside."""
    everything = ["null", "true", "0", "-1", "1.5", '"a"', '""', "[]", "[1]", "{}", '{"a": 1}']
    if not isinstance(schema, dict) or depth == 0:
        yield from rng.sample(everything, 4)
        return
    yield from rng.sample(everything, 2)
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if name in schema:
            yield from near(schema[name])
    for value in [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]:
        yield written(value)
    kinds = schema.get("type", "")
    if "string" in kinds or schema.keys() & {"pattern", "minLength", "maxLength", "format"}:
        for text in rng.sample(TEXTS, 16):
            yield written(text)
    for name in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(name, ()):
            yield from borders(part, rng, defs, depth - 1)
    if "$ref" in schema:
        yield from borders(defs.get("one"), rng, defs, depth - 1)
    if kinds == "array" or schema.keys() & {"items", "minItems", "maxItems", "prefixItems"}:
        before = schema.get("prefixItems", [])
        for size in range(5):
            parts = [*before, *[schema.get("items", {})] * size][:size]
            yield f"[{','.join(one_of(part, rng, defs, depth) for part in parts)}]"
    if kinds == "object" or schema.keys() & {"properties", "required", "patternProperties"}:
        yield from members(schema, rng, defs, depth)


def members(schema: Schema, rng: random.Random, defs: Schema, depth: int) -> Iterator[str]:
    known = schema.get("properties", {})
    for _ in range(8):
        names = [n for n in known if some(rng, 0.7)]
        names += [n for n in schema.get("required", ()) if n not in known and some(rng, 0.8)]
        names += rng.sample([*NAMES, "a1", "\x1c", "zz", "n\n"], rng.randint(0, 2))
        parts = []
        for name in names:
            value = known.get(name, schema.get("additionalProperties", {}))
            for pattern, one in schema.get("patternProperties", {}).items():
                value = one if re.search(pattern, name) else value
            spelt = written(name)
            if some(rng, 0.1):  # the same name in other letters
                spelt = '"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"'
            parts.append(f"{spelt}:{one_of(value, rng, defs, depth)}")
        yield "{" + ",".join(parts) + "}"


def one_of(schema: Any, rng: random.Random, defs: Schema, depth: int) -> str:
    return rng.choice(list(borders(schema, rng, defs, depth - 1)))


def near(bound: Any) -> Iterator[str]:
    exact = Decimal(str(bound))
    for step in ("0", "1", "-1", "0.1", "-0.1", "0.001", "-0.001", "1e-12", "-1e-12", "1e-20",
                 "-1e-20"):  # fmt: skip
        yield format(exact + Decimal(step), "f")
    yield format(exact, "f") + ("0" if "." in format(exact, "f") else ".0")
    yield f"{exact}e0" if "E" not in str(exact) else "-0"


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check(number: int) -> int:
    """How many answers of the schema of that number were checked; -1 where it was refused."""
    rng = random.Random(number)
    schema = random_schema(rng)
    defs = {"one": random_schema(rng, 1)} if "$ref" in json.dumps(schema) else {}
    if defs:
        schema = {**schema, "$defs": defs}
    try:
        matcher = compiled(schema)
    except UsageError as e:
        assert len(str(e)) < 2000
        return -1
    stream = np.random.default_rng(number)
    found = [text for text in (drawn(matcher, stream) for _ in range(4)) if text is not None]
    found += [text for text in borders(schema, rng, defs) if takes(matcher, text)]
    for text in found:
        value = json.loads(text, parse_constant=pytest.fail, parse_int=finite, parse_float=finite)
        try:
            right = valid(schema, value)
        except RecursionError:
            return -1  # a reference to itself
        assert right, (number, schema, text)
    return len(found)


@pytest.mark.filterwarnings("ignore:Possible")
def test_what_comes_satisfies_any_schema() -> None:
    counts = [check(number) for number in range(300)]
    assert sum(c > 0 for c in counts) > 120 and sum(c for c in counts if c > 0) > 800


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Possible")
def test_what_comes_satisfies_thousands_of_schemas() -> None:
    counts = [check(number) for number in range(1000, 7000)]
    assert sum(c > 0 for c in counts) > 2400


@pytest.mark.parametrize(
    "schema, right, wrong",
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.25},
         ["0.25", "0.2", "0.001", "0.24999"], ["0", "0.0", "-0", "0.250001", "1"]),
        ({"type": "number", "exclusiveMinimum": 12}, ["12.1", "13", "1000.5"],
         ["12", "12.0", "12.00000000000000000001"]),
        ({"type": "number", "maximum": 100.5}, ["100.49", "100.5", "100", "-7.25"], ["100.51"]),
        ({"type": "number", "minimum": -0.75, "exclusiveMaximum": 0}, ["-0.7", "-0.75", "-0.001"],
         ["0", "-0", "-0.0", "-0.76"]),
        ({"type": "integer", "maximum": 2**53 + 1}, [str(2**53), "7"], [str(2**53 + 2)]),
        ({"type": "integer", "minimum": 2**53 + 1}, [str(2**53 + 2)], ["9007199254740991"]),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, ["1234567890123456789"],
         [str(2**63), "-1"]),
        ({"type": ["integer", "null"], "exclusiveMinimum": 3}, ["4", "null"], ["3"]),
        ({"type": "integer", "multipleOf": 7, "exclusiveMaximum": 14}, ["7", "-7"], ["14", "8"]),
        ({"type": "number", "multipleOf": 0.25}, ["0.50", "-3", "1.75"], ["0.3", "0.26"]),
        ({"type": "string", "minLength": 2, "maxLength": 2}, ['"éa"', '"😀😀"'],
         ['"😀"', '"e"', '"abc"']),
        ({"type": "object", "properties": {"a": {"type": "integer"}},
          "additionalProperties": {"type": "string"}}, ['{"a":1,"b":"x"}'],
         ['{"\\u0061":"x"}', '{"b":"x","\\u0061":"x"}']),
        ({"type": "object", "additionalProperties": {"type": "integer"}, "required": ["x"],
          "minProperties": 1}, ['{"x":1}'], ["{}", '{"y":1}']),
        ({"type": "object", "propertyNames": {"enum": ["u", "v", "w"]}, "maxProperties": 2,
          "additionalProperties": {"enum": [1]}}, ["{}", '{"u":1,"w":1}', '{"v":1}'],
         ['{"u":1,"v":1,"w":1}', '{"x":1}']),
        ({"type": "object", "properties": {"a": {}, "b": {"const": 1}, "c": {}}, "required": ["c"],
          "minProperties": 2, "additionalProperties": False}, ['{"b":1,"c":0}', '{"a":2,"c":0}'],
         ['{"c":0}', '{"a":2,"b":1}']),
        ({"type": "object", "patternProperties": {"^\\d$": {"type": "integer"}},
          "additionalProperties": {"type": "string"}}, ['{"1":1,"a":"b"}'],
         ['{"1":"x"}', '{"٣":"x"}']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'],
         ['"2023-02-29"', '"2024-04-31"', '"0000-01-01"', '"1900-02-29"']),
        ({"type": "string", "format": "date-time"}, ['"2024-02-29T10:00:00Z"'],
         ['"2024-02-30T10:00:00Z"', '"2024-02-29T10:00:60Z"']),
        ({"type": "string", "format": "date", "pattern": "^2024"}, ['"2024-02-28"'],
         ['"2023-02-28"']),
        ({"type": "string", "pattern": "^\\S$"}, ['"a"'], ['"\\u001c"', '"\ufeff"', '" "']),
        ({"type": "string", "pattern": "^[^\\w]$"}, ['"-"'], ['"é"', '"a"']),
        ({"type": "string", "pattern": "^[[]$"}, ['"["'], ['"]"']),
        ({"type": "string", "pattern": "^\\<a\\>{b}$"}, ['"<a>{b}"'], ['"a"']),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, ["[1]"],
         ["[1,2]", '["x"]']),
        ({"type": "array", "uniqueItems": False, "minItems": 1.0}, ["[1,1]"], ["[]"]),
        ({"enum": ["a <|im_end|> b", "<think>", 0.1, -0.0]},
         ['"a <|im_end|> b"', '"<think>"', "0.1"], ['"a"', "1"]),
        ({"type": "object", "properties": {"a": {"const": "\x1f"}, "ab": {}, "": {}}},
         ['{"a":"\\u001f","":1,"ac":1,"abc":2,"b":3}'],
         ['{"\\u0061":"x"}', '{"b":1,"a":"x"}', '{"ac":1,"a":1}']),
        ({"type": "integer", "format": "int64", "x-order": 3}, ["5"], ['"5"']),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)  # fmt: skip
def test_borders(schema: Schema, right: list[str], wrong: list[str]) -> None:
    matcher = compiled(schema)
    for text in right:
        assert takes(matcher, text), text
    for text in wrong:
        assert not takes(matcher, text), text
