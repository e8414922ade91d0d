"""How a page's files come: cut and closed in the midst, once for all tabs, behind a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_kit import BLANK, Browser, Pages

from weft.web import server

PROMPT = "def fibonacci(n):"
OPENED = 5 << 20  # bytes of the weights that the first visitor gets
CHUNK = 1 << 16
GUARDED = ("manifest.json", "weights-", "wasm.json", "tokenizer.json", "kernels")


class Source:
    """A folder on a server that notes (name, first byte, bytes sent) of each answer. Weights end at
    `cut` bytes: at first the connection then waits for `go`, later it breaks, once. With `token`
    some files need a header, or `sig=good` in their address."""

    def __init__(self, folder: Path, cut: int = 0, token: bool = False) -> None:
        self.answers: list[list[Any]] = []
        self.asked: list[tuple[str, str, str]] = []
        self.cut, self.token, self.go = cut, token, threading.Event()
        source = self

        class Handler(server.Handler):
            def do_GET(self) -> None:
                at = urlsplit(self.path)
                name = at.path.removeprefix("/")
                if name == "blank.html":
                    self.send_response(200)
                    self.send_header("Content-Type", "text/html")
                    self.end_headers()
                    self.wfile.write(BLANK)
                elif source.token and name.startswith(GUARDED):
                    key = self.headers.get("Authorization", "")
                    source.asked.append((name, key, at.query))
                    if key == "Bearer good" or at.query == "sig=good":
                        super().do_GET()
                    else:
                        self.send_error(403 if at.query else 401)
                else:
                    super().do_GET()

            def copyfile(self, of: Any, outputfile: Any) -> None:
                name = urlsplit(self.path).path.removeprefix("/")
                if not name.startswith("weights-"):
                    return super().copyfile(of, outputfile)
                answer, waits = [name, of.tell(), 0], not source.go.is_set()
                source.answers.append(answer)
                try:
                    while data := of.read(CHUNK):
                        if source.cut and answer[2] >= source.cut:
                            if waits:
                                source.go.wait(60)
                            else:
                                source.cut = 0
                            self.close_connection = True
                            return
                        elif source.cut:
                            time.sleep(0.01)  # so that the page can say how long it takes
                        outputfile.write(data)
                        answer[2] += len(data)
                except OSError:
                    pass  # the visitor has gone

        make = partial(Handler, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), make)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def box(pages: Pages) -> Iterator[Source]:
    source = Source(pages("box").folder, cut=OPENED)
    yield source
    source.close()


BEGUN = """
await page.goto(`${given}?target=wasm`);
const parts = async () => (await (await caches.open("weft-files-1")).keys())
  .filter(({ url }) => url.includes("weights-")).length;
const code = `(${parts})()`;
while (await page.evaluate(code) < 2) await new Promise((done) => setTimeout(done, 50));
const said = await page.textContent("#progress-text");
it.next = await it.context.newPage();
await page.close();
return said;
"""
AGAIN = """
const page2 = it.next;
await page2.goto(`${given}?target=wasm`);
await page2.waitForSelector("body[data-state=ready], body[data-state=failed]");
return page2.evaluate(() => document.body.dataset.state);
"""


def test_a_closed_tab_and_a_cut_lose_little(box: Source, browser: Browser, pages: Pages) -> None:
    """The second visit begins within two MiB of where the first one ended, and a connection that
    breaks goes on where the browser has heard of it."""
    shard, size, _ = pages("box").manifest["shards"][0]
    said = browser.run("closed", BEGUN, box.url)
    assert "of 5.7 MB, about" in said and "s left" in said
    box.cut = 1 << 20
    box.go.set()
    assert browser.run("closed", AGAIN, box.url) == "ready"
    first, *later = [(at, sent) for name, at, sent in box.answers if name == shard]
    assert first[0] == 0 and len(later) == 2
    assert 2 * (2 << 20) <= later[0][0] <= OPENED and first[1] - later[0][0] < (3 << 20)
    assert later[0][0] < later[1][0] <= sum(later[0])
    assert sum(later[1]) == size
    again = sum(sent for _, sent in later) - (size - later[0][0])
    assert again < 8 * CHUNK  # what the browser had not handed on when the connection broke


STOPPED = """
await page.route("**/fetching.js", async (route) => { // asks before it fetches
  const response = await route.fetch();
  const body = (await response.text()).replace("16 * 2 ** 20", "1");
  await route.fulfill({ response, body });
});
await page.goto(`${given}?target=wasm`);
await page.click("#load");
await page.waitForSelector("#progress:not([hidden])");
await page.evaluate(() => document.activeElement.blur());
await page.keyboard.press("Escape");
await it.failed();
return page.textContent("#error");
"""


def test_escape_stops_a_download(box: Source, browser: Browser) -> None:
    """Wherever the focus is."""
    assert browser.run("stopped", STOPPED, box.url) == "Stopped."


TWO = """
const other = await it.context.newPage();
for (const each of [page, other]) await each.goto(`${given}blank.html`);
const open = async () => {
  const { load } = await import("./weft.js");
  globalThis.load = load;
  globalThis.models = await Promise.all([0, 1].map(() => load("./", { target: "wasm" })));
  return models.map(({ about }) => about.bytes);
};
const [mine, theirs] = await Promise.all([page.evaluate(open), other.evaluate(open)]);
const texts = await page.evaluate(async (prompt) => {
  const stop = new AbortController();
  const write = async (model, options, each = () => {}) => {
    const out = { ids: [], finish: null };
    for await (const { ids, finish } of model.generate(prompt, options)) {
      out.ids.push(...ids);
      out.finish = finish;
      each(out);
    }
    return out;
  };
  const [one, two] = models;
  const long = write(one, { maxNewTokens: 400, signal: stop.signal },
    ({ ids }) => ids.length > 2 && stop.abort());
  const both = await Promise.all([long, write(two, { maxNewTokens: 24 })]);
  one.close();
  const after = await write(two, { maxNewTokens: 24 });
  const closed = await write(one, {}).catch(({ message }) => message);
  return { both, after, closed };
}, "def fibonacci(n):");
return { mine, theirs, ...texts };
"""


def test_two_tabs_and_two_models_fetch_a_file_once(pages: Pages, browser: Browser) -> None:
    """Two models live in one page: each has its own memory, its own stop and its own end."""
    source = Source(pages().folder)
    try:
        seen = browser.run("two", TWO, source.url)
    finally:
        source.close()
    names = [name for name, *_ in source.answers]
    assert sorted(names) == sorted(name for name, *_ in pages().manifest["shards"])
    assert len({*seen["mine"], *seen["theirs"]}) == 1
    want = list(pages().model.generate(PROMPT, max_new_tokens=24).ids)
    stopped, whole = seen["both"]
    assert stopped["finish"] == "aborted" and len(stopped["ids"]) < 400
    assert whole["ids"] == want == seen["after"]["ids"]
    assert seen["closed"] == "the model was closed"


ACCESS = """
await page.goto(`${given}blank.html`);
return await page.evaluate(async () => {
  const { describe, load } = await import("./weft.js");
  const drop = () => caches.delete("weft-files-1");
  const tried = async (options) => {
    await drop();
    try {
      const model = await load("./", { target: "wasm", ...options });
      const ids = [];
      for await (const piece of model.generate("def fibonacci(n):", { maxNewTokens: 8 })) {
        ids.push(...piece.ids);
      }
      model.close();
      return ids;
    } catch ({ name, message }) {
      return `${name}: ${message}`;
    }
  };
  const bearer = (token) => ({ Authorization: `Bearer ${token}` });
  const calls = [];
  const fresh = (name, again) => {
    calls.push([name, again]);
    return `${name}?sig=${again ? "good" : "old"}`;
  };
  let token = "old";
  const own = async (address, how) => {
    const answer = await fetch(address, { ...how, headers: { ...how.headers, ...bearer(token) } });
    token = "good";
    return answer;
  };
  const out = {
    none: await tried({}),
    headers: await tried({ headers: bearer("good") }),
    fetch: await tried({ fetch: own }),
    address: await tried({ address: fresh }),
    map: await tried({ address: { "manifest.json": "manifest.json?sig=old" } }),
    broken: await tried({ fetch: async () => { throw new Error("no way"); } }),
    wrong: await tried({ headers: { Authorization: 3 } }),
    described: (await describe("./", { address: fresh })).kind,
  };
  return { ...out, calls: calls.filter(([, again]) => again).length, all: calls.length };
});
"""


def test_files_behind_a_token(pages: Pages, browser: Browser) -> None:
    """A header, the page's own fetch, signed addresses; what is refused is named."""
    source = Source(pages().folder, token=True)
    try:
        seen = browser.run("token", ACCESS, source.url)
    finally:
        source.close()
    want = list(pages().model.generate(PROMPT, max_new_tokens=8).ids)
    assert seen["headers"] == seen["fetch"] == seen["address"] == want
    assert "manifest.json needs a token or login (401)" in seen["none"]
    assert "manifest.json is not there or refused (403)" in seen["map"]
    assert "no way" in seen["broken"] and seen["broken"].startswith("WeftError")
    assert "headers is" in seen["wrong"] and seen["described"] == "decoder"
    assert seen["all"] == 2 * seen["calls"]  # each address was refused once
