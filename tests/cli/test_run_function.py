"""`weft run` of functions' files: compiled ones, torch.export's, ONNX models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.cli.main import invoke

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3)).astype(np.float32)
W = RNG.standard_normal((3, 5)).astype(np.float32)


def two(x: weft.Tensor, y: weft.Tensor) -> dict[str, Any]:
    return {"sum": x @ weft.tensor(W) + y, "x": x * 2}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    fn = weft.compile(two, device="cpu")
    fn(X, np.float32([1, 2, 3, 4, 5]))
    fn.save(tmp_path / "f.weft")
    return tmp_path / "f.weft"


def facts(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert invoke(["run", *args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_compiled_function(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(stored.parent / "x.npy", X)
    out = stored.parent / "out"
    found = facts(
        capsys, str(stored), "--input", f"x={stored.parent / 'x.npy'}", "--output", str(out)
    )
    assert [i["declared"] for i in found["inputs"]] == ["x: float32[4, 3]", "y: float32[5]"]
    np.testing.assert_array_equal(np.load(out / "out1.npy"), X * 2)
    assert np.load(out / "out0.npy").shape == (4, 5) and found["where"][0]["how"].endswith("cpu:0")


def test_a_graph_of_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> dict[str, Any]:
            return {"a": x @ more["w"], "b": (x + 1, x.sum())}

    batch = torch.export.Dim("batch", min=2, max=9)
    given = (torch.tensor(X), {"w": torch.tensor(W)})
    shapes = {"x": {0: batch}, "more": {"w": {}}}
    torch.export.save(torch.export.export(Net(), given, dynamic_shapes=shapes), tmp_path / "n.pt2")
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "out"
    found = facts(
        capsys, str(tmp_path / "n.pt2"), "--input", f"x={tmp_path / 'x.npy'}", "--output", str(out)
    )
    assert [i["shape"] for i in found["inputs"]] == [[4, 3], [3, 5]]
    np.testing.assert_array_equal(np.load(out / "b_0.npy"), X + 1)
    assert {p.name for p in out.iterdir()} == {"a.npy", "b_0.npy", "b_1.npy"}
    assert facts(capsys, str(tmp_path / "n.pt2"))["inputs"][0]["shape"] == [2, 3]


def test_an_onnx_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    ports = [onnx.helper.make_tensor_value_info(n, 1, ["n", 3]) for n in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "r.onnx")
    found = facts(capsys, str(tmp_path / "r.onnx"), "--size", "n=7", "--device", "cpu")
    assert found["outputs"][0]["shape"] == [7, 3]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--input", "z=x.npy"], "no input 'z'; this model has x, y"),
        (["--size", "n=2"], "no open size 'n'"),
        (["hello"], "function"),
    ],
)
def test_wrong_options(
    stored: Path, args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", str(stored), *args]) in (1, 2)
    assert said in capsys.readouterr().err


def test_options_of_functions_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "hello", "--size", "n=2"]) == 2
    assert "are for the file of a function" in capsys.readouterr().err


def test_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of a stranger's file are shown, not obeyed."""
    fn = weft.compile(lambda **given: given["\x1b[2J\x07x"] + 1, device="cpu")
    fn(**{"\x1b[2J\x07x": X})
    fn.save(tmp_path / "f.weft")
    for command in ("run", "explain"):
        invoke([command, str(tmp_path / "f.weft")])
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err and "\x07" not in shown.out + shown.err
    invoke(["run", str(tmp_path / "f.weft"), "--input", "\x1b[2J=x"])
    shown = capsys.readouterr()
    assert "\\x1b[2J" in shown.err and "\x1b" not in shown.err


def test_a_file_that_is_not_there_is_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("missing.weft", "missing.onnx", "missing.pt2", "missing.gguf"):
        assert invoke(["run", name]) in (1, 2)
        assert name in capsys.readouterr().err
