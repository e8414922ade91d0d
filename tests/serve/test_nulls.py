"""Fields that newer clients know and leave null, in what they send back of an answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from serve_kit import Running

from weft.serve.wire import MAX_NULLS, struct_of

WHO = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NEW: dict[str, Any] = {"new": None}

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [WHO], "max_tokens": 1, **NEW}),
    ("/v1/chat/completions", {"max_tokens": 1, "messages": [
        WHO | NEW,
        {"role": "assistant", "content": None, "tool_calls": [CALL | NEW, CALL | NEW], **NEW},
        {"role": "user", "content": [{"type": "text", "text": "y", **NEW}]}]}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 1, **NEW}),
    ("/v1/responses", {"max_output_tokens": 1, **NEW, "input": [
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "x", **NEW}], **NEW}]}),
    ("/v1/messages", {"max_tokens": 1, **NEW, "messages": [
        WHO | NEW,
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "i", "name": "f", "input": {"a": None}, **NEW}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": [
            {"type": "text", "text": "y", **NEW}], **NEW}]}]}),
    ("/v1/messages/count_tokens", {"messages": [WHO | NEW], **NEW}),
    ("/api/chat", {"model": "box", "messages": [WHO | NEW], "stream": False, **NEW,
                   "options": {"num_predict": 1, **NEW}}),
    ("/api/generate", {"model": "box", "prompt": "x", "stream": False, **NEW,
                       "options": {"num_predict": 1}}),
    ("/tokenize", {"prompt": "x", **NEW}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ASKED, ids=range(len(ASKED)))
def test_an_unknown_field_that_is_null_is_left_out(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    status, said, _ = server.ask("POST", path, body)
    assert status == 200, said
    text = json.dumps(body)
    for at in range(text.count('"new": null')):  # each of them, with a value
        parts = text.split('"new": null')
        changed = (
            '"new": null'.join(parts[: at + 1]) + '"new": 1' + '"new": null'.join(parts[at + 1 :])
        )
        status, said, _ = server.ask("POST", path, changed.encode())
        assert status == 400 and "new" in json.dumps(said), (at, said)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    any: Any = None
    more: list[Inner] | dict[str, Inner] | None = None


def test_only_fields_of_structs_are_left_out() -> None:
    given = {"any": {"x": None}, "more": [{"any": [None], "x": None}, {"x": None}, {"any": 1}]}
    made = struct_of(given, Inner)
    assert made == Inner({"x": None}, [Inner([None]), Inner(), Inner(1)])
    assert struct_of({"more": {"a.b": {"x": None, "`": None}}}, Inner) == Inner(
        None, {"a.b": Inner()}
    )
    with pytest.raises(msgspec.ValidationError, match="`x`"):
        struct_of({"more": [{"x": None}, {"x": 0}]}, Inner)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        struct_of(dict.fromkeys(map(str, range(MAX_NULLS + 2))), Inner)
