"""A visitor's browser writes what the CPU writes: Chromium, WebGPU on SwiftShader, a tiny llama."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from page_kit import WORKER, Browser, Page, Pages, Site

PROMPT = "def fibonacci(n):"
TARGETS = ("wasm", "webgpu")
SAMPLED = {
    "temperature": 0.9, "seed": 7, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.1
}  # fmt: skip

OPEN = """
await page.goto(`${given.url}blank.html`);
it.cdp = await it.context.newCDPSession(page);
return await page.evaluate(async (target) => {
  const { load } = await import("./weft.js");
  globalThis.model = await load("./", { target });
  globalThis.hold = (steps) => model.worker.postMessage({ steps }); // page_kit.py's gate
  globalThis.held = () => new Promise((done) => model.worker.addEventListener("message",
    ({ data }) => data.held !== undefined && done()));
  globalThis.write = async (options, prompt, each = () => {}) => {
    const out = { ids: [], text: "", finish: null };
    for await (const { text, ids, finish } of model.generate(prompt, options)) {
      out.ids.push(...ids);
      out.text += text;
      out.finish = finish;
      await each(out);
    }
    return out;
  };
  return model.about;
}, given.target);
"""
WRITE = "return await page.evaluate(({ options, prompt }) => write(options, prompt), given);"
SEEN = f"return await {WORKER}.evaluate(() => ({{ ...seen }}));"


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)],
                ids=["light", "tiles"])  # fmt: skip
def page(pages: Pages, request: Any) -> Page:
    """A light page, and with the slow tests also one with the shaders that every visitor gets."""
    return pages(tiles=request.param)


@pytest.fixture(scope="module")
def site(page: Page) -> Iterator[Site]:
    served = Site(page.folder)
    yield served
    served.close()


@pytest.fixture(scope="module", params=TARGETS)
def visitor(browser: Browser, site: Site, request: Any) -> Iterator[Visitor]:
    yield Visitor(browser, site, request.param)


class Visitor:
    """One with the model loaded through the player's API, from a page with nothing else on it."""

    def __init__(self, browser: Browser, site: Site, target: str) -> None:
        self.browser, self.target = browser, target
        self.about = self.run(OPEN, {"url": site.url, "target": target})
        assert self.about["target"] == target
        self.ready = self.run(SEEN)

    def run(self, code: str, given: Any = None) -> Any:
        return self.browser.run(self.target, code, given)

    def heaps(self) -> list[int]:
        """Bytes of JavaScript's objects and array buffers, of the page and of its worker."""
        return self.run("""
return await new Promise(async (done) => {
  const method = "Runtime.getHeapUsage";
  const sum = ({ usedSize, backingStorageSize }) => usedSize + backingStorageSize;
  const page = sum(await it.cdp.send(method));
  it.cdp.on("Target.receivedMessageFromTarget", ({ message }) => {
    const { id, result } = JSON.parse(message);
    if (id === 1) done([page, sum(result)]);
  });
  // the page's other workers are threads, which answer nothing while they wait for work
  const attached = ({ sessionId, targetInfo }) => {
    if (!targetInfo.url.includes("/worker.js")) return;
    it.cdp.off("Target.attachedToTarget", attached);
    it.cdp.send(
      "Target.sendMessageToTarget", { sessionId, message: JSON.stringify({ id: 1, method }) });
  };
  it.cdp.on("Target.attachedToTarget", attached);
  const stop = { autoAttach: false, waitForDebuggerOnStart: false, flatten: false };
  await it.cdp.send("Target.setAutoAttach", stop);
  await it.cdp.send("Target.setAutoAttach", { ...stop, autoAttach: true });
});""")

    def write(self, **options: Any) -> Any:
        return self.run(WRITE, {"prompt": PROMPT, "options": options})


def test_the_text_is_the_cpus(visitor: Visitor, page: Page) -> None:
    want = page.model.generate(PROMPT, max_new_tokens=24)
    got = visitor.write(maxNewTokens=24)
    assert (got["ids"], got["text"]) == (list(want.ids), want.text)


def test_sampling_is_pythons(visitor: Visitor, page: Page) -> None:
    want = page.model.generate(PROMPT, max_new_tokens=24, **SAMPLED)
    got = visitor.write(
        maxNewTokens=24, temperature=0.9, seed=7, topP=0.95, topK=40, repetitionPenalty=1.1
    )
    assert (got["ids"], got["text"]) == (list(want.ids), want.text)


def test_a_stop_is_one(visitor: Visitor, page: Page) -> None:
    """The step that is being made then is the last."""
    got = visitor.run(
        """
return await page.evaluate(async (prompt) => {
  const stop = new AbortController();
  hold(5);
  const waits = held();
  const written = write({ maxNewTokens: 400, signal: stop.signal }, prompt);
  await waits;
  stop.abort();
  hold(Infinity);
  return await written;
}, given);""",
        PROMPT,
    )
    want = page.model.generate(PROMPT, max_new_tokens=6).ids
    assert got["finish"] == "aborted" and got["ids"] == list(want)[: len(got["ids"])]
    assert 0 < len(got["ids"]) <= 6


def test_two_texts_at_once(visitor: Visitor, page: Page) -> None:
    got = visitor.run(
        """
return await page.evaluate((prompts) => Promise.all(prompts.map((prompt) =>
  write({ maxNewTokens: 12 }, prompt))), given);""",
        [PROMPT, "class Stack:"],
    )
    for text, prompt in zip(got, (PROMPT, "class Stack:"), strict=True):
        assert text["ids"] == list(page.model.generate(prompt, max_new_tokens=12).ids)


def test_nothing_is_made_after_ready(visitor: Visitor) -> None:
    assert visitor.run(SEEN) == visitor.ready


def beside(page: Page, about: Any) -> int:
    """Bytes of WebAssembly's memory before the places of a Program (js/wasm.js): what the module
    holds, 13 words that threads share, and each thread's stack and scratch."""
    meta = json.loads((page.folder / "wasm.json").read_text())
    name = "kernels-relaxed.wasm" if "relaxed" in about["device"]["SIMD"] else "kernels.wasm"
    threads = int(str(about["device"]["Threads"]).split(":")[0])
    sizes = [meta["modules"][name][0], 4 * 13, *[(1 << 20) + meta["scratch"]] * threads]
    return sum(-(-n // 256) * 256 for n in sizes)


def test_memory_is_what_the_manifest_says(visitor: Visitor, page: Page) -> None:
    """The GPU's to the byte, WebAssembly's to its page; JavaScript's hardly grows."""
    want = page.manifest["memory"][visitor.target]
    if visitor.target == "webgpu":
        assert visitor.about["bytes"] == visitor.ready["most"] == want
    else:
        assert visitor.about["bytes"] == -(-(beside(page, visitor.about) + want) >> 16) << 16
    before = sum(visitor.heaps())
    for _ in range(3):
        visitor.write(maxNewTokens=24)
    assert sum(visitor.heaps()) - before < 32 << 20


def test_nothing_was_complained_about(visitor: Visitor) -> None:
    assert visitor.run("return it.errors;") == []
    noted = visitor.run("return await page.evaluate(() => noted);")
    assert noted["violations"] == []
