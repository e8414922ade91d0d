"""What a visitor's device may do and lack: a GPU process that dies, features and limits that go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from page_kit import WORKER, Browser, Pages, Site
from test_browser import OPEN, PROMPT, SEEN, WRITE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# The gate holds the sixth step until the worker has heard of the loss: an answer that is quicker
# than the crash would need no other device.
CRASH = f"""
const session = await it.browser.newBrowserCDPSession();
await page.evaluate(async (prompt) => {{
  hold(5);
  const waits = held();
  globalThis.writing = write({{ maxNewTokens: 24 }}, prompt);
  await waits;
}}, given);
await session.send("Browser.crashGpuProcess").catch(() => {{}});
await {WORKER}.evaluate(() => self.dies);
return await page.evaluate(() => (hold(Infinity), writing));
"""
# The optional features that a variant of a Program could ask for, and the adapter's limits beyond
# the default ones. Put before the worker's code: the browser has none of `without`.
LACKS = """
const without = %s;
const ask = GPU.prototype.requestAdapter;
GPU.prototype.requestAdapter = async function (...how) {
  const adapter = await ask.apply(this, how);
  const features = new Set([...adapter.features].filter((f) => !without.includes(f)));
  Object.defineProperty(adapter, "features", { value: features });
  if (without.includes("limits")) {
    const { limits } = await (await ask.apply(this, how)).requestDevice(); // the default ones
    Object.defineProperty(adapter, "limits", { value: limits });
  }
  return adapter;
};
"""
FEATURES = ("shader-f16", "subgroups", "limits")


@pytest.fixture
def fresh() -> Iterator[Browser]:
    driven = Browser()
    yield driven
    driven.close()


def test_a_killed_gpu_process(fresh: Browser, site: Site, pages: Pages) -> None:
    want = pages(tiles=True).model.generate(PROMPT, max_new_tokens=24)
    fresh.run("it", OPEN, {"url": site.url, "target": "webgpu"})
    before = fresh.run("it", SEEN)["pipelines"]
    got = fresh.run("it", CRASH, PROMPT)
    assert fresh.run("it", SEEN)["pipelines"] == 2 * before  # it did die
    assert (got["ids"], got["text"]) == (list(want.ids), want.text)


@pytest.mark.parametrize(
    "without",
    [list(c) for n in (1, 2, 3) for c in itertools.combinations(FEATURES, n)],
    ids=lambda each: "-".join(each),
)
def test_features_and_limits_that_lack(browser: Browser, pages: Pages, without: list[str]) -> None:
    site = Site(pages(tiles=True).folder, LACKS % without)
    try:
        who = "without " + " ".join(without)
        about = browser.run(who, OPEN, {"url": site.url, "target": "webgpu"})
        assert about["target"] == "webgpu"
        got = browser.run(who, WRITE, {"prompt": PROMPT, "options": {"maxNewTokens": 24}})
        assert got["ids"] == list(pages(tiles=True).model.generate(PROMPT, max_new_tokens=24).ids)
        browser.run(who, "await it.context.close();")
    finally:
        site.close()


# What is put before the worker's code, by what a browser lacks; WebAssembly plays then.
WITHOUT = {
    "gpu": 'Object.defineProperty(navigator, "gpu", { value: undefined });',
    "adapter": "GPU.prototype.requestAdapter = async () => null;",
    "relaxed": """{
  const { validate } = WebAssembly;
  WebAssembly.validate = (code) => !code.join().includes("253,128,2,") && validate(code);
}""",
    "threads": 'Object.defineProperty(self, "crossOriginIsolated", { value: false });',
    "simd": "WebAssembly.validate = () => false;",
}
WHY = {"gpu": "this browser has no WebGPU", "adapter": "no GPU that it would use"}


@pytest.mark.parametrize("gpu", WHY)
@pytest.mark.parametrize("more", [(), ("relaxed",), ("threads",), ("relaxed", "threads")])
def test_a_browser_without_webgpu(
    browser: Browser, pages: Pages, gpu: str, more: tuple[str, ...]
) -> None:
    site = Site(pages(tiles=True).folder, "\n".join(WITHOUT[each] for each in (gpu, *more)))
    try:
        who = " ".join((gpu, *more))
        about = browser.run(who, OPEN, {"url": site.url, "target": "auto"})
        assert about["target"] == "wasm" and WHY[gpu] in about["why"]
        assert ("relaxed" in about["device"]["SIMD"]) == ("relaxed" not in more)
        assert (about["device"]["Threads"] == "1: the server sends no COOP and COEP") == (
            "threads" in more
        )
        got = browser.run(who, WRITE, {"prompt": PROMPT, "options": {"maxNewTokens": 24}})
        assert got["ids"] == list(pages(tiles=True).model.generate(PROMPT, max_new_tokens=24).ids)
        browser.run(who, "await it.context.close();")
    finally:
        site.close()


@pytest.mark.parametrize("gpu", ["gpu", "adapter", None])
def test_a_browser_without_simd(browser: Browser, pages: Pages, gpu: str | None) -> None:
    """Only WebGPU can play; without that there is a sentence."""
    site = Site(
        pages(tiles=True).folder, "\n".join(WITHOUT[each] for each in (gpu, "simd") if each)
    )
    try:
        code = OPEN if gpu is None else OPEN.replace("return model.about;", "").replace(
            'await load("./", { target });',
            'await load("./", { target }).catch((error) => `${error.name}: ${error.message}`);\n'
            "  return model;",
        )  # fmt: skip
        said = browser.run(f"simd {gpu}", code, {"url": site.url, "target": "auto"})
        if gpu is None:
            assert said["target"] == "webgpu"
        else:
            assert said.startswith("WeftError: this browser has neither WebGPU nor WebAssembly")
    finally:
        site.close()
