"""Keywords of JSON schemas that say something of each other, in a page: random schemas and values,
with jsonschema as the judge."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pydantic
import pytest
from rows import few
from test_page_schema import Schema, ask, checked, written

from weft.models.grammar.schema_patterns import FORMATS

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from schema_kit import compiled, takes
from test_decimals import decimal_pattern

PATTERNS = [
    "^a+$", "b", "^[a-c]{2,4}$", r"\d+", r"^\w*$", r"^[^a]*$", "a|^b$", "^(ab|c)*$", r"\s", r"^.$",
    "é", r"^\D+$", r"\W", r"[^\d]", r'["\\]', "^x-", "^$", r"^\S$", "a?b$", "(^a|b$)", "🙂+$",
    r"^[\w.-]+@[a-z]+$", r"[\s\S]", r"^\n", "^a{0,3}b{2}?$", r"^\u0061\x62", "^(?:a|(b))c*$",
    "^(?=.*[ab])(?!.*c).{1,3}$", "a(?!b)",
]  # fmt: skip
TEXTS = ["", "a", "b", "ab", "abc", "aa", "12", "é", "x-a", "a b", "🙂", "\n", "a\n", '"', "\\",
         "c", "abab", "bb", "a@b", "٣", "\x1c", "\t"]  # fmt: skip
NUMBERS = [0, 1, 2, 3, 4, 6, -1, -6, 0.5, 1.5, 2.25, -0.5, 10, 12, 7]
KINDS = ["null", "boolean", "number", "string", "array", "object", "integer"]
BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
LISTED: list[Any] = [None, True, False, 1, 2, 2.5, "a", "", [1], {"a": 1}, [], {}]


def leaf(rng: random.Random) -> Schema:
    return rng.choice(
        [
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"pattern": rng.choice(PATTERNS), "minLength": rng.randint(0, 2), "maxLength": 3},
            {"type": rng.choice(KINDS[2:]), "multipleOf": rng.choice([1, 2, 3, 0.5, 0.25, 2.5])},
            {"type": "number", "multipleOf": 0.5, rng.choice(BOUNDS): rng.choice(NUMBERS)},
            {"enum": rng.sample(LISTED, 3)},
            {"type": rng.sample(KINDS, 2)},
            {"const": rng.choice(LISTED)},
        ]
    )


def schema_of(rng: random.Random, depth: int) -> Schema:
    if not depth:
        return leaf(rng)

    def inner() -> Schema:
        return schema_of(rng, depth - 1)

    named = {name: inner() for name in rng.sample(["a", "b", "x-a"], 2)}
    closed = rng.choice([False, {"type": "null"}])
    by_name = {"patternProperties": {rng.choice(PATTERNS): inner()}}
    made: list[Schema] = [
        {"not": inner()}, {"allOf": [inner(), inner()]}, {"oneOf": [inner(), inner()]},
        {"if": inner(), "then": inner(), "else": inner()}, {"if": inner(), "then": inner()},
        {"type": "object", **by_name, "properties": named, "additionalProperties": closed},
        {"type": "object", **by_name, "maxProperties": 2},
        {"propertyNames": {"pattern": rng.choice(PATTERNS)}, "minProperties": 1},
        {"propertyNames": {"not": {"const": "a"}}},
        {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": inner()}},
        {"type": "array", "contains": inner(), "maxItems": 3, "maxContains": rng.randint(0, 2)},
        {"type": "array", "prefixItems": [inner()], "items": inner()},
        {"anyOf": [{"properties": named}, inner()], "unevaluatedProperties": closed},
        {"allOf": [{"prefixItems": [inner()]}], "unevaluatedItems": rng.choice([False, inner()])},
        {"type": "array", "uniqueItems": True, "items": {"enum": rng.sample(LISTED[:7], 3)}},
    ]  # fmt: skip
    return rng.choice(made)


def value(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(6 if depth else 3)
    if kind < 3:
        return rng.choice([*TEXTS, *NUMBERS, None, True, False])
    if kind < 5:
        names = rng.sample(["a", "b", "c", "x-a", "", "é"], rng.randint(0, 3))
        return {name: value(rng, depth - 1) for name in names}
    return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]


@pytest.mark.parametrize("first", few([*range(0, 1000, 50)], 0))
def test_what_comes_satisfies_keywords_that_bear_on_each_other(first: int) -> None:
    cases = []
    for number in range(first, first + 50):
        rng = random.Random(number)
        schema = schema_of(rng, number % 3)
        texts = [written(value(rng)) for _ in range(30)]
        cases.append({"schema": schema, "texts": texts, "walks": 2, "most": 60})
    valid = taken = refused = 0
    for case, result in zip(cases, ask(cases)["results"], strict=True):
        if "error" in result:
            assert result["error"].startswith("WeftError"), (case["schema"], result)
            refused += 1
            continue
        checked(case["schema"], result, case["texts"])
        judge = jsonschema.Draft202012Validator(case["schema"])
        valid += sum(judge.is_valid(json.loads(text)) for text in case["texts"])
        taken += sum(result["taken"])
    assert refused <= 8 and taken > 0.9 * valid, (refused, taken, valid)


AHEAD = [
    "^(?!^[-+.]*$)[+-]?0?1*[.]?[01]{0,2}$", "^(?=.*1)(?=.*[ab]).{2,3}$", "a(?!b)", "(?=a)a+$",
    "(?!a).$", "^(?!a|^b)", "(?:a|(?=b)b)1", "(?!.*(?=1)..)a", "(?=a$|b)", "(?!$)", "^(?!.*b$)",
    "^(?=[^a]|$)(?!b).*1$", "^(?:x|(?!a))b?", "^a$|(?=b)",
]  # fmt: skip


def test_what_looks_ahead() -> None:
    """Exactly what Python's expressions match, and its opposite."""
    texts = ["".join(each) for n in range(5) for each in itertools.product("+.1ab", repeat=n)]
    both = [({"pattern": source}, {"not": {"pattern": source}}) for source in AHEAD]
    given = [*map(written, texts)]
    cases = [{"schema": {"type": "string", **of}, "texts": given} for each in both for of in each]
    found = ask(cases)["results"]
    for source, is_, is_not in zip(AHEAD, found[::2], found[1::2], strict=True):
        right = [re.search(source, text) is not None for text in texts]
        assert is_["taken"] == right and is_not["taken"] == [not one for one in right], source
    refused = ["(?=^a)", "(?=a)*", "a$(?!b)", "(?=a)^a", "(?<=a)b", "(?=a"]
    for result in ask([{"schema": {"pattern": source}} for source in refused])["results"]:
        assert result["error"].startswith("WeftError: the pattern")


def test_decimals_of_pydantic() -> None:
    """Each of some digits is the server's too."""
    bounds = [
        (None, None),
        (None, 2),
        (None, 0),
        (4, None),
        (4, 2),
        (2, 2),
        (2, 3),
        (3, 0),
        (80, 9),
    ]
    plain = ["0", "-1", "12", "0.5", "1.25", "+123.4", "1234", "1.000", "12345", "0.05"]
    texts = [*map(written, [*plain, "", "-", ".", "+.", "1e3", "x", "1x"])]
    cases = [{"schema": {"type": "string", "pattern": decimal_pattern(*each)}, "texts": texts,
              "walks": 30, "most": 30} for each in bounds]  # fmt: skip
    for (digits, places), result in zip(bounds, ask(cases)["results"], strict=True):
        matcher = compiled({"type": "string", "pattern": decimal_pattern(digits, places)})
        assert result["taken"] == [takes(matcher, text) for text in texts], (digits, places)
        kind = pydantic.TypeAdapter(
            Annotated[Decimal, pydantic.Field(max_digits=digits, decimal_places=places)]
        )
        whole = {base64.b64decode(data).decode() for data, ended in result["walked"] if ended}
        for text in whole:
            kind.validate_python(json.loads(text))
        assert len(whole) > 5, (digits, places)


def test_formats_are_those_of_the_server() -> None:
    """A page writes texts that its server's patterns match, and that jsonschema takes."""
    kinds = [*FORMATS, "uuid", "ipv4", "ipv6", "hostname", "email", "uri", "duration"]
    cases = [{"schema": {"type": "string", "format": kind}, "walks": 12, "most": 90}
             for kind in kinds]  # fmt: skip
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for kind, result in zip(kinds, ask(cases)["results"], strict=True):
        whole = [base64.b64decode(data).decode() for data, ended in result["walked"] if ended]
        for text in map(json.loads, whole):
            checker.check(text, kind)
            assert kind not in FORMATS or re.search(FORMATS[kind], text), (kind, text)
