"""A conversation in a page outlives a reload, and its answers can be copied and asked for again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from page_kit import LLAMA, Browser, Site, export_light
from test_page_chat import LINES
from test_storage import DENIED

import weft
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Any]]:
    """The page of a tiny model with a template, and the model."""
    folder = tmp_path_factory.mktemp("chatting")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, folder)
    (folder / "chat_template.jinja").write_text(LINES)
    model = weft.load(random_folder(folder, LLAMA, seed=5), device="cpu", max_batch=1)
    page = tmp_path_factory.mktemp("site") / "page"
    export_light(model, page)
    site = Site(page)
    yield site, model
    site.close()


KIT = """
const visit = async () => {
  await page.goto(`${given.url}?target=wasm`);
  await it.ready();
};
const settled = () => page.waitForFunction(() => document.body.dataset.turns !== undefined
  && !document.querySelector("#chat-form [type=submit]").disabled);
const say = async (text) => {
  await page.fill("#say", text);
  await page.press("#say", "Enter");
  await settled();
};
const answers = () => page.locator(".assistant .said").allTextContents();
await visit();
"""
KEPT = f"""{KIT}
await it.context.grantPermissions(["clipboard-read", "clipboard-write"]);
await page.locator("#options summary").click();
await page.fill("#tokens", "12");
await page.locator("text=Instructions to the model").click();
await page.fill("#system", "Be brief.");
for (const text of given.said) await say(text);
const before = await answers();
await page.locator(".acts >> text=Copy").last().click();
await page.waitForFunction(() => document.querySelector("#chat-note").textContent === "Copied.");
const copied = await page.evaluate(() => navigator.clipboard.readText());
await page.fill("#say", "a draft");
await page.setViewportSize({{ width: 390, height: 200 }}); // the conversation is longer
await visit();
await page.waitForFunction(() => {{ // it shows its end
  const {{ scrollHeight, scrollTop, clientHeight }} = document.querySelector("#turns");
  return scrollTop > 0 && scrollHeight - scrollTop - clientHeight < 2;
}});
const seen = await page.evaluate(() =>
  [...document.querySelectorAll(".said, textarea, pre")].map(({{ dir }}) => dir === "auto"));
const [after, draft] = [await answers(), await page.inputValue("#say")];
await page.locator("#options summary").click();
await page.fill("#tokens", "12");
await say(given.next);
const last = (await answers()).at(-1);
await page.click("text=Regenerate");
await settled();
const again = (await answers()).at(-1);
await page.click("text=Edit question");
const [edited, turns] = [await page.inputValue("#say"), await page.locator(".turn").count()];
await page.click("text=New conversation");
await visit();
const [cleared, kept] = [await answers(), await page.evaluate(() => Object.keys(localStorage))];
return {{ before, copied, after, draft, last, again, edited, turns, cleared, kept, seen,
  errors: it.errors }};
"""


def test_a_conversation_outlives_a_reload(chatting: tuple[Site, Any], browser: Browser) -> None:
    """The next answer is Python's to the whole conversation, its instructions too."""
    site, model = chatting
    said = ["def f(x):", "and next?", "return 1"]
    messages, want = [{"role": "system", "content": "Be brief."}], []
    for text in said:
        messages.append({"role": "user", "content": text})
        made = model.generate(model.chat_ids(messages), max_new_tokens=12).text
        messages.append({"role": "assistant", "content": made})
        want.append(made)
    given = {"url": site.url, "said": said[:2], "next": said[2]}
    seen = browser.run("kept", KEPT, given)
    assert seen["before"] == seen["after"] == want[:2] and seen["copied"] == want[1]
    assert all(seen["seen"])  # each text is in its own direction
    assert seen["draft"] == "a draft" and seen["last"] == want[2]
    assert seen["again"] != want[2]
    assert seen["edited"] == said[2] and seen["turns"] == 4
    assert seen["cleared"] == seen["kept"] == seen["errors"] == []


SPOILT = f"""{KIT}
const key = `weft-chat ${{new URL(given.url).pathname}}`;
for (const text of ["[", "null", '{{"turns": [{{"role": "system"}}]}}', '{{"turns": 3}}']) {{
  await page.evaluate(([key, text]) => localStorage.setItem(key, text), [key, text]);
  await visit();
}}
return [await answers(), it.errors];
"""


def test_what_makes_no_sense_is_no_conversation(
    chatting: tuple[Site, Any], browser: Browser
) -> None:
    assert browser.run("spoilt", SPOILT, {"url": chatting[0].url}) == [[], []]


NOTHING = f"""
await page.addInitScript(() => {{
  const Real = globalThis.Worker;
  globalThis.Worker = class extends Real {{
    constructor(url, ...more) {{
      super(url, ...more);
      if (`${{url}}`.includes("/worker.js")) globalThis.player = this;
    }}
  }};
}});
{KIT}
await say("one");
const seen = [await answers()];
const held = () => page.evaluate(() => {{
  globalThis.waits = new Promise((done) => player.addEventListener("message",
    ({{ data }}) => data.held !== undefined && done()));
  player.postMessage({{ steps: 0 }});
}});
const stopped = async () => {{
  await page.evaluate(() => waits);
  await page.keyboard.press("Escape");
  await page.evaluate(() => player.postMessage({{ steps: Infinity }}));
  await settled();
  seen.push(await answers(), await page.inputValue("#say"), await page.textContent("#chat-note"));
}};
await held();
await page.fill("#say", "two");
await page.press("#say", "Enter");
await stopped();
await held();
await page.click("text=Regenerate");
await stopped();
return seen;
"""


def test_a_stop_before_the_first_word_leaves_things_as_they_were(
    chatting: tuple[Site, Any], browser: Browser
) -> None:
    """The question is the draft again; another answer does not replace the last one."""
    answers, *seen = browser.run("nothing", NOTHING, {"url": chatting[0].url})
    assert len(answers) == 1 and answers[0]
    assert seen == [answers, "two", "Stopped."] * 2


def test_a_chat_says_that_nothing_is_kept(chatting: tuple[Site, Any], browser: Browser) -> None:
    """Where storage is denied, as in a frame of another site."""
    site = Site(chatting[0].folder, DENIED)
    try:
        browser.run("unkept", "await it.context.addInitScript(given);", DENIED)
        code = f"{KIT} return page.textContent('#chat');"
        said = browser.run("unkept", code, {"url": site.url})
        assert "keeps no files" in said and "does not keep the conversation" in said
    finally:
        site.close()
