"""Tools in a page: calls mean what the server reads, and can be asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from package_kit import app, recipe, run
from page_device import PLAYER
from page_kit import LLAMA, Browser, Site, export_light, need

import weft
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder
from weft.serve.toolcalls.choose import FORMATS
from weft.web.calls import described

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
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
const out = [];
for (const options of [{ toolChoice: weather }, { toolChoice: weather, temperature: 2, seed: 4 },
  { toolChoice: "none", maxNewTokens: 5 }, { maxNewTokens: 5 }, { toolChoice: "some" },
  { toolChoice: { type: "function", function: { name: "other" } } }, { tools: [{ name: "x" }] },
  { schema: {} }]) out.push(await asked(options));
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
            'a tool is {"name":"x"}; expected', "tools do not go together with schema"]  # fmt: skip
    for one, expected in zip(found[4:], said, strict=True):
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
