"""What the page's player makes of damaged folders, failing servers and wrong kernels: in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import page_kit
import pytest
from page_kit import Pages

import weft.web
from weft.core.dtypes import bfloat16, float16, float32
from weft.web.selftest import filled

PLAYER = Path(weft.web.__file__).with_name("js")


def node(script: str, *args: object) -> dict[str, Any]:
    page_kit.need()
    path = Path(__file__).with_name(script)
    command = [str(shutil.which("node")), str(path), str(PLAYER), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_damaged_programs_and_manifests_are_refused_or_played_within_their_places(
    pages: Pages,
) -> None:
    seen = node("fuzz.mjs", pages(tiles=True).folder, 150, 11)
    assert seen["refused"] > 200 and seen["taken"] > 50


def test_downloads_survive_or_say_what_to_do() -> None:
    seen = node("downloads.mjs")
    for name in (
        "whole",
        "cut often, with Range",
        "cut twice, without Range",
        "500 twice",
        "stalls",
        "parts of what it packs",
        "no parts",
    ):
        assert seen.pop(name).startswith("right after"), name
    for name in ("near", "far", "packed"):
        assert seen.pop(name) == "right", name
    # what is kept is streamed, and what is not right of it is fetched
    assert [seen.pop(name) for name in ("kept", "kept short", "kept long")] == [
        ["right", 0], ["right", 600], ["right", 1000]]  # fmt: skip
    assert seen.pop("rooms") == [0, 0, 0]  # freed at once
    for name, words in {
        "truncated": "is damaged", "endless": "never ends", "silent": "nothing came for 30 s",
    }.items():  # fmt: skip
        assert seen[name].startswith("a.json ") and words in seen.pop(name), name
    said = {
        "cut always, without Range": "network error",
        "no byte comes": "network error",
        "500 always": "the server says 500",
        "404": "the folder was not uploaded whole",
        "short": "it is shorter than the manifest says",
        "says nothing": "nothing came for 30 s",
        "another part": "network error",
        "long": "longer than the manifest says",
        "corrupt": "its hash differs",
    }
    assert seen.keys() == said.keys()
    for name, words in said.items():
        assert seen[name].startswith("a.bin ") and words in seen[name], name


def test_selftest_passes_and_finds_a_wrong_kernel(pages: Pages) -> None:
    folder = pages(tiles=True).folder
    seen = node("selftest.mjs", folder)
    assert seen["ok"] and seen["target"] == "wasm" and not seen["untested"]
    assert len(seen["kernels"]) > 20 and all(
        k["error"] <= k["allowed"] / 5 for k in seen["kernels"]
    )
    wrong = [k["ok"] for k in node("selftest.mjs", folder, "wrong")["kernels"]]
    assert wrong.count(False) == 1 and not wrong[1]
    assert (folder / "selftest.json").stat().st_size < 20_000
    assert "selftest.json" not in (folder / "sw.js").read_text()


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16])
@pytest.mark.parametrize("least", [-128, 1])
def test_references_are_made_from_numbers_that_are_exact(dtype: Any, least: int) -> None:
    values = filled(5000, 2, dtype, least).astype(np.float64)
    assert values.min() == least / 128 and values.max() == 127 / 128
    assert np.array_equal(values * 128, np.round(values * 128))


def test_manifests_of_strangers(pages: Pages) -> None:
    """Names that lead elsewhere, and so many files that looking at them stalls the page."""
    script = """
const { readManifest } = await import(process.argv[1] + "/manifest.js");
const whole = JSON.parse(process.argv[2]);
const many = Array(1e6).fill(["a.bin", 1, "0".repeat(64)]);
const changes = {
  many: { shards: many }, up: { train: ["../.."] },
  shard: { shards: [["../a", 1, "0".repeat(64)]] },
  space: { files: { "a b": [1, "0".repeat(64)] } }, memory: { memory: { wasm: -1 } }, whole: {},
};
const said = Object.entries(changes).map(([name, change]) => {
  const begun = performance.now();
  let text = "taken";
  try {
    readManifest({ ...whole, ...change });
  } catch (error) {
    text = `${error.name}: ${error.message}`;
  }
  return [name, [text, performance.now() - begun]];
});
console.log(JSON.stringify(Object.fromEntries(said)));
"""
    page_kit.need()
    call = ["node", "--input-type=module", "-e", script, PLAYER.as_uri()]
    call += [(pages().folder / "manifest.json").read_text()]
    out = subprocess.run(call, capture_output=True, text=True, check=True, timeout=240).stdout
    seen = json.loads(out)
    assert seen.pop("whole")[0] == "taken"
    assert all(s.startswith("WeftError: manifest.json is damaged") for s, _ in seen.values()), seen
    assert seen["many"][1] < 50  # ms
