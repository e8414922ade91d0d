"""The page's player in Node, asked what `weft check` asks of devices: a part, all with -m slow."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_device import PLAYER, PageDevice, environment
from page_kit import MODULES, Pages, export_light, need
from rows import few

from weft import load
from weft.backends import registry
from weft.conform.models import CONFIGS
from weft.conform.report import LEVELS, DeviceReport, run_checks
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder

# Of each level some checks: pipelines take SwiftShader seconds. Of models: llama in float32 and
# float16, training.
PART = {
    "wasm": {
        "device": slice(None), "kernels": slice(0, None, 60), "primitives": slice(0, None, 150),
        "templates": slice(0, None, 150), "models": slice(1, None, 12),
    },
    "webgpu": {
        "device": slice(0, None, 3), "kernels": slice(0, None, 60),
        "primitives": slice(0, None, 120), "templates": slice(0, None, 120),
    },
}  # fmt: skip
FLUSHED = {"wasm": (), "webgpu": ("ceil",)}  # SwiftShader's ceil of a denormal is 0, as WGSL allows


@pytest.fixture(scope="module", params=PART)
def device(request: Any) -> Iterator[PageDevice]:
    need(*(["webgpu"] if request.param == "webgpu" else []))
    with opened(PageDevice(request.param)) as made:
        yield made


@contextmanager
def opened(device: PageDevice) -> Iterator[PageDevice]:
    """For the levels that name their device."""
    registry._open_devices[device.info.id] = device
    try:
        yield device
    finally:
        del registry._open_devices[device.info.id]


def failures(device: PageDevice, level: str, part: slice) -> list[str]:
    checks = list(importlib.import_module(f"weft.conform.{level}").checks(device))
    report = DeviceReport(device.info.id, device.info.name)
    cases = list(run_checks(report, level, iter(checks[part])))
    return [f"{c.name}: {c.message}" for c in cases if c.status == "fail"]


def test_a_part_of_the_conformance_checks(device: PageDevice) -> None:
    for level, part in PART[device.target].items():
        assert failures(device, level, part) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_conformance_checks(device: PageDevice) -> None:
    found = [f for level in LEVELS for f in failures(device, level, slice(None))]
    assert [f for f in found if not f.startswith(FLUSHED[device.target])] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", ["kernels", "templates", "models"])
@pytest.mark.parametrize("how", [{"relaxed": True}, {"threads": 2}], ids=["relaxed", "threads"])
def test_all_checks_of_other_webassembly(how: dict[str, Any], level: str) -> None:
    """What relaxed SIMD rounds otherwise, and what threads share."""
    need()
    with opened(PageDevice("wasm", **how)) as device:
        assert failures(device, level, slice(None)) == []


# -- texts, by the package as Node loads it -------------------------------------------------------

PROMPT = "def fibonacci(n):"
FORMS = [{}, {"dtype": "float16", "cache": "int8"}, {"quant": "int4"}]
SLOW_FORMS = [{"quant": "int8"}, {"quant": "int4", "cache": "int8"}, {"dtype": "float16"}]
WRITE = """
const [player, modules, folder, target, prompt] = process.argv.slice(1);
const { load } = await import(`file://${player}/node.js`);
let gpu;
if (target === "webgpu") {
  const { create, globals } = await import(`file://${modules}/webgpu/index.js`);
  Object.assign(globalThis, globals);
  gpu = create([]);
}
const model = await load(folder, { target, gpu });
const ids = [];
for await (const piece of model.generate(prompt, { maxNewTokens: 32 })) ids.push(...piece.ids);
console.log(JSON.stringify([model.device.kind, ids]));
process.exit(0);
"""
PLAYS = [("wasm", FORMS[1]), ("webgpu", {})]
SLOW_PLAYS = [("wasm", form) for form in [FORMS[0], *FORMS[2:], *SLOW_FORMS]]
SLOW_PLAYS += [("webgpu", form) for form in FORMS[1:] + SLOW_FORMS]


@pytest.mark.parametrize(
    ("target", "form"),
    [*PLAYS, *(pytest.param(*play, marks=pytest.mark.slow) for play in SLOW_PLAYS)],
    ids=lambda x: x if isinstance(x, str) else "-".join(x.values()) or "plain",
)
def test_every_form_writes_the_cpus_text(pages: Pages, target: str, form: Any) -> None:
    need(*(["webgpu"] if target == "webgpu" else []))
    page = pages(tiles=(target, form) in SLOW_PLAYS, **form)
    given = [str(PLAYER), str(MODULES), str(page.folder), target, PROMPT]
    node = [str(shutil.which("node")), "--input-type=module", "-e", WRITE, *given]
    out = subprocess.run(node, env=environment(), capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stderr
    want = page.model.generate(PROMPT, max_new_tokens=32)
    assert json.loads(out.stdout) == [target, list(want.ids)]


THREADS = """
const [player, folder, prompt] = process.argv.slice(1);
const { load } = await import(`file://${player}/node.js`);
const model = await load(folder, { target: "wasm", threads: 3 });
const ids = [];
for await (const piece of model.generate(prompt, { maxNewTokens: 32 })) ids.push(...piece.ids);
console.log(JSON.stringify([model.device.about().Threads, ids]));
"""


def test_threads_in_node(pages: Pages) -> None:
    """Three of them write the same text, and keep no process from ending."""
    need()
    page = pages()
    given = [str(PLAYER), str(page.folder), PROMPT]
    node = [str(shutil.which("node")), "--input-type=module", "-e", THREADS, *given]
    out = subprocess.run(node, capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == [3, list(page.model.generate(PROMPT, max_new_tokens=32).ids)]


TURNS = """
const [player, folder, prompts] = process.argv.slice(1);
const { load } = await import(`file://${player}/node.js`);
const model = await load(folder, { target: "wasm" });
const out = [];
for (const prompt of JSON.parse(prompts)) {
  const ids = [];
  for await (const piece of model.generate(prompt, { maxNewTokens: 6 })) ids.push(...piece.ids);
  out.push(ids);
}
console.log(JSON.stringify(out));
process.exit(0);
"""


@pytest.mark.parametrize("family", few(["lfm2", "qwen3_5"], "qwen3_5"))
def test_what_goes_back_to_no_earlier_row(tmp_path: Path, family: str) -> None:
    """A second prompt that begins as the first does: a memory of all before starts anew."""
    need()
    config = {**CONFIGS[family], "vocab_size": 2048}
    folder = random_folder(tmp_path / "model", config, scale=0.2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, folder)
    model = load(folder, device="cpu", context=64, max_batch=1)
    export_light(model, tmp_path / "page")
    prompts = [list(range(1, 20)), [*range(1, 9), 40, 41], [*range(1, 9), 40, 41, 42]]
    given = [str(PLAYER), str(tmp_path / "page"), json.dumps(prompts)]
    node = [str(shutil.which("node")), "--input-type=module", "-e", TURNS, *given]
    out = subprocess.run(node, env=environment(), capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stderr
    want = model.generate(prompts, max_new_tokens=6)
    assert json.loads(out.stdout) == [list(g.ids) for g in want]
