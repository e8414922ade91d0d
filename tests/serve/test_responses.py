"""/v1/responses by OpenAI's own client, unmodified; answers are those of the model alone."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from serve_kit import Running

from weft.models.model import Decoder

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
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"no_such_field": 1}, "no_such_field"),
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
