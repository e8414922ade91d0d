"""What the player's callers may ask for, and what a visitor's browser, page or address do to it."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_device import PLAYER
from page_kit import Browser, Pages, Site, need
from rows import few
from test_browser import OPEN, PROMPT, WRITE

from weft.web import server

REAL = 'Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { value: false });'


@pytest.fixture(scope="module")
def said(pages: Pages) -> dict[str, Any]:
    need()
    script = str(Path(__file__).with_name("asked.mjs"))
    done = subprocess.run(
        ["node", script, str(PLAYER), str(pages().folder)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_prompts_are_texts_or_ids_of_the_vocabulary(said: dict[str, Any]) -> None:
    prompts = said["prompts"]
    for name in ("text", "ids", "typed"):
        assert "Error" not in prompts[name]
    assert prompts["ids"] == prompts["typed"]
    wrong = {
        "letters": 'id 0 of the prompt is "a"', "null": "id 1 of the prompt is null",
        "half": "id 0 of the prompt is 1.5", "beyond": "is 4294967301", "minus": "is -1",
        "vocabulary": "is 2048; expected whole numbers from 0 to 2047", "nested": "is [1]",
        "big": "is 5n", "nothing": "the prompt is null; expected a text or a list of token ids",
        "number": "the prompt is 5", "object": 'the prompt is {"0":1}',
        "empty": "the prompt is empty",
    }  # fmt: skip
    for name, message in wrong.items():
        assert prompts[name].startswith("WeftError") and message in prompts[name], name


def test_options_are_checked_and_unknown_ones_refused(said: dict[str, Any]) -> None:
    good = [0, 17, 18, 24]  # with a stop of one text too
    for n, answer in enumerate(said["options"]):
        assert answer.startswith("WeftError") != (n in good), (n, answer)
    assert "generate has no option max_new_tokens; it has maxNewTokens," in said["options"][22]
    assert 'temperature is "hot"; expected a number from 0 on' in said["options"][7]
    assert all(answer.startswith("WeftError") for answer in said["loads"])
    assert 'target is "cuda"; expected "auto", "webgpu" or "wasm"' in said["loads"][0]
    assert "load has no option device" in said["loads"][3]
    assert "Node has no WebGPU: give it by the option gpu" in said["loads"][5]
    assert all(answer.startswith("WeftError") for answer in said["chat"] + said["embed"])


@pytest.fixture(scope="module")
def site(pages: Pages) -> Iterator[Site]:
    served = Site(pages().folder)
    yield served
    served.close()


def test_a_page_checks_before_its_worker(browser: Browser, site: Site) -> None:
    browser.run("asks", OPEN, {"url": site.url, "target": "wasm"})
    code = """
return await page.evaluate(async () => {
  const { load } = await import("./weft.js");
  const calls = [
    () => model.generate("x", { heat: 1 }).next(), () => model.generate([-1]).next(),
    () => model.chat([], { maxNewTokens: -1 }).next(), () => model.embed(["x"], { size: 1 }),
    () => load("./", { gpu: {} }), () => load("./", { target: 5 }), () => model.trainer("x", 5),
  ];
  return Promise.all(calls.map(async (call) => {
    try { return String(await call()); } catch (error) { return `${error.name}: ${error.message}`; }
  }));
});"""
    for answer in browser.run("asks", code):
        assert answer.startswith("WeftError: "), answer


def test_one_signal_for_many_calls_gathers_no_listeners(browser: Browser, site: Site) -> None:
    browser.run("signals", OPEN, {"url": site.url, "target": "wasm"})
    code = """
return await page.evaluate(async () => {
  const { signal } = new AbortController();
  let [now, most] = [0, 0];
  const { addEventListener: add, removeEventListener: remove } = EventTarget.prototype;
  signal.addEventListener = function (...args) {
    most = Math.max(most, ++now);
    return add.apply(this, args);
  };
  signal.removeEventListener = function (...args) { now--; return remove.apply(this, args); };
  for (let n = 0; n < 5; n++) await write({ maxNewTokens: 2, signal }, "x");
  for await (const piece of model.generate("x", { signal })) break;
  await model.embed(["x"], { signal }).catch(() => {});
  return [now, most];
});"""
    now, most = browser.run("signals", code)
    assert (now, most) == (0, 1)


PREFERENCES = [
    ("imitated", "", "auto", "wasm"),
    ("asked for", "", "webgpu", "webgpu"),
    ("real", REAL, "auto", "webgpu"),
    ("neither", "WebAssembly.validate = () => false;", "auto", "webgpu"),
]


@pytest.mark.parametrize("who,worker,target,played", few(PREFERENCES, PREFERENCES[0]))
def test_software_that_imitates_a_gpu_is_not_preferred(
    browser: Browser, pages: Pages, who: str, worker: str, target: str, played: str
) -> None:
    """WebAssembly is many times as fast; asked for, or as a real GPU, it is taken."""
    site = Site(pages().folder, worker)
    try:
        about = browser.run(who, OPEN, {"url": site.url, "target": target})
        assert about["target"] == played
        if who == "imitated":
            assert about["why"].startswith("this browser's WebGPU is software")
        browser.run(who, "await it.context.close();")
    finally:
        site.close()


class Guarded(server.Handler):
    """A folder whose files must be asked for with ?x=1, and a page with a policy of its own."""

    policy = ""

    def do_GET(self) -> None:
        name, _, query = self.path.removeprefix("/").partition("?")
        if name.endswith((".json", ".safetensors", ".bin")) and query != "x=1":
            return self.send_error(403)
        super().do_GET()

    def end_headers(self) -> None:
        if self.path.startswith("/blank.html") and self.policy:
            self.send_header("Content-Security-Policy", self.policy)
        super().end_headers()


def serving(folder: Path, policy: str = "") -> tuple[server.ThreadingHTTPServer, str]:
    kind = type("Kind", (Guarded,), {"policy": policy})
    made = server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(kind, directory=str(folder))
    )
    made.daemon_threads = True
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made, f"http://127.0.0.1:{made.server_address[1]}/"


@pytest.fixture
def copied(pages: Pages, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(pages().folder, tmp_path / "folder"))
    (folder / "blank.html").write_text("<!doctype html><title>blank</title>")
    return folder


def test_a_signed_address(browser: Browser, copied: Path, pages: Pages) -> None:
    """What follows the "?" goes with each file."""
    made, url = serving(copied)
    try:
        code = OPEN.replace('load("./", { target })', 'load("./?x=1", { target })')
        browser.run("signed", code, {"url": url, "target": "wasm"})
        got = browser.run("signed", WRITE, {"prompt": PROMPT, "options": {"maxNewTokens": 4}})
        assert got["ids"] == list(pages().model.generate(PROMPT, max_new_tokens=4).ids)
        script = f"""
import {{ load }} from {json.dumps((PLAYER / "node.js").as_uri())};
const model = await load({json.dumps(url + "?x=1")}, {{ target: "wasm", threads: 1 }});
console.log(model.manifest.name);
"""
        done = subprocess.run(
            ["node", "--input-type=module", "-e", script], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    finally:
        made.shutdown()
        made.server_close()


def test_a_policy_that_is_too_strict_is_named(browser: Browser, copied: Path) -> None:
    for policy, message in (
        ("worker-src 'none'", "Content-Security-Policy"),
        ("script-src 'self' 'unsafe-inline'; worker-src 'self'", "wasm-unsafe-eval"),
    ):
        made, url = serving(copied, policy)
        try:
            code = """
await page.goto(given.url + "blank.html");
return await page.evaluate(async () => {
  const { load } = await import("./weft.js");
  return await load("./?x=1", { target: "wasm" }).then(() => "loaded",
    (error) => `${error.name}: ${error.message}`);
});"""
            said = browser.run(policy, code, {"url": url})
            if message == "wasm-unsafe-eval" and said == "loaded":
                continue  # a worker has the policy of its own file
            assert said.startswith("WeftError") and message in said, said
        finally:
            made.shutdown()
            made.server_close()


def test_escape_stops_and_the_focus_stays(browser: Browser, site: Site) -> None:
    """The button that starts hands the focus to the one that stops, and gets it back."""
    go = """
await page.addInitScript(() => {
  const Real = globalThis.Worker;
  globalThis.Worker = class extends Real {
    constructor(url, ...more) {
      super(url, ...more);
      if (`${url}`.includes("/worker.js")) globalThis.player = this;
    }
  };
});
await page.goto(given);
await it.ready();
await page.evaluate(() => {
  document.getElementById("tokens").value = 400;
  globalThis.waits = new Promise((done) => player.addEventListener("message",
    ({ data }) => data.held !== undefined && done()));
  player.postMessage({ steps: 3 });
});
await page.fill("#prompt", "x");
await page.focus("#run");
await page.keyboard.press("Enter");
await page.evaluate(() => waits);
const during = await page.evaluate(() => document.activeElement.id);
await page.keyboard.press("Escape");
await page.evaluate(() => player.postMessage({ steps: Infinity }));
await page.waitForSelector("body[data-written]");
return [during, await page.evaluate(() => document.activeElement.id),
  Number(await page.evaluate(() => document.body.dataset.written))];
"""
    during, after, written = browser.run("keys", go, f"{site.url}?target=wasm")
    assert (during, after) == ("stop", "run") and written < 400


def test_each_file_of_the_player_crosses_the_network_once(browser: Browser, pages: Pages) -> None:
    """The service worker keeps what the page has just fetched."""
    site = Site(pages().folder)
    try:
        code = """
await page.goto(given);
await it.ready();
await page.evaluate(() => navigator.serviceWorker.ready);
return (await page.evaluate(() => caches.keys().then((all) => Promise.all(all.map((name) =>
  caches.open(name).then((cache) => cache.keys()).then((keys) => keys.length)))))).sort();
"""
        kept = browser.run("once", code, f"{site.url}?target=wasm")
        assert max(kept) > 25
        for name in ("page.js", "weft.js", "model.js", "wasm.js", "page.css", "tokenizer.json"):
            size = (pages().folder / name).stat().st_size
            assert site.sent[name] == size, (name, site.sent[name], size)
    finally:
        site.close()
