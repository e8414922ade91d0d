"""Tools in a page: calls mean what the server reads, and can be asked for."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from package_kit import app, recipe, run
from page_device import PLAYER
from page_kit import LLAMA, Browser, Site, bare, export_light, need

import weft
from weft.hub.box import box_folder
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.random_weights import random_folder
from weft.serve.toolcalls.choose import FORMATS, MARKS, choose
from weft.serve.toolcalls.formats import ParserContext
from weft.web.calls import described
from weft.web.export import export_web

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_kit import marked_box
from test_marks import EVERY, answered, ids_of
from test_toolcalls import CASES, TOOLS, whole

READ = {"hermes", "qwen-xml", "mistral", "llama", "llama-json", "harmony", "gemma4",
        "functiongemma"}  # fmt: skip
MORE = [
    ("hermes", "so\n</think>\n\nHi", True), ("hermes", "<think>a", False),
    ("hermes", 'x <tool_call>{"name": "f", "arguments": null}</tool_call> y', False),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "\\"</tool_call>"}}', False),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}', False),
    ("mistral", "[TOOL_CALLS]two words{}", False), ("llama", ' {"name": "f"}', False),
    ("qwen-xml", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n", False),
    ("gemma4", "a <|tool_call>call:now{a:{b:[1e999,x y,null]}}<tool_call|> b<turn|>", False),
    ("gemma4", "<|tool_call>call:now{a:1<tool_call|> b<|tool_call>call:now{}", False),
    ("functiongemma", "<start_function_call>call:now{a:<escape>{}<escape>,b:1.50}"
     "<end_function_call><end_of_turn>", False),
    ("llama", '{"name": "f", "parameters": {}}; {"name": "f"}', False), ("mistral", "[", False),
    ("hermes", "<tool_call>a}</tool_call>{<tool_call>\"{\"name\": \"f\"}</tool_call>", False),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {}] x', False),
    ("harmony", "\n<| <|return|>analysis<|message|> commentary", False),
    ("harmony", "<|channel|>final<|message|>a <|end|>x<|start|>to=functions.f<|message|>1", False),
]  # fmt: skip


def test_calls_mean_what_the_server_reads() -> None:
    need()
    given = [
        (name, text, False) for name, text, *_ in CASES if name in READ | {"think", "text"}
    ] + MORE
    cases = [[described(name), text, TOOLS, opened] for name, text, opened in given]
    call = json.dumps({"js": PLAYER.as_uri(), "cases": cases})
    command = ["node", str(Path(__file__).with_name("toolcalls.mjs"))]
    done = subprocess.run(command, input=call, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for (name, text, opened), got in zip(given, json.loads(done.stdout), strict=True):
        want = whole(name, text, "<think>" if opened else "")
        assert (got["content"], got["reasoning"]) == (want.content, want.reasoning), (name, text)
        calls = [(c["name"], json.loads(c["arguments"])) for c in got["calls"]]
        assert calls == [(c.name, json.loads(c.arguments)) for c in want.calls], (name, text)
        assert got["grows"], (name, text)


def test_each_format_of_the_server_is_described() -> None:
    assert {name: described(name)["format"] for name in FORMATS} == {name: name for name in FORMATS}
    code = f'import {{ READ }} from "{PLAYER.as_uri()}/toolcalls.js"; console.log(READ.join())'
    command = ["node", "--input-type=module", "-e", code]
    assert set(subprocess.check_output(command, text=True).strip().split(",")) == READ


TEMPLATE = """
{%- if tools %}TOOLS{% for tool in tools %} {{ tool | tojson }}{% endfor %}
{% endif %}
{%- for message in messages %}
{{- message.role }}: {{ message.content }}
{%- for call in message.tool_calls or () %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model whose template writes Hermes' calls."""
    folder = tmp_path_factory.mktemp("calling")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model = weft.load(random_folder(folder, LLAMA, seed=7), device="cpu", max_batch=1)
    site = tmp_path_factory.mktemp("site") / "page"
    assert export_light(model, site)["chat"] is True
    calls = json.loads((site / "chat.json").read_text())["calls"]
    assert calls["format"] == "hermes" and calls["form"]["between"] == '", "arguments": '
    return site


SCHEMA = {"type": "object", "required": ["city", "days"], "additionalProperties": False,
          "properties": {"city": {"type": "string", "maxLength": 5},
                         "days": {"type": "integer", "minimum": 1, "maximum": 9}}}  # fmt: skip
OFFERED = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in {"weather": SCHEMA, "now": {}}.items()
]
ASKED = """
const { load } = await import(player);
const model = await load(folder, { target: "wasm" });
const asked = async (options) => {
  let [text, calls, finish] = ["", null, null];
  try {
    const how = { tools, maxNewTokens: 200, ...options };
    for await (const piece of model.chat([{ role: "user", content: "hi" }], how)) {
      text += piece.text;
      calls = piece.toolCalls ?? calls;
      finish = piece.finish;
    }
  } catch (error) { finish = `${error.name}: ${error.message}`; }
  return { text, calls, finish };
};
const weather = { type: "function", function: { name: "weather" } };
const schema = { type: "array", items: { type: "boolean" }, minItems: 1, maxItems: 3 };
const out = [];
for (const options of [{ toolChoice: weather }, { toolChoice: weather, temperature: 2, seed: 4 },
  { toolChoice: "none", maxNewTokens: 5 }, { maxNewTokens: 5 }, { toolChoice: "some" },
  { toolChoice: { type: "function", function: { name: "other" } } }, { tools: [{ name: "x" }] },
  { tools: [], toolChoice: "required" }, { schema, toolChoice: weather },
  ...[1, 2, 3, 4].map((seed) => ({ schema, temperature: 1, seed }))]) {
  out.push(await asked(options));
}
model.close();
"""


def check(found: list[dict[str, Any]]) -> None:
    for one in found[:2]:
        assert one["finish"] == "tool_calls" and one["text"] == "", one
        (call, *_) = one["calls"]
        assert call["function"]["name"] == "weather" and len(call["id"]) == 9
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    assert [one["finish"] for one in found[2:4]] == ["length", "length"]
    said = ['toolChoice is "some"; expected "auto"', "toolChoice is other; expected",
            'a tool is {"name":"x"}; expected', "of the tools: there are none"]  # fmt: skip
    forced, *either = found[8:]
    assert forced["finish"] == "tool_calls" and forced["text"] == ""
    for one in either:  # a text of the schema's form, or a call
        if one["finish"] == "eos":
            flags = {"type": "array", "items": {"type": "boolean"}, "minItems": 1}
            jsonschema.validate(json.loads(one["text"]), flags)
        else:
            assert one["finish"] in ("tool_calls", "length") and not one["text"]
    assert len({one["finish"] for one in either}) > 1
    for one, expected in zip(found[4:8], said, strict=True):
        assert one["finish"].startswith("WeftError") and expected in one["finish"]


def test_a_call_can_be_asked_for(calling: Path) -> None:
    need()
    where = json.dumps([str(PLAYER / "node.js"), str(calling)])
    given = f"const [player, folder] = {where}; const tools = {json.dumps(OFFERED)};"
    code = f"{given}\n{ASKED}\nconsole.log(JSON.stringify(out));"
    command = ["node", "--input-type=module", "-e", code]
    check(json.loads(subprocess.check_output(command, timeout=240)))


def test_a_call_can_be_asked_for_in_a_page(browser: Browser, calling: Path) -> None:
    site = Site(calling)
    code = f"""
await page.goto(given.url + "blank.html");
return await page.evaluate(async ({{ tools }}) => {{
  const [player, folder] = ["./weft.js", "./"];
  {ASKED}
  return out;
}}, given);
"""
    try:
        check(browser.run("tools", code, {"url": site.url, "tools": OFFERED}))
    finally:
        site.close()


SCRIPTED = """
const [js, folder, parts] = JSON.parse(readFileSync(0, "utf8"));
const { Model } = await import(`${js}/model.js`);
const { readManifest } = await import(`${js}/manifest.js`);
const bytes = (name) => new Uint8Array(readFileSync(`${folder}/${name}`));
const json = async (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));
const store = { json, file: async ([name]) => bytes(name), fetched: 0 };
const model = new Model(store, readManifest(await json("manifest.json")), {});
model.kind = await import(`${js}/writing.js`);
await model.readTokenizer();
const { eos, vocab } = model.manifest.model;
const { calls: form, ...data } = await model.chatData();
const out = [];
for (const { ids, calls, messages = [{ role: "user", content: "hi" }], ...options } of parts) {
  model.template = { ...data, calls: calls ?? form };
  let at = 0;
  model.logits = async () => {
    const row = new Float32Array(vocab);
    row[ids[at++] ?? eos[0]] = 9;
    return row;
  };
  const said = { content: "", reasoning: "", calls: [], finish: null };
  try {
    for await (const piece of model.chat(messages, { maxNewTokens: 400, ...options })) {
      said.content += piece.text;
      said.reasoning += piece.reasoning ?? "";
      said.calls = piece.toolCalls ?? said.calls;
      said.finish = piece.finish;
    }
  } catch (error) { said.error = `${error.name}: ${error.message}`; }
  out.push(said);
}
console.log(JSON.stringify(out));
"""


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has every second mark of the formats as a token, without weights."""
    root = tmp_path_factory.mktemp("marked")
    known = [mark for mark in EVERY if mark != "<|endoftext|>"][::2]
    marked_box(root / "box", {mark: n % 2 == 0 for n, mark in enumerate(known)})
    (root / "box" / "chat_template.jinja").write_text(TEMPLATE)
    with bare():
        export_web(weft.load(root / "box", device="cpu", max_batch=1), root / "page")
    return root


def scripted(marked: Path, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a page makes of answers whose tokens are given as `ids`."""
    need()
    call = json.dumps([PLAYER.as_uri(), str(marked / "page"), parts])
    code = f'import {{ readFileSync }} from "node:fs";\n{SCRIPTED}'
    command = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(command, input=call, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_stop_strings_cut_calls_as_the_servers_do(marked: Path) -> None:
    """Marks that are tokens or letters, stops within marks and characters, over many tokens."""
    tokenizer, rng = Tokenizer(marked / "box", 2048), random.Random(5)
    said = ["é", "😀", " x", "\n", '{"name": "now", "arguments": {"a": 1}}', "call:now{a:1}", "{",
            "<function=now>", "now", "}"]  # fmt: skip
    parts, wanted = [], []
    for name in sorted(READ) * 12:
        maker = choose(tokenizer, name)[1]
        form = described(name) | {"marks": {text: i for i, text in maker.marks.ids.items()}}
        form["ends"] = [end for end in form["ends"] if end in form["marks"]]
        written = rng.choices([*MARKS[name], *said], k=8)
        ids = [i for i in ids_of(tokenizer, [(text, rng.random() < 0.8) for text in written]) if i]
        text, size = tokenizer.decode(ids, skip_special=False), rng.randint(1, 5)
        at = rng.randrange(len(text))
        stop = [text[at : at + size]] if rng.random() < 0.8 else []
        parts.append({"ids": ids, "calls": form, "tools": OFFERED, "stop": stop})
        tools: Any = {"weather": SCHEMA, "now": {}}
        wanted.append(answered(tokenizer, ids, name, ParserContext(tools=tools), tuple(stop)))
    for part, got, want in zip(parts, scripted(marked, parts), wanted, strict=True):
        calls = [(c["function"]["name"], values(c["function"]["arguments"])) for c in got["calls"]]
        found = got["content"], got["reasoning"], calls
        expected = [(call.name, values(call.arguments)) for call in want.calls]
        assert found == (want.content, want.reasoning, expected), part


def values(text: str) -> Any:
    """The value of JSON; a text that is not JSON, as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_strict_tools_and_messages_as_the_server_takes_them(marked: Path) -> None:
    tokenizer = Tokenizer(marked / "box", 2048)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Genoa and more", "days": 77'
    ids, strict = tokenizer.encode(f"so {call}", special=False), OFFERED[0]["function"]
    tools = [{"type": "function", "function": strict | {"strict": True}}]
    parts: list[Any] = [{"ids": ids, "tools": tools}, {"ids": ids, "tools": OFFERED}]
    parts += [{"ids": ids[:1], "messages": given} for given in (
        [], [{"role": "root", "content": "x"}], [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "audio"}]}], [{"role": "user"}],
        [{"role": "developer", "content": []}, {"role": "assistant"}])]  # fmt: skip
    held, free, *messages = scripted(marked, parts)
    assert held["content"] == free["content"] == "so" and held["finish"] == "tool_calls"
    made = json.loads(held["calls"][0]["function"]["arguments"])
    jsonschema.validate(made, SCHEMA)
    assert made["city"] == "Genoa"
    assert free["calls"][0]["function"]["arguments"].endswith('"days": 77')
    said = ["a conversation is empty", 'role of a message is "root"', "has 3; expected a text",
            'has {"type":"audio"}; expected', "", ""]  # fmt: skip
    for one, expected in zip(messages, said, strict=True):
        assert expected in one.get("error", "") and bool(expected) == ("error" in one), one


def test_a_megabyte_is_refused_at_once_and_may_leave(marked: Path) -> None:
    """Its ids, which take a second for each 100 KB, are not made."""
    asked, long = {"role": "user", "content": "hi"}, {"role": "user", "content": "word " * 200_000}
    begun = time.monotonic()
    refused, slid = scripted(
        marked,
        [{"ids": [5], "messages": [long]}, {"ids": [5], "slide": True, "messages": [long, asked]}],
    )
    assert "the prompt has at least" in refused["error"] and "shorten it" in refused["error"]
    assert slid["finish"] == "eos" and slid["content"]
    assert time.monotonic() - begun < 30


def test_the_lines_of_the_readme(calling: Path, tmp_path: Path) -> None:
    """A call, its result, and the answer after it."""
    need()
    installed = app(tmp_path)
    (installed / "public").mkdir()
    (installed / "public" / "model").symlink_to(calling)
    (installed / "tools.js").write_text(recipe("tools.js"))
    user, call, result, *_, last = json.loads(run(["node", "tools.js"], installed))
    assert user["role"] == "user" and call["tool_calls"][0]["function"]["name"] == "weather"
    city = json.loads(call["tool_calls"][0]["function"]["arguments"])["city"]
    assert result["content"] == f"{city}: -3 degrees" and last["role"] == "assistant"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
