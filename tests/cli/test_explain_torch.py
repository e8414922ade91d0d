"""`weft explain` of a .pt2 file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from weft.cli.main import invoke

pytestmark = pytest.mark.usefixtures("small_roofline")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    shapes = ({0: Dim("n", min=1, max=9)},)
    torch.export.save(export(net, (torch.ones(2, 4),), dynamic_shapes=shapes), path)
    return path


def shown(capfd: pytest.CaptureFixture[str], *args: str) -> str:
    assert invoke(["explain", *args]) == 0
    return capfd.readouterr().out


def test_what_is_in_it(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capfd, str(file), "--json"))
    assert found["inputs"][0].startswith("input: float32[") and found["inputs"][0].endswith(", 4]")
    assert found["results"] == "linear_1"
    assert (found["parameters"], found["bytes"]) == (58, 232)
    assert found["ops"] == {"aten.linear.default": 2, "aten.gelu.default": 1}
    text = shown(capfd, str(file))
    assert "58 in 0.0 MB" in text and "        2  aten.linear.default" in text


def test_what_it_compiles_to(file: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "float32[2, 4]" in shown(capfd, str(file), "--show", "graph")
    assert "gelu" in shown(capfd, str(file))
    assert "define" in shown(capfd, str(file), "--show", "source")
    shown(capfd, str(file), "--html", str(tmp_path / "page.html"))
    assert "<html" in (tmp_path / "page.html").read_text()


def test_a_file_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt2").write_bytes(b"no")
    assert invoke(["explain", str(tmp_path / "x.pt2")]) == 1
    error = capfd.readouterr().err
    assert "x.pt2: not a whole .pt2 file" in error and "Traceback" not in error
