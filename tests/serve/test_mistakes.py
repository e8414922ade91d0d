"""JSON of a wrong type: every field of every request, named in JSON's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from serve_kit import Running
from test_extremes import BASE

from weft.serve.app import routes
from weft.serve.batches.types import RequestLine
from weft.serve.mistakes import mistake_in
from weft.serve.responses.types import ITEMS
from weft.serve.routing import JSON

WRONG: list[Any] = [True, 5, 0.5, "x", [True], {"zz": True}, [[]], [{"zz": 1}]]
PYTHON = re.compile(
    r"`|(?<!\")\b(str|int|float|bool|dict|list|tuple|None|NoneType|Struct|True|False)\b(?!\")"
)
KINDS = {
    **{r.path: r.body for r in routes() if r.body is not None and r.media == JSON},
    "a line": RequestLine, **{f"item {name}": kind for name, kind in ITEMS.items()},
}  # fmt: skip


def places(one: Any, seen: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each field in a type: its path, and a function from a value to JSON with it there."""
    if isinstance(one, inspect.UnionType):
        for each in one.types:
            yield from places(each, seen)
    elif isinstance(one, inspect.StructType) and one.cls not in seen:
        tag = {} if one.tag_field is None else {one.tag_field: one.tag}
        for field in one.fields:
            name = field.encode_name

            def into(value: Any, name: str = name) -> Any:
                return {**tag, name: value}

            yield name, into
            for path, inner in places(field.type, (*seen, one.cls)):
                joined = f"{name}{path}" if path.startswith("[") else f"{name}.{path}"
                yield joined, lambda value, into=into, inner=inner: into(inner(value))
    elif isinstance(one, inspect.DictType):
        for path, inner in places(one.value_type, seen):
            yield f"[...].{path}", lambda value, inner=inner: {"k": inner(value)}
    elif hasattr(one, "item_type"):
        for path, inner in places(one.item_type, seen):
            yield f"[0].{path}", lambda value, inner=inner: [inner(value)]


@pytest.mark.parametrize("path", KINDS)
def test_every_field_of_a_wrong_type(path: str) -> None:
    kind, refused = KINDS[path], 0
    for name, into in places(inspect.type_info(kind)):
        for value in WRONG:
            try:
                msgspec.convert(into(value), kind)
            except msgspec.ValidationError as e:
                field, said = mistake_in(e, kind)
                assert not PYTHON.search(said), said
                if field.startswith(name):  # not another one, which is missing
                    refused += 1
                    assert re.search(r"expected |missing|not a known", said), said
                    assert "expected any value" not in said, said
                assert said.startswith((field, "a name in", "the body")), said
    assert refused


@pytest.mark.parametrize(("given", "field", "said"), [
    ({"max_tokens": "x"}, "max_tokens", "max_tokens is a string; expected an integer of 0 or more"),
    ({"max_tokens": -1}, "max_tokens", "max_tokens: expected an integer of 0 or more"),
    ({"messages": [{"role": "boss"}]}, "messages[0].role", "messages[0].role is 'boss'; expected "
     '"assistant", "developer", "system", "tool" or "user"'),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "messages[0].content "
     "is an integer; expected a string or an array of objects"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing"),
    ({"messages": []}, "messages", "messages: expected an array"),
    ({"stop": 5}, "stop", "stop is an integer; expected a string or an array of strings"),
    ({"logit_bias": {"5": "x"}}, "logit_bias[...]", "logit_bias[...] is a string; expected a "
     "number"),
    ({"swirl": 1}, "swirl", "swirl is not a known field"),
    ([], None, "the body is an array; expected an object"),
])  # fmt: skip
def test_words_that_clients_get(server: Running, given: Any, field: str | None, said: str) -> None:
    body = {**BASE["/v1/chat/completions"], **given} if isinstance(given, dict) else given
    status, made, _ = server.ask("POST", "/v1/chat/completions", body)
    assert status == 400 and made["error"]["param"] == field
    assert made["error"]["message"].startswith(said), json.dumps(made)
