"""Nets that see, from files: answers beside transformers' own, through the command."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from PIL import Image

from weft.cli.main import cli
from weft.core.errors import FileFormatError, UsageError
from weft.vision import nets
from weft.vision.answers import Classes, Regions, Things, kept, regions
from weft.vision.drawing import drawn

HEIGHT, WIDTH = 120, 160
BASE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24}  # fmt: skip


def _net(kind: str) -> tuple[Any, str, dict[str, int]]:
    if kind == "vit":
        config = transformers.ViTConfig(**BASE, image_size=30, patch_size=10, num_labels=7)
        return transformers.ViTForImageClassification(config), "ViT", {"height": 30, "width": 30}
    if kind == "yolos":
        config = transformers.YolosConfig(**BASE, image_size=[32, 48], patch_size=16,
                                          num_detection_tokens=9, num_labels=5)  # fmt: skip
        return transformers.YolosForObjectDetection(config), "Yolos", {"height": 32, "width": 48}
    if kind == "segformer":
        config = transformers.SegformerConfig(
            num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 12],
            patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
            decoder_hidden_size=10, num_labels=4,
        )  # fmt: skip
        net = transformers.SegformerForSemanticSegmentation(config)
        return net, "Segformer", {"height": 40, "width": 56}
    config = transformers.DPTConfig(
        **{**BASE, "num_hidden_layers": 4}, image_size=32, patch_size=8,
        backbone_out_indices=[0, 1, 2, 3], reassemble_factors=[4, 2, 1, 0.5],
        neck_hidden_sizes=[4, 6, 8, 10], fusion_hidden_size=8,
    )  # fmt: skip
    return transformers.DPTForDepthEstimation(config), "DPT", {"height": 32, "width": 32}


Saved = tuple[Path, Any, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """Writes a net of a kind to a folder; returns the folder, the net and its processor."""

    def save(kind: str) -> Saved:
        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        net, name, size = _net(kind)
        for p in net.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, std=0.3)
        net.eval()
        home = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
        processor = getattr(home, f"{name}ImageProcessorPil")(size=size)
        x = torch.randn(1, 3, size["height"], size["width"])
        exported = torch.export.export(net, (), {"pixel_values": x})
        torch.export.save(exported, folder / "net.pt2")
        net.config.architectures = [type(net).__name__]
        (folder / "config.json").write_text(net.config.to_json_string())
        (folder / "preprocessor_config.json").write_text(json.dumps(processor.to_dict()))
        return folder, net, processor

    return save


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    blocks = np.random.default_rng(0).integers(0, 255, (6, 8, 3))
    path = tmp_path_factory.mktemp("pictures") / "street.png"
    Image.fromarray(np.kron(blocks, np.ones((20, 20, 1))).astype(np.uint8)).save(path)
    return path


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, ["run", *map(str, arguments), "--device", "cpu"])


def errors(done: Any) -> str:
    return f"{done.stderr}{done.exception}"


def look(folder: Path, street: Path, *more: str) -> dict[str, Any]:
    done = run(folder / "net.pt2", "--image", street, "-o", folder / "seen", "--json", *more)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((folder / "seen" / "street.json").read_text())["task"] == found["task"]
    with Image.open(folder / "seen" / "street.png") as made:
        assert made.size == (WIDTH, HEIGHT)
    return found


def reference(net: Any, processor: Any, street: Path) -> Any:
    with Image.open(street) as image, torch.no_grad():
        return net(**processor(images=image, return_tensors="pt"))


def test_classes(saved: Callable[[str], Saved], street: Path) -> None:
    folder, net, processor = saved("vit")
    found = look(folder, street)
    want = reference(net, processor, street).logits.softmax(-1)[0].topk(5)
    assert [x["label"] for x in found["labels"]] == [f"LABEL_{i}" for i in want.indices]
    np.testing.assert_allclose([x["score"] for x in found["labels"]], want.values, atol=1e-5)
    shown = run(folder / "net.pt2", "--image", street)
    assert shown.exit_code == 0 and "LABEL_" in shown.stdout and "%" in shown.stdout


def test_objects(saved: Callable[[str], Saved], street: Path) -> None:
    folder, net, processor = saved("yolos")
    found = look(folder, street, "--threshold", "0.2")["objects"]
    outputs = reference(net, processor, street)
    (want,) = processor.post_process_object_detection(outputs, 0.2, [(HEIGHT, WIDTH)])
    order = want["scores"].argsort(descending=True)
    assert found and [x["label"] for x in found] == [f"LABEL_{i}" for i in want["labels"][order]]
    np.testing.assert_allclose([x["score"] for x in found], want["scores"][order], atol=1e-4)
    np.testing.assert_allclose([x["box"] for x in found], want["boxes"][order], atol=0.05)


@pytest.mark.slow
def test_regions(saved: Callable[[str], Saved], street: Path) -> None:
    folder, net, processor = saved("segformer")
    found = look(folder, street)["regions"]
    outputs = reference(net, processor, street)
    (want,) = processor.post_process_semantic_segmentation(outputs, [(HEIGHT, WIDTH)])
    shares = {f"LABEL_{i}": float((want == i).float().mean()) for i in want.unique()}
    assert {x["label"]: x["share"] for x in found} == pytest.approx(shares, abs=1e-3)


@pytest.mark.slow
def test_depths(saved: Callable[[str], Saved], street: Path) -> None:
    folder, net, processor = saved("dpt")
    found = look(folder, street)
    plane = reference(net, processor, street).predicted_depth
    large = torch.nn.functional.interpolate(plane[None], (HEIGHT, WIDTH), mode="bilinear")
    assert found["least"] == pytest.approx(float(large.min()), rel=1e-3)
    assert found["most"] == pytest.approx(float(large.max()), rel=1e-3)


# -- YOLO's files, and nets that come with nothing

NAMES = {0: "cat", 1: "dog"}


def onnx_net(path: Path, out: np.ndarray, size: tuple[Any, Any], metadata: dict[str, str]) -> Path:
    """A net with this output whatever it sees."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["found", "nothing"], ["output0"]),
    ]
    held = [numpy_helper.from_array(out.astype(np.float32), "found"),
            numpy_helper.from_array(np.float32(0), "zero")]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, *size])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, list(out.shape))], held,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def test_yolo(tmp_path: Path, street: Path) -> None:
    # a box of 40 x 20 around (80, 60) in the picture, and another of its kind over it; 64 x 64 from
    # 160 x 120: scaled by 0.4 to 64 x 48, 8 rows of grey above
    rows = np.array([
        [80 * 0.4, 60 * 0.4 + 8, 40 * 0.4, 20 * 0.4, 0.1, 0.9],
        [81 * 0.4, 60 * 0.4 + 8, 40 * 0.4, 20 * 0.4, 0.1, 0.8],
        [80 * 0.4, 60 * 0.4 + 8, 40 * 0.4, 20 * 0.4, 0.7, 0.2],
        [10.0, 20.0, 4.0, 4.0, 0.3, 0.2],
    ])  # fmt: skip
    said = {"names": str(NAMES), "task": "detect", "imgsz": "[64, 64]", "stride": "32"}
    path = onnx_net(tmp_path / "yolo.onnx", rows.T[None], (64, 64), said)
    done = run(path, "--image", street, "--json")
    assert done.exit_code == 0, done.output
    objects = json.loads(done.stdout)["objects"]
    assert [(o["label"], o["score"]) for o in objects] == [("dog", 0.9), ("cat", 0.7)]
    np.testing.assert_allclose([o["box"] for o in objects], [[60, 50, 100, 70]] * 2, atol=0.01)


def test_a_net_with_nothing_beside_it(tmp_path: Path, street: Path) -> None:
    path = onnx_net(tmp_path / "net.onnx", np.array([[0.1, 2.0, 0.3]]), (8, 8), {})
    done = run(path, "--image", street)
    assert done.exit_code == 0 and "class 1" in done.stdout
    assert "8 x 8 pixels, ImageNet's mean" in done.stderr
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"1": "bicycle"}}))
    assert "bicycle" in run(path, "--image", street).stdout
    cases = [
        (("--input", "images=x.npy"), "--image is the input", 2),
        (("--task", "detect"), "objects are logits with pred_boxes", 1),
        (("--task", "depth"), "none fits", 1),
    ]
    for more, said, code in cases:
        done = run(path, "--image", street, *more)
        assert (done.exit_code, said in errors(done)) == (code, True), errors(done)
    (tmp_path / "config.json").write_text("[]")
    assert run(path, "--image", street).exit_code == 1
    wide = onnx_net(tmp_path / "open.onnx", np.zeros((1, 3)), ("h", "w"), {})
    (tmp_path / "config.json").unlink()
    assert "no fixed size" in errors(run(wide, "--image", street))
    assert run(path, "--image", tmp_path / "none.png").exit_code == 1


def test_sizes_that_do_not_fit_are_stretched_on_demand(tmp_path: Path, street: Path) -> None:
    path = onnx_net(tmp_path / "net.onnx", np.array([[0.1, 2.0, 0.3]]), (8, 8), {})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({
        "image_processor_type": "DetrImageProcessor",
        "size": {"shortest_edge": 80, "longest_edge": 100}}))  # fmt: skip
    done = run(path, "--image", street)
    assert done.exit_code == 1 and "--stretch" in errors(done)
    assert run(path, "--image", street, "--stretch").exit_code == 0


def test_hostile_names() -> None:
    entry = nets.Entry("images", (1, 3, 64, 64), np.dtype(np.float32))
    for names in ("__import__('os')", "{0: ", "[" * 5000, "{'a': 1}", "5"):
        with pytest.raises(FileFormatError):
            nets.guide(entry, {}, {}, {"names": names, "task": "detect"})
    for size in ("[0, 0]", "[-3, 5]", "[1e9, 1e9]", "{}"):
        said = {"names": "{0: 'a'}", "task": "detect", "imgsz": size}
        with pytest.raises(FileFormatError):
            nets.guide(nets.Entry("x", (1, 3, None, None), np.dtype(np.float32)), {}, {}, said)
    with pytest.raises(UsageError):
        nets.answer(nets.Guide(None), {"a": np.zeros((1, 2, 3))}, *_square())  # type: ignore[arg-type]


def _square() -> tuple[Any, tuple[int, int]]:
    from weft.vision.sizes import Fitted

    return Fitted(np.zeros((8, 8, 3), np.uint8), (8, 8)), (8, 8)


def test_suppression_beside_its_definition() -> None:
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 30, (60, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0, 20, (60, 2))], 1)
    scores, numbers = rng.permutation(60) / 60, rng.integers(0, 2, 60)

    def shared(a: np.ndarray, b: np.ndarray) -> float:
        size = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
        both = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - size.prod()
        return float(size.prod() / both)

    want: list[int] = []
    for i in np.argsort(-scores):
        if all(numbers[i] != numbers[j] or shared(boxes[i], boxes[j]) <= 0.5 for j in want):
            want.append(int(i))
    assert kept(boxes, scores, numbers, 0.5, 100) == want
    assert kept(boxes, scores, numbers, 0.5, 3) == want[:3]


def test_maps_grow_and_shrink_as_pytorchs() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    for size in ((20, 30), (3, 4), (1, 1), (5, 7)):
        large = torch.nn.functional.interpolate(torch.tensor(scores)[None], size, mode="bilinear")
        np.testing.assert_array_equal(regions(scores, {}, size).classes, large[0].argmax(0))


def test_drawings_of_every_size() -> None:
    from weft.vision.answers import Thing

    for height, width in ((1, 1), (3, 200), (400, 7)):
        image = np.zeros((height, width, 3), np.uint8)
        boxes = Things((Thing("a long name", 0.9, (-5.0, -5.0, 1e4, 1e4)),
                        Thing("b", 0.1, (3.0, 3.0, 1.0, 1.0))))  # fmt: skip
        for answer in (boxes, Things(()), Classes(()), Classes((("x", 1.0),)),
                       Regions(np.zeros((height, width), np.int32), {})):  # fmt: skip
            assert drawn(image, answer).size == (width, height)
