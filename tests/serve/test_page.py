"""The chat page in a real browser."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from held import answers, holding
from rows import covering, few
from serve_kit import Running, chatty_box, serving, until

from weft.hub.box import box_folder
from weft.models.run.model import Decoder
from weft.serve.app import FILES

sys.path.append(str(Path(__file__).parents[1] / "web"))
from page_kit import MODULES, Browser, need

ASK = """
await page.goto(given.url);
await page.waitForSelector("body[data-state=ready]");
await page.evaluate((settings) => Object.entries(settings).forEach(([id, value]) => {
  document.getElementById(id).value = value; }), given.settings);
await page.fill("#text", given.text);
await page.press("#text", "Enter");
"""
READY = "await page.waitForSelector('body[data-state=ready]');"
DONE = "await page.waitForSelector('article.assistant');" + READY
SAID = "return await page.textContent('article.assistant:last-of-type .said');"
TEXT = "Write a loop."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


def given(server: Running, **settings: str) -> dict[str, object]:
    return {"url": server.url, "text": TEXT, "settings": {"max_tokens": "24", **settings}}


def test_a_conversation(browser: Browser, server: Running, alone: Decoder) -> None:
    said = browser.run("one", ASK + DONE + SAID, given(server, temperature="0"))
    expected = alone.generate(
        alone.chat_ids([{"role": "user", "content": TEXT}]), max_new_tokens=24
    ).text
    squeezed = "".join(expected.split())
    assert "".join(said.split()) == "".join(c for c in squeezed if c not in "`*#")
    note = browser.run("one", "return await page.textContent('#note')")
    assert "24 written" in note
    assert browser.run("one", "return it.errors") == []
    assert browser.run("one", "return await page.evaluate(() => noted.violations)") == []


def test_the_authors_settings(
    browser: Browser, chatty: Path, alone: Decoder, tmp_path: Path
) -> None:
    """A field that is left empty is as the model's author advises, and shows that."""
    folder = tmp_path / "box"
    shutil.copytree(chatty, folder)
    advice = {"do_sample": True, "temperature": 0.9, "top_p": 0.8, "eos_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(advice))
    with serving({"box": str(folder)}) as server:
        server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        said = browser.run("advised", ASK + DONE + SAID, given(server, seed="5"))
        ids = alone.chat_ids([{"role": "user", "content": TEXT}])
        expected = alone.generate(ids, max_new_tokens=24, temperature=0.9, top_p=0.8, seed=5).text
        squeezed = "".join(expected.split())
        assert "".join(said.split()) == "".join(c for c in squeezed if c not in "`*#")
        shown = "return await page.getAttribute('#temperature', 'placeholder')"
        assert browser.run("advised", shown) == "0.9"


def test_it_is_there_after_a_reload(browser: Browser, server: Running) -> None:
    browser.run("kept", ASK + DONE, given(server, seed="3"))
    before = browser.run("kept", "return await page.innerText('#talk')")
    browser.run("kept", "await page.reload(); await page.waitForSelector('article.assistant');")
    assert browser.run("kept", "return await page.innerText('#talk')") == before
    browser.run("kept", "await page.click('#new')")
    assert browser.run("kept", "return await page.innerText('#talk')") == ""
    browser.run("kept", "await page.click('#list .open')")
    assert browser.run("kept", "return await page.innerText('#talk')") == before
    browser.run("kept", "await page.click('#list .drop')")
    assert (
        browser.run("kept", "return await page.evaluate(() => localStorage['weft.talks'])") == "[]"
    )


def test_the_same_seed_gives_the_same_again(browser: Browser, server: Running) -> None:
    first = browser.run("again", ASK + DONE + SAID, given(server, seed="11", temperature="1"))
    click = "await page.click('article.assistant .tools button:last-of-type');"
    assert browser.run("again", click + DONE + SAID) == first


@pytest.mark.parametrize(("how", "begun"), covering(["button", "Escape"], [False, True]))
def test_stop(browser: Browser, server: Running, tmp_path: Path, how: str, begun: bool) -> None:
    """Before the first word, and in the middle of an answer, which the server cannot end by
    itself before that."""
    button, key = "await page.click('#stop');", "await page.keyboard.press('Escape');"
    stop = key if how == "Escape" else button
    who = f"stop {how} {begun}"
    with holding(server, file=tmp_path / "steps") as gate:
        browser.run(who, ASK, given(server, max_tokens="480", temperature="0"))
        until(lambda: answers(server) == 1)
        if begun:
            gate.let(4)
            written = "document.querySelector('article.assistant .said')?.textContent"
            browser.run(who, f"await page.waitForFunction(() => {written});")
        browser.run(who, stop + READY)
        talk = browser.run(who, "return await page.innerText('#talk')")
        assert ("stopped" in talk) == begun
        assert begun or talk.strip().endswith("Edit")  # nothing was written yet
    until(lambda: all(m.idle for m in server.shelf.decoders()))


def test_what_was_deleted_comes_back(browser: Browser, server: Running) -> None:
    browser.run("undo", ASK + DONE, given(server, seed="5"))
    before = browser.run("undo", "return await page.innerText('#talk')")
    browser.run("undo", "await page.click('#list .drop')")
    assert browser.run("undo", "return await page.innerText('#talk')") == ""
    browser.run("undo", "await page.click('#undo')")
    assert browser.run("undo", "return await page.innerText('#talk')") == before
    browser.run("undo", "await page.reload(); await page.waitForSelector('article.assistant');")
    assert browser.run("undo", "return await page.innerText('#talk')") == before


def test_by_keyboard_alone(browser: Browser, server: Running) -> None:
    """The last message comes back to be edited, Escape closes what is open."""
    browser.run("keys", ASK + DONE, given(server))
    before = browser.run("keys", "return await page.innerText('#talk')")
    press = "await page.focus('#text'); await page.keyboard.press('{}');"
    field = "return await page.inputValue('#text')"
    assert browser.run("keys", press.format("ArrowUp") + field) == TEXT
    assert browser.run("keys", press.format("Escape") + field) == ""
    assert browser.run("keys", "return await page.innerText('#talk')") == before
    browser.run("keys", press.format("ArrowUp") + press.format("!") + press.format("Enter") + READY)
    said = "return await page.locator('article.user .said').allInnerTexts()"
    assert browser.run("keys", said) == [TEXT + "!"]
    code = """
await page.focus("#settings summary"); await page.keyboard.press("Enter");
const opened = await page.isVisible("#temperature");
await page.keyboard.press("Escape");
return [opened, await page.isVisible("#temperature")];
"""
    assert browser.run("keys", code) == [True, False]


@pytest.mark.parametrize("clipboard", [True, False])
def test_copying_says_what_it_did(browser: Browser, server: Running, clipboard: bool) -> None:
    """With the clipboard that pages have on localhost, and without it."""
    grant = "await it.context.grantPermissions(['clipboard-read', 'clipboard-write']);"
    take = "await page.evaluate(() => Object.defineProperty(navigator, 'clipboard', {}));"
    who = f"copy {clipboard}"
    browser.run(who, grant + ASK + DONE, given(server))
    code = """
await page.click("article.user .tools button");
await page.waitForFunction(() => document.querySelector("article.user .tools button").textContent
  === "Copied");
"""
    browser.run(who, ("" if clipboard else take) + code)
    paste = "await page.focus('#text'); await page.keyboard.press('Control+v');"
    assert browser.run(who, paste + "return await page.inputValue('#text')") == TEXT


@pytest.mark.parametrize(
    "size",
    [(320, 568), *(pytest.param(x, marks=pytest.mark.slow) for x in ((390, 800), (1280, 800)))],
)
def test_nothing_is_wider_than_the_screen(
    browser: Browser, server: Running, size: tuple[int, int]
) -> None:
    talk = [{"id": "a", "title": "", "messages": [
        {"role": "user", "content": "w" * 300},
        {"role": "assistant", "content": f"```\n{'x' * 300}\n```\n|a|b|\n|-|-|\n|{'y' * 200}|2|\n"},
    ]}]  # fmt: skip
    code = """
await page.setViewportSize({ width: given.size[0], height: given.size[1] });
await page.goto(given.url);
await page.evaluate((talk) => localStorage.setItem("weft.talks", talk), given.talk);
await page.reload();
await page.waitForSelector("article.assistant");
const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
await page.click("#settings summary");
const box = await page.locator(".fields").boundingBox();
return [wide, box.x >= 0 && box.x + box.width <= given.size[0]];
"""
    asked = {"url": server.url, "size": size, "talk": json.dumps(talk)}
    assert browser.run(f"size {size}", code, asked) == [False, True]


def test_a_model_without_a_template_goes_on(browser: Browser, alone: Decoder) -> None:
    """Also where it is loaded only when it is asked."""
    with serving({"plain": str(box_folder())}) as running:
        asked = {**given(running, temperature="0"), "text": "def f(x):"}
        said = browser.run("plain", ASK + DONE + SAID, asked)
    assert said == alone.generate("def f(x):", max_new_tokens=24).text


def test_an_error_is_said(browser: Browser, server: Running) -> None:
    wrong = given(server, max_tokens="100000")
    browser.run("wrong", ASK + "await page.waitForSelector('#error:not([hidden])');", wrong)
    assert "context" in browser.run("wrong", "return await page.textContent('#error')")


SAY = """
await page.fill("#text", given);
await page.press("#text", "Enter");
"""


@pytest.mark.parametrize(
    ("chat", "most"), few(itertools.product([True, False], ["", "40"]), (True, "40"))
)
def test_a_full_context_ends_no_conversation(
    browser: Browser, tmp_path: Path, chat: bool, most: str
) -> None:
    """The oldest turns leave it, which is said once; also those that were too long."""
    folder = chatty_box(tmp_path / "box", context=128)
    if not chat:
        (folder / "chat_template.jinja").unlink()
    who = f"full {chat} {most}"
    with serving({"box": str(folder)}) as running:
        asked = {**given(running, max_tokens=most, temperature="0"), "text": "def f(x):"}
        browser.run(who, ASK + DONE, asked)
        for n in range(2, 9):
            code = SAY + f"await page.waitForFunction(() => {ANSWERED} === {n});" + READY
            browser.run(who, code, f"\nWrite a loop over {n}.")
        talk = browser.run(who, "return await page.innerText('#talk')")
        assert talk.count("the oldest turns are not read") == 1
        assert browser.run(who, "return await page.isVisible('#error')") is False
        browser.run(who, SAY + "await page.waitForSelector('#error:not([hidden])');", "a b " * 99)
        assert "context holds 128" in browser.run(who, "return await page.textContent('#error')")
        code = SAY + f"await page.waitForFunction(() => {ANSWERED} === 9);" + READY
        browser.run(who, code, "\nWrite.")
        assert browser.run(who, "return await page.isVisible('#error')") is False
    assert browser.run(who, "return it.errors") == [ERROR_400]


ANSWERED = "document.querySelectorAll('article.assistant').length"
ERROR_400 = "Failed to load resource: the server responded with a status of 400 (Bad Request)"

MARKS = {
    "a **b** *c* `d` [e](https://f.example/)": "<p>a <strong>b</strong> <em>c</em> <code>d</code> "
    '<a href="https://f.example/" rel="noopener noreferrer" target="_blank">e</a></p>',
    "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>",
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "# One\ntext\n- a\n- b\n  - c": "<h3>One</h3><p>text</p><ul><li>a</li><li>b<ul><li>c</li></ul>"
    "</li></ul>",
    "3. x\n4. y": '<ol start="3"><li>x</li><li>y</li></ol>',
    "> quote\n> more": "<blockquote><p>quote\nmore</p></blockquote>",
    "|a|b|\n|-|-|\n|1|2|": '<div class="scroll"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
    "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>",
    "```py\nx = 1 < 2\n": '<div class="block"><pre><code>x = 1 &lt; 2\n</code></pre>'
    "<button>Copy</button></div>",
}


def test_markdown_is_elements_not_markup(browser: Browser, server: Running) -> None:
    code = """
await page.goto(given.url);
return await page.evaluate(async (texts) => {
  const { blocks } = await import("/page/markdown.js");
  const { element } = await import("/page/elements.js");
  return texts.map((text) => element("div", ...blocks(text)).innerHTML);
}, given.texts);
"""
    made = browser.run("marks", code, {"url": server.url, "texts": list(MARKS)})
    assert dict(zip(MARKS, made)) == MARKS


def test_markdown_takes_any_text_in_little_time(browser: Browser, server: Running) -> None:
    code = """
await page.goto(given);
return await page.evaluate(async () => {
  const { blocks } = await import("/page/markdown.js");
  const { element } = await import("/page/elements.js");
  const long = ["`", "*", "[", "**a", "> ", "- ", "|", "[a](", "```\\n", "\\n\\n", "# "];
  const start = performance.now();
  for (const part of long) element("div", ...blocks(part.repeat(3000)));
  return performance.now() - start;
});
"""
    assert browser.run("long", code, server.url) < 20_000


def test_types() -> None:
    need("typescript")
    options = "--noEmit --allowJs --checkJs --strict --skipLibCheck --target es2023 --module esnext"
    words = [*options.split(), "--moduleResolution", "bundler", "--lib"]
    files = [str(path) for path in FILES.values() if path.suffix == ".js"]
    command = [str(MODULES / ".bin" / "tsc"), *words, "es2023,dom,dom.iterable", *files]
    made = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stdout
