"""What a page says of its model and its device: the licence, the base model, the GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from page_kit import Browser, Pages, Site

# Put before the worker's code: what it asks of WebGPU.
ASKED = """
self.asked = [];
if (self.GPU) {
  const ask = GPU.prototype.requestAdapter;
  GPU.prototype.requestAdapter = function (how) {
    asked.push(how?.powerPreference);
    return ask.call(this, { ...how, powerPreference: undefined });
  };
}
"""
FACTS = """
await page.goto(`${given}?target=webgpu`);
await it.ready();
const terms = await page.textContent("#terms");
const links = await page.locator("#terms a").evaluateAll((all) => all.map((a) => a.href));
await page.click("#tab-device");
const first = await page.textContent("#facts");
await page.evaluate(() => delete document.body.dataset.state);
await Promise.all([page.waitForNavigation(), page.selectOption("#power", "low-power")]);
await it.ready();
await page.click("#tab-device");
const worker = page.workers().find((w) => w.url().includes("/worker.js"));
return { terms, links, first, chosen: await page.inputValue("#power"), url: page.url(),
  asked: await worker.evaluate(() => asked), errors: it.errors };
"""


def test_the_licence_and_the_gpu_are_named(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pages().folder, tmp_path / "site"))
    manifest = json.loads((folder / "manifest.json").read_text())
    terms = {"licence": "apache-2.0", "base": ["org/<b>small"], "files": ["model-LICENSE"]}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "terms": terms}))
    site = Site(folder, ASKED)
    try:
        seen = browser.run("facts", FACTS, site.url)
    finally:
        site.close()
    said = f"Model: {manifest['name']}. Licence: apache-2.0 model-LICENSE. Made from: org/<b>small"
    assert seen["terms"] == said and seen["links"] == [f"{site.url}model-LICENSE"]
    assert "GPUgoogle, swiftshader" in seen["first"]
    assert seen["chosen"] == "low-power" and "power=low-power" in seen["url"]
    assert seen["asked"] == ["low-power"] and seen["errors"] == []
