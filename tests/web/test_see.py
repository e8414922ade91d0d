"""The page of a net that sees: its answers are Python's, for a picture and for the camera."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from page_kit import Browser, Site, light

from weft.cli.functions import of_file
from weft.cli.main import cli
from weft.vision import nets
from weft.vision.decode import decode

SIZE = (24, 32)
NAMES = {0: "cat", 1: "dog", 2: "bird"}
SCRIPT = """
const { load } = await import(process.argv[1] + "/node.js");
const model = await load(process.argv[2]);
const rgba = Uint8ClampedArray.from(JSON.parse(process.argv[3]));
const found = await model.see(rgba, { threshold: 0.2 });
const other = await model.generate("a").next().catch((error) => error.message);
const wrong = await model.see(rgba.subarray(4)).catch((error) => error.message);
console.log(JSON.stringify({ found, other, wrong }));
"""


def net(path: Path, kind: str, metadata: dict[str, str]) -> Path:
    """A small net as an ONNX file: classes, maps of classes, or YOLO's rows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(4)
    height, width = SIZE
    held = {"w": rng.normal(size=(7, 3, 3, 3)) * 0.2, "b": rng.normal(size=7)}
    nodes = [helper.make_node("Conv", ["images", "w", "b"], ["maps"], strides=[4, 4])]
    shape: list[int] = [1, 7, 6, 8]
    if kind == "classes":
        held |= {"v": rng.normal(size=(7, 3))}
        nodes += [helper.make_node("ReduceMean", ["maps"], ["mean"], axes=[2, 3], keepdims=0),
                  helper.make_node("MatMul", ["mean", "v"], ["logits"])]  # fmt: skip
        shape = [1, 3]
    elif kind == "maps":
        nodes[0].output[0] = "logits"
    else:  # 4 numbers and 3 probabilities at each of 48 places
        held |= {"by": np.array([20, 16, 12, 12, 1, 1, 1.0]).reshape(1, 7, 1)}
        nodes += [helper.make_node("Sigmoid", ["maps"], ["p"]),
                  helper.make_node("Reshape", ["p", "shape"], ["rows"]),
                  helper.make_node("Mul", ["rows", "by"], ["logits"])]  # fmt: skip
        shape = [1, 7, 48]
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in held.items()]
    weights.append(numpy_helper.from_array(np.array([1, 7, 48]), "shape"))
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, height, width])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    (path.parent / "config.json").write_text(json.dumps({"id2label": NAMES}))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Writes the page of a kind of net; returns the file, the folder, and a picture."""
    from PIL import Image

    def make(kind: str) -> tuple[Path, Path, Path]:
        folder = tmp_path_factory.mktemp(kind)
        said = {"names": str(NAMES), "task": "detect", "imgsz": str(list(SIZE))}
        path = net(folder / "net.onnx", kind, said if kind == "yolo" else {})
        with light():
            done = CliRunner().invoke(cli, ["export", "web", str(path), "-o", str(folder / "page")])
        assert done.exit_code == 0, (done.output, done.exception)
        pixels = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "street.png")
        return path, folder / "page", folder / "street.png"

    return make


def python(path: Path, picture: Path) -> dict[str, Any]:
    line = ["run", str(path), "--image", str(picture), "--json", "--threshold", "0.2"]
    done = CliRunner().invoke(cli, [*line, "--device", "cpu"])
    assert done.exit_code == 0, (done.output, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def maps(path: Path, picture: Path) -> np.ndarray:
    """The net's scores [C, H, W] of a picture of its own size."""
    function = of_file(str(path), "cpu")
    entry = nets.Entry("images", (1, 3, *SIZE), np.dtype(np.float32))
    pixels, _ = nets.fitted(nets.guide(entry, {}, {}, {}), entry, decode(str(picture)))
    return np.asarray(function.call({"images": pixels})["logits"])[0]


@pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")
@pytest.mark.parametrize("kind", ["classes", "maps", "yolo"])
def test_answers_are_those_of_python(made: Any, kind: str) -> None:
    from PIL import Image

    path, page, picture = made(kind)
    with Image.open(picture) as image:
        rgba = np.asarray(image.convert("RGBA")).reshape(-1).tolist()
    call = ["node", "--input-type=module", "-e", SCRIPT, page.as_uri(), str(page), json.dumps(rgba)]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    found, want = said["found"], python(path, picture)
    assert found["task"] == want["task"]
    assert "is a net" in said["other"] and "expected RGBA of 32 x 24 pixels" in said["wrong"]
    if kind == "classes":
        assert [x["label"] for x in found["labels"]] == [x["label"] for x in want["labels"]]
        pairs = zip(found["labels"], want["labels"])
        assert all(abs(a["score"] - b["score"]) < 1e-5 for a, b in pairs)
    elif kind == "yolo":
        objects = want["objects"]
        assert objects and [x["label"] for x in found["objects"]] == [x["label"] for x in objects]
        by = np.array([SIZE[1], SIZE[0]] * 2)
        boxes = [np.array(x["box"]) * by for x in found["objects"]]
        np.testing.assert_allclose(boxes, [x["box"] for x in objects], atol=0.02)
    else:
        scores = maps(path, picture)
        assert list(found["classes"].values()) == scores.argmax(0).reshape(-1).tolist()
        assert found["names"] == ["cat", "dog", "bird", *(f"class {n}" for n in range(3, 7))]


def test_an_export_reads_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.cli import graphs

    reads: list[str] = []
    read = graphs.imported
    monkeypatch.setattr(graphs, "imported", lambda path: reads.append(path) or read(path))
    path = str(net(tmp_path / "net.onnx", "classes", {}))
    with light():
        done = CliRunner().invoke(cli, ["export", "web", path, "-o", str(tmp_path / "page")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert reads == [path]


PAGE = """
await page.goto(given.url);
await it.ready();
await page.setInputFiles("#see-file", given.picture);
await page.waitForFunction(() => Number(document.querySelector("#see").dataset.frames) === 1);
const seen = JSON.parse(await page.$eval("#see", (e) => e.dataset.seen));
const list = await page.$$eval("#see-list li", (rows) => rows.map((row) => row.textContent));
await page.click("#see-camera");
await page.waitForFunction(() => Number(document.querySelector("#see").dataset.frames) >= 4);
const note = await page.textContent("#see-note");
await page.click("#see-stop");
await page.waitForSelector("#see-camera:not([hidden])");
if (given.shot) await page.screenshot({ path: given.shot });
return { seen, list, note, errors: it.errors, writes: await page.isVisible("#tab-write"),
  violations: await page.evaluate(() => noted.violations) };
"""


def test_the_page_shows_a_picture_and_the_camera(made: Any, tmp_path: Path) -> None:
    browser = Browser("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
    path, page, picture = made("yolo")
    site = Site(page)
    try:
        given = {"url": f"{site.url}?target=wasm", "picture": str(picture)}
        said = browser.run("wasm", PAGE, given)
    finally:
        site.close()
        browser.close()
    want = [x for x in python(path, picture)["objects"] if x["score"] > 0.5]
    assert [x["label"] for x in said["seen"]] == [x["label"] for x in want]
    assert len(said["list"]) == min(len(want), 8) and "frames per second" in said["note"]
    assert (said["writes"], said["errors"], said["violations"]) == (False, [], [])


def test_what_a_page_cannot_show_is_refused(made: Any, tmp_path: Path) -> None:
    path = net(tmp_path / "net.onnx", "classes", {})
    cases = [
        (["--train", "lora"], "is a net"),
        (["--search", "x"], "is a net"),
    ]
    for more, said in cases:
        done = CliRunner().invoke(
            cli, ["export", "web", str(path), "-o", str(tmp_path / "p"), *more]
        )
        assert done.exit_code == 1 and said in str(done.exception)
    steps = {"image_processor_type": "ViTImageProcessor", "size": {"height": 9, "width": 9}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(steps))
    done = CliRunner().invoke(cli, ["export", "web", str(path), "-o", str(tmp_path / "p")])
    assert done.exit_code == 1 and "--stretch" in str(done.exception)
    assert not (tmp_path / "p").exists()
