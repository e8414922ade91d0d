"""Stop, at any time and in any order; and what comes at once or too late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page_kit import Browser, Pages, Site
from rows import few
from test_browser import OPEN, PROMPT, TARGETS

LONG = "def fibonacci(n):\n    return n\n\n\n" * 20


@pytest.fixture(scope="module", params=few(TARGETS, "wasm"))
def visitor(browser: Browser, site: Site, request: Any) -> Iterator[Any]:
    who = f"stops {request.param}"
    browser.run(who, OPEN, {"url": site.url, "target": request.param})

    def run(code: str, given: Any = None) -> Any:
        return browser.run(
            who, f"return await page.evaluate(async (given) => {{{code}}}, given);", given
        )

    yield run


def test_in_mid_prompt_twice_and_then_another_at_once(visitor: Any, pages: Pages) -> None:
    got = visitor(
        """
const stop = new AbortController();
hold(0);
const waits = held();
const stopped = write({ maxNewTokens: 400, signal: stop.signal }, given.long);
await waits;
stop.abort();
stop.abort();
const next = write({ maxNewTokens: 8 }, given.prompt);
hold(Infinity);
const { ids, finish } = await stopped;
return { ids, finish, next: (await next).ids };
""",
        {"long": LONG, "prompt": PROMPT},
    )
    assert got["finish"] == "aborted"
    assert len(got["ids"]) <= 1  # a GPU's step ends once it is begun
    assert got["next"] == list(pages().model.generate(PROMPT, max_new_tokens=8).ids)


def test_a_signal_that_was_given_before(visitor: Any) -> None:
    got = visitor(
        """
const { load } = await import("./weft.js");
const signal = AbortSignal.abort();
const said = await load("./", { signal, target: "wasm" }).catch((error) => error.name);
return { said, ...await write({ maxNewTokens: 400, signal }, given) };
""",
        PROMPT,
    )
    assert got["said"] == "AbortError"
    assert (got["ids"], got["finish"]) == ([], "aborted")


def test_a_load_that_is_stopped_is_refused(visitor: Any) -> None:
    """On WebAssembly: Chromium's GPU in software hangs when what builds pipelines goes."""
    got = visitor(
        """
const { load } = await import("./weft.js");
const stop = new AbortController();
const progress = () => stop.abort();
const how = { signal: stop.signal, progress, target: "wasm" };
return await load("./", how).catch((error) => error.name);
"""
    )
    assert got == "AbortError"


@pytest.mark.parametrize("visitor", ["webgpu"], indirect=True)
def test_a_lost_device_is_not_noticed(visitor: Any, pages: Pages) -> None:
    got = visitor(
        """
hold(5);
const waits = held();
const written = write({ maxNewTokens: 24 }, given);
await waits;
await model.call("lose", {});
hold(Infinity);
return await written;""",
        PROMPT,
    )
    want = pages().model.generate(PROMPT, max_new_tokens=24)
    assert (got["ids"], got["text"]) == (list(want.ids), want.text)


def test_a_model_that_is_closed_says_so(browser: Browser, site: Site) -> None:
    browser.run("closing", OPEN, {"url": site.url, "target": "wasm"})
    got = browser.run(
        "closing",
        """
return await page.evaluate(async (prompt) => {
  hold(5);
  const during = await write({ maxNewTokens: 400 }, prompt, ({ ids }) =>
    ids.length === 3 && model.close()).catch((error) => error);
  const after = await write({}, prompt).catch((error) => error);
  return [during, after].map(({ name, message }) => `${name}: ${message}`);
}, given);""",
        PROMPT,
    )
    assert got == ["WeftError: the model was closed"] * 2
    gone = """
for (let n = 0; page.workers().length && n < 200; n++) {
  await new Promise((done) => setTimeout(done, 50));
}
return page.workers().length;
"""
    assert browser.run("closing", gone) == 0
