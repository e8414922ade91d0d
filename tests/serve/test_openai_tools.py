"""Tools and forms by OpenAI's own client, unmodified."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
import pytest
from serve_kit import Running

HELLO: Any = [{"role": "user", "content": "What is the weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}  # fmt: skip
WRITTEN = (
    "<think>\nWhere?\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
CITIES = [{"city": "Rome"}, {"city": "Oslo"}]


class Thing(pydantic.BaseModel):
    """A form of the client's own, with a reference in its schema."""

    class Size(pydantic.BaseModel):
        width: Literal[1, 2, 3]

    kind: Literal["red", "green"]
    size: Size


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def chunks(server: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream as they are, before any client made them whole."""
    status, text, _ = server.ask("POST", "/v1/chat/completions", {**body, "stream": True})
    assert status == 200, text
    *parts, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.mark.parametrize("n", [1, 3])
def test_calls_of_a_stream_join_to_the_whole(
    client: openai.OpenAI, says: Callable[[str], None], n: int
) -> None:
    says(WRITTEN)
    asked: dict[str, Any] = {"model": "box", "messages": HELLO, "tools": [WEATHER], "n": n}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        joined = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 2 * n
    assert len(whole.choices) == len(joined.choices) == n
    for one in (*whole.choices, *joined.choices):
        assert one.finish_reason == "tool_calls" and one.message.content == "I look."
        assert one.message.to_dict()["reasoning_content"] == "Where?"
        calls = one.message.tool_calls or []
        assert [call.type for call in calls] == ["function", "function"]
        made = [call.function for call in calls if call.type == "function"]
        assert [json.loads(function.arguments) for function in made] == CITIES
    ids = [call.id for one in whole.choices for call in one.message.tool_calls or ()]
    assert len(set(ids)) == 2 * n


def test_the_first_delta_of_a_call_names_it(server: Running, says: Callable[[str], None]) -> None:
    """Vercel's AI SDK refuses a call whose first delta lacks its id, type or name."""
    says(WRITTEN)
    deltas = [
        call
        for chunk in chunks(server, {"messages": HELLO, "tools": [WEATHER]})
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    for index, group in itertools.groupby(deltas, lambda call: call["index"]):
        first, *rest = group
        assert first["id"].startswith("call_") and first["type"] == "function"
        assert first["function"]["name"] == "weather"
        assert all(set(call) == {"index", "function"} for call in rest)
        text = "".join(call["function"]["arguments"] for call in (first, *rest))
        assert json.loads(text) == CITIES[index]
    assert [call["index"] for call in deltas] == sorted(call["index"] for call in deltas)


def test_logprobs_go_with_calls(client: openai.OpenAI, says: Callable[[str], None]) -> None:
    says(WRITTEN)
    asked: dict[str, Any] = {"model": "box", "messages": HELLO, "tools": [WEATHER],
                             "logprobs": True, "top_logprobs": 1}  # fmt: skip
    made = client.chat.completions.create(**asked).choices[0]
    assert made.logprobs is not None and made.logprobs.content is not None
    assert b"".join(bytes(t.bytes or ()) for t in made.logprobs.content).decode() == WRITTEN
    streamed = [
        token.to_dict()
        for chunk in client.chat.completions.create(**asked, stream=True)
        for token in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert streamed == [token.to_dict() for token in made.logprobs.content]


@pytest.mark.parametrize("tier", ["flex", "priority", "fast"])
def test_no_tier_of_service_is_promised(client: openai.OpenAI, tier: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="service_tier"):
        client.chat.completions.create(model="box", messages=HELLO, service_tier=tier)


def test_usage_counts_reasoning(
    server: Running, client: openai.OpenAI, says: Callable[[str], None]
) -> None:
    says(WRITTEN)
    asked: dict[str, Any] = {"model": "box", "messages": HELLO, "tools": [WEATHER], "n": 2}
    count = server.ask("POST", "/tokenize", {"prompt": "Where?"})[1]["count"]
    whole = client.chat.completions.create(**asked).usage
    options: Any = {"include_usage": True}
    *_, last = client.chat.completions.create(**asked, stream=True, stream_options=options)
    for usage in (whole, last.usage):
        assert usage is not None and usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 2 * count
        assert whole is not None and usage.total_tokens == whole.total_tokens


def test_a_conversation_with_results(client: openai.OpenAI, says: Callable[[str], None]) -> None:
    says(WRITTEN)
    asked: dict[str, Any] = {"model": "box", "tools": [WEATHER]}
    made = client.chat.completions.create(**asked, messages=HELLO).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        for call in made.tool_calls or ()
    ]
    says("It is sunny.")
    talk = [*HELLO, made.to_dict(), *results]
    done = client.chat.completions.create(**asked, messages=talk)
    assert done.choices[0].message.content == "It is sunny."
    assert done.usage is not None and done.usage.prompt_tokens_details is not None
    assert (done.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_the_client_parses_forms(client: openai.OpenAI) -> None:
    for seed in range(3):
        made = client.chat.completions.parse(
            model="box", messages=HELLO, response_format=Thing, seed=seed
        )
        assert isinstance(made.choices[0].message.parsed, Thing)
    with client.chat.completions.stream(
        model="box", messages=HELLO, response_format=Thing, seed=1
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Thing)


def test_the_client_parses_calls(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(
        model="box", messages=HELLO, seed=2, parallel_tool_calls=False, tool_choice="required",
        tools=[openai.pydantic_function_tool(Thing, name="make")],
    )  # fmt: skip
    [call] = made.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Thing)


def test_any_json_object(client: openai.OpenAI) -> None:
    for seed in range(6):
        made = client.chat.completions.create(
            model="box", messages=HELLO, response_format={"type": "json_object"}, seed=seed,
            max_tokens=80,
        ).choices[0]  # fmt: skip
        if made.finish_reason == "stop":
            assert isinstance(json.loads(made.message.content or ""), dict)
        else:
            assert (made.message.content or "").lstrip().startswith("{")


def test_messages_that_litellm_sends_back(server: Running) -> None:
    """Its fields beside OpenAI's, and calls and results without ids."""
    more = {"provider_specific_fields": {"refusal": None}}
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}", **more}, **more}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "thinking_blocks": [], **more},
        {"role": "tool", "content": "sun"},
    ]
    body = {"model": "box", "messages": turns, "tools": [WEATHER], "max_tokens": 4}
    status, said, _ = server.ask("POST", "/v1/chat/completions", body)
    assert status == 200, said
    long = {"model": "box", "messages": HELLO, "max_tokens": 10**6}
    status, said, _ = server.ask("POST", "/v1/chat/completions", long)
    assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
    assert "This model's maximum context length is" in said["error"]["message"]
