"""`weft explain --onnx`: what it writes is an ONNX model, and means what the graph means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.cli.main import invoke
from weft.models import random_folder

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 6)).astype(np.float32)
I = np.array([2, 0, 1], np.int32)  # noqa: E741


def plain(x: weft.Tensor, i: weft.Tensor) -> Any:
    """Primitives alone, each of which ONNX has, too."""
    y = (x @ x.T + 1).exp() / (x.abs().sum(1) + 2)
    z = weft.where(y < 3, y.sqrt(), -y).max(0)
    cut = x[::-1, 1:5:2].transpose(1, 0).reshape(2, 2, 2)
    padded = weft.concat([x, x * 2], axis=1)[i]
    return z, cut, padded, (y * 5).cast("int32"), x.tanh().floor()


def loaded(path: Path) -> Any:
    model = onnx.load(path)
    onnx.checker.check_model(model)
    return model


def written(tmp_path: Path, *args: object) -> Any:
    out = tmp_path / "out.onnx"
    assert invoke(["explain", *map(str, args), "--onnx", str(out)]) == 0
    return loaded(out)


def test_standard_operators_mean_the_same(tmp_path: Path) -> None:
    import onnxruntime

    from weft.graph import serial

    compiled = weft.compile(plain, device="interp")
    want = [x.numpy() for x in compiled(X, I)]
    data = serial.to_data(compiled.graphs()[0])
    (tmp_path / "g.json").write_text(json.dumps(data))
    model = written(tmp_path, tmp_path / "g.json")
    assert {n.domain for n in model.graph.node} == {""}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for a, b in zip(session.run(None, {"x": X, "i": I}), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2,
              "n_positions": 16}  # fmt: skip
    return random_folder(tmp_path_factory.mktemp("gpt2"), config)


def test_a_model_and_what_it_compiles_to(folder: Path, tmp_path: Path) -> None:
    model = written(tmp_path, folder, "--step", "decode")
    kinds = {(n.domain, n.op_type) for n in model.graph.node}
    assert {("weft", "layer_norm"), ("", "MatMul"), ("weft", "update")} & kinds
    assert any(i.doc_string == "weight" for i in model.graph.input)
    launches = written(tmp_path, folder, "--step", "decode", "--show", "kernels")
    program = weft.load(folder, device="cpu", max_batch=1).programs()["decode"]
    nodes = [n for n in launches.graph.node if n.op_type != "Result"]
    assert len(nodes) == len(program.steps)
    assert {n.domain for n in nodes} == {"weft.kernels"}


def test_two_steps_and_a_compiled_file(folder: Path, tmp_path: Path) -> None:
    from weft.backends.presets import caps_of
    from weft.models.run import saved

    path = tmp_path / "m.weft"
    saved.save(weft.load(folder, device="cpu", max_batch=1), path, "gfx942", caps_of("gfx942"), {},
               False)  # fmt: skip
    model = written(tmp_path, path)
    steps = {n.name.split("/")[0] for n in model.graph.node}
    assert steps == {"prefill", "decode", "rows16", "rows64"}
    assert any(a.name == "weights" for n in model.graph.node for a in n.attribute)


def test_files_of_other_frameworks(tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.conv(x)))

    net = torch.export.export(Net().eval(), (torch.ones(1, 3, 8, 8),))
    torch.export.save(net, tmp_path / "n.pt2")
    assert ("weft", "conv") in {(n.domain, n.op_type) for n in
                                written(tmp_path, tmp_path / "n.pt2").graph.node}  # fmt: skip
    launches = written(tmp_path, tmp_path / "n.pt2", "--show", "kernels")
    assert len([n for n in launches.graph.node if n.op_type == "conv"]) == 1
    port = [onnx.helper.make_tensor_value_info(n, 1, ["n", 3]) for n in "xy"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Exp", ["x"], ["y"])], "g", port[:1], port[1:]
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "e.onnx")
    again = written(tmp_path, tmp_path / "e.onnx")
    assert [n.op_type for n in again.graph.node] == ["Exp", "Identity"]


def test_without_the_package(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    assert invoke(["explain", str(folder), "--onnx", str(tmp_path / "o.onnx")]) == 2
    assert "pip install '.[import]'" in capsys.readouterr().err
