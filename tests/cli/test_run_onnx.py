"""`weft run` and `weft explain` of an ONNX file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import invoke

onnx = pytest.importorskip("onnx")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """x[n, 3] -> Relu -> y."""
    helper = onnx.helper
    ports = [helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    made = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), made)
    return made


def test_it_runs_on_a_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    np.save(path.parent / "x.npy", x)
    args = ["--input", f"x={path.parent / 'x.npy'}", "--output", str(path.parent / "out"), "--json"]
    assert invoke(["run", str(path), *args]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["outputs"][0]["shape"] == [2, 3] and facts["outputs"][0]["max"] == 6
    assert np.array_equal(np.load(path.parent / "out" / "y.npy"), np.maximum(x, 0))


def test_random_numbers_and_open_sizes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", str(path), "--size", "n=7"]) == 0
    shown = capsys.readouterr().out
    assert "x: float32[n, 3]" in shown and "[7, 3]" in shown and "compiled for cpu" in shown


def test_explain_shows_what_runs_where(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "y: float32[n, 3]" in shown and "1 launches" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--size", "m=7"], "no open size 'm'"),
        (["--input", "z=x.npy"], "no input 'z'"),
        (["--size", "n"], "expected NAME=N"),
    ],
)
def test_wrong_options(
    path: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", str(path), *args]) == 2
    assert words in capsys.readouterr().err
