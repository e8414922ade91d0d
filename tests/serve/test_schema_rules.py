"""What is understood of single keywords of a JSON schema, and what is refused by name."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import jsonschema
import llguidance
import pytest
from schema_kit import BYTES, PATTERNS, TEXTS, Schema, compiled, takes

from weft.core.errors import UsageError
from weft.models.grammar import grammars as grammar
from weft.models.grammar.schema_patterns import FORMATS, translated
from weft.models.grammar.schemas import kept


def kinds_of(required: list[str], **more: Any) -> Schema:
    """Two objects that differ by a constant."""
    return {
        "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "n": {"const": 1}},
                "required": required, **more},
        "dog": {"type": "object", "properties": {"kind": {"$ref": "#/$defs/dogs"},
                                                 "n": {"type": "integer"}},
                "required": required, **more},
        "dogs": {"type": "string", "enum": ["dog", "wolf"]},
    }  # fmt: skip


CLOSED: Schema = {"additionalProperties": False}
EITHER: Schema = {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog", "title": "Dog"}]}
TREES: Schema = {
    "leaf": {"type": "object", "properties": {"op": {"const": 0}}, **CLOSED},
    "both": {"type": "object", "properties": {"op": {"const": True}, "l": {"$ref": "#/$defs/e"}},
             **CLOSED},
    "e": {"discriminator": {"propertyName": "op"},
          "oneOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/both"}, {"type": "null"}]},
}  # fmt: skip


@pytest.mark.parametrize(
    "schema, right, wrong",
    [
        (EITHER | {"$defs": kinds_of(["kind"], **CLOSED)},
         ['{"kind":"cat","n":1}', '{"kind":"wolf","n":5}'], ['{"kind":"cat","n":5}', "{}"]),
        (EITHER | {"$defs": kinds_of([])}, ['{"kind":"cat","n":1}', '{"kind":"wolf","n":5}'],
         ['{"n":1}', "{}", '{"kind":"x"}']),
        ({"type": "array", "items": EITHER, "$defs": kinds_of(["n"])},
         ['[{"kind":"cat","n":1}]', '[{"kind":"dog","n":1},{"kind":"cat","n":1}]'], ['[{"n":1}]']),
        ({"$ref": "#/$defs/e", "$defs": TREES},
         ["null", '{"op":0}', '{"op":true}', '{"op":true,"l":{"op":true,"l":null}}'],
         ["{}", '{"op":0,"l":null}', '{"op":true,"l":{}}']),
        ({"anyOf": [{"minimum": 0}, {"maximum": -5}], "oneOf": [{"enum": [1, -5]}, {"const": -1}]},
         ["1", "-5"], ["-1", "2"]),
        ({"oneOf": [{"const": 1}, {"const": True}, {"const": "1"}, {"type": "null"}]},
         ["1", "true", '"1"', "null"], ["2", "false"]),
        ({"oneOf": [{"$ref": "#/$defs/t"}, {"type": ["integer", "null"]}],
          "$defs": {"t": {"type": "string"}}}, ['"x"', "7", "null"], ["0.5", "true"]),
    ],
)  # fmt: skip
def test_alternatives_that_exclude_one_another(
    schema: Schema, right: list[str], wrong: list[str]
) -> None:
    checker = jsonschema.Draft202012Validator(schema)
    matcher = compiled(schema)
    for text in right:
        assert checker.is_valid(json.loads(text)) and takes(matcher, text), text
    for text in wrong:
        assert not takes(matcher, text), text


@pytest.mark.parametrize(
    "items, more",
    [({"enum": ["a", "b", 1, 1.0, True]}, {}), ({"type": "boolean"}, {"minItems": 1}),
     ({"enum": ["a", 3, None], "type": ["string", "null"]}, {}), ({"const": {"x": [1]}}, {}),
     ({"enum": [*"abcdef"]}, {"maxItems": 2}), ({"enum": [*"abcde"]}, {"description": "x"})],
)  # fmt: skip
def test_items_that_differ(items: Schema, more: Schema) -> None:
    """Of arrays of a few values exactly those are taken which jsonschema takes."""
    unique = {"type": "array", "uniqueItems": True, "items": items, **more}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, "required": ["a"],
              "$defs": {"t": unique}}  # fmt: skip
    checker, matcher = jsonschema.Draft202012Validator(schema), compiled(schema)
    values = ["a", "b", "e", 1, 3, True, False, None, {"x": [1]}]
    arrays = [list(one) for n in range(4) for one in itertools.product(values, repeat=n)]
    found = 0
    for array in [*arrays, [*"edcba"], [*"abcda"]]:
        text = json.dumps({"a": array})
        assert takes(matcher, text) == checker.is_valid({"a": array}), text
        found += checker.is_valid({"a": array})
    assert found >= 2


@pytest.mark.parametrize(
    "schema, named",
    [
        ({"type": "number", "multipleOf": 0.01}, "multipleOf 0.01"),
        ({"multipleOf": -2}, "multipleOf"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"minimum": "3"}, "minimum"),
        ({"maximum": float("inf")}, "maximum"),
        ({"maximum": 10**400}, "maximum"),
        ({"minimum": 1e300}, "minimum"),
        ({"minimum": 3, "exclusiveMinimum": True}, "exclusiveMinimum true"),
        ({"const": 2**53 + 1}, "9007199254740993"),
        ({"enum": [[{"a": 1e100}]]}, "1e\\+100"),
        ({"const": float("nan")}, "nan"),
        ({"const": "\ud800"}, "U\\+D800"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [*"abcdef"]}}, "up to five"),
        ({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 3},
         "uniqueItems"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"minLength": -1}, "minLength"),
        ({"maxItems": 1.5}, "maxItems"),
        ({"required": [1]}, "required"),
        ({"pattern": "a*+"}, "repetition"),
        ({"pattern": "[]a]"}, "class"),
        ({"pattern": "(?x)a b"}, "flags x"),
        ({"pattern": "a{,3}"}, "{,n}"),
        ({"pattern": "(a)\\1"}, "1"),
        ({"pattern": "a\\b"}, "b"),
        ({"pattern": "(?=a)b"}, "look-around|regex"),
        ({"type": "string", "nullable": True}, "nullable"),
        ({"divisibleBy": 3}, "divisibleBy"),
        ({"minimun": 3}, "minimun"),
        ({"$dynamicRef": "#x"}, "#x"),
        ({"$ref": "#/x-parts/a", "x-parts": {"a": {"type": "number"}}}, "x-parts"),
        ({"properties": {"a": 3}}, "#/properties"),
        ({"anyOf": {}}, "anyOf"),
        ({"oneOf": [{"$ref": "#/$defs/r"}, {"$ref": "#/$defs/r"}],
          "$defs": {"r": {"$ref": "#/$defs/r"}}}, "oneOf"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "satisf"),
        ({"not": {"type": "string"}, "type": "string"}, "satisf"),
        ({"type": "string", "not": {"pattern": "a"}}, "pattern"),
        ({"type": "object", "propertyNames": {"format": "email"}}, "propertyNames"),
        ({"contains": 3}, "contains"),
        ({"type": "array", "contains": {}, "minContains": 100}, "minContains"),
        ({"dependentRequired": {"a": 3}}, "dependentRequired"),
        ({"not": {"minimun": 3}}, "minimun"),
    ],
)  # fmt: skip
def test_what_is_not_kept_is_refused_by_name(schema: Schema, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        compiled(schema)


@pytest.mark.filterwarnings("ignore:Possible")
@pytest.mark.parametrize("exact", [False, True])
def test_patterns_match_what_python_matches(exact: bool) -> None:
    """exact: all that Python matches; else no more than that."""
    for pattern in PATTERNS:
        try:
            source = translated(pattern, exact)
        except UsageError:
            assert exact, pattern
            continue
        part = {"json_schema": {"type": "string", "pattern": source,
                                "x-guidance": {"lenient": False}}}  # fmt: skip
        matcher = llguidance.LLMatcher(BYTES, json.dumps({"grammars": [part]}), log_level=0)
        if matcher.is_error():
            assert "empty" in matcher.get_error()
            continue
        for text in TEXTS:
            here = takes(matcher, json.dumps(text, ensure_ascii=False))
            there = re.search(pattern, text) is not None
            assert here <= there, (pattern, text)
            if exact and text.isprintable():
                assert here == there, (pattern, text)


def test_dates_are_those_of_the_calendar() -> None:
    import datetime

    dates = re.compile(FORMATS["date"])
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 9996):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    datetime.date(year, month, day)
                except ValueError:
                    assert not dates.search(text), text
                else:
                    assert dates.search(text), text


def test_the_schema_given_is_left_alone() -> None:
    given = {"properties": {"a": {"exclusiveMinimum": 0, "maximum": 0.25}}, "items": [{}]}
    before = json.dumps(given)
    assert kept(given)[0] != given and json.dumps(given) == before


def test_what_is_too_large_is_refused_before_it_is_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rewriting takes seconds where reading takes a moment; schemas of tools count together."""
    from weft.serve.toolcalls.asked import Calls, Grammar
    from weft.serve.toolcalls.written import CallForm

    monkeypatch.setattr(grammar, "kept", lambda schema: pytest.fail("it is rewritten"))
    part = {"properties": {f"p{n}": {"maximum": 0.245} for n in range(2000)}}
    large = {"anyOf": [part] * 5}
    with pytest.raises(UsageError, match="at most 262144 are read"):
        grammar.json_schema(large)
    calls = Calls({f"f{n}": part for n in range(8)}, True)
    with pytest.raises(UsageError, match="at most 262144 are read"):
        Grammar(CallForm("", "", ""), {}, False).text(calls)


NODE = {"$ref": "#/$defs/node"}
KIDS = {"properties": {"kids": {"type": "array", "items": NODE}}}


def in_defs(node: Schema) -> Schema:
    return {**NODE, "$defs": {"node": node, "named": {"properties": {"name": {"type": "string"}}}}}


@pytest.mark.parametrize(
    "schema, around",
    [
        ({}, "{}"), ({"title": "any"}, '{{"a":[{}]}}'), ({"type": "number"}, "{}"),
        ({"type": "integer"}, "{}"), ({"type": ["number", "null"]}, "{}"),
        ({"type": "number", "minimum": 0}, "{}"), ({"type": "integer", "maximum": 0}, "{}"),
        ({"type": "integer", "multipleOf": 3}, "{}"), ({"type": "number", "multipleOf": 3}, "{}"),
        ({"minimum": -5}, "{}"), ({"minimum": -5}, "[{}]"), ({"type": "array"}, "[{}]"),
        ({"type": "array", "prefixItems": [True]}, "[{}]"),
        ({"type": "array", "prefixItems": [True]}, "[0,{}]"),
        ({"type": "array", "items": [{}]}, "[0,[{}]]"), ({"type": "object"}, '{{"a":{}}}'),
        ({"type": "object", "additionalProperties": True}, '{{"a":{{"a":{}}}}}'),
        ({"type": "object", "properties": {"a": {}}}, '{{"a":{}}}'),
        ({"type": "object", "properties": {"a": True}}, '{{"b":{}}}'),
        ({"type": "object", "patternProperties": {"^a": {}}}, '{{"a":{}}}'),
        ({"type": "object", "patternProperties": {"^a": {}}}, '{{"b":{}}}'),
        ({"type": "object", "properties": {"a": {"const": "\x1f"}}}, '{{"b":{}}}'),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "{}"),
        ({"oneOf": [{"type": "object"}, {"type": "null"}]}, '{{"a":{}}}'),
        ({"allOf": [{"type": "number"}, {"minimum": -5}]}, "{}"),
        ({"type": "number", "allOf": [{"minimum": -5}]}, "{}"),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]},
         {"required": ["b"]}]}, '{{"a":1,"b":{}}}'),
        (in_defs({"type": "object", "anyOf": [{"required": ["kids"]}, {"required": ["b"]}],
                  **KIDS}),
         '{{"kids":[],"b":{}}}'),
        (in_defs({"type": "object", "allOf": [{"$ref": "#/$defs/named"}]}), '{{"b":{}}}'),
        (in_defs({"type": "object", "allOf": [{"properties": {"b": {}}}, KIDS]}),
         '{{"kids":[{{"b":[{}]}}]}}'),
        (in_defs({"anyOf": [{"type": "string"}, {"type": "array", "items": NODE},
                            {"type": "number"}]}),
         "[{}]"),
        (in_defs({"type": "object", "properties": {"v": {"type": "number"}, **KIDS["properties"]}}),
         '{{"kids":[{{"v":{}}}]}}'),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_every_number_is_one_of_float64(schema: Schema, around: str) -> None:
    """Python would read 1e400 as inf, and so would JavaScript."""
    matcher = compiled(schema)
    assert any(takes(matcher, around.format(number)) for number in ("0", "3", "-3", '"a"'))
    for number in ("1e400", "-1e400", "1E+309", "1.5e0400", "9" * 400, "-" + "9" * 309 + ".5"):
        assert not takes(matcher, around.format(number)), number
