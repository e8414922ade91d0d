"""JSON schemas of many kinds, and answers made under a grammar by a model that knows nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

HAND_MADE: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 5},
    {"enum": ["red", "green", 7, None, {"a": [1, "ü"]}]},
    {"const": {"kind": "fixed", "text": 'quotes " and \\ and \n'}},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,4}$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "minLength": 3, "maxLength": 8},
    {"type": ["integer", "null"]},
    {"type": "integer", "minimum": -7, "exclusiveMaximum": 100},
    {"type": "number", "minimum": 0.25, "maximum": 12.5},
    {"type": "integer", "multipleOf": 7, "minimum": 0},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 4}]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
    {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 2, "maxItems": 3},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 4},
    {"type": "object", "patternProperties": {"^x_[a-z]{1,3}$": {"type": "integer"}},
     "additionalProperties": False},
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "maximum": 9, "minimum": 0},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
    },
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
]  # fmt: skip

_NAMES = st.sampled_from(["a", "b", "name", "größe", "x y", 'q"', "\\n", "🙂"])


def _leaves() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(-50, 50), st.integers(0, 60))
    sizes = st.tuples(st.integers(0, 3), st.integers(0, 6))
    return st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "integer"}]),
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
        bounds.map(lambda b: {"type": "number", "minimum": b[0], "maximum": b[0] + b[1] + 0.5}),
        sizes.map(lambda s: {"type": "string", "minLength": s[0], "maxLength": s[0] + s[1]}),
        st.sampled_from(["^[a-f0-9]{4}$", "^(yes|no)$", "^\\d{3}-\\d{4}$", "^[^x]{1,5}$"]).map(
            lambda p: {"type": "string", "pattern": p}
        ),
        st.lists(
            st.one_of(st.integers(-5, 5), st.text(max_size=4), st.booleans(), st.none()),
            min_size=1, max_size=4,
        ).map(lambda values: {"enum": values}),
    )  # fmt: skip


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def objects(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(_NAMES, inner, max_size=3))
        required = [name for name in properties if draw(st.booleans())]
        more = draw(st.sampled_from([False, {"type": "integer"}]))
        out = {"type": "object", "properties": properties, "required": required}
        return out | {"additionalProperties": more}

    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 3)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + t[2]}
    )
    either = st.lists(inner, min_size=1, max_size=3).map(lambda s: {"anyOf": s})
    return st.one_of(objects(), arrays, either)


schemas = st.recursive(_leaves(), _nested, max_leaves=8)


def play(
    constraint: Any, tokens: list[bytes], eos: int, stream: np.random.Generator, limit: int = 400
) -> tuple[bytes, bool]:
    """The text of tokens taken at random from those allowed, those that close something three
    times out of ten where they are, and whether it ended within `limit` tokens."""
    closing = np.array([t[:1] in (b'"', b"}", b"]") for t in tokens])
    closing[eos] = True
    out = b""
    for _ in range(limit):
        if constraint.ended:
            return out, True
        mask = constraint.allowed()
        assert mask.shape == (len(tokens),) and mask.any()
        near = mask & closing
        pick = near if near.any() and stream.random() < 0.3 else mask
        token = int(stream.choice(np.flatnonzero(pick)))
        if token == eos:
            return out, True
        constraint.accept(token)
        out += tokens[token]
    return out, False
