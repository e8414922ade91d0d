"""Anthropic's own client, unmodified, against the server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import anthropic
import msgspec
import pydantic
import pytest
from serve_kit import Running

from weft.models.run.model import Decoder
from weft.serve.anthropic.input import turn_of
from weft.serve.anthropic.types import CountTokens
from weft.serve.chatting import AnswerOptions, Turn
from weft.serve.wire import HttpError

HELLO: list[Any] = [{"role": "user", "content": "Write a loop."}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
}  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
GREEDY = {"temperature": 0}  # of the API; this version of the client has left it to extra_body
ASKED: dict[str, Any] = {"model": "box", "messages": HELLO, "max_tokens": 200}


@pytest.fixture(scope="module")
def client(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def turn(fields: Any) -> Turn:
    return turn_of(msgspec.convert(fields, CountTokens), AnswerOptions())


def messages_of(given: Any) -> Any:
    return turn({"messages": given}).messages


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_is_the_models_own(client: anthropic.Anthropic, alone: Decoder) -> None:
    made = client.messages.create(
        model="box", messages=HELLO, max_tokens=16, extra_body={"seed": 5}
    )
    expected = alone.generate(alone.chat_ids(HELLO), max_new_tokens=16, temperature=1.0, seed=5)
    assert text_of(made) == expected.text
    assert made.stop_reason == "max_tokens" and made.stop_sequence is None
    assert made.usage.output_tokens == len(expected.ids)


def test_the_models_are_listed(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["box"]


def test_a_stream_joins_to_the_whole(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {**ASKED, "max_tokens": 16, "extra_body": {"seed": 5}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(whole) == text_of(final)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_counted_tokens_are_those_of_the_answer(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": "box", "system": "Be short, and count.", "tools": [WEATHER],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "How is it?"}]}],
    }  # fmt: skip
    counted = client.messages.count_tokens(**asked).input_tokens
    asked["extra_body"] = {"cache_salt": "counted"}  # other tests fill the cache too
    first = client.messages.create(**asked, max_tokens=1).usage
    assert first.input_tokens == counted and first.cache_read_input_tokens == 0
    again = client.messages.create(**asked, max_tokens=1).usage
    assert again.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == counted


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, alone: Decoder) -> None:
    whole = alone.generate(alone.chat_ids(HELLO), max_new_tokens=40).text
    stop = whole[10:13]
    made = client.messages.create(**ASKED, extra_body=GREEDY, stop_sequences=["never", stop])
    assert text_of(made) == whole[: whole.index(stop)]
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", stop)


def test_an_answer_goes_on_from_what_was_begun(client: anthropic.Anthropic, alone: Decoder) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "for i in"}]
    made = client.messages.create(model="box", messages=begun, max_tokens=8, extra_body=GREEDY)
    prompt = alone.tokenizer.chat(HELLO) + "for i in"
    ids = alone.tokenizer.encode(prompt, special=False)
    assert text_of(made) == alone.generate(ids, max_new_tokens=8).text


def test_the_context_ends_an_answer_and_says_so(client: anthropic.Anthropic) -> None:
    near = [{"role": "user", "content": "word " * 480}]
    asked: dict[str, Any] = {**ASKED, "messages": near, "max_tokens": 5_000}
    made = client.messages.create(**asked, extra_body={"seed": 1})
    assert made.stop_reason == "model_context_window_exceeded"
    used = made.usage
    read = used.input_tokens + (used.cache_read_input_tokens or 0)
    assert read + used.output_tokens == 512 + 1  # the last one is not fed
    long = [{"role": "user", "content": "word " * 600}]
    too_long = r"^prompt is too long: \d+ tokens > 512 maximum$"  # as Claude Code looks for it
    with pytest.raises(anthropic.BadRequestError) as found:
        client.messages.create(**{**ASKED, "messages": long})
    body: Any = found.value.body
    assert re.match(too_long, body["error"]["message"])


def test_a_call_of_a_tool(client: anthropic.Anthropic, says: Callable[[str], None]) -> None:
    says(f"Let me see.\n{CALL}")
    made = client.messages.create(**ASKED, tools=[WEATHER])
    assert [block.type for block in made.content] == ["text", "tool_use"]
    assert made.content[0].text == "Let me see."
    assert made.content[1].name == "weather"
    assert made.content[1].input == {"city": "Oslo", "days": 2}
    assert made.content[1].id.startswith("toolu_")
    assert made.stop_reason == "tool_use"
    with client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
        parts = [e.partial_json for e in stream if e.type == "input_json"]
        final = stream.get_final_message()
    assert json.loads("".join(parts)) == made.content[1].input
    assert [(b.type, getattr(b, "input", None)) for b in final.content] == [
        (b.type, getattr(b, "input", None)) for b in made.content
    ]
    assert final.stop_reason == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_where_no_more_are_wanted(
    client: anthropic.Anthropic, says: Callable[[str], None], stream: bool
) -> None:
    says(f"{CALL}\n{CALL}")
    for alone, expected in ((False, 2), (True, 1)):
        asked: dict[str, Any] = {
            **ASKED, "tools": [WEATHER],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": alone},
        }  # fmt: skip
        if stream:
            with client.messages.stream(**asked) as streamed:
                made: Any = streamed.get_final_message()
        else:
            made = client.messages.create(**asked)
        assert [b.type for b in made.content] == ["tool_use"] * expected
        assert made.stop_reason == "tool_use"


def test_thinking_is_a_block_of_its_own(
    client: anthropic.Anthropic, says: Callable[[str], None]
) -> None:
    says("<think>\nIt is easy.\n</think>\n\nYes.")
    made = client.messages.create(**ASKED, thinking={"type": "adaptive"})
    assert [block.type for block in made.content] == ["thinking", "text"]
    assert made.content[0].thinking == "It is easy." and made.content[1].text == "Yes."
    with client.messages.stream(**ASKED) as stream:
        assert "".join(e.thinking for e in stream if e.type == "thinking") == "It is easy."
        final = stream.get_final_message()
    assert [b.to_dict() for b in final.content] == [b.to_dict() for b in made.content]
    omitted: Any = {"type": "adaptive", "display": "omitted"}
    made = client.messages.create(**ASKED, thinking=omitted)
    assert made.content[0].thinking == ""
    details = made.usage.output_tokens_details
    assert details is not None and 0 < details.thinking_tokens < made.usage.output_tokens
    again = [{"role": "assistant", "content": [b.to_dict() for b in made.content]}, *HELLO]
    client.messages.create(**{**ASKED, "messages": [*HELLO, *again]})
    assert messages_of(again)[0]["reasoning_content"] == "It is easy."
    for wrong in ("weft:%%%", "weft:/w==", "c2ln", ""):
        again[0]["content"][0]["signature"] = wrong
        assert "reasoning_content" not in messages_of(again)[0]


def test_deferred_tools_are_told_of_where_they_are_found() -> None:
    calls: Any = [{"type": "tool_use", "id": "t", "name": "find", "input": {"query": "rain"}}]
    found: Any = [{"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "tool_reference", "tool_name": "weather"}]}]  # fmt: skip
    find = {"name": "find", "input_schema": {"type": "object"}}
    tools = [find, {**WEATHER, "defer_loading": True}, {**WEATHER, "name": "other",
                                                        "defer_loading": True}]  # fmt: skip
    talk = [*HELLO, {"role": "assistant", "content": calls}, {"role": "user", "content": found}]
    before, after = (turn({"messages": m, "tools": tools}) for m in (HELLO, talk))
    assert before.tools == after.tools and [*before.parameters] == ["find"]
    assert [*after.parameters] == ["find", "weather"]
    assert after.messages[: len(before.messages)] == before.messages
    told = json.loads(after.messages[-1]["content"])
    assert told["function"]["parameters"] == WEATHER["input_schema"]
    found[0]["content"] *= 3  # told of once
    after = turn({"messages": talk, "tools": tools})
    assert after.messages[-1]["content"].endswith("}\nweather\nweather")
    with pytest.raises(HttpError, match="'weather'"):
        turn({"messages": talk, "tools": [find]})


def test_notes_of_the_systems_stay_in_their_place_or_go() -> None:
    note: dict[str, Any] = {"role": "system", "content": "900 tokens are left."}
    said = messages_of([*HELLO, note])
    assert said == [{"role": "user", "content": "Write a loop.\n900 tokens are left."}]
    for more, left in (([], 1), (HELLO, 0)):
        said = messages_of([*HELLO, {**note, "clear_at": "next_user_message"}, *more])
        assert str(said).count("900") == left


def test_neighbours_of_one_role_are_one_message() -> None:
    result: Any = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "no"}
    said = messages_of([
        *HELLO, *HELLO, {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t", "name": "find", "input": {"x": 1}},
            {"type": "redacted_thinking", "data": "?"}]},
        {"role": "user", "content": [result, result, {"type": "text", "text": "c"}]},
    ])  # fmt: skip
    call = {"id": "t", "type": "function", "function": {"name": "find", "arguments": {"x": 1}}}
    told = {"role": "tool", "tool_call_id": "t", "name": "find", "content": "Error: no"}
    assert said == [
        {"role": "user", "content": "Write a loop.\nWrite a loop."},
        {"role": "assistant", "content": "a\nb", "reasoning_content": "hm", "tool_calls": [call]},
        told, told, {"role": "user", "content": "c"},
    ]  # fmt: skip


def test_arguments_that_are_no_json_are_not_lost(
    client: anthropic.Anthropic, says: Callable[[str], None]
) -> None:
    says(CALL)
    whole = client.messages.create(**ASKED, tools=[WEATHER])
    limit = whole.usage.output_tokens - 12
    made = client.messages.create(**{**ASKED, "max_tokens": limit}, tools=[WEATHER])
    assert made.stop_reason == "max_tokens"
    assert '"city": "Os' in made.content[-1].input["INVALID_JSON"]


class Thing(pydantic.BaseModel):
    name: str
    size: int


def test_a_schema_is_followed(client: anthropic.Anthropic) -> None:
    made = client.messages.parse(**ASKED, output_format=Thing, extra_body=GREEDY)
    assert isinstance(made.parsed_output, Thing)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"no_such_field": 1}, "no_such_field"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"seed": 1 << 70}, "seed"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": ""}]}, "role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "video"),
    ({"system": [{"text": "x"}]}, "type"),
    ({"system": [{"type": "image"}]}, "system"),
    ({"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "1", "name": "a", "input": {}}]}]}, "results"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"name": "a"}]}, "input_schema"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "sometimes"}}, "thinking"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
     "clear_tool_uses_20250919"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"speed": "fast"}, "speed"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}}, "schema"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named(server: Running, fields: dict[str, Any], named: str) -> None:
    status, body, _ = server.ask("POST", "/v1/messages", {**ASKED, **fields})
    assert status == 400 and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"] and len(body["error"]["message"]) < 300


def test_errors_have_anthropics_form(client: anthropic.Anthropic, server: Running) -> None:
    with pytest.raises(anthropic.NotFoundError, match="unknown model") as found:
        client.messages.create(**{**ASKED, "model": "other"})
    assert found.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    for path in ("/v1/messages/batches", "/v1/messages"):
        status, body, _ = server.ask("DELETE", path)
        assert status in (404, 405) and body["type"] == "error"
    status, body, _ = server.ask("POST", "/v1/messages", b"{}", {"Host": "evil.example"})
    assert status == 421 and body["type"] == "error"


def test_an_answer_comes_back_as_the_client_dumps_it(
    client: anthropic.Anthropic, says: Callable[..., None]
) -> None:
    says(f"On it.\n{CALL}", "Cold.")
    made = client.messages.create(**ASKED, tools=[WEATHER])
    call = made.content[-1]
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3 degrees"}
    talk = [*HELLO, {"role": "assistant", "content": [b.model_dump() for b in made.content]},
            {"role": "user", "content": [result]}]  # fmt: skip
    told = client.messages.create(**{**ASKED, "messages": talk}, tools=[WEATHER])
    assert text_of(told) == "Cold."


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_tool_runner(
    client: anthropic.Anthropic, says: Callable[..., None], stream: bool
) -> None:
    """It asks for a conversation that the server keeps, and sends all of it where none is kept."""

    @anthropic.beta_tool
    def weather(city: str, days: int) -> str:
        """The weather of a city."""
        return f"{city}: {days} cold days"

    says(CALL, "Cold.")
    runner = client.beta.messages.tool_runner(
        model="box", messages=HELLO, max_tokens=200, tools=[weather], stream=stream
    )
    last = runner.until_done()
    assert text_of(last) == "Cold."
