"""Calls that are asked for: the form is the template's own, and every answer that the grammar lets
through is read as calls whose arguments satisfy the tool's schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import jsonschema
import numpy as np
import openai
import pytest
import tokenizers
from serve_kit import Running

from weft.core.errors import UsageError
from weft.hub.box import box_folder
from weft.models.grammar.grammars import Grammars
from weft.models.text.tokenizer import Tokenizer
from weft.serve.toolcalls.asked import Calls, Grammar
from weft.serve.toolcalls.choose import FORMATS
from weft.serve.toolcalls.events import ParsedAnswer, message
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.reading import Incremental
from weft.serve.toolcalls.written import CallForm, call_form

# As the families write them, in short: (parser, template).
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    '{% set f = c.function %}\n<tool_call>\n{"name": "{{ f.name }}", "arguments": '
    "{{ f.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}",
)
LISTED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    '{{ raise_exception("ids") }}{% endif %}{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    '{{ ", " if not loop.last }}{% endfor %}]'
    "</s>{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
NAMED = LISTED.replace(
    LISTED[LISTED.index("[TOOL_CALLS]") : LISTED.index("</s>")],
    "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}",
)
HEADERS = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    '{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception("one") }}{% endif %}'
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHANNELS = (
    "{% for m in messages %}{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    "<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>"
    "{{ c.arguments | tojson }}<|call|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
TEMPLATES = {
    "chatml": ("hermes", CHATML), "thinking": ("hermes", THINKING),
    "opened": ("hermes", THINKING.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")),
    "listed": ("mistral", LISTED), "named": ("mistral", NAMED), "headers": ("llama", HEADERS),
    "channels": ("harmony", CHANNELS),
}  # fmt: skip
SPECIAL = ["[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|call|>", "<|im_end|>"]
ENDS = ("<|im_end|>", "</s>", "<|eot_id|>", "<|call|>")
TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"days": {"$ref": "#/$defs/n"}, "exact": {"type": "boolean"}},
        "required": ["days"], "additionalProperties": False,
        "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
    "now": {"properties": {"zone": {"enum": ["utc", "local"]}}, "additionalProperties": False},
}  # fmt: skip


def renderer(template: str) -> Any:
    environment = jinja2.Environment()

    def refuse(text: str) -> None:
        raise UsageError(text)

    environment.globals["raise_exception"] = refuse
    made = environment.from_string(template)
    return lambda messages, more: made.render(messages=messages, add_generation_prompt=more)


def parsed(name: str, text: str, prompt: str = "", tools: Any = TOOLS) -> ParsedAnswer:
    parser = Incremental(lambda sink: FORMATS[name][0](sink, ParserContext(prompt, tools)))
    return message([*parser.feed(text), *parser.finish()])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_says_how_calls_are_written(name: str) -> None:
    parser, template = TEMPLATES[name]
    form = call_form(renderer(template), ENDS)
    found = parsed(parser, form.example, tools={"weftname": {}})
    assert [(c.name, json.loads(c.arguments)) for c in found.calls] == [
        ("weftname", {"weftkey": "weftvalue"})
    ]
    assert (form.joint is None) == (name in ("headers", "channels"))
    assert form.closing == ("</think>" if name in ("thinking", "opened") else "")


@pytest.mark.parametrize(
    "template",
    [CHATML.replace("f.arguments | tojson", "f.arguments"),
     CHATML.replace("tool_calls", "calls"),
     CHATML.replace('{"name"', '{"name": "{{ f.name }}", "name"')],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_said(template: str) -> None:
    with pytest.raises(UsageError, match="calls otherwise than as a name and JSON"):
        call_form(renderer(template), ENDS)


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grammars, tokenizers.Tokenizer]:
    """Of the box's tokens and some special ones."""
    folder = tmp_path_factory.mktemp("special")
    for path in box_folder().iterdir():
        if "tokenizer" in path.name:
            (folder / path.name).write_bytes(path.read_bytes())
    raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in SPECIAL])
    raw.save(str(folder / "tokenizer.json"))
    size = raw.get_vocab_size()
    return Grammars(Tokenizer(folder, size), size, [0]), raw


def answers(
    special: tuple[Grammars, tokenizers.Tokenizer], text: str, seed: int, count: int
) -> list[tuple[str, bool]]:
    """What a model that chooses at random says, and whether it came to an end."""
    grammars, raw = special
    make, rng = grammars.compile({"lark_grammar": text}), np.random.default_rng(seed)
    made = []
    for _ in range(count):
        constraint, ids, ended = make(), [], False
        for _ in range(200):
            allowed = np.flatnonzero(constraint.allowed())
            if 0 in allowed and rng.integers(2):
                ended = True
                break
            ids.append(int(rng.choice(allowed)))
            constraint.accept(ids[-1])
            if constraint.ended:
                ended = True
                break
        made.append((raw.decode([i for i in ids if i], skip_special_tokens=False), ended))
    return made


def satisfied(found: ParsedAnswer) -> None:
    for call in found.calls:
        jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_answer_is_calls(name: str, several: bool, special: Any) -> None:
    parser, template = TEMPLATES[name]
    render = renderer(template)
    form, prompt = call_form(render, ENDS), render([{"role": "user", "content": "?"}], True)
    opened = name == "opened"
    grammar = Grammar(form, special[0].special, opened).text(Calls(TOOLS, True, several))
    counts = set()
    for text, ended in answers(special, grammar, 1, 24):
        if not ended:
            continue
        found = parsed(parser, text, prompt)
        assert found.calls and not found.content.strip(), text
        satisfied(found)
        counts.add(len(found.calls))
        assert several or len(found.calls) == 1
    if form.closing == "":
        assert counts
    if several and form.joint is not None and name in ("chatml", "listed", "named"):
        assert max(counts) > 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_or_calls(name: str, special: Any) -> None:
    """Where no call is needed: what is one is right, what is text is none."""
    parser, template = TEMPLATES[name]
    render = renderer(template)
    form = call_form(render, ENDS)
    grammar = Grammar(form, special[0].special, False).text(Calls(TOOLS))
    make, raw = special[0].compile({"lark_grammar": grammar}), special[1]
    call = form.example.replace("weftname", "now").replace(
        '"weftkey": "weftvalue"', '"zone": "utc"'
    )
    wrong = call.replace("utc", "mars")
    for text, allowed in (("Hello.", True), (call, True), (wrong, False)):
        constraint = make()
        for token in raw.encode(text, add_special_tokens=False).ids:
            if not constraint.allowed()[token]:
                assert not allowed, text
                break
            constraint.accept(token)
        else:
            assert allowed and constraint.whole, text
            assert bool(parsed(parser, text).calls) == (text is call)


@pytest.mark.parametrize("name", ["a b", 'a"b', "é", ""])
def test_names_that_no_grammar_holds(name: str) -> None:
    with pytest.raises(UsageError, match="a tool is called"):
        Grammar(CallForm("<c>", "", ""), {}, False).text(Calls({name: {}}, True))


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": TOOLS[name], **more}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_server_gives_the_call_that_is_asked_for(server: Running, choice: Any) -> None:
    """A tool that is named is called once, as OpenAI says."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    asked: dict[str, Any] = {
        "model": "box", "messages": [{"role": "user", "content": "?"}], "seed": 5,
        "tools": [tool("get_weather"), tool("now")], "tool_choice": choice, "max_tokens": 200,
    } | ({"parallel_tool_calls": False} if choice == "required" else {})  # fmt: skip
    made = client.chat.completions.create(**asked).choices[0]
    assert made.finish_reason == "tool_calls" and not made.message.content
    (call,) = made.message.tool_calls or ()
    assert call.type == "function" and call.function.name in TOOLS
    jsonschema.validate(json.loads(call.function.arguments), TOOLS[call.function.name])
    if choice != "required":
        assert call.function.name == "now"
    pieces = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True)]
    parts = [c.function for delta in pieces for c in delta.tool_calls or ()]
    assert "".join(p.arguments or "" for p in parts if p) == call.function.arguments


def test_the_other_protocols_ask_for_calls_too(server: Running) -> None:
    """The same call by all three, with the same seed."""
    words, now = "?", TOOLS["now"]
    flat = {"type": "function", "name": "now", "parameters": now}
    status, response, _ = server.ask("POST", "/v1/responses", {
        "input": words, "tools": [flat], "seed": 3,
        "tool_choice": {"type": "function", "name": "now"},
    })  # fmt: skip
    assert status == 200
    status, messages, _ = server.ask("POST", "/v1/messages", {
        "model": "box", "messages": [{"role": "user", "content": words}], "max_tokens": 200,
        "tools": [{"name": "now", "input_schema": now}], "seed": 3,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    })  # fmt: skip
    assert status == 200 and messages["stop_reason"] == "tool_use"
    (one,) = response["output"]
    (two,) = messages["content"]
    assert one["type"] == "function_call" and two["type"] == "tool_use"
    jsonschema.validate(two["input"], now)
    assert json.loads(one["arguments"]) == two["input"] and one["name"] == two["name"] == "now"


def test_a_format_and_tools_go_together(server: Running) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    asked = {
        "messages": [{"role": "user", "content": "?"}], "tools": [tool("now")], "max_tokens": 60,
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": schema},
        },
    }  # fmt: skip
    seen = set()
    for seed in range(8):
        status, made, _ = server.ask("POST", "/v1/chat/completions", {**asked, "seed": seed})
        assert status == 200
        said = made["choices"][0]["message"]
        if said.get("tool_calls"):
            jsonschema.validate(
                json.loads(said["tool_calls"][0]["function"]["arguments"]), TOOLS["now"]
            )
        else:
            jsonschema.validate(json.loads(said["content"]), schema)
        seen.add(bool(said.get("tool_calls")))
    assert seen <= {True, False}


@pytest.mark.parametrize(
    "change,param",
    [({"tool_choice": "required", "tools": None}, "tool_choice"),
     ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice")],
)  # fmt: skip
def test_a_choice_that_is_not_offered(server: Running, change: Any, param: str) -> None:
    asked = {"messages": [{"role": "user", "content": "?"}], "tools": [tool("now")], **change}
    status, made, _ = server.ask("POST", "/v1/chat/completions", asked)
    assert status == 400 and made["error"]["param"] == param


def test_a_model_whose_template_has_no_calls(tmp_path: Path) -> None:
    """Refused by name, not ignored."""
    from serve_kit import chatty_box, serving

    folder = chatty_box(tmp_path / "plain")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    asked = {"messages": [{"role": "user", "content": "?"}], "tools": [tool("now")],
             "tool_choice": "required"}  # fmt: skip
    with serving({"plain": str(folder)}) as running:
        status, made, _ = running.ask("POST", "/v1/chat/completions", asked)
    assert status == 400 and "chat template writes calls" in made["error"]["message"]
