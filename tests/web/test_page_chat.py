"""Chat in a page: its templates against transformers', its answers against Python's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CONVERSATIONS, REFUSED, TEMPLATES, VARIABLES
from hypothesis import Phase, given, settings, strategies as st
from jinja2.exceptions import TemplateError
from page_device import PLAYER
from page_kit import LLAMA, Browser, Site, bare, export_light, need
from rows import few

import weft
from weft.core.errors import ModelError
from weft.hub.box import box_folder
from weft.models.run.talk import Talk
from weft.models.text.chat_worker import handle, make_environment
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.random_weights import random_folder
from weft.web import chat
from weft.web.export import export_web

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from model_zoo import write_tokenizer

CASES = [
    ({"add_generation_prompt": True} | variables, messages)
    for variables in VARIABLES
    for messages in CONVERSATIONS
]


def play(chats: list[Any], cases: list[Any]) -> Any:
    """What the player makes of cases [number of the chat, messages, variables]."""
    need()
    given = json.dumps({"chats": chats, "cases": cases})
    command = ["node", str(Path(__file__).with_name("chat.mjs")), str(PLAYER)]
    done = subprocess.run(command, input=given.encode(), capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def of(template: str) -> Any:
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return {"template": chat.playable(handle({"parse": template})["tree"]), "special": special}


def test_prompts_equal_transformers(tmp_path: Path) -> None:
    theirs = write_tokenizer(tmp_path)
    chats = [of(template) for template in TEMPLATES.values()]
    all_cases = [[n, m, v] for n in range(len(chats)) for v, m in CASES]
    results = play(chats, all_cases)["results"]
    texts = set()
    for (n, messages, variables), got in zip(all_cases, results, strict=True):
        name, template = list(TEMPLATES.items())[n]
        where = name, messages, variables
        try:
            want = theirs.apply_chat_template(
                messages, chat_template=template, tokenize=False, **variables
            )
        except (TemplateError, TypeError) as e:  # what it cannot do, the page cannot either
            assert "WeftError" in got["error"], (*where, e)
            continue
        if "without tojson" in got.get("error", ""):  # Python's way of writing lists
            assert not isinstance(messages[0]["content"], str), where
            continue
        assert got.get("text") == want, (*where, got)
        texts.add((name, want))
    for name in TEMPLATES:
        assert len([t for t in texts if t[0] == name]) > 8


def test_the_page_writes_box_chat_s_prompts() -> None:
    tokenizer = Tokenizer(box_folder("box-chat"), 1 << 20)
    turns = [
        ("system", " Be brief. "),
        ("user", "what is len?"),
        ("assistant", "len(obj)"),
        ("user", "é"),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    (got,) = play([json.loads(chat.chat_file(tokenizer))], [[0, messages, {}]])["results"]
    assert got["text"] == tokenizer.chat(messages)


@pytest.mark.parametrize("template", REFUSED)
def test_what_a_page_cannot_play_is_named_at_export(template: str) -> None:
    with pytest.raises(ModelError, match=REFUSED[template]):
        of(template)


def test_both_sides_list_the_same() -> None:
    keys = play([], [])["keys"]
    assert set(keys["FILTERS"]) - {"map.attribute"} == set(chat.FILTERS)
    assert set(keys["TESTS"]) == chat.TESTS
    assert (set(keys["text"]), set(keys["dict"])) == (chat.TEXT_METHODS, chat.DICT_METHODS)


# -- expressions, against Jinja -------------------------------------------------------------------

TEXTS = st.text("ab Aß\t\n\x85\u3000\ufeffΣσé😀İ-([{<'\"\\\x1f", max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)
BINARY_TESTS = ("divisibleby", "eq", "equalto", "in", "ne")
UNARY = [
    "x|trim", "x|length", "x|upper", "x|lower", "x|capitalize", "x|title", "x|first", "x|last",
    "x|list|length", "x|reverse|list|tojson", "x|reverse|join", "x|join(',')",
    "x|default('d', true)", "x|string|length", "x|tojson", "x|tojson(indent=1)",
    "x|tojson(ensure_ascii=true)", "not x", "x.strip()", "x.lstrip('aA ')", "x.rstrip()",
    "x.split()|tojson", "x.split('a')|tojson", "x.split(' ', 1)|tojson", "x.rsplit('a', 1)|tojson",
    "x.upper()", "x.lower()", "x.capitalize()", "x.replace('a', 'bb')", "x|replace('a', '')",
    "x.startswith('a')", "x.endswith(('a', 'b'))", "x.find('b')", "x.removeprefix('a')",
    "x.removesuffix('b')", "x[0]", "x[-1]", "x['a']", "x.a", "x.a.b", "x[1:]|tojson",
    "x[:-1]|tojson", "x[::-1]|tojson", "x[2:0:-1]|tojson", "x ~ 1", "x", "'t' if x else 'f'",
    "x or 'none'", "x and 'some'", "x.get('a')", "x.keys()|list|tojson", "x.values()|list|tojson",
    "x.items()|list|tojson", "x|items|list|tojson", "-x", "x|map('string')|join",
    "x|map(attribute='a')|join(';')", "x|select('string')|join",
    "x|rejectattr('a', 'defined')|list|length", "x|select|list|length", "'%s' ~ x",
    "x|map('upper')|list|tojson", "(x|map('string')) is iterable", "x|selectattr('a')|length",
    "[x, x]|tojson", "'a' in x", "x in [1, 'a', none, []]", "y", "x is divisibleby 2",
    "x is in 'ab'", "y is sequence", "y|length", "y|join", "y is iterable",
    *(f"x is {t}" for t in sorted(chat.TESTS) if t.isalpha() and t not in BINARY_TESTS),
]  # fmt: skip
BINARY = [
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "+",
    "-",
    "*",
    "//",
    "%",
    "in",
    "not in",
    "and",
    "or",
    "~",
]


SOURCES = [f"{{{{ {e} }}}}" for e in UNARY] + [f"{{{{ x {op} z }}}}" for op in BINARY]


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(st.lists(st.tuples(VALUES, VALUES), min_size=40, max_size=40))
def test_expressions_are_jinjas(values: list[tuple[Any, Any]]) -> None:
    """Where Jinja gives a text, a page gives the same, or says that it cannot."""
    cases = [[n, [], {"x": x, "z": z}] for n in range(len(SOURCES)) for x, z in values]
    results = play([of(source) for source in SOURCES], cases)["results"]
    right = 0
    for (n, _, variables), got in zip(cases, results, strict=True):
        try:
            want = jinja(SOURCES[n]).render(messages=[], **variables)
        except Exception:  # where Jinja fails there is nothing to equal
            continue
        if "text" in got:
            assert got["text"] == want, (SOURCES[n], variables)
            right += 1
        else:
            assert "WeftError: the chat template failed" in got["error"], (SOURCES[n], variables)
    assert right > len(cases) / 10


@cache
def jinja(source: str) -> Any:
    return make_environment().from_string(source)


# -- the whole way, on a tiny model with random weights -------------------------------------------

SAID = ["def f(x):", "  and näxt? ", "return 1"]
NODE = """
import { load } from PLAYER;
const model = await load(FOLDER, { target: "wasm", threads: 1 });
const { part: decoder } = model;
const [turns, fed, messages] = [[], [], [{ role: "system", content: "Be brief." }]];
const feed = decoder.feed.bind(decoder);
decoder.feed = (ids, ...rest) => (fed.push(ids.length), feed(ids, ...rest));
for (const content of SAID) {
  messages.push({ role: "user", content });
  fed.length = 0;
  const turn = { ids: [], text: "", prompt: await model.chatPrompt(messages) };
  for await (const { text, ids } of model.chat(messages, { maxNewTokens: 12 })) {
    turn.text += text;
    turn.ids.push(...ids);
  }
  messages.push({ role: "assistant", content: turn.text });
  turns.push({ ...turn, read: fed[0] });
}
const refused = await model.chat([{ role: "tool", content: "" }]).next().catch((e) => e.message);
const brief = await model.chatPrompt([], { add_generation_prompt: false });
console.log(JSON.stringify({ turns, refused, brief }));
"""


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model with a template, its page, and the turns that Python's `weft chat` would write, each
    with the number of its prompt's tokens that were not fed before. A page in the browser reads
    just those; Python more where a full page that others follow is wanted only in part."""
    folder = tmp_path_factory.mktemp("talking")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, folder)
    (folder / "chat_template.jinja").write_text(LINES)
    path = random_folder(folder, LLAMA, seed=5)
    model = weft.load(path, device="cpu", max_batch=1)
    site = tmp_path_factory.mktemp("site") / "page"
    manifest = export_light(model, site)
    assert manifest["chat"] is True
    messages, turns, fed = [{"role": "system", "content": "Be brief."}], [], []
    for said in SAID:
        messages.append({"role": "user", "content": said})
        ids = model.chat_ids(messages)
        made = model.generate(ids, max_new_tokens=12)
        messages.append({"role": "assistant", "content": made.text})
        known = len(list(takewhile(lambda two: two[0] == two[1], zip(fed, ids[:-1]))))
        assert made.reused <= known
        turns.append((list(made.ids), made.text, len(ids) - known))
        assert made.finish_reason == "length"  # so the last token was not fed
        fed = [*ids, *made.ids[:-1]]
    return site, turns, model


LINES = """
{%- for m in messages %}
  {%- if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('who is ' + m.role) }}
  {%- endif %}
  {{- '# ' + m.role + ': ' + m.content | trim + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '# assistant:' }}{% endif %}
"""


def test_turns_in_node_are_pythons_and_read_only_what_is_new(talking: Any, tmp_path: Path) -> None:
    need()
    site, turns, _ = talking
    script = tmp_path / "talk.mjs"
    code = NODE.replace("PLAYER", json.dumps(str(PLAYER / "node.js")))
    script.write_text(
        code.replace("FOLDER", json.dumps(str(site))).replace("SAID", json.dumps(SAID))
    )
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [(t["ids"], t["text"], t["read"]) for t in seen["turns"]] == turns
    assert turns[2][2] < 30
    assert seen["refused"] == "the chat template refuses these messages: who is tool"
    assert seen["brief"] == ""


BOX_CHAT = """
import { load } from PLAYER;
const model = await load(FOLDER, { target: "wasm", threads: 1 });
let text = "";
const messages = [{ role: "user", content: "what does os.path.join do?" }];
for await (const piece of model.chat(messages, { maxNewTokens: 64 })) text += piece.text;
console.log(text);
"""


@pytest.mark.slow
def test_box_chat_answers_in_a_page(tmp_path: Path) -> None:
    """Its packed weights and its template work there as they are shipped."""
    need()
    assert export_light(weft.load("box-chat", device="cpu"), tmp_path / "page")["chat"] is True
    script = tmp_path / "talk.mjs"
    code = BOX_CHAT.replace("PLAYER", json.dumps(str(PLAYER / "node.js")))
    script.write_text(code.replace("FOLDER", json.dumps(str(tmp_path / "page"))))
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "os.path.join(a, *p): Join two or more pathname components, inserting '/' as needed."
    )


TALK = """
await page.goto(`${given.url}?target=${given.target}`);
await page.waitForFunction(() => document.body.dataset.state === "ready");
await page.locator("#options summary").click();
await page.fill("#tokens", "12");
await page.locator("text=Instructions to the model").click();
await page.fill("#system", "Be brief.");
for (let n = 0; n < given.said.length; n++) {
  await page.fill("#say", given.said[n]);
  await page.press("#say", "Enter");
  await page.waitForFunction((count) => document.body.dataset.turns === String(count), 2 * n + 2);
}
const shown = await page.evaluate(() => ({
  answers: [...document.querySelectorAll(".assistant .said")].map((e) => e.textContent),
  names: [...document.querySelectorAll("#turns .who")].map((e) => e.textContent),
  selected: document.querySelector("[role=tab][aria-selected=true]").textContent, noted,
}));
await page.click("text=New conversation");
const left = await page.locator("#turns .turn").count();
return { ...shown, left, errors: it.errors };
"""


@pytest.mark.parametrize("target", few(["wasm", "webgpu"], "wasm"))
def test_the_page_talks_as_python_does(talking: Any, browser: Browser, target: str) -> None:
    site, turns, _ = talking
    served = Site(site)
    try:
        given = {"url": served.url, "target": target, "said": [s.strip() for s in SAID]}
        seen = browser.run(f"chat-{target}", TALK, given)
    finally:
        served.close()
    assert seen["answers"] == [text for _, text, _ in turns]
    assert seen["names"] == ["You", "Model"] * 3 and seen["selected"] == "Chat"
    assert seen["left"] == 0 and seen["errors"] == [] and seen["noted"]["violations"] == []


LONG_TALK = """
await page.goto(`${given.url}?target=wasm`);
await page.waitForFunction(() => document.body.dataset.state === "ready");
const notes = [];
for (const said of given.said) {
  await page.fill("#say", said);
  await page.press("#say", "Enter");
  await page.waitForFunction(() => document.querySelector("#chat-note").textContent
    !== "The model reads …" && !document.querySelector("#chat-form [type=submit]").disabled);
  notes.push(await page.textContent("#chat-note"));
}
return { notes, answers: await page.locator(".assistant .said").count(), errors: it.errors };
"""


def test_a_full_context_ends_no_conversation(talking: Any, browser: Browser) -> None:
    """The oldest turns leave it, which is said once; also after a text that was too long."""
    served = Site(talking[0])
    said = [f"def f{n}(x):" for n in range(4)]
    try:
        given = {"url": served.url, "said": [*said, "a b " * 600, *said]}
        seen = browser.run("chat-full", LONG_TALK, given)
    finally:
        served.close()
    notes = seen["notes"]
    assert seen["answers"] == 8 and seen["errors"] == []
    assert "512: shorten it" in notes[4] and sum("shorten" in note for note in notes) == 1
    assert sum("the oldest turns are no longer read" in note for note in notes) == 1


SLIDES = """
import { load } from PLAYER;
const model = await load(FOLDER, { target: "wasm", threads: 1 });
const [made, messages] = [[], [{ role: "system", content: "Be brief." }]];
for (let n = 0; n < 14; n++) {
  messages.push({ role: "user", content: `def f${n}(x): return ${"x, ".repeat(9)}` });
  const turn = { ids: [], text: "", left: 0 };
  const how = { maxNewTokens: 40, slide: true };
  for await (const { text, ids, left = 0 } of model.chat(messages, how)) {
    turn.text += text;
    turn.ids.push(...ids);
    turn.left += left;
  }
  messages.splice(1, turn.left);
  messages.push({ role: "assistant", content: turn.text });
  made.push(turn);
}
console.log(JSON.stringify(made));
"""


def test_what_leaves_is_what_leaves_in_python(talking: Any, tmp_path: Path) -> None:
    site, _, model = talking
    script = tmp_path / "slides.mjs"
    code = SLIDES.replace("PLAYER", json.dumps(str(PLAYER / "node.js")))
    script.write_text(code.replace("FOLDER", json.dumps(str(site))))
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    turns = json.loads(done.stdout)
    talk, starts = Talk(model, "Be brief."), [0]
    for n, turn in enumerate(turns):
        ids = talk.ask(f"def f{n}(x): return {'x, ' * 9}", 40)
        starts.append(talk.start)
        assert turn["left"] == starts[-1] - starts[-2]
        assert turn["ids"] == list(model.generate(ids, max_new_tokens=40).ids)
        talk.answer(turn["text"])
    assert starts[-1] > 0


def test_a_page_that_cannot_chat_says_why(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% include 'other' %}")
    model = weft.load(random_folder(tmp_path, LLAMA), device="cpu", max_batch=1)
    with bare():
        manifest = export_web(model, tmp_path / "page")
    assert manifest["chat"] == "a page cannot run the chat template: pages lack Include of Jinja"
    assert not (tmp_path / "page" / "chat.json").exists()
