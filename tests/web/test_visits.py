"""The page as a person meets it: a visit, one that fetches nothing, one without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page_kit import Browser, Page, Pages, Site

VISIT = """
await page.goto(given);
await it.ready();
"""
WRITE = """
await page.fill("#prompt", given);
await page.evaluate(() => { document.getElementById("tokens").value = 24; });
await page.click("#run");
await page.waitForSelector("body[data-written]");
return await page.textContent("#output");
"""
PROMPT = "def fibonacci(n):"


@pytest.fixture(
    params=["wasm", pytest.param("webgpu", marks=pytest.mark.slow)],
)
def visit(pages: Pages, request: Any) -> Iterator[tuple[Site, Page, str]]:
    """A site, its page, and the target that plays there."""
    target = request.param
    page = pages("box") if target == "wasm" else pages()
    served = Site(page.folder)
    yield served, page, target
    served.close()


def test_three_visits(browser: Browser, visit: tuple[Site, Page, str]) -> None:
    """The text is the CPU's each time. With the model in the box on WebAssembly; with a tiny one
    on WebGPU."""
    site, page, target = visit
    want = PROMPT + page.model.generate(PROMPT, max_new_tokens=24).text
    url, who = f"{site.url}?target={target}", f"guest of {target}"

    browser.run(who, VISIT, url)
    assert browser.run(who, WRITE, PROMPT) == want
    browser.run(who, "await page.evaluate(() => navigator.serviceWorker.ready);")

    site.files.clear()
    browser.run(who, VISIT, url)
    assert browser.run(who, WRITE, PROMPT) == want
    site.files.pop("sw.js", None)  # the browser looks whether there is a newer one
    assert site.files == {}

    site.close()
    browser.run(who, VISIT, url)
    assert browser.run(who, WRITE, PROMPT) == want

    noted = browser.run(who, "return await page.evaluate(() => noted);")
    assert noted["violations"] == []
    errors = browser.run(who, "return it.errors;")
    assert [e for e in errors if "ERR_CONNECTION_REFUSED" not in e] == []  # sw.js, offline
