"""Marks within the arguments of calls are text, in every protocol: streamed or whole, one call
comes with the arguments that the model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from rows import few
from serve_kit import Running, marked_box, serving
from test_marks import Played, spelt
from test_protocols import anthropic_joined, anthropic_told, objects_of, ollama_joined

from weft.engine.job import Job
from weft.models.text.tokenizer import Tokenizer
from weft.serve import chatting
from weft.serve.choices import Choice
from weft.serve.player import JobOutputs
from weft.serve.toolcalls.choose import MARKS

TALK = [{"role": "user", "content": "Call it."}]
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}}}
TOOL = {"name": "f", "description": "", "parameters": SCHEMA}
Parts = list[tuple[str, bool]]
"""Texts, and whether marks in them are tokens."""


def call(name: str, said: str, whole: bool) -> Parts:
    """A call as a format writes it, `said` as an argument; whole: its marks are tokens too."""
    quoted = json.dumps(said, ensure_ascii=False)[1:-1]
    return {
        "hermes": [('<tool_call>\n{"name": "f", "arguments": {"s": "', True), (quoted, whole),
                   ('"}}\n</tool_call>', True)],
        "qwen-xml": [("<tool_call>\n<function=f>\n<parameter=s>\n", True), (said, whole),
                     ("\n</parameter>\n</function>\n</tool_call>", True)],
        "mistral": [('[TOOL_CALLS][{"name": "f", "arguments": {"s": "', True), (quoted, whole),
                    ('"}}]', True)],
        "llama": [('<|python_tag|>{"name": "f", "parameters": {"s": "', True), (quoted, whole),
                  ('"}}', True)],
        "gemma4": [('<|tool_call>call:f{s:<|"|>', True), (said, whole),
                   ('<|"|>}<tool_call|>', True)],
        "harmony": [("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", True),
                    ('{"s": "', True), (quoted, whole), ('"}', True), ("<|call|>", True)],
    }[name]  # fmt: skip


TEXTS = [
    "plain", "</tool_call>", "a <think> b </think> c", "<tool_call>{}</tool_call>", "<|im_end|>",
    "[TOOL_CALLS][", "<|end|><|start|>assistant", "<|call|>", "<tool_call|>", "<|channel>thought\n",
    '"}}</tool_call>', "<|python_tag|>", "\u00d8 \U0001f642 <tool_cal",
]  # fmt: skip


@pytest.fixture(scope="module", params=["hermes", "qwen-xml", "mistral", "llama", "gemma4",
                                        "harmony"])  # fmt: skip
def marked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Running, Tokenizer]]:
    """A model of each format, whose marks are tokens."""
    folder = tmp_path_factory.mktemp("calls") / "box"
    marks = [mark for mark in MARKS[request.param] if mark != "<|endoftext|>"]
    marked_box(folder, dict.fromkeys(marks, True))
    with serving({"box": str(folder)}, parser=request.param) as running:
        yield request.param, running, Tokenizer(folder, 2048)


def openai_told(made: Any, streamed: bool) -> tuple[str, str, list[Any]]:
    if not streamed:
        said = made["choices"][0]["message"]
        calls = [one["function"] for one in said.get("tool_calls") or ()]
        return said.get("reasoning") or "", said["content"] or "", calls
    deltas = [one["choices"][0]["delta"] for one in made]
    calls = []
    for one in (one for delta in deltas for one in delta.get("tool_calls", ())):
        if "id" in one:
            calls.append(dict(one["function"]))
        else:
            calls[one["index"]]["arguments"] += one["function"]["arguments"]
    reasoning, content = (
        "".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content")
    )
    return reasoning, content, calls


def responses_told(made: Any, streamed: bool) -> tuple[str, str, list[Any]]:
    items = (made[-1]["response"] if streamed else made)["output"]
    if streamed:  # what grows joins to what it is at last
        kind = "response.function_call_arguments"
        deltas = [one["delta"] for one in made if one["type"] == f"{kind}.delta"]
        (done,) = [one["arguments"] for one in made if one["type"] == f"{kind}.done"]
        assert "".join(deltas) == done
    said = {"message": "", "reasoning": ""}
    for item in items:
        for part in item.get("content", ()):
            said[item["type"]] += part["text"]
    calls = [one for one in items if one["type"] == "function_call"]
    return said["reasoning"], said["message"], calls


def protocols() -> dict[str, tuple[str, dict[str, Any], Callable[[Any, bool], Any]]]:
    """A route of each, what it is asked, and what its answer tells: reasoning, content, calls."""
    tool = {"type": "function", "function": TOOL}
    return {
        "chat": ("/v1/chat/completions", {"messages": TALK, "tools": [tool]}, openai_told),
        "responses": ("/v1/responses", {"input": "Call it.",
                                        "tools": [{"type": "function", **TOOL}]}, responses_told),
        "messages": ("/v1/messages", {
            "model": "box", "messages": TALK, "max_tokens": 400,
            "tools": [{"name": "f", "input_schema": SCHEMA}],
        }, lambda made, streamed: (anthropic_joined if streamed else anthropic_told)(made)[:3]),
        "ollama": ("/api/chat", {"model": "box", "messages": TALK, "tools": [tool]},
                   lambda made, streamed: ollama_joined(made if streamed else [made])[:3]),
    }  # fmt: skip


@pytest.mark.parametrize("protocol", few(protocols(), "chat", "messages"))
def test_marks_in_arguments_are_text(
    marked: tuple[str, Running, Tokenizer], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, server, tokenizer = marked
    path, body, told = protocols()[protocol]
    parts: Parts = []

    async def begin(
        model: Any, prompts: Sequence[Any], options: Any, parser: Any, calls: Any, *more: Any
    ) -> list[Choice]:
        ids = [
            i for text, whole in parts
            for i in (tokenizer.encode(text, special=False) if whole else spelt(tokenizer, text))
        ]  # fmt: skip
        answer = cast(JobOutputs, Played(tokenizer, ids, ()))
        return [Choice(answer, parser(), Job((1,), 999), calls, model.marks)]

    monkeypatch.setattr(chatting, "begin_ids", begin)
    for text in TEXTS:
        # Inside a JSON text marks are text even as tokens.
        for whole in (False, True) if name == "hermes" else (False,):
            parts[:] = call(name, text, whole)
            for stream in (False, True):
                status, made, _ = server.ask("POST", path, {**body, "stream": stream})
                assert status == 200, made
                found = list(objects_of(made.encode())) if stream else made
                reasoning, content, calls = told(found, stream)
                assert (reasoning, content) == ("", ""), (text, whole, stream)
                (one,) = calls
                called, given = one if isinstance(one, tuple) else (one["name"], one["arguments"])
                given = json.loads(given) if isinstance(given, str) else given
                assert (called, given) == ("f", {"s": text}), (text, whole, stream)
