"""`weft explain` and `weft compile` of a graph that the device cannot run whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import export

import weft
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.cli.main import invoke
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DTypeError
from weft.tensor import Tensor

DEVICE = "interp:halfless"


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.exp(x).half() + 1).float() * x


@pytest.fixture(autouse=True)
def device() -> Iterator[InterpDevice]:
    base = PRESETS["webgpu"]
    made = InterpDevice(replace(base, dtypes=base.dtypes - {dt.float16, dt.bfloat16}))
    registry._open_devices[DEVICE] = made
    yield made
    registry._open_devices.pop(DEVICE)


def pt2(folder: Path) -> Path:
    path = folder / "net.pt2"
    torch.export.save(export(Halves(), (torch.ones(4, 8),)), path)
    return path


def onnx_file(folder: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    make = onnx.helper.make_node
    nodes = [make("Exp", ["x"], ["a"]), make("Cast", ["a"], ["b"], to=10),
             make("Add", ["b", "b"], ["c"]), make("Cast", ["c"], ["d"], to=1),
             make("Mul", ["d", "x"], ["y"])]  # fmt: skip
    ports = [onnx.helper.make_tensor_value_info(n, 1, [4, 8]) for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(onnx.helper.make_model(graph), folder / "net.onnx")
    return folder / "net.onnx"


FILES = {"pt2": pt2, "onnx": onnx_file}


@pytest.mark.parametrize("kind", FILES)
def test_the_report_lists_parts_and_transfers(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(FILES[kind](tmp_path))
    for extra in ([], ["--show", "report"]):
        assert invoke(["explain", path, "--device", DEVICE, *extra]) == 0
        text = capfd.readouterr().out
        assert "3 parts, 2 transfers of 256 bytes per run" in text
        assert "0     webgpu" in text and "1     cpu" in text and "webgpu has no float16" in text
    assert invoke(["explain", path, "--device", DEVICE, "--show", "report", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [t["nbytes"] for t in found["parts"]["transfers"]] == [128, 128]
    assert [target for target, *_ in found["parts"]["parts"]] == ["webgpu", "cpu", "webgpu"]
    assert {part for _, part, *_ in found["parts"]["host"]} == {1}
    assert len(found["steps"]) == 3


def test_parts_as_source_page_and_graph(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(pt2(tmp_path))
    assert invoke(["explain", path, "--device", DEVICE, "--html", str(tmp_path / "p.html")]) == 0
    assert "<html" in (tmp_path / "p.html").read_text()
    capfd.readouterr()
    assert invoke(["explain", path, "--device", DEVICE, "--show", "graph"]) == 0
    assert "float16" in capfd.readouterr().out
    assert invoke(["explain", path]) == 0  # the CPU runs it whole
    assert "parts" not in capfd.readouterr().out


@pytest.mark.parametrize("kind", FILES)
def test_no_file_of_half_a_function(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    small = replace(PRESETS["webgpu"], name="halfless", dtypes=frozenset({dt.float32, dt.int32}))
    monkeypatch.setitem(PRESETS, "halfless", small)
    path, out = FILES[kind](tmp_path), tmp_path / "net.weft"
    assert invoke(["compile", str(path), "-o", str(out), "--device", "halfless"]) == 1
    error = capfd.readouterr().err
    assert "halfless has no float16" in error and "not the parts of partition=True" in error
    assert not out.exists()
    assert invoke(["compile", str(path), "-o", str(out)]) == 0 and out.exists()


def test_a_parted_function_saves_for_a_device_that_runs_it_whole(
    tmp_path: Path, device: InterpDevice
) -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.exp().cast("float16") + 1).cast("float32") * x

    compiled = weft.compile(fn, device, partition=True)
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    want = np.asarray(compiled(x).to("cpu"))
    with pytest.raises(DTypeError, match="not the parts of partition=True: nothing was written"):
        compiled.save(tmp_path / "f.weft")
    assert not (tmp_path / "f.weft").exists()
    compiled.save(tmp_path / "f.weft", device="cpu")
    got = np.asarray(weft.load(tmp_path / "f.weft", device="cpu")(x))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
