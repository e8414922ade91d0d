"""The page in Firefox, by WebAssembly: its text is the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page_kit import Firefox, Pages, Site

PROMPT = "def fibonacci(n):"
OPEN = """
await page.goto(given);
await page.waitForSelector("body[data-state=ready], body[data-state=failed]");
return await page.evaluate(() => [document.body.dataset.state, self.crossOriginIsolated]);
"""
WRITE = """
await page.evaluate(() => {
  document.querySelector("#prompt").value = "";
  document.querySelector("#temperature").value = "0";
  document.querySelector("#tokens").value = "12";
});
await page.type("#prompt", given);
await page.click("#run");
await page.waitForSelector("body[data-written]");
return await page.evaluate(() => document.querySelector("#output").textContent);
"""
ASK = """
return await page.evaluate(async (prompt) => {
  const { load } = await import("./weft.js");
  const model = await load("./");
  const [ids, { target, threads }] = [[], model.about];
  for await (const piece of model.generate(prompt, { maxNewTokens: 12, temperature: 0.9, seed: 7 }))
    ids.push(...piece.ids);
  model.close();
  return { ids, target, threads };
}, given);
"""


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    driven = Firefox()
    yield driven
    driven.close()


def test_a_visitor_reads_the_text_of_the_cpu(firefox: Firefox, pages: Pages) -> None:
    page = pages()
    site = Site(page.folder, worker="")

    def run(code: str, given: Any) -> Any:
        return firefox.run("visitor", code, given)

    try:
        assert run(OPEN, site.url) == ["ready", True]
        written = page.model.generate(PROMPT, max_new_tokens=12, temperature=0.0)
        assert run(WRITE, PROMPT) == PROMPT + written.text
        drawn = page.model.generate(PROMPT, max_new_tokens=12, temperature=0.9, seed=7)
        found = run(ASK, PROMPT)
        assert found["ids"] == list(drawn.ids) and found["target"] == "wasm"
        assert run("return it.errors", None) == []
    finally:
        site.close()
