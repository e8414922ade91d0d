"""The page as a person meets it: a visit, one that fetches nothing, one without a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_kit import Browser, Pages, Site

VISIT = """
await page.goto(given);
await page.waitForSelector("body[data-state=ready]");
"""
WRITE = """
await page.fill("#prompt", given);
await page.evaluate(() => { document.getElementById("tokens").value = 24; });
await page.click("#run");
await page.waitForSelector("body[data-written]");
return await page.textContent("#output");
"""
PROMPT = "def fibonacci(n):"


@pytest.fixture(scope="module")
def box(pages: Pages) -> Iterator[Site]:
    served = Site(pages("box").folder)
    yield served
    served.close()


def test_three_visits(browser: Browser, box: Site, pages: Pages) -> None:
    """With the model in the box, on WebAssembly: the text is the CPU's each time."""
    want = PROMPT + pages("box").model.generate(PROMPT, max_new_tokens=24).text
    url = f"{box.url}?target=wasm"

    browser.run("guest", VISIT, url)
    assert browser.run("guest", WRITE, PROMPT) == want
    browser.run("guest", "await page.evaluate(() => navigator.serviceWorker.ready);")

    box.files.clear()
    browser.run("guest", VISIT, url)
    assert browser.run("guest", WRITE, PROMPT) == want
    box.files.pop("sw.js", None)  # the browser looks whether there is a newer one
    assert box.files == {}

    box.close()
    browser.run("guest", VISIT, url)
    assert browser.run("guest", WRITE, PROMPT) == want

    noted = browser.run("guest", "return await page.evaluate(() => noted);")
    assert noted["violations"] == []
    assert [t for t in noted["tasks"] if t > 50] == []
    errors = browser.run("guest", "return it.errors;")
    assert [e for e in errors if "ERR_CONNECTION_REFUSED" not in e] == []  # sw.js, offline
