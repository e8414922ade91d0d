"""weft-ml/pipeline, in Node and in Chromium: results have transformers.js's shapes and Python's
values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from package_kit import PROMPT, app, run, served
from page_kit import Browser, Pages, export_light, light
from test_album import export
from test_encoder import BERT, minilm_folder
from test_hearing import noise, whisper
from test_see import SIZE, net, python

import weft
from weft.cli.main import cli
from weft.models import random_folder

BEGIN = """
import { readFileSync } from "node:fs";
import { pipeline } from "weft-ml/pipeline";
const [folder, given] = process.argv.slice(2);
const pixels = (file) => Uint8ClampedArray.from(readFileSync(file));
const wrong = (promise) => promise.then(() => "", (error) => `${error.name}: ${error.message}`);
"""
WRITE = """
const write = await pipeline("text-generation", folder, { target: "wasm" });
const heard = [];
const streamer = (text) => heard.push(text);
const drawn = { max_new_tokens: 8, do_sample: true, temperature: 0.9, top_k: 20, seed: 7 };
console.log(JSON.stringify({
  whole: await write(given, { max_new_tokens: 8, streamer }), heard: heard.join(""),
  drawn: await write(given, { ...drawn, return_full_text: false }),
  wrong: [await wrong(write(given, { heat: 1 })), await wrong(pipeline("summarization", folder)),
    await wrong(pipeline("feature-extraction", folder))],
}));
write.dispose();
"""
TASKS = {
  "feature-extraction": "await call(['one text', 'another'])",
  "image-classification": "await call(pixels(given), { top_k: 2 })",
  "object-detection": "await call(pixels(given), { threshold: 0.2 })",
  "zero-shot-image-classification": "await call(pixels(given), ['cat', 'dog', 'red car'])",
  "automatic-speech-recognition":
    "await call(new Float32Array(new Uint8Array(readFileSync(given)).buffer),"
    " { language: 'de', return_timestamps: true })",
}  # fmt: skip
SEE = """
await page.goto(given);
return await page.evaluate(async () => {
  const { pipeline } = await import("weft-ml/pipeline");
  const call = await pipeline("object-detection", "./page/");
  const found = await call("./large.png", { threshold: 0.2 });
  const parts = await call("./large.png", { threshold: 0.2, percentage: true });
  call.dispose();
  return { found, parts };
});
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return app(tmp_path_factory.mktemp("app"))


def node(installed: Path, script: str, *given: object) -> Any:
    (installed / "main.js").write_text(BEGIN + script)
    return json.loads(run(["node", "main.js", *map(str, given)], at=installed))


def test_it_writes_what_python_writes(installed: Path, pages: Pages) -> None:
    page = pages()
    said = node(installed, WRITE, page.folder, PROMPT)
    text = page.model.generate(PROMPT, max_new_tokens=8).text
    assert said["whole"] == [{"generated_text": PROMPT + text}] and said["heard"] == text
    how = {"temperature": 0.9, "top_k": 20, "seed": 7}
    drawn = page.model.generate(PROMPT, max_new_tokens=8, **how).text
    assert said["drawn"] == [{"generated_text": drawn}]
    option, task, kind = said["wrong"]
    assert "WeftError: text-generation has no option heat; it has max_new_tokens" in option
    assert "no task summarization; it has text-generation, feature-extraction" in task
    assert "cannot do feature-extraction: it is of kind decoder, not encoder" in kind


def made(task: str, root: Path) -> tuple[Path, Path | None, Any]:
    """A page's folder for a task, what it is given, and what Python says."""
    page = root / "page"
    if task == "feature-extraction":
        folder = random_folder(root / "bert", BERT, scale=0.5)
        shutil.copy(minilm_folder() / "tokenizer.json", folder)
        model: Any = weft.load(folder, device="cpu")
        export_light(model, page)
        return page, None, model.embed(["one text", "another"])
    if task == "automatic-speech-recognition":
        whisper(root / "model")
        model = weft.load(root / "model", device="cpu")
        export_light(model, page)
        noise(5.3).tofile(root / "x.f32")
        return page, root / "x.f32", model.transcribe(noise(5.3), language="de").segments
    if task == "zero-shot-image-classification":
        model = export("siglip", root)
        rgb = np.random.default_rng(2).integers(0, 256, (28, 28, 3), dtype=np.uint8)
        want = model.classify(rgb, ["cat", "dog", "red car"], "This is a photo of {}")[0]
    else:
        path, picture = see(root, "yolo" if task == "object-detection" else "classes")
        rgb = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
        want = python(path, picture)
    alpha = np.full((*rgb.shape[:2], 1), 255, np.uint8)
    (root / "rgba").write_bytes(np.concatenate([rgb, alpha], -1).tobytes())
    return page, root / "rgba", want


def see(root: Path, kind: str) -> tuple[Path, Path]:
    """Writes the page of a net; its file, and a picture of the size that it takes."""
    from PIL import Image

    said = {"names": "{0: 'cat', 1: 'dog', 2: 'bird'}", "task": "detect", "imgsz": str([*SIZE])}
    path = net(root / "net.onnx", kind, said if kind == "yolo" else {})
    with light():
        done = CliRunner().invoke(cli, ["export", "web", str(path), "-o", str(root / "page")])
    assert done.exit_code == 0, (done.output, done.exception)
    pixels = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "picture.png")
    return path, root / "picture.png"


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_it_does_what_python_does(task: str, installed: Path, tmp_path: Path) -> None:
    page, given, want = made(task, tmp_path)
    script = f"const call = await pipeline({task!r}, folder);\n"
    found = node(installed, f"{script}console.log(JSON.stringify({TASKS[task]}));", page, given)
    if task == "feature-extraction":
        assert found["dims"] == [*want.shape] and found["type"] == "float32"
        np.testing.assert_allclose([*found["data"].values()], want.reshape(-1), atol=1e-5)
    elif task == "automatic-speech-recognition":
        assert found["chunks"] == [{"timestamp": [s.start, s.end], "text": s.text} for s in want]
        assert found["text"] == "".join(s.text for s in want)
    elif task == "zero-shot-image-classification":
        scores = dict(zip(["cat", "dog", "red car"], map(float, want), strict=True))
        assert [x["label"] for x in found] == sorted(scores, key=scores.__getitem__, reverse=True)
        assert all(abs(x["score"] - scores[x["label"]]) < 1e-5 for x in found)
    elif task == "image-classification":
        assert [x["label"] for x in found] == [x["label"] for x in want["labels"]][:2]
        assert abs(found[0]["score"] - want["labels"][0]["score"]) < 1e-5
    else:
        same_boxes(found, want["objects"], 1)


def same_boxes(found: list[dict[str, Any]], want: list[dict[str, Any]], by: int) -> None:
    """Whole pixels, of a picture `by` times as large as the one that Python saw."""
    assert want and [x["label"] for x in found] == [x["label"] for x in want]
    np.testing.assert_allclose(boxes(found), by * np.array([x["box"] for x in want]), atol=1.01)


def boxes(found: list[dict[str, Any]]) -> list[list[float]]:
    return [[x["box"][k] for k in ("xmin", "ymin", "xmax", "ymax")] for x in found]


@pytest.mark.slow
def test_a_page_sees_a_larger_picture(browser: Browser, tmp_path: Path) -> None:
    """Of one colour: it stays the same where the page makes it smaller."""
    from PIL import Image

    site = app(tmp_path)
    path, picture = see(site, "yolo")
    for file, by in ((picture, 1), (site / "large.png", 8)):
        Image.new("RGB", (by * SIZE[1], by * SIZE[0]), (200, 90, 30)).save(file)
    names = {"weft-ml": "weft", "weft-ml/pipeline": "pipeline"}
    paths = {name: f"./node_modules/weft-ml/{file}.js" for name, file in names.items()}
    imports = f'<script type="importmap">{json.dumps({"imports": paths})}</script>'
    (site / "index.html").write_text(f"<!doctype html>{imports}")
    with served(site) as address:
        said = browser.run("pipeline", SEE, address)
    same_boxes(said["found"], python(path, picture)["objects"], 8)
    wide = [8 * n for n in (SIZE[1], SIZE[0])] * 2
    np.testing.assert_allclose(
        np.array(boxes(said["parts"])) * wide, boxes(said["found"]), atol=1.01
    )
