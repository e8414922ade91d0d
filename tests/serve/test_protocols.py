"""What holds whatever the protocol: one conversation has one answer, and a stream joins to the
whole however the text comes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import anthropic
import msgspec
import ollama
import openai
import pytest
from hypothesis import given, settings, strategies as st
from serve_kit import Running, chatty_box, serving

from weft.core.errors import DeviceError
from weft.engine.job import Finish, Job, Output, SampledToken, TokenUsage
from weft.serve.anthropic import messages as anthropic_messages
from weft.serve.anthropic.types import AnthropicMessage, Messages
from weft.serve.chatting import Choice
from weft.serve.forcing import formed
from weft.serve.ollama import chat as ollama_chat
from weft.serve.ollama.replies import ChatForm, Replies, ReplyTimes
from weft.serve.ollama.types import OllamaChat
from weft.serve.openai import chat as openai_chat
from weft.serve.openai.types import Chat
from weft.serve.player import JobOutputs
from weft.serve.replies import ReplyWriter
from weft.serve.toolcalls.choose import FORMATS
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.reading import Incremental
from weft.serve.tooling import follow_schema

SAID = (
    "<think>\nWhere? \u00d8st.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "\u00d8st \\"<", "days": [2, {}]}}\n'
    '</tool_call>\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)
CALLS = [("weather", {"city": '\u00d8st "<', "days": [2, {}]}), ("now", {})]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Write a loop."},
    {"role": "assistant", "content": "for i in range(3):"},
    {"role": "user", "content": "And its body?"},
]


class Pieces:
    """An engine's answer whose text comes in these pieces."""

    def __init__(self, pieces: Sequence[str], finish: Finish = "eos") -> None:
        self._pieces, self._finish = pieces, finish

    async def __aiter__(self) -> AsyncIterator[Output]:
        for piece in self._pieces:
            yield Output(piece, (SampledToken(1),))
        yield Output(finish=self._finish, usage=TokenUsage(9, 4, len(self._pieces)))

    def close(self) -> None:
        pass


class Letters:
    """A tokenizer."""

    def encode(self, text: str, special: bool) -> list[int]:
        return list(map(ord, text))


class Model:
    """What writers need of a model."""

    name, print, tokenizer = "box", "fp_0", Letters()

    @staticmethod
    async def encoded(texts: Sequence[str], special: bool) -> list[list[int]]:
        return [Letters().encode(text, special) for text in texts]


def choice(pieces: Sequence[str]) -> Choice:
    read = FORMATS["hermes"][0]
    context = ParserContext("", {name: {} for name, _ in CALLS})
    parser = Incremental(lambda sink: read(sink, context))
    return Choice(cast(JobOutputs, Pieces(pieces)), parser, Job((1,) * 9, 99))


def openai_writer(pieces: Sequence[str]) -> ReplyWriter:
    return openai_chat._ChatWriter(cast(Any, Model), Chat(messages=[]), [choice(pieces)])


def anthropic_writer(pieces: Sequence[str]) -> ReplyWriter:
    body = Messages(messages=[AnthropicMessage(role="user", content="")], max_tokens=99)
    return anthropic_messages._MessageWriter(cast(Any, Model), body, choice(pieces))


def ollama_writer(pieces: Sequence[str]) -> ReplyWriter:
    body = OllamaChat(model="box")
    return Replies(cast(Any, Model), body, [choice(pieces)], ChatForm("box"), ReplyTimes(0))


Told = tuple[str, str, list[tuple[str, Any]], str]
"""Reasoning, content, calls, and why it ended."""


def openai_told(message: Any, reason: str) -> Told:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    made = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return message.get("reasoning", ""), message["content"] or "", made, reason


def openai_joined(chunks: Sequence[Any]) -> Told:
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    reason = ""
    for chunk in chunks:
        (found,) = chunk["choices"]
        reason = found["finish_reason"] or reason
        for call in found["delta"].pop("tool_calls", ()):
            if "id" in call:
                message["tool_calls"].append(call)
            else:
                whole = message["tool_calls"][call["index"]]["function"]
                whole["arguments"] += call["function"]["arguments"]
        for name, value in found["delta"].items():
            if name in ("content", "reasoning"):
                message[name] += value
    return openai_told(message, reason)


def anthropic_told(message: Any) -> Told:
    blocks: list[dict[str, Any]] = message["content"]
    reasoning = "".join(block.get("thinking", "") for block in blocks)
    content = "".join(block.get("text", "") for block in blocks)
    calls = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    return reasoning, content, calls, message["stop_reason"]


def anthropic_joined(events: Sequence[Any]) -> Told:
    blocks: list[dict[str, Any]] = []
    reason = ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            for name, text in event["delta"].items():
                if name != "type":
                    blocks[-1][name] += text
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["partial_json"])
    return anthropic_told({"content": blocks, "stop_reason": reason})


def ollama_joined(objects: Sequence[Any]) -> Told:
    messages = [made["message"] for made in objects]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    return (
        "".join(message.get("thinking", "") for message in messages),
        "".join(message["content"] for message in messages),
        [(call["name"], call["arguments"]) for call in calls],
        objects[-1]["done_reason"],
    )


def objects_of(data: bytes) -> Iterator[Any]:
    """The objects of a stream, of events or of lines."""
    for line in data.decode().splitlines():
        line = line.removeprefix("data: ")
        if line.startswith("{"):
            yield json.loads(line)


async def streamed(writer: ReplyWriter) -> list[Any]:
    return list(objects_of(b"".join([part async for part in writer.parts()])))


@given(st.lists(st.integers(1, len(SAID) - 1), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_split_gives_the_unstreamed_result(cuts: list[int]) -> None:
    edges = [0, *sorted(set(cuts)), len(SAID)]
    pieces = [SAID[a:b] for a, b in itertools.pairwise(edges)]
    expected = "Where? \u00d8st.", "I look.", CALLS

    async def check() -> None:
        whole: Any = json.loads(msgspec.json.encode(await openai_writer([SAID]).whole()))
        (found,) = whole["choices"]
        told = openai_told(found["message"], found["finish_reason"])
        assert told == (*expected, "tool_calls")
        assert openai_joined(await streamed(openai_writer(pieces))) == told
        told = anthropic_told(await anthropic_writer([SAID]).whole())
        assert told == (*expected, "tool_use")
        assert anthropic_joined(await streamed(anthropic_writer(pieces))) == told
        told = ollama_joined([await ollama_writer([SAID]).whole()])
        assert told == (*expected, "stop")
        assert ollama_joined(await streamed(ollama_writer(pieces))) == told

    asyncio.run(check())


def test_one_conversation_has_one_answer(server: Running) -> None:
    sampled: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "top_k": 50}
    seed = 11
    _, chat, _ = server.ask("POST", "/v1/chat/completions", {
        "messages": TALK, "max_tokens": 24, "seed": seed, **sampled,
    })  # fmt: skip
    expected = chat["choices"][0]["message"]["content"]
    assert len(expected) > 10
    _, made, _ = server.ask("POST", "/v1/messages", {
        "system": TALK[0]["content"], "messages": TALK[1:], "max_tokens": 24, "seed": seed,
        **sampled,
    })  # fmt: skip
    assert made["content"] == [{"type": "text", "text": expected}]
    _, made, _ = server.ask("POST", "/api/chat", {
        "model": "box", "messages": TALK, "stream": False,
        "options": {"num_predict": 24, "seed": seed, **sampled},
    })  # fmt: skip
    assert made["message"]["content"] == expected
    _, made, _ = server.ask("POST", "/v1/responses", {
        "instructions": TALK[0]["content"], "input": TALK[1:], "max_output_tokens": 24,
        "seed": seed, **sampled,
    })  # fmt: skip
    assert made["output"][-1]["content"][0]["text"] == expected


@pytest.mark.parametrize("opened", [True, False])
def test_a_form_comes_after_reasoning(tmp_path: Path, opened: bool) -> None:
    """A prompt that begins reasoning leaves room for it before the form that is asked for."""
    folder = chatty_box(tmp_path / "box")
    template = folder / "chat_template.jinja"
    if opened:
        text = template.read_text().replace(
            "<|assistant|>{% endif", "<|assistant|><think>\n{% endif"
        )
        template.write_text(text)
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"],
              "additionalProperties": False}  # fmt: skip
    asked = {"messages": TALK[:2], "max_tokens": 12, "seed": 3, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}  # fmt: skip
    with serving({"box": str(folder)}) as running:
        _, made, _ = running.ask("POST", "/v1/chat/completions", asked)
        message = made["choices"][0]["message"]
        assert bool(message.get("reasoning")) == opened and bool(message["content"]) != opened
        (model,) = running.shelf.decoders()
        prompt = model.chat(TALK[:2], {})
        form = formed(model, prompt, {}, follow_schema(schema))
        for said, whole in (('{"size": 3}', not opened), ('Hm {\n</think>\n\n{"size": 3}', opened)):
            constraint = form()
            for token in model.tokenizer.encode(said, special=False):
                if not constraint.allowed()[token]:
                    break
                constraint.accept(token)
            assert constraint.whole == whole


class Failing(Pieces):
    """An answer whose model fails after its first pieces."""

    async def __aiter__(self) -> AsyncIterator[Output]:
        async for output in super().__aiter__():
            if output.finish is not None:
                raise DeviceError("a secret of the device")
            yield output


def test_a_stream_that_breaks_off_says_so(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each protocol's words, which its own client raises; never with the failure's."""

    async def begin(*_: Any) -> list[Choice]:
        return [Choice(cast(JobOutputs, Failing(["a", "b"])), None, Job((1,), 9))]

    for module in (openai_chat, anthropic_messages, ollama_chat):
        monkeypatch.setattr(module, "begin", begin)
    talk: Any = [{"role": "user", "content": "x"}]
    asked: dict[str, Any] = {"model": "box", "messages": talk}
    with pytest.raises(openai.APIError, match="device failed"):
        chat = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        list(chat.chat.completions.create(**asked, stream=True))
    with pytest.raises(anthropic.APIStatusError, match="device failed") as found:
        client = anthropic.Anthropic(base_url=server.url, api_key="none")
        with client.messages.stream(**asked, max_tokens=9) as stream:
            stream.until_done()
    assert cast(Any, found.value.body)["error"]["type"] == "overloaded_error"
    with pytest.raises(ollama.ResponseError, match="device failed"):
        list(ollama.Client(server.url).chat(**asked, stream=True))
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        more: dict[str, Any] = {"max_tokens": 9} if path.startswith("/v1") else {"stream": False}
        status, body, _ = server.ask("POST", path, {**asked, **more})
        assert status == 503 and "secret" not in str(body)


def test_a_missing_key_is_told_in_each_protocols_words(chatty: Path) -> None:
    key = "0123456789abcdef"
    talk: Any = [{"role": "user", "content": "x"}]
    with serving({"box": str(chatty)}, key=key.encode()) as running:
        for given in ("none", key[:-1]):
            with pytest.raises(anthropic.AuthenticationError) as found:
                anthropic.Anthropic(base_url=running.url, api_key=given).messages.create(
                    model="box", max_tokens=1, messages=talk
                )
            assert cast(Any, found.value.body)["error"]["type"] == "authentication_error"
            headers = {"Authorization": f"Bearer {given}"}
            with pytest.raises(ollama.ResponseError, match="a key is needed") as refused:
                ollama.Client(running.url, headers=headers).chat("box", talk)
            assert refused.value.status_code == 401
        client = anthropic.Anthropic(base_url=running.url, api_key=key)
        assert client.messages.create(model="box", max_tokens=1, messages=talk).content
        headers = {"Authorization": f"Bearer {key}"}
        assert ollama.Client(running.url, headers=headers).list().models
