"""response_template against transformers' own parser, the independent truth."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from transformers.utils.chat_parsing import parse_response

from weft.core.errors import ModelError, UsageError
from weft.hub.box import box_folder
from weft.models.arch.config import TokenizerContent
from weft.models.text.tokenizer import Tokenizer
from weft.serve.toolcalls.choose import FORMATS, choose
from weft.serve.toolcalls.events import ParsedAnswer, joined, message
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.template import ResponseTemplate

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
}
TOOLS = [{"type": "function", "function": {"name": k, "parameters": v}} for k, v in SCHEMAS.items()]
FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
TEMPLATES: dict[str, dict[str, Any]] = {
    "chatml": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True,
                "content": "json", "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|eot\|>)", "content": "text"},
        },
    },
    "xml": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>", "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern":
                    r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": FUNCTION,
            },
            "content": {"close": "<|im_end|>"},
        },
    },
    "gemma": {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>",
                "repeats": True, "content": "json", "transform": FUNCTION,
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            },
            "content": {"close": ["<turn|>", "<eos>"], "content": "text"},
        },
    },
    "harmony": {
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern":
                    r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>", "repeats": True, "content": "json", "transform": FUNCTION,
            },
        },
    },
    "each": {
        "start_anchor_pattern": r"BOT\s*",
        "fields": {
            "content": {"open": "<r>", "close_pattern": r"\n?</r>"},
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            "tool_calls": {
                "open": "<a>", "close": "</a>", "content": "json", "transform_each": True,
                "transform": {"function": {"name": "{tool}", "arguments": "{with}"}},
            },
        },
    },
    "calls": {
        "start_anchor": "A:",
        "fields": {
            "tool_calls": {
                "open": "<c>", "close": "</c>", "content": "python-call-list",
                "transform_each": True,
                "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}},
            },
            "content": {},
        },
    },
}  # fmt: skip
CASES: list[tuple[str, str, str]] = [
    # template, prompt, text
    ("chatml", "", "Hello there.<|im_end|>"),
    ("chatml", "x<|im_start|>assistant\n<think>\n", "so\n</think>\n\nHi<|im_end|>\n<|eot|>"),
    ("chatml", "", '<think>a</think>Sure.\n\n<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n'
     '</tool_call>\n<tool_call>{"name": "f", "arguments": {"s": "é"}}</tool_call><|im_end|>'),
    ("chatml", "<|im_start|>assistant\n<think>old</think>", "new"),
    ("xml", "", "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n3\n"
     "</parameter>\n</function>\n</tool_call>"),
    ("xml", "", "<think>x</think>\n<tool_call><function=f></function></tool_call><|im_end|>"),
    ("gemma", "", '<|channel>thought\nhm<channel|><|tool_call>call:f{n:7,s:<|"|>a, b: {c}<|"|>}'
     "<tool_call|>"),
    ("gemma", "<|turn>model\n", "plain text<turn|>"),
    ("harmony", "", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
     ' to=functions.f <|constrain|>json<|message|>{"n": 4}<|call|>'),
    ("harmony", "", "<|channel|>final<|message|>done<|end|>"),
    ("each", "", "reasons</think>\n<r>\nthe answer\n</r>"),
    ("each", "user BOT ", 'why</think><a>[{"tool": "f", "with": {"n": 1}}, {"tool": "f", "with": '
     "{}}]</a>"),
    ("calls", "", 'ok <c>[f(n=1, s="x"), f(s=\'y\', n=-2)]</c>'),
]  # fmt: skip


def ours(template: str, prompt: str, pieces: list[str]) -> list[Any]:
    run = ResponseTemplate(TEMPLATES[template]).parser(ParserContext(prompt, SCHEMAS))
    return [e for piece in pieces for e in run.feed(piece)] + run.finish()


@pytest.mark.parametrize("name, prompt, text", CASES)
def test_messages_are_those_of_transformers(name: str, prompt: str, text: str) -> None:
    theirs = parse_response(text, copy.deepcopy(TEMPLATES[name]), prefix=prompt, tools=TOOLS)
    found = message(ours(name, prompt, [text]))
    assert found.content == theirs.get("content", "")
    if "old" not in prompt:  # theirs tells what the prompt had written, too
        told = theirs.get("reasoning_content") or theirs.get("thinking") or ""
        assert found.reasoning == told
    calls = [call["function"] for call in theirs.get("tool_calls", [])]
    assert [(c.name, json.loads(c.arguments)) for c in found.calls] == [
        (c["name"], c["arguments"]) for c in calls
    ]


MARKS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>",
    "<function=f>", "</function>",
    "<parameter=n>", "</parameter>", "<|tool_call>call:f", "<tool_call|>", '<|"|>', "{n:1}",
    '{"name": "f", "arguments": {}}', "<|channel|>", "analysis", "final", "<|message|>", "<|end|>",
    "commentary to=functions.f", "<|call|>", "<r>", "</r>", "<a>", "</a>", "[", "]", "<c>",
    "[f(n=1)]",
    "</c>", "a", " ", "\n", "<", "é",
]  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_cut_changes_what_is_read(name: str, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from(MARKS), max_size=12))
    text = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)])]
    unstreamed = joined(ours(name, "", [text]))
    assert joined(ours(name, "", pieces)) == unstreamed
    assert joined(ours(name, "", list(text))) == unstreamed


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from(MARKS[:5] + MARKS[-5:]), max_size=10).map("".join))
def test_regions_are_those_of_transformers(text: str) -> None:
    """Wherever theirs reads a text, the reasoning, the last content and the calls are the same."""
    try:
        theirs = parse_response(text, copy.deepcopy(TEMPLATES["chatml"]), prefix="", tools=TOOLS)
    except ValueError:
        return  # a call that cannot be read; ours shows it
    found = message(ours("chatml", "", [text]))
    assert len(found.calls) == len(theirs.get("tool_calls", []))
    assert theirs.get("content", "") in found.content
    assert theirs.get("reasoning_content", "") in found.reasoning


def test_reasoning_may_come_after_text_as_in_transformers() -> None:
    """A response_template has its regions anywhere, unlike a family's own format."""
    text = "a<think>b</think>c"
    theirs = parse_response(text, copy.deepcopy(TEMPLATES["chatml"]), prefix="", tools=TOOLS)
    found = message(ours("chatml", "", [text]))
    assert (found.reasoning, found.content) == ("b", "ac")
    assert theirs["reasoning_content"] == "b" and theirs["content"] in ("c", "ac")


def test_a_call_that_cannot_be_read_is_text() -> None:
    found = message(ours("chatml", "", ["<tool_call>{no JSON}</tool_call> after"]))
    assert found.content.replace(" ", "") == "<tool_call>{noJSON}</tool_call>after"
    assert not found.calls


def test_an_answer_outside_all_regions_is_text() -> None:
    assert message(ours("harmony", "", ["just words"])) == ParsedAnswer("just words")


@pytest.mark.parametrize(
    "change, named",
    [
        ({"surprise": 1}, "surprise"),
        ({"version": 2}, "version"),
        ({"start_anchor": None}, "start_anchor"),
        ({"fields": {}}, "fields"),
        ({"fields": {"content": {"opens": "<"}}}, "opens"),
        ({"fields": {"content": {"content": "yaml"}}}, "yaml"),
        ({"fields": {"content": {"open_pattern": "(?=a)"}}}, "not supported"),
        ({"fields": {"a": {}, "b": {}}}, "without an opening"),
        ({"fields": {"content": {"content_args": {"trim": True}}}}, "trim"),
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], named: str) -> None:
    spec = {k: v for k, v in (TEMPLATES["chatml"] | change).items() if v is not None}
    with pytest.raises(UsageError, match=named):
        ResponseTemplate(spec)


def test_a_template_that_holds_everything_back_gives_up_in_time() -> None:
    spec = {"start_anchor": "A", "fields": {
        "thinking": {"open_pattern": "a[^b]*b[^b]*b[^b]*!"}, "content": {"close_pattern": "c"},
    }}  # fmt: skip
    began = time.process_time()
    run = ResponseTemplate(spec).parser(ParserContext())
    text = "ac" * 20_000
    found = message([*run.feed(text), *run.finish()])
    assert time.process_time() - began < 20
    assert found.content.replace("c", "") == "a" * 20_000


def tokenizer(template: str | None, response: Any = None) -> Tokenizer:
    data = (box_folder() / "tokenizer.json").read_bytes()
    config = {"chat_template": template, "response_template": response}
    made = TokenizerContent(data, {k: v for k, v in config.items() if v is not None})
    return Tokenizer(Path("model"), 2048, made=made)


@pytest.mark.parametrize(
    "template, name",
    [
        (None, "text"),
        ("{{ messages }}", "text"),
        ("<think>{{ messages }}", "think"),
        ("<tool_call>{{ tools }}</tool_call>", "hermes"),
        ("<tool_call><function=", "qwen-xml"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama"),
        ("<|start_header_id|> parameters", "llama-json"),
        ("<|channel|><|message|>", "harmony"),
        ("<|tool_call>", "gemma4"),
        ("<start_function_call>", "functiongemma"),
    ],
)
def test_the_chat_template_says_which_parser(template: str | None, name: str) -> None:
    found, make = choose(tokenizer(template))
    assert found == name
    parser = make(ParserContext())
    assert message([*parser.feed("hello"), *parser.finish()]).content == "hello"


def test_the_response_template_goes_first_and_a_name_before_it() -> None:
    made = tokenizer("<tool_call>", TEMPLATES["gemma"])
    assert choose(made)[0] == "template"
    assert choose(made, "hermes")[0] == "hermes"
    assert choose(made, "template")[1](ParserContext()).feed("<|channel>") == []
    with pytest.raises(UsageError, match="lacks a response_template"):
        choose(tokenizer("<tool_call>"), "template")
    with pytest.raises(UsageError, match="expected one of auto"):
        choose(made, "nonsense")
    with pytest.raises(ModelError, match="--tool-parser"):
        choose(tokenizer(None, {"fields": 3}))
    assert set(FORMATS) >= {"hermes", "llama", "mistral", "gemma4", "harmony"}
