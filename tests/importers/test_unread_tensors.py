"""Tensors of a graph's file that no operation reads are named once, and change nothing."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.importers import from_onnx, from_torch

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
helper = onnx.helper
FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


# -- ONNX


def onnx_model(
    nodes: list[Any], inputs: dict[str, Any], weights: dict[str, np.ndarray], more: Any = ()
) -> Any:
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info(n, *t) for n, t in (*inputs.items(), *more)],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


def linear() -> list[Any]:
    return [helper.make_node("MatMul", ["x", "w"], ["y"])]


X = {"x": (FLOAT, [2, 3])}
W = {"w": numbers(3, 4)}


def branch(name: str, weights: dict[str, np.ndarray]) -> Any:
    return helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], [name])], name, [],
        [helper.make_tensor_value_info(name, FLOAT, [2, 4])],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip


def in_a_branch() -> Any:
    """w is read by both branches alone; one has an initializer that it does not read."""
    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("a", {"extra": numbers(2)}),
        else_branch=branch("b", {}),
    )
    return onnx_model([node], {"c": (BOOL, []), **X}, W)


def large_constant(size: int) -> Any:
    value = onnx.numpy_helper.from_array(numbers(size))
    return onnx_model([helper.make_node("Constant", [], ["k"], value=value), *linear()], X, W)


@pytest.mark.parametrize(("model", "names"), [
    (lambda: onnx_model(linear(), X, W), ""),
    (lambda: onnx_model(linear(), X, {**W, "head.weight": numbers(9, 9)}), "head.weight"),
    (lambda: onnx_model(linear(), X, {**W, "n": np.array(7), "m": numbers(0)}), "n, m"),
    (lambda: onnx_model(linear(), X, {**W, "i": numbers(5)}, [("i", (FLOAT, [5]))]), "i"),
    (lambda: onnx_model([helper.make_node("Identity", ["x"], ["z"])], X, {"y": numbers(2)}), ""),
    (lambda: onnx_model(linear(), X, {**W, "a\x1b[2J": numbers(2)}), r"'a\x1b[2J'"),
    (in_a_branch, "extra"),
    (lambda: large_constant(3), ""),
    (lambda: large_constant(500), "k"),
])  # fmt: skip
def test_initializers(
    model: Callable[[], Any], names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model().SerializeToString())
    for _ in range(2):
        from_onnx(path)
    said = f"weft: net: no operation reads {names}, which changes nothing here\n"
    assert capsys.readouterr().err == (said if names else "")


def test_an_unread_initializer_changes_no_result() -> None:
    x = numbers(2, 3)
    plain, more = (onnx_model(linear(), X, w) for w in (W, {**W, "v": numbers(8)}))
    np.testing.assert_array_equal(from_onnx(plain)(x).numpy(), from_onnx(more)(x).numpy())


def test_what_is_for_training(capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx_model(linear(), X, W)
    model.training_info.add()
    from_onnx(model)
    assert "model: weft does not read training_info" in capsys.readouterr().err


# -- torch.export


class Net(torch.nn.Module):
    """Two names for one weight, of which the graph uses one; and tensors that it does not use."""

    def __init__(self, spare: bool) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.tied = self.fc.weight
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("last", torch.zeros(2, 3))  # written, never read
        if spare:
            self.spare = torch.nn.Linear(2, 2, bias=False)
            self.register_buffer("idle", torch.ones(5))
            self.register_buffer("brief", torch.ones(5), persistent=False)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.fc(x)) * torch.tensor([1.0, 2.0, 3.0])
        self.last.copy_(y)
        return y


def exported(spare: bool) -> Any:
    torch.manual_seed(0)
    return torch.export.export(Net(spare).eval(), (torch.ones(2, 4),))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(exported(spare=False), path)
    with zipfile.ZipFile(path) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def said(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The names in the only line, none where there is no line."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 1
    return (
        set(lines[0].partition(" reads ")[2].partition(", which")[0].split(", "))
        if lines
        else set()
    )


@pytest.mark.parametrize("from_file", [True, False])
def test_tensors_of_a_program(
    from_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for spare, names in ((False, set()), (True, {"spare.weight", "idle", "brief"})):
        program = exported(spare)
        if from_file:
            torch.export.save(program, tmp_path / "net.pt2")
        for _ in range(2):
            module = from_torch(tmp_path / "net.pt2" if from_file else program)
        assert said(capsys) == names
        assert ("idle" in module.state_dict()) == spare


CONFIG = "net/data/weights/model_weights_config.json"


def test_what_lies_beside_a_program(
    members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor that the signature does not name, a pickled one, and a file of no tensor."""
    config = json.loads(members[CONFIG])
    entry = config["config"]["fc.bias"]
    config["config"] |= {"other": {**entry, "path_name": "weight_90"}}
    config["config"] |= {"scripted": {**entry, "path_name": "weight_91", "use_pickle": True}}
    more = {CONFIG: json.dumps(config).encode()}
    more |= {f"net/data/weights/weight_{i}": bytes(12) for i in (90, 91, 92)}
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, **more}.items():
            archive.writestr(name, data)
    from_torch(path)
    assert said(capsys) == {"other", "scripted", "data/weights/weight_92"}
