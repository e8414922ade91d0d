"""Keywords that llguidance lacks are said in others: what comes satisfies the schema that was asked
for, and what it asks for can come."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from schema_kit import Schema, compiled, takes
from test_schemas import borders, drawn, random_schema, some, valid

from weft.core.errors import UsageError

NUMBER: Schema = {"type": "number"}
TREE = {
    "$id": "http://t/tree", "$dynamicAnchor": "node", "type": "object",
    "properties": {"data": {"type": "integer"},
                   "kids": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}  # fmt: skip


@pytest.mark.parametrize(
    "schema, right, wrong",
    [
        ({"not": {"type": ["string", "object"]}}, ["1", "[]"], ['"a"', "{}"]),
        ({"type": "string", "not": {"enum": ["a", "bc"]}}, ['"b"', '"ab"', '""'], ['"a"', '"bc"']),
        ({"type": "object", "not": {"required": ["a", "b"]}}, ['{"a":1}', '{"b":1}', "{}"],
         ['{"a":1,"b":2}']),
        ({"type": "integer", "not": {"minimum": 3, "maximum": 5}}, ["2", "6"], ["3", "5"]),
        ({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": NUMBER},
          "required": ["kind"], "if": {"properties": {"kind": {"const": "a"}}},
          "then": {"required": ["n"]}, "else": {"properties": {"n": {"minimum": 5}}}},
         ['{"kind":"a","n":1}', '{"kind":"b"}', '{"kind":"b","n":7}'],
         ['{"kind":"a"}', '{"kind":"b","n":1}']),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["{}", '{"b":1}', '{"a":1,"b":2}'],
         ['{"a":1}']),
        ({"type": "object", "properties": {"a": True, "b": True},
          "dependentSchemas": {"a": {"properties": {"b": NUMBER}, "required": ["b"]}}},
         ['{"b":"x"}', '{"a":0,"b":1}'], ['{"a":0}', '{"a":0,"b":"x"}']),
        ({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": NUMBER},
         ['{"x":1}', "{}"], ['{"z":1}']),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, ['{"ab":1}'],
         ['{"abc":1}']),
        ({"type": "array", "items": NUMBER, "contains": {"minimum": 5}}, ["[7]", "[1,2,7,1]"],
         ["[]", "[1]"]),
        ({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 2},
         ["[1,1]", "[0,1,1,2]"], ["[1]", "[1,1,1]"]),
        ({"type": "object", "allOf": [{"properties": {"a": NUMBER}}], "properties": {"b": NUMBER},
          "unevaluatedProperties": False}, ['{"b":1,"a":2}'], ['{"c":1}', '{"a":""}']),
        ({"type": "object", "anyOf": [{"properties": {"a": NUMBER}, "required": ["a"]},
                                      {"properties": {"b": NUMBER}, "required": ["b"]}],
          "unevaluatedProperties": {"type": "null"}},
         ['{"a":1}', '{"a":1,"b":2}', '{"b":1,"c":null}'], ['{"c":null}', '{"a":1,"c":1}']),
        ({"type": "array", "allOf": [{"prefixItems": [NUMBER]}], "unevaluatedItems": False},
         ["[1]", "[]"], ["[1,2]"]),
        ({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "number", "minimum": 2}]},
         ["1", "4.5"], ["2", "3", '"a"']),
        ({"$ref": "#frog", "$defs": {"x": {"$anchor": "frog", "type": "string"}}}, ['"a"'], ["1"]),
        ({"$id": "http://t/", "$ref": "b", "$defs": {"x": {"$id": "b", "type": "null"}}},
         ["null"], ["1"]),
        ({"$id": "http://t/strict", "$dynamicAnchor": "node", "$ref": "tree",
          "unevaluatedProperties": False, "$defs": {"tree": TREE}},
         ['{"data":1}', '{"kids":[{"data":1}]}'], ['{"daat":1}', '{"kids":[{"daat":1}]}']),
        ({"type": "string", "format": "json-pointer"}, ['"/a/~0b"', '""'], ['"a"', '"/~2"']),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_keywords_said_in_others(schema: Schema, right: list[str], wrong: list[str]) -> None:
    checker = jsonschema.Draft202012Validator(schema)
    matcher = compiled(schema)
    for text in right:
        assert checker.is_valid(json.loads(text)) and takes(matcher, text), text
    for text in wrong:
        assert not takes(matcher, text), text


def logical(rng: random.Random, depth: int = 1) -> Schema:
    """A random schema with some of these keywords."""

    def part() -> Any:
        return rng.choice([True, False]) if some(rng, 0.05) else random_schema(rng, depth)

    made = random_schema(rng, depth) if some(rng, 0.8) else {}
    if some(rng, 0.3):
        made["not"] = part()
    if some(rng, 0.3):
        made["if"] = part()
        made |= {name: part() for name in ("then", "else") if some(rng, 0.7)}
    if some(rng, 0.2):
        made["oneOf"] = [part() for _ in range(rng.randint(1, 3))]
    if some(rng, 0.15):
        made["dependentRequired"] = {"a": rng.sample(["b", "é"], 1)}
    if some(rng, 0.15):
        made["dependentSchemas"] = {"b": part()}
    if some(rng, 0.15):
        made["propertyNames"] = rng.choice([{"enum": ["a", "b"]}, {"maxLength": 2}, {}, False])
    if some(rng, 0.2):
        made["contains"] = part()
        made |= {n: rng.randint(0, 2) for n in ("minContains", "maxContains") if some(rng, 0.4)}
    if some(rng, 0.25):
        made["allOf"] = [*made.get("allOf", ()), part()]
    for name in ("unevaluatedProperties", "unevaluatedItems"):
        if some(rng, 0.2):
            made[name] = part() if some(rng) else False
    return made


def texts(schema: Any, rng: random.Random, defs: Schema) -> Iterator[str]:
    """JSON texts at the borders of a schema and of those in it."""
    if not isinstance(schema, dict):
        return
    yield from borders(schema, rng, defs, 3)
    for name in ("not", "if", "then", "else", "contains"):
        yield from texts(schema.get(name), rng, defs)
    for inner in [*schema.get("oneOf", ()), *schema.get("allOf", ())]:
        yield from texts(inner, rng, defs)
    yield from texts(schema.get("dependentSchemas", {}).get("b"), rng, defs)


def check(number: int) -> int:
    """The number of answers of a schema that were checked; -1 if it was refused."""
    rng = random.Random(number)
    schema = logical(rng)
    defs = {"one": random_schema(rng, 1)} if "$ref" in json.dumps(schema) else {}
    schema |= {"$defs": defs} if defs else {}
    try:
        matcher = compiled(schema)
    except UsageError as e:
        assert len(str(e)) < 2000
        return -1
    stream = np.random.default_rng(number)
    found = [text for text in (drawn(matcher, stream) for _ in range(4)) if text is not None]
    found += [text for text in texts(schema, rng, defs) if takes(matcher, text)]
    for text in found:
        try:
            right = valid(schema, json.loads(text))
        except RecursionError:
            return -1
        assert right, (number, schema, text)
    return len(found)


@pytest.mark.filterwarnings("ignore:Possible")
def test_what_comes_satisfies_the_schema() -> None:
    counts = [check(number) for number in range(150)]
    assert sum(c > 0 for c in counts) > 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Possible")
def test_what_comes_satisfies_thousands_of_schemas() -> None:
    counts = [check(number) for number in range(1000, 6000)]
    assert sum(c > 0 for c in counts) > 2000


@pytest.mark.slow
def test_the_published_suite() -> None:
    """JSON-Schema-Test-Suite's folder draft2020-12, which WEFT_SCHEMA_SUITE names."""
    folder = os.environ.get("WEFT_SCHEMA_SUITE")
    if not folder:
        pytest.skip(
            "WEFT_SCHEMA_SUITE names no folder tests/draft2020-12 of JSON-Schema-Test-Suite"
        )
    groups = [group for path in sorted(Path(folder).glob("*.json"))
              for group in json.loads(path.read_text())]  # fmt: skip
    refused, stream = 0, np.random.default_rng(0)
    for group in groups:
        schema = group["schema"]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matcher = compiled(schema)
        except UsageError:
            refused += 1
            continue
        for test in group["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
            assert test["valid"] or not takes(matcher, text), (group["description"], text)
        for text in filter(None, (drawn(matcher, stream) for _ in range(4))):
            with contextlib.suppress(re.error):  # Python has no \\p
                checker = jsonschema.Draft202012Validator(schema)
                assert checker.is_valid(json.loads(text)), (group["description"], text)
    assert len(groups) > 350 and refused < 60, (len(groups), refused)


def test_schemas_that_explode_are_refused() -> None:
    part: Schema = {"properties": {f"p{n}": {"enum": list(range(20))} for n in range(8)}}
    with pytest.raises(UsageError):
        compiled({"not": {"not": {"oneOf": [part | {"minProperties": n} for n in range(20)]}}})
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3000)}
    with pytest.raises(UsageError):
        compiled({"not": {"$ref": "#/$defs/d0"}, "$defs": chain | {"d3000": {"type": "null"}}})
