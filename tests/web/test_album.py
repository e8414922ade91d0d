"""The page that finds the visitor's photographs by texts: vectors are Python's, in Node and in
browsers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from page_kit import Browser, Site, light
from PIL import Image
from rows import few

import weft
from weft.cli.main import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from picture_zoo import picture
from vector_zoo import write_vectors

SCRIPT = """
const { load } = await import(process.argv[1] + "/node.js");
const model = await load(process.argv[2]);
const rgba = Uint8ClampedArray.from(JSON.parse(process.argv[3]));
const wrong = await model.embedImage(rgba.subarray(4)).catch((error) => error.message);
const written = await model.generate("a").next().catch((error) => error.message);
const picture = [...await model.embedImage(rgba)];
const texts = (await model.embed(JSON.parse(process.argv[4]))).map((row) => [...row]);
console.log(JSON.stringify({ picture, texts, wrong, written }));
"""
TEXTS = ["a red car", "long " * 60]
PAGE = """
await page.goto(given.url);
await it.ready();
await page.setInputFiles("#photos-files", given.pictures);
await page.waitForFunction(() => Number(document.querySelector("#search").dataset.photos) === 3);
await page.fill("#photos-query", "a red car");
await page.click("#photos-form button");
await page.waitForFunction(() => document.querySelector("#search").dataset.found);
const found = JSON.parse(await page.$eval("#search", (e) => e.dataset.found));
const note = await page.textContent("#photos-note");
if (given.shot) await page.screenshot({ path: given.shot });
return { found, note, errors: it.errors, writes: await page.isVisible("#tab-write"),
  violations: await page.evaluate(() => noted.violations) };
"""


def export(name: str, folder: Path) -> Any:
    write_vectors(name, folder / name)
    with light():
        call = ["export", "web", str(folder / name), "-o", str(folder / "page")]
        done = CliRunner().invoke(cli, call)
    assert done.exit_code == 0, (done.output, done.exception)
    rows = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    packed = {row[0].strip(): int(row[2].replace(",", "")) for row in rows[1:-1]}
    assert packed["player"] + packed["Program, WebGPU"] < 70_000
    return weft.load(folder / name, device="cpu")


@pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")
@pytest.mark.parametrize("name", few(["clip", "siglip"], "siglip"))
def test_vectors_are_those_of_python(name: str, tmp_path: Path) -> None:
    model, page = export(name, tmp_path), tmp_path / "page"
    shown = picture(1, 28, 28)  # of the model's own size: nothing resizes it
    rgba = np.concatenate([shown, np.full((28, 28, 1), 255, np.uint8)], -1).reshape(-1).tolist()
    given = [page.as_uri(), str(page), json.dumps(rgba), json.dumps(TEXTS)]
    call = ["node", "--input-type=module", "-e", SCRIPT, *given]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    np.testing.assert_allclose(said["picture"], model.embed_images(shown, True)[0], atol=1e-6)
    np.testing.assert_allclose(said["texts"], model.embed(TEXTS, normalize=True), atol=1e-6)
    assert "expected RGBA of 28 x 28 pixels" in said["wrong"] and "an album" in said["written"]


@pytest.mark.parametrize("target", ["wasm", pytest.param("webgpu", marks=pytest.mark.slow)])
def test_the_page_finds_photographs(target: str, tmp_path: Path, browser: Browser) -> None:
    model, pictures = export("clip", tmp_path), []
    for k in range(3):
        pictures.append(str(tmp_path / f"p{k}.png"))
        Image.fromarray(picture(k, 28, 28)).save(pictures[-1])
    site = Site(tmp_path / "page")
    try:
        given = {"url": f"{site.url}?target={target}", "pictures": pictures}
        said = browser.run(target, PAGE, given)
    finally:
        site.close()
    scores = model.embed_images(pictures, True) @ model.embed(["a red car"], normalize=True)[0]
    order = np.argsort(-scores)
    assert [name for name, _ in said["found"]] == [f"p{k}.png" for k in order]
    np.testing.assert_allclose([s for _, s in said["found"]], scores[order], atol=1e-5)
    assert "the closest first" in said["note"]
    assert (said["writes"], said["errors"], said["violations"]) == (False, [], [])


def test_a_model_without_texts_is_refused(tmp_path: Path) -> None:
    write_vectors("dinov2", tmp_path / "dino")
    call = ["export", "web", str(tmp_path / "dino"), "-o", str(tmp_path / "page")]
    done = CliRunner().invoke(cli, call)
    assert done.exit_code == 1 and "CLIP and SigLIP" in str(done.exception)
