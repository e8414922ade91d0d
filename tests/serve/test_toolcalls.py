"""Calls of tools, reasoning and content: what is read, and that no cut of the text changes it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from rows import by_turns

from weft.serve.toolcalls.choose import FORMATS, MARKS
from weft.serve.toolcalls.events import (
    CallArguments,
    CallStarted,
    Event,
    ParsedAnswer,
    joined,
    message,
)
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.reading import Incremental, until

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
            "tags": {"type": "array"}, "note": {"type": ["string", "null"]},
            "where": {"$ref": "#/$defs/place"}, "lost": {"$ref": "#/nowhere"},
        },
        "$defs": {"place": {"type": "object"}},
    },
    "now": {"type": "object", "properties": {}},
}  # fmt: skip


def read(name: str, pieces: list[str], prompt: str = "", tools: Any = TOOLS) -> list[Event]:
    parser = Incremental(lambda sink: FORMATS[name][0](sink, ParserContext(prompt, tools)))
    return [e for piece in pieces for e in parser.feed(piece)] + parser.finish()


def whole(name: str, text: str, prompt: str = "", tools: Any = TOOLS) -> ParsedAnswer:
    return message(read(name, [text], prompt, tools))


CASES: list[tuple[str, str, str, str, list[tuple[str, Any]]]] = [
    # parser, text, content, reasoning, calls
    ("hermes", "Hello.\n", "Hello.\n", "", []),
    ("hermes", '<think>\nHm?\n</think>\n\nSure.\n<tool_call>\n{"name": "get_weather", "arguments": '
     '{"city": "Paris"}}\n</tool_call>', "Sure.", "Hm?", [("get_weather", {"city": "Paris"})]),
    ("hermes", '<tool_call>{"arguments": {"city": "</tool_call>"}, "name": "get_weather"}'
     '</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call><|im_end|>', "", "",
     [("get_weather", {"city": "</tool_call>"}), ("now", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "",
     [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": {"b": [1, {}]}}</tool_call> ok', "ok",
     "", [("f", {"a": {"b": [1, {}]}})]),  # a bracket is missing
    ("hermes", "<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", "", []),
    ("hermes", '<tool_call>{"name": 3}', '<tool_call>{"name": 3}', "", []),
    ("hermes", "a <tool_cal b", "a <tool_cal b", "", []),
    ("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>\n<parameter=note>\n"
     "null\n</parameter>\n</function>\n</tool_call>", "", "",
     [("get_weather", {"city": "Paris", "days": 3, "tags": ["a"], "note": None})]),
    ("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=where>\n{\"x\": 1}\n"
     "</parameter>\n<parameter=lost>\n2\n</parameter>\n</function>\n</tool_call>", "", "",
     [("get_weather", {"where": {"x": 1}, "lost": "2"})]),
    ("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\nline one\n  line two\n"
     "</parameter>\n</function>\n</tool_call>", "", "",
     [("get_weather", {"city": "line one\n  line two"})]),
    ("llama", '{"name": "get_weather", "parameters": {"city": "Rome", "days": 2}}', "", "",
     [("get_weather", {"city": "Rome", "days": 2})]),
    ("llama", '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
     "", "", [("now", {}), ("now", {})]),
    ("llama", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', "", []),
    ("llama", "It is {1}.", "It is {1}.", "", []),
    ("mistral", 'Ok[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "get_weather", '
     '"arguments": {"city": "a]b"}, "id": "123456789"}]', "Ok", "",
     [("now", {}), ("get_weather", {"city": "a]b"})]),
    ("mistral", '[THINK]so[/THINK][TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}[TOOL_CALLS]get_weather'
     '[ARGS]{"city": "Rom"}', "", "so", [("now", {}), ("get_weather", {"city": "Rom"})]),
    ("gemma4", '<|channel>thought\nthink<channel|><|tool_call>call:get_weather{city:<|"|>New, '
     '"York"<|"|>,days:2,exact:true,tags:[<|"|>a<|"|>,1.5]}<tool_call|>', "", "think",
     [("get_weather", {"city": 'New, "York"', "days": 2, "exact": True, "tags": ["a", 1.5]})]),
    ("functiongemma", "<start_function_call>call:get_weather{city:<escape>Oslo<escape>}"
     "<end_function_call>", "", "", [("get_weather", {"city": "Oslo"})]),
    ("harmony", "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>"
     'commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"SF"}<|call|>', "",
     "Let me see.", [("get_weather", {"city": "SF"})]),
    ("harmony", "<|channel|>analysis<|message|>easy<|end|><|start|>assistant<|channel|>final"
     "<|message|>It is 2.<|return|>", "It is 2.", "easy", []),
    ("harmony", "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}"
     "<|call|>", "", "", [("now", {})]),
    ("harmony", "no header at all", "no header at all", "", []),
    ("think", "<think>a</think>b<tool_call>", "b<tool_call>", "a", []),
    ("text", "<think>a</think> [TOOL_CALLS] ", "<think>a</think> [TOOL_CALLS] ", "", []),
]  # fmt: skip


@pytest.mark.parametrize("name, text, content, reasoning, calls", CASES)
def test_what_is_read(
    name: str, text: str, content: str, reasoning: str, calls: list[tuple[str, Any]]
) -> None:
    found = whole(name, text)
    assert (found.content, found.reasoning) == (content, reasoning)
    assert [(c.name, json.loads(c.arguments)) for c in found.calls] == calls


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_may_be_the_beginning_of_a_mark(name: str) -> None:
    for mark in {*MARKS[name], "<think>"}:
        for text in (mark[:1], mark[:-1], f" {mark[:2]}"):
            assert whole(name, text).content == text


def test_without_tools_a_call_is_text() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert whole("hermes", text, tools={}).content == text
    text = '{"name": "f", "parameters": {}}'
    assert whole("llama", text, tools={}).content == text


def test_a_prompt_may_have_begun_the_reasoning() -> None:
    for prompt in ("<|im_start|>assistant\n<think>\n", "<think>"):
        found = whole("hermes", "so\n</think>\n\nHi", prompt)
        assert (found.reasoning, found.content) == ("so", "Hi")
    assert whole("hermes", "Hi", "<think>\n\n</think>\n\n").content == "Hi"
    found = whole("harmony", "so<|end|>", "<|start|>assistant<|channel|>analysis<|message|>")
    assert found.reasoning == "so"


def test_arguments_come_as_they_are_written() -> None:
    """A client sees a call begin, and its arguments grow, before the call is whole."""
    parser = Incremental(lambda sink: FORMATS["hermes"][0](sink, ParserContext("", TOOLS)))
    assert parser.feed('<tool_call>{"name": "get_weather", "arguments": {"ci') == [
        CallStarted(0, "get_weather"), CallArguments(0, '{"ci'),
    ]  # fmt: skip
    assert parser.feed('ty": "Par') == [CallArguments(0, 'ty": "Par')]
    assert parser.finish() == []


SNIPPETS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": {"a": "',
     '"}}', "{", "}", '"', "\\", "[TOOL_CALLS]", "[", "]", "f[ARGS]", "<|channel|>", "<|message|>",
     "<|start|>", "assistant", "analysis", "commentary to=functions.f ", "<|call|>", "<|end|>",
     "<|tool_call>", "call:f{a:", '<|"|>', "<tool_call|>", "<function=f>", "<parameter=a>",
     "</parameter>", "</function>", "<|python_tag|>", ";", '{"name": "f", "parameters": {}}', " ",
     "\n", "text", "é🙂", ",", ":", "<", "1", "null", "<|im_end|>", "<start_function_call>",
     "<end_function_call>", "<escape>", "\ud800"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(SNIPPETS, st.text(max_size=3)), max_size=14).map("".join)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)])]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=80, deadline=None)
@given(data=st.data(), text=st.one_of(TEXTS, st.sampled_from([c[1] for c in CASES])))
def test_no_cut_changes_what_is_read(name: str, data: st.DataObject, text: str) -> None:
    prompt = data.draw(st.sampled_from(["", "<think>\n", "<|channel|>analysis<|message|>"]))
    unstreamed = joined(read(name, [text], prompt))
    assert joined(read(name, data.draw(cut(text)), prompt)) == unstreamed
    assert joined(read(name, list(text), prompt)) == unstreamed


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(exclude_characters="<[{", exclude_categories=["Cs"]), max_size=60)
)
@example(text="  two  spaces \n")
def test_text_without_marks_is_content(name: str, text: str) -> None:
    assert whole(name, text) == ParsedAnswer(content=text)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("abc .,", max_size=8),
            st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=9), st.integers())),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_nothing_is_lost_between_calls(
    parts: list[tuple[str, dict[str, Any]]], ascii: bool
) -> None:
    """What one writes in Qwen's way is what is read, space aside."""
    text = "".join(
        said + f'<tool_call>\n{json.dumps({"name": "f", "arguments": a}, ensure_ascii=ascii)}\n'
        "</tool_call>" for said, a in parts
    )  # fmt: skip
    found = whole("hermes", text)
    assert found.content.split() == "".join(f" {said.strip()}" for said, _ in parts).split() or (
        "".join(found.content.split()) == "".join("".join(said.split()) for said, _ in parts)
    )
    assert [json.loads(c.arguments) for c in found.calls] == [a for _, a in parts]


UNITS = [
    "<", "<tool_call>", "{", '{"name": "f", "arguments": ', "[", "[TOOL_CALLS]", '"\\', "<think>",
    "<|channel|>", "<|tool_call>call:f{a:[", "<tool_call><function=f><parameter=a>", " ", "a",
]  # fmt: skip


@pytest.mark.parametrize("unit,name", by_turns(UNITS, FORMATS, 2))
def test_time_is_linear_in_the_text(name: str, unit: str) -> None:
    def seconds(n: int) -> float:
        text = unit * (n // len(unit))
        began = time.process_time()
        whole(name, text)
        return time.process_time() - began

    short = min(seconds(10_000) for _ in range(3))
    long = min(seconds(100_000) for _ in range(2))
    assert long < 20 * short + 0.02  # ten times as much takes ten times as long


def test_text_without_a_mark_is_read_at_once() -> None:
    taken: list[str] = []
    parser = Incremental(lambda sink: until(["<a>", "[b]"], taken.append))
    for piece in ("of many letters", " [c], ^-< and", " more<a"):
        parser.feed(piece)
    parser.finish()
    assert taken == ["of many letters", " ", "[", "c", "], ^-", "<", " ", "and", " more", "<a"]
