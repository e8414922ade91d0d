"""A GPU that goes away at the worst moments: the text is that of one that stays."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_device import PLAYER
from page_kit import COUNTED, WORKER, Browser, Pages, Site, export_light, need
from test_browser import OPEN, PROMPT, WRITE
from test_encoder import BERT, SENTENCES, minilm_folder

import weft
from weft.models import random_folder

# The software adapter passes for a GPU, so that it is what "auto" takes.
REAL = """
if (self.GPUAdapterInfo) {
  Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { value: false });
}
"""
# Put before the worker's code: as many devices as `doomed` says are lost while they are being
# filled; with `gone` there is no adapter any more.
FRAIL = """
Object.assign(self, { devices: [], doomed: 0, gone: false });
if (self.GPUAdapter) {
  const [ask, make] = [GPU.prototype.requestAdapter, GPUAdapter.prototype.requestDevice];
  GPU.prototype.requestAdapter = async function (...how) {
    return gone ? null : ask.apply(this, how);
  };
  GPUAdapter.prototype.requestDevice = async function (...how) {
    const device = await make.apply(this, how);
    devices.push(device);
    if (doomed-- > 0) device.destroy();
    return device;
  };
}
"""
# Before step `at`, in the midst of a sentence or of a long prompt.
LOSE = """
const worker = page.workers().find((w) => w.url().includes('/worker.js'));
it.lose = (state) => worker.evaluate((state) => {
  Object.assign(self, state);
  devices.at(-1).destroy();
}, state);
if (!it.exposed) await page.exposeFunction("lose", (state) => it.lose(state));
it.exposed = true;
const before = await worker.evaluate(() => devices.length);
const got = await page.evaluate(async ({ prompt, at, state }) => {
  hold(at);
  const waits = held();
  const written = write({ maxNewTokens: 16 }, prompt);
  await waits;
  await lose(state);
  hold(Infinity);
  return await written;
}, given);
const { target, why } = await page.evaluate(() => model.about);
return { ...got, target, why, lost: await worker.evaluate(() => devices.length) - before };
"""
LONG = "def fibonacci(n):\n    return n\n\n\n" * 20


@pytest.fixture(scope="module")
def frail(pages: Pages) -> Iterator[Site]:
    served = Site(pages().folder, COUNTED + REAL + FRAIL)
    yield served
    served.close()


def lose(browser: Browser, prompt: str, at: int, **state: Any) -> Any:
    given = {"prompt": prompt, "at": at, "state": {"doomed": 0, "gone": False, **state}}
    return browser.run("frail", LOSE, given)


def test_a_device_that_never_comes_back(browser: Browser, frail: Site, pages: Pages) -> None:
    """WebAssembly writes the rest of the sentence, and the page says why."""
    want = list(pages().model.generate(PROMPT, max_new_tokens=16).ids)
    about = browser.run("frail", OPEN, {"url": frail.url, "target": "auto"})
    assert about["target"] == "webgpu"
    got = lose(browser, PROMPT, 5, gone=True)
    assert (got["ids"], got["lost"], got["target"]) == (want, 0, "wasm")
    assert "no GPU" in got["why"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_devices_lost_again_and_again(browser: Browser, pages: Pages) -> None:
    """While it is filled, twice more in a row in mid-sentence, and in a long prompt."""
    model = pages().model
    site = Site(pages().folder, COUNTED + REAL + FRAIL.replace("doomed: 0", "doomed: 1"))
    try:
        browser.run("frail", OPEN, {"url": site.url, "target": "auto"})
        seen = f"return await {WORKER}.evaluate(() => devices.length);"
        assert browser.run("frail", seen) == 2
        for prompt, at, doomed in ((PROMPT, 5, 2), (LONG, 1, 0)):
            got = lose(browser, prompt, at, doomed=doomed)
            assert got["ids"] == list(model.generate(prompt, max_new_tokens=16).ids)
            assert (got["lost"], got["target"]) == (1 + doomed, "webgpu")
    finally:
        site.close()


REFUSING = """
const make = GPUDevice.prototype.createBuffer;
GPUDevice.prototype.createBuffer = function (about) {
  const made = make.call(this, about);
  setTimeout(() => this.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror",
    { error: new GPUOutOfMemoryError("no room") })));
  return made;
};
"""


def test_a_gpu_without_room_leaves_the_model_to_webassembly(browser: Browser, pages: Pages) -> None:
    site = Site(pages().folder, REAL + REFUSING)
    try:
        about = browser.run("full", OPEN, {"url": site.url, "target": "auto"})
        assert about["target"] == "wasm" and "MB of memory" in about["why"]
        got = browser.run("full", WRITE, {"prompt": PROMPT, "options": {"maxNewTokens": 8}})
        assert got["ids"] == list(pages().model.generate(PROMPT, max_new_tokens=8).ids)
    finally:
        site.close()


TRAIN = """
const { load, trainer } = await import(process.argv[1] + "/node.js");
const model = await load(process.argv[2]);
const train = await trainer(model, "scratch");
async function steps() {
  const made = [];
  const run = train.train(process.argv[3], { steps: 4, seed: 3 });
  for await (const { step, loss } of run) made.push([step, loss]);
  return made;
}
const said = ({ message }) => message;
const first = await steps();
train.device.gone = async () => "the GPU was lost (as a test)";
train.sessions.run = () => Promise.reject(new Error("refused"));
const lost = await steps().catch(said);
const files = await train.files().catch(said);
console.log(JSON.stringify({ first, lost, files, again: await steps() }));
process.exit(0);
"""


@pytest.mark.slow
def test_a_training_that_is_lost_says_so_and_starts_anew(
    small_page: tuple[Path, Any],
) -> None:
    """On WebAssembly, told that it is lost: a GPU in software compiles a step for minutes."""
    need()
    folder, _ = small_page
    call = ["node", "--input-type=module", "-e", TRAIN, PLAYER.as_uri(), str(folder)]
    call += [Path(__file__).read_text()[:1500]]
    out = subprocess.run(call, capture_output=True, text=True, timeout=240, check=False)
    assert out.returncode == 0, out.stderr
    got = json.loads(out.stdout)
    gone = "what was trained is gone: start the training again"
    assert got["again"] == got["first"] and [step for step, _ in got["first"]] == [1, 2, 3, 4]
    assert (got["lost"], got["files"]) == (f"the GPU was lost (as a test); {gone}", gone)


FORGET = """
const worker = page.workers().find((w) => w.url().includes('/worker.js'));
await page.exposeFunction("lost", () => worker.evaluate(() => devices.at(-1).destroy()));
return await page.evaluate(async (texts) => {
  const rows = async (some) => (await model.embed(some)).map((row) => [...row]);
  const whole = await rows(texts);
  await lost();
  return [whole, await rows(texts)];
}, given);
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_goes_on_where_the_device_was_lost(browser: Browser, tmp_path: Path) -> None:
    encoder = random_folder(tmp_path / "bert", BERT, scale=0.5)
    shutil.copy(minilm_folder() / "tokenizer.json", encoder)
    export_light(weft.load(encoder, device="cpu"), tmp_path / "page")
    site = Site(tmp_path / "page", REAL + FRAIL)
    try:
        browser.run("notes", OPEN, {"url": site.url, "target": "webgpu"})
        whole, broken = browser.run("notes", FORGET, SENTENCES[:3])
        assert broken == whole
        seen = f"return await {WORKER}.evaluate(() => devices.length);"
        assert browser.run("notes", seen) == 2
    finally:
        site.close()
