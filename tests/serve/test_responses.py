"""/v1/responses by OpenAI's own client, unmodified; answers are those of the model alone."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from serve_kit import Running

from weft.models.run.model import Decoder
from weft.serve import chatting
from weft.serve.choices import AnswerChunk
from weft.serve.responses.create import events
from weft.serve.responses.input import items_of, messages_of
from weft.serve.responses.tools import Tools
from weft.serve.responses.types import ITEMS, SKIPPED_ITEMS, SKIPPED_TOOLS, TOOLS as TOOL_KINDS
from weft.serve.toolcalls.choose import FORMATS
from weft.serve.toolcalls.events import Content
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.reading import Incremental
from weft.serve.wire import HttpError

HELLO = "Write a loop."
ASKED: dict[str, Any] = {"model": "box", "input": HELLO, "max_output_tokens": 16}
SEED = {"seed": 5}
EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
DRAWN = {"id", "item_id", "call_id", "created_at", "completed_at", "usage"}
"""What no two replies share: names, times, and what was found in the cache."""


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def same(value: Any) -> Any:
    """Without what no two replies share."""
    if isinstance(value, list):
        return [same(v) for v in value]
    if isinstance(value, dict):
        return {k: same(v) for k, v in value.items() if k not in DRAWN}
    return value


def streamed(server: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each as its type has it."""
    status, text, headers = server.ask("POST", "/v1/responses", {**body, "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    found = []
    for part in text.strip().split("\n\n"):
        name, data = part.split("\n", 1)
        made = json.loads(data.removeprefix("data: "))
        assert name == f"event: {made['type']}"
        EVENT.validate_python(made, strict=False)
        found.append(made)
    assert [made["sequence_number"] for made in found] == list(range(len(found)))
    return found


def test_a_response_is_the_models_own(client: openai.OpenAI, alone: Decoder) -> None:
    made = client.responses.create(**ASKED, extra_body=SEED)
    ids = alone.chat_ids([{"role": "user", "content": HELLO}])
    expected = alone.generate(ids, max_new_tokens=16, temperature=1.0, seed=5)
    assert made.output_text == expected.text
    assert made.status == "incomplete" and made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens) == (len(ids), 16)
    assert made.to_dict()["store"] is False
    Response.model_validate(made.to_dict())


def test_the_stream_ends_with_the_whole(server: Running) -> None:
    body = {**ASKED, **SEED, "top_logprobs": 2}
    _, whole, _ = server.ask("POST", "/v1/responses", body)
    events = streamed(server, body)
    kinds = [e["type"] for e in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.incomplete"]  # fmt: skip
    assert same(events[-1]["response"]) == same(whole)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    part = whole["output"][0]["content"][0]
    assert "".join(e["delta"] for e in deltas) == part["text"]
    assert [p for e in deltas for p in e["logprobs"]] == part["logprobs"]
    assert b"".join(bytes(p["bytes"]) for p in part["logprobs"]).decode() == part["text"]
    assert all(len(p["top_logprobs"]) == 2 for p in part["logprobs"])


def test_the_clients_stream(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASKED, extra_body=SEED)
    with client.responses.stream(**ASKED, extra_body=SEED) as stream:
        events = list(stream)
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text
    assert events[-1].type == "response.incomplete"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["everything"]}, "include"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"input": [{"type": []}]}, "input[0].type"),
    ({"tools": [{"type": {}}]}, "tools[0].type"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"no_such_field": 1}, "no_such_field"), ({"input": []}, "input"),
    ({"input": [{"type": "web_search_call"}]}, "input"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": "a"}, {"role": "user", "contents": "b"}]},
     "input[1].contents"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
     "input"),
    ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}},
     "tool_choice.tools"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), WRONG)
def test_what_is_wrong_is_named(server: Running, fields: dict[str, Any], named: str) -> None:
    status, body, _ = server.ask("POST", "/v1/responses", {"input": HELLO, **fields})
    assert status == 400
    assert body["error"]["param"] == named
    assert "Traceback" not in body["error"]["message"] and len(body["error"]["message"]) < 300


def test_tokens_are_counted_without_an_answer(client: openai.OpenAI, alone: Decoder) -> None:
    counted = client.responses.input_tokens.count(model="box", input=HELLO, instructions="Be short")
    messages = [{"role": "system", "content": "Be short"}, {"role": "user", "content": HELLO}]
    assert counted.input_tokens == len(alone.chat_ids(messages))


# What a model writes that thinks, speaks and calls; the third call is of a custom tool.
WRITTEN = (
    "<think>\nHm.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "crm__find", "arguments": {"n": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n\\"x\\"\\n"}}\n</tool_call>'
)
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "description": "Changes files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}  # fmt: skip
CRM = {"type": "namespace", "name": "crm", "description": "Customers.",
       "tools": [{**LOOK, "name": "find"}]}  # fmt: skip
TOOLS = [LOOK, {"type": "web_search"}, PATCH, CRM, {"type": "local_shell"}]


def test_items_of_an_answer(server: Running, says: Callable[[str], None]) -> None:
    says(WRITTEN)
    body = {"input": HELLO, "tools": TOOLS}
    events = streamed(server, body)
    made = events[-1]["response"]
    assert made["status"] == "completed"
    thought, said, look, find, patch = made["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert thought["summary"] == [] and thought["encrypted_content"] is None
    assert said["content"][0]["text"] == "I look."
    assert (look["name"], json.loads(look["arguments"])) == ("look", {"city": "Rome"})
    assert (find["name"], find["namespace"]) == ("find", "crm")
    assert patch["type"] == "custom_tool_call" and patch["input"] == '*** Begin\n"x"\n'
    assert [tool["type"] for tool in made["tools"]] == ["function", "custom", "namespace"]
    assert made["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert same(server.ask("POST", "/v1/responses", body)[1]) == same(made)
    joined: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            at = event["output_index"]
            joined[at] = joined.get(at, "") + event["delta"]
    assert list(joined.values()) == ["Hm.", "I look.", look["arguments"], find["arguments"],
                                     patch["input"]]  # fmt: skip
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == made["output"]


def test_reasoning_as_a_summary(server: Running, says: Callable[[str], None]) -> None:
    says("<think>\nHm.\n</think>\n\nYes.")
    events = streamed(server, {"input": HELLO, "reasoning": {"summary": "auto", "effort": "low"}})
    thought, said = events[-1]["response"]["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert "content" not in thought and said["content"][0]["text"] == "Yes."
    kinds = [e["type"].removeprefix("response.") for e in events]
    begun = kinds.index("reasoning_summary_part.added")
    assert kinds[begun + 1] == "reasoning_summary_text.delta"


def test_one_call_where_no_more_are_wanted(server: Running, says: Callable[[str], None]) -> None:
    says(WRITTEN)
    body = {"input": HELLO, "tools": TOOLS, "parallel_tool_calls": False}
    made = streamed(server, body)[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["reasoning", "message", "function_call"]
    assert made["status"] == "completed" and made["parallel_tool_calls"] is False


def test_a_call_that_is_cut_off(server: Running, says: Callable[[str], None]) -> None:
    says(WRITTEN)
    made = streamed(server, {"input": HELLO, "tools": TOOLS, "max_output_tokens": 40})
    last = made[-1]["response"]["output"][-1]
    assert made[-1]["type"] == "response.incomplete" and last["status"] == "incomplete"


@given(cuts=st.lists(st.integers(0, len(WRITTEN)), max_size=30))
@settings(max_examples=150, deadline=None)
def test_no_cut_of_the_text_changes_the_response(cuts: list[int]) -> None:
    tools = Tools()
    tools.add(TOOLS, "tools")

    def made(pieces: list[str]) -> dict[str, Any]:
        context = ParserContext("", {name: {} for name in tools.offered})
        parser = Incremental(lambda sink: FORMATS["hermes"][0](sink, context))
        response = events.Response({}, tools.offered, False)
        told = [*response.begin()]
        for piece in pieces:
            told += response.add(parser.feed(piece))
        told += response.add(parser.finish())
        told += response.end(None)
        assert [e["sequence_number"] for e in told] == list(range(len(told)))
        return response.made

    at = sorted({0, *cuts, len(WRITTEN)})
    assert same(made([WRITTEN[a:b] for a, b in itertools.pairwise(at)])) == same(made([WRITTEN]))


def test_items_come_back(server: Running, says: Callable[[str], None]) -> None:
    """What was answered, sent back with the results of the calls, is what templates are told."""
    says(WRITTEN)
    body: dict[str, Any] = {"instructions": "Be short.", "tools": TOOLS}
    go = {"type": "input_text", "text": "Go."}
    asked = [{"role": "developer", "content": "Think."}, {"role": "user", "content": "Hi."},
             {"type": "message", "role": "user", "content": [go]}]  # fmt: skip
    made = streamed(server, {**body, "input": asked})[-1]["response"]
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": f"result {i}"}
        for i, item in enumerate(made["output"][2:])
    ]
    skipped = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    items = items_of([*asked, *made["output"], skipped, *results])
    messages = messages_of(body["instructions"], items)
    system, user, assistant, *rest = messages
    assert system == {"role": "system", "content": "Be short.\n\nThink."}
    assert user == {"role": "user", "content": "Hi.\n\nGo."}
    assert (assistant["reasoning_content"], assistant["content"]) == ("Hm.", "I look.")
    told = [call["function"] for call in assistant["tool_calls"]]
    assert told == [{"name": "look", "arguments": {"city": "Rome"}},
                    {"name": "crm__find", "arguments": {"n": 2}},
                    {"name": "patch", "arguments": {"input": '*** Begin\n"x"\n'}}]  # fmt: skip
    assert [(m["role"], m["name"], m["content"]) for m in rest] == [
        ("tool", "look", "result 0"), ("tool", "crm__find", "result 1"),
        ("tool", "patch", "result 2"),
    ]  # fmt: skip
    status, _, _ = server.ask("POST", "/v1/responses/input_tokens",
                              {**body, "input": [*asked, *made["output"], *results]})  # fmt: skip
    assert status == 200


def test_what_comes_back_out_of_order_stays_apart() -> None:
    given = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"},
             {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "c"}],
              "encrypted_content": "xyz"}]  # fmt: skip
    assert messages_of(None, items_of(given)) == [
        {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "", "reasoning_content": "c"},
    ]  # fmt: skip


class Thing(pydantic.BaseModel):
    """A form of the client's own."""

    kind: Literal["red", "green"]
    size: Literal[1, 2, 3]


def test_the_client_parses_forms_and_calls(client: openai.OpenAI) -> None:
    for seed in range(3):
        made = client.responses.parse(
            model="box", input=HELLO, text_format=Thing, extra_body={"seed": seed}
        )
        assert isinstance(made.output_parsed, Thing)
    tool = openai.pydantic_function_tool(Thing, name="make")["function"]
    called = client.responses.parse(
        model="box", input=HELLO, tool_choice="required", parallel_tool_calls=False,
        tools=[{"type": "function", "name": "make", "strict": True,
                "parameters": tool["parameters"]}],
    )  # fmt: skip
    [call] = called.output
    assert call.type == "function_call"
    Thing.model_validate(call.parsed_arguments)


def test_a_failure_in_a_stream_is_its_last_event(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Any) -> Any:
        yield AnswerChunk((Content("a"),))
        raise HttpError(503, "the device failed")

    monkeypatch.setattr(chatting.Choice, "__aiter__", broken)
    found = streamed(server, ASKED)[-1]
    assert found["type"] == "response.failed" and found["response"]["status"] == "failed"
    assert found["response"]["error"] == {"code": "server_error", "message": "the device failed"}
    assert server.ask("POST", "/v1/responses", ASKED)[0] == 503


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = ("type", "role", "content", "name", "call_id", "arguments", "input", "output", "summary",
          "tools", "text", "namespace", "id", "format", "parameters")  # fmt: skip
KINDS = st.sampled_from([*ITEMS, *TOOL_KINDS, *SKIPPED_ITEMS, *SKIPPED_TOOLS, "input_text", "text"])
THINGS = st.recursive(
    st.fixed_dictionaries({"type": KINDS | NESTED}),
    lambda inner: st.dictionaries(
        st.sampled_from(FIELDS), KINDS | NESTED | inner | st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(THINGS, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_json_is_taken_or_refused(things: list[dict[str, Any]]) -> None:
    with contextlib.suppress(HttpError):
        Tools().add(things, "tools")
    with contextlib.suppress(HttpError):
        messages_of("Be short.", items_of(things))
