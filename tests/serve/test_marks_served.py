"""Marks over HTTP: constants, expressions and grammars that hold them, and offsets of tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Running, marked_box, serving

LITERALS = [
    "a <think> b", "a <|im_end|> b", "<|python_tag|>", "</think>", "[TOOL_CALLS][", "<eos>",
    "<tool_call>{}</tool_call>", "<|channel|>final<|message|>", "<|im_end|",
]  # fmt: skip


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model whose marks are tokens; one that is not special, and one that ends answers."""
    folder = tmp_path_factory.mktemp("marked") / "box"
    marked_box(folder, {
        "<think>": False, "</think>": False, "<tool_call>": False, "</tool_call>": False,
        "<|im_end|>": True, "<|python_tag|>": True, "[TOOL_CALLS]": True, "<|channel|>": True,
        "<|message|>": True, "<eos>": True,
    }, "<|im_end|>")  # fmt: skip
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# <think> #}")
    with serving({"box": str(folder)}) as running:
        yield running


def protocols(schema: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    talk = [{"role": "user", "content": "Say it."}]
    form = {"type": "json_schema", "schema": schema}
    return {
        "chat": ("/v1/chat/completions", {
            "messages": talk, "max_tokens": 60, "seed": 3, "response_format": {
                "type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}),
        "responses": ("/v1/responses", {"input": "Say it.", "max_output_tokens": 60,
                                        "text": {"format": {**form, "name": "s"}}}),
        "messages": ("/v1/messages", {"messages": talk, "max_tokens": 60, "model": "box",
                                      "output_config": {"format": form}}),
        "ollama": ("/api/chat", {"model": "box", "messages": talk, "format": schema,
                                 "stream": False, "options": {"num_predict": 60}}),
        "generate": ("/api/generate", {"model": "box", "prompt": "Say it.", "format": schema,
                                       "stream": False, "options": {"num_predict": 60}}),
    }  # fmt: skip


def text_of(made: Any) -> str:
    if "choices" in made:
        return str(made["choices"][0]["message"]["content"])
    if "output" in made:
        return str(made["output"][0]["content"][0]["text"])
    if "content" in made:
        return str(made["content"][0]["text"])
    return str(made["message"]["content"] if "message" in made else made["response"])


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "ollama", "generate"])
def test_a_constant_may_hold_any_mark(marked: Running, protocol: str) -> None:
    for literal in LITERALS:
        schema = {"type": "object", "properties": {"s": {"const": literal}}, "required": ["s"],
                  "additionalProperties": False}  # fmt: skip
        path, body = protocols(schema)[protocol]
        status, made, _ = marked.ask("POST", path, body)
        assert status == 200, made
        assert json.loads(text_of(made)) == {"s": literal}
    if protocol == "chat":
        status, made, _ = marked.ask("POST", path, {**body, "logprobs": True, "ignore_eos": True})
        known = bytes(b for t in made["choices"][0]["logprobs"]["content"] for b in t["bytes"])
        assert known.decode() == text_of(made)
        status, told, _ = marked.ask("POST", path, {**body, "stream": True})
        parts = [json.loads(line[6:]) for line in told.split("\n") if line.startswith("data: {")]
        deltas = [p["choices"][0]["delta"] for p in parts if p["choices"]]
        assert "".join(d.get("content") or "" for d in deltas) == text_of(made)
        assert not any("reasoning" in d for d in deltas)


def test_reasoning_that_the_prompt_opened_ends_before_a_form(tmp_path: Path) -> None:
    """With tools and without: the mark's token ends it, and no letters in the form do anything."""
    ids = marked_box(tmp_path / "box", {"<think>": False, "</think>": False, "<tool_call>": True})
    template = tmp_path / "box" / "chat_template.jinja"
    opened = template.read_text().replace("<|assistant|>{% endif", "<|assistant|><think>\n{% endif")
    template.write_text(opened)
    schema = {"const": " <think> </think> <tool_call>"}
    tool = {"type": "function", "function": {"name": "now", "parameters": {"const": schema}}}
    asked = {
        "messages": [{"role": "user", "content": "of <think>"}], "max_tokens": 40, "seed": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        "logit_bias": {ids["</think>"]: 30, ids["<tool_call>"]: -100},
    }  # fmt: skip
    with serving({"box": str(tmp_path / "box")}) as running:
        for more in ({}, {"tools": [tool]}):
            status, made, _ = running.ask("POST", "/v1/chat/completions", {**asked, **more})
            assert status == 200, made
            assert json.loads(made["choices"][0]["message"]["content"]) == schema["const"]


@pytest.mark.parametrize("literal", ["a <|im_end|> b", "<think>", "<|python_tag|>x"])
def test_expressions_and_grammars_hold_marks_as_letters(marked: Running, literal: str) -> None:
    pattern = literal.replace("|", r"\|")
    for more in ({"guided_regex": pattern}, {"guided_grammar": f"start: {json.dumps(literal)}"},
                 {"guided_grammar": f"root ::= {json.dumps(literal)}"}):  # fmt: skip
        talk = {"messages": [{"role": "user", "content": "x"}]}
        for path, asked in (
            ("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", talk),
        ):  # fmt: skip
            status, made, _ = marked.ask("POST", path, {**asked, **more, "max_tokens": 60})
            assert status == 200, made
            choice = made["choices"][0]
            found = choice["text"] if "text" in choice else choice["message"]["content"]
            assert (found, choice["finish_reason"]) == (literal, "stop")


def test_a_grammar_that_asks_for_an_end_is_refused(marked: Running) -> None:
    _, found, _ = marked.ask("POST", "/tokenize", {"prompt": "<|im_end|>"})
    lark = f'start: "a" <[{found["tokens"][-1]}]> "b"'
    asked = {"prompt": "x", "max_tokens": 9, "guided_grammar": lark}
    status, made, _ = marked.ask("POST", "/v1/completions", asked)
    assert status == 400 and "ends answers" in made["error"]["message"]


def test_offsets_count_the_characters_of_the_text(marked: Running) -> None:
    """Where each token stands in the text that comes with it: alone, streamed and echoed, special
    tokens and parts of characters among them."""
    (model,) = marked.shelf.decoders()
    tokenizer = model.tokenizer
    prompt = tokenizer.encode("日本<|python_tag|> größe 🙂, x", special=False)
    for text_or_ids in ("日本 größe 🙂", prompt):
        for echo in (False, True):
            asked = {"prompt": text_or_ids, "max_tokens": 40, "logprobs": 2, "echo": echo,
                     "seed": 4, "temperature": 2.0, "stop": ["e", "<|"]}  # fmt: skip
            _, made, _ = marked.ask("POST", "/v1/completions", asked)
            choice = made["choices"][0]
            found, text = choice["logprobs"], choice["text"]
            places, tokens = found["text_offset"], found["tokens"]
            assert len(places) == len(tokens) == len(found["top_logprobs"])
            assert places == sorted(places) and all(0 <= at <= len(text) for at in places)
            for at, token, following in zip(places, tokens, [*places[1:], len(text)]):
                if not token.startswith("bytes:") and following > at + 1:
                    assert token.startswith(text[at:following]), (text, at, token)
            _, told, _ = marked.ask("POST", "/v1/completions", {**asked, "stream": True})
            lines = [line[6:] for line in told.split("\n") if line.startswith("data: {")]
            parts = [json.loads(line)["choices"][0] for line in lines]
            logs = [part["logprobs"] for part in parts if part["logprobs"]]
            assert "".join(part["text"] for part in parts) == text
            assert [at for log in logs for at in log["text_offset"]] == places
            assert [token for log in logs for token in log["tokens"]] == tokens
