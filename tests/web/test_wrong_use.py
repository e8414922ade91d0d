"""Each function of the player's API, with each kind of wrong argument: what it says is a WeftError
of a line or two that shows what was given."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from page_device import PLAYER
from page_kit import Browser, Pages, Site, need

SCRIPT = Path(__file__).with_name("wrong.mjs")
RAW = re.compile(
    r"undefined \(|of undefined|of null|is not a function|not iterable|Cannot |cannot read"
    r"|is damaged|Invalid|could not be cloned$|\[object "
)
# what is right after all, by function and argument: options may be left out, ids are numbers
FREE = {"undefined", "object", "date"}
RIGHT: dict[tuple[str, int], set[str]] = {
    ("load", 1): FREE, ("describe", 1): FREE, ("selftest", 1): FREE,
    ("generate", 0): {"bytes", "word", "blank"}, ("generate", 1): FREE,
    ("encode", 0): {"empty", "word", "blank"}, ("decode", 0): {"list", "bytes"},
    ("embed", 0): {"list"}, ("ranked", 1): {"list"},
}  # fmt: skip
Found = list[tuple[str, int, str, tuple[str, str] | None]]


def declared(file: str, kind: str) -> set[str]:
    """The functions that a declaration exports, and the methods of a class in it."""
    text = (PLAYER / "types" / file).read_text()
    body = re.findall(rf"export interface {kind} \{{\n(.*?)^\}}", text, re.S | re.M)[0]
    methods = set(re.findall(r"^  (\w+)\(", body, re.M)) - {"close"}
    return methods | set(re.findall(r"export function (\w+)[<(]", text))


def checked(found: Found) -> None:
    for name, at, odd, said in found:
        if said is None:
            assert odd in RIGHT.get((name, at), ()), (name, at, odd)
            continue
        kind, message = said
        about = f"{name}, argument {at}, {odd}: {kind}: {message}"
        if message == "it runs":  # on a device that there is not: what was given is right
            assert odd in FREE | {"message"}, about
            continue
        assert kind == "WeftError" and not RAW.search(message), about
        assert len(message) <= 240 and "\n" not in message, about


def test_in_node(pages: Pages) -> None:
    need()
    command = ["node", str(SCRIPT), str(PLAYER), str(pages().folder)]
    found: Found = json.loads(subprocess.check_output(command, timeout=240))
    assert {name for name, *_ in found} >= declared("node.d.ts", "Model")
    checked(found)


def test_in_a_page(browser: Browser, pages: Pages) -> None:
    walk = SCRIPT.read_text().partition("/** A model without")[0]
    code = f"""
await page.goto(given + "blank.html");
return await page.evaluate(async () => {{
  {walk}
  const {{ load, describe, selftest, ranked }} = await import("./weft.js");
  const model = await load("./", {{ target: "wasm", threads: 1 }});
  const row = Float32Array.of(1, 0);
  const own = (name, ...right) => [(...all) => model[name](...all), right];
  const found = await walk({{
    load: [load, ["./", {{ target: "wasm", threads: 1 }}]], describe: [describe, ["./", {{}}]],
    selftest: [selftest, ["./", {{ target: "wasm" }}]], ranked: [ranked, [row, [row]]],
    generate: own("generate", "x", {{ maxNewTokens: 1 }}),
    chat: own("chat", [{{ role: "user", content: "x" }}], {{}}), embed: own("embed", ["x"], {{}}),
    embedImage: own("embedImage", new Uint8ClampedArray(8)),
    see: own("see", new Uint8ClampedArray(8), {{}}), transcribe: own("transcribe", row, {{}}),
    encode: own("encode", "x"), decode: own("decode", [1]), trainer: own("trainer", "lora", {{}}),
  }});
  model.close();
  return found;
}});
"""
    site = Site(pages().folder)
    try:
        found: list[Any] = browser.run("wrong", code, site.url)
    finally:
        site.close()
    assert {name for name, *_ in found} >= declared("weft.d.ts", "PageModel")
    checked(found)
