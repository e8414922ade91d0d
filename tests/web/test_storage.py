"""What browsers deny and what others do meanwhile: storage, memory, another tab, a newer folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_kit import Browser, Firefox, Pages, Site
from rows import few
from test_visits import PROMPT, VISIT, WRITE

# Put before the worker's code, and run in the page before its own.
DENIED = """
const denied = { get() { throw new DOMException("denied", "SecurityError"); } };
for (const name of ["caches", "localStorage", "sessionStorage", "indexedDB"]) {
  Object.defineProperty(globalThis, name, denied);
}
for (const name of ["serviceWorker", "storage"]) Object.defineProperty(navigator, name, denied);
Object.defineProperty(navigator, "gpu", { value: undefined });
"""
SCRIPT = "await it.context.addInitScript(given);"
QUOTA = """
const cdp = await it.context.newCDPSession(page);
await cdp.send("Storage.overrideQuotaForOrigin", { origin: given.slice(0, -1), quotaSize: 1000 });
"""
KEPT = """
return await page.evaluate(async () => (await (await caches.open("weft-files-1")).keys())
  .map(({ url }) => url.split("/").at(-1).split("?")[0]).sort());
"""


@pytest.fixture
def folder(pages: Pages, tmp_path: Path) -> Path:
    """A copy of the tiny page, to be changed."""
    return Path(shutil.copytree(pages().folder, tmp_path / "site"))


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    served = Site(folder)
    yield served
    served.close()


@pytest.fixture
def text(pages: Pages) -> str:
    return PROMPT + pages().model.generate(PROMPT, max_new_tokens=24).text


def renewed(folder: Path) -> None:
    """Another export: one weight has changed, and so has the hash of its file."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    shard = manifest["shards"][0]
    data = bytearray((folder / shard[0]).read_bytes())
    data[2] ^= 1  # of the first weight, hardly
    (folder / shard[0]).write_bytes(data)
    shard[2] = hashlib.sha256(data).hexdigest()
    manifest["name"] = "newer"
    old = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    worker = folder / "sw.js"
    begins = re.search(r"\bmanifest\.json=(\w+)", worker.read_text())
    assert begins and old.startswith(begins[1])
    text = worker.read_text().replace("`${PAGE} ", "`${PAGE} newer ")
    rewritten(worker, text.replace(begins[1], new[: len(begins[1])]))


def rewritten(path: Path, text: str) -> None:
    """Another text, of a later time in HTTP's dates, which know seconds only."""
    later, new = path.stat().st_mtime + 2, path.with_suffix(".new")
    new.write_text(text)
    os.utime(new, (later, later))
    new.replace(path)  # whoever fetches it meanwhile gets all of one of the two


def test_storage_that_is_denied(browser: Browser, pages: Pages, text: str) -> None:
    site = Site(pages().folder, DENIED)
    try:
        browser.run("denied", SCRIPT, DENIED)
        browser.run("denied", VISIT, f"{site.url}?target=wasm")
        assert "keeps no files" in browser.run("denied", "return await page.textContent('#note');")
        assert browser.run("denied", WRITE, PROMPT) == text
    finally:
        site.close()


FRAMED = """
await page.setContent(`<iframe sandbox="allow-scripts" src="${given}"></iframe>`);
const wait = () => new Promise((done) => setTimeout(done, 50));
while (!page.frames()[1]?.url().startsWith("http")) await wait();
"""
SHOWN = """
return await page.frames()[1].evaluate(() => {
  for (const each of document.getAnimations()) each.finish();
  const shown = [...document.querySelectorAll("body > :not(script), main > :not([hidden])")].at(-1);
  return [getComputedStyle(shown).visibility, document.body.innerText];
});
"""


@pytest.mark.parametrize("kind", [Browser, Firefox])
def test_a_frame_without_an_origin(kind: type[Browser], pages: Pages) -> None:
    """Browsers give it no scripts of the page's, no worker and no storage: a sentence says so."""
    site, driven = Site(pages().folder), kind()
    try:
        driven.run("framed", FRAMED, site.url)
        visible, said = driven.run("framed", SHOWN)
        assert visible == "visible" and "allow-same-origin" in said
    finally:
        driven.close()
        site.close()


@pytest.mark.parametrize("target", few(["wasm", "webgpu"], "wasm"))
def test_no_room_to_keep_files(browser: Browser, site: Site, text: str, target: str) -> None:
    who = f"full {target}"
    browser.run(who, QUOTA, site.url)
    browser.run(who, VISIT, f"{site.url}?target={target}")
    assert "no room to keep" in browser.run(who, "return await page.textContent('#note');")
    assert browser.run(who, WRITE, PROMPT) == text


REFUSED = """
const { Memory } = WebAssembly;
WebAssembly.Memory = function (about) {
  if (about.shared || %s) throw new RangeError("could not allocate memory");
  return new Memory(about);
};
"""


def test_memory_that_is_refused(browser: Browser, pages: Pages, text: str) -> None:
    """To threads: one is left. To all: a sentence."""
    site = Site(pages().folder, REFUSED % "false")
    try:
        browser.run("one thread", VISIT, f"{site.url}?target=wasm")
        facts = browser.run("one thread", "return await page.textContent('#facts');")
        assert "1: the browser refused what threads need" in facts
        assert browser.run("one thread", WRITE, PROMPT) == text
    finally:
        site.close()
    site = Site(pages().folder, REFUSED % "true")
    try:
        failed = "await page.goto(given); await it.failed();"
        browser.run("no memory", failed, f"{site.url}?target=wasm")
        said = browser.run("no memory", "return await page.textContent('#error');")
        assert said.startswith("the browser gives no ") and "MiB of memory" in said
    finally:
        site.close()


@pytest.mark.slow
def test_two_tabs_one_closed_and_one_asleep(browser: Browser, site: Site, text: str) -> None:
    """Both fetch at once; one goes in the midst, the other sleeps in the midst of its sentence."""
    got = browser.run(
        "two",
        """
const other = await it.context.newPage();
await Promise.all([other.goto(given.url, { waitUntil: "commit" }), page.goto(given.url)]);
const begun = "#progress:not([hidden]), body[data-state=ready]";
await other.waitForSelector(begun, { state: "attached" });
await other.close();
await it.ready();
const cdp = await it.context.newCDPSession(page);
await page.fill("#prompt", given.prompt);
await page.evaluate(() => { document.getElementById("tokens").value = 24; });
await page.click("#run");
await cdp.send("Page.setWebLifecycleState", { state: "frozen" });
await new Promise((done) => setTimeout(done, 500));
await cdp.send("Page.setWebLifecycleState", { state: "active" });
await page.waitForSelector("body[data-written]");
return await page.textContent("#output");
""",
        {"url": f"{site.url}?target=wasm", "prompt": PROMPT},
    )
    assert got == text


NEWER_WAITS = """
await page.evaluate(async () => {
  const held = await navigator.serviceWorker.ready;
  await held.update();
  while (!held.waiting) await new Promise((done) => setTimeout(done, 50));
});
"""
MODEL = "return (await page.textContent('#facts')).includes('newer') ? 'newer' : 'older';"


def test_a_newer_folder_between_visits(browser: Browser, site: Site, folder: Path) -> None:
    """It is what the visit after the next plays, and the old files go."""
    url = f"{site.url}?target=wasm"
    browser.run("later", VISIT, url)
    browser.run("later", "await page.evaluate(() => navigator.serviceWorker.ready);")
    before = browser.run("later", KEPT)
    renewed(folder)
    browser.run("later", VISIT, url)
    assert browser.run("later", MODEL) == "older"
    browser.run("later", NEWER_WAITS)
    browser.run("later", VISIT, url)
    assert browser.run("later", MODEL) == "newer"
    assert browser.run("later", KEPT) == before
    versions = "return (await page.evaluate(() => caches.keys())).length;"
    assert browser.run("later", versions) == 2  # the weights', and one of the page


@pytest.mark.slow
def test_many_newer_folders(browser: Browser, site: Site, folder: Path) -> None:
    """Chromium lost some of the pages that the older worker gave as the newer one took over."""
    url = f"{site.url}?target=wasm"
    browser.run("often", VISIT, url)
    browser.run("often", "await page.evaluate(() => navigator.serviceWorker.ready);")
    for _ in range(60):
        renewed(folder)
        browser.run("often", VISIT, url)
        browser.run("often", NEWER_WAITS)
        browser.run("often", VISIT, url)


@pytest.mark.slow
def test_a_newer_folder_waits_for_another_tab(browser: Browser, site: Site, folder: Path) -> None:
    """A page loads all its files from one version: while one is open, visits get that one."""
    url = f"{site.url}?target=wasm"
    browser.run("held", VISIT, url)
    browser.run("held", "await page.evaluate(() => navigator.serviceWorker.ready);")
    browser.run("held", "it.other = await it.context.newPage(); await it.other.goto(given);", url)
    renewed(folder)
    browser.run("held", NEWER_WAITS)
    browser.run("held", VISIT, url)
    assert browser.run("held", MODEL) == "older"
    browser.run("held", "await it.other.close();")
    browser.run("held", VISIT, url)
    assert browser.run("held", MODEL) == "newer"


def test_a_newer_folder_during_the_download(browser: Browser, site: Site, folder: Path) -> None:
    """The manifest is the old one's, the weights are not: said, and mended by another try."""
    url = f"{site.url}?target=wasm"
    browser.run("mixed", VISIT, url)
    browser.run("mixed", "await page.evaluate(() => navigator.serviceWorker.ready);")
    browser.run("mixed", "await page.evaluate(() => caches.delete('weft-files-1'));")
    renewed(folder)
    browser.run("mixed", "await page.goto(given); await it.failed();", url)
    assert "its hash differs" in browser.run("mixed", "return await page.textContent('#error');")
    browser.run("mixed", NEWER_WAITS)
    browser.run("mixed", "await page.click('#load'); await it.ready();")
    assert browser.run("mixed", MODEL) == "newer"
