"""Compiled functions in files: Compiled.save, `weft compile` of imported graphs, weft.load."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.cli.main import invoke
from weft.core.errors import CallError, DTypeError, FileFormatError, ShapeError, UsageError
from weft.host.mapped import mapped_files
from weft.program import bundle, serial

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 12, 12)).astype(np.float32)


class Net(nn.Module):
    """A convolution with a norm, so that weights are folded and put in the kernels' order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 5)

    def forward(self, x: weft.Tensor, places: weft.Tensor) -> Any:
        found = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.out(found), found[places]


@pytest.fixture(scope="module")
def compiled() -> Any:
    net = Net()
    net.eval()
    net.norm.running_mean.assign(weft.tensor(RNG.standard_normal(8).astype(np.float32)))
    return weft.compile(net, device="cpu", frozen=True)


PLACES = np.array([1, 0, 1])


@pytest.mark.parametrize("beside", [False, True])
def test_a_function(compiled: Any, tmp_path: Path, beside: bool) -> None:
    want = [x.numpy() for x in compiled(x=X, places=PLACES)]
    compiled.save(tmp_path / "f.weft", beside=beside)
    stored = weft.load(tmp_path / "f.weft", device="cpu")
    assert [b.name for b in stored.inputs] == ["x", "places"]
    for got in (stored(X, PLACES), stored(places=PLACES, x=weft.tensor(X))):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    assert mapped_files(stored._session.weights and _tensors(tmp_path / "f.weft"))


def _tensors(path: Path) -> Any:
    return bundle.read(path).tensors.values()


def test_for_another_device(compiled: Any, tmp_path: Path) -> None:
    want = [x.numpy() for x in compiled(x=X, places=PLACES)]
    compiled.save(tmp_path / "f.weft", "webgpu")
    stored = weft.load(tmp_path / "f.weft", device="interp:webgpu")
    for a, b in zip(stored(X, PLACES), want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


def test_what_does_not_fit(compiled: Any, tmp_path: Path) -> None:
    compiled(x=X, places=PLACES)
    compiled.save(tmp_path / "f.weft")
    stored = weft.load(tmp_path / "f.weft", device="cpu")
    with pytest.raises(CallError, match="takes x, places; got 1"):
        stored(X)
    with pytest.raises(CallError, match="y by name"):
        stored(X, y=PLACES)
    with pytest.raises(ShapeError):
        stored(X[:1], PLACES)
    with pytest.raises(DTypeError):
        stored(X.astype(np.float16), PLACES)
    with pytest.raises(CallError, match="beyond int32"):
        stored(X, PLACES + (1 << 40))


def test_before_a_call_and_with_state(tmp_path: Path) -> None:
    fn = weft.compile(lambda x: x + 1, device="cpu")
    with pytest.raises(UsageError, match="not called yet"):
        fn.save(tmp_path / "f.weft")
    count = weft.zeros(1)

    def counted(x: weft.Tensor) -> weft.Tensor:
        count.assign(count + 1)
        return x + count

    counting = weft.compile(counted, device="cpu")
    counting(weft.ones(1))
    with pytest.raises(UsageError, match="assigns to"):
        counting.save(tmp_path / "f.weft")


def test_a_function_is_no_model(compiled: Any, tmp_path: Path) -> None:
    compiled(x=X, places=PLACES)
    compiled.save(tmp_path / "f.weft")
    assert invoke(["run", str(tmp_path / "f.weft"), "hello"]) == 2
    assert invoke(["explain", str(tmp_path / "f.weft"), "--html", str(tmp_path / "p.html")]) == 0


def test_the_command_on_imported_files(tmp_path: Path) -> None:
    import torch

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.relu(self.conv(x)).mean((2, 3)))

    torch.manual_seed(0)
    net = Tiny().eval()
    batch = {"x": {0: torch.export.Dim("batch", min=2, max=9)}}
    exported = torch.export.export(net, (torch.tensor(X),), dynamic_shapes=batch)
    torch.export.save(exported, tmp_path / "net.pt2")
    out = tmp_path / "net.weft"
    x = np.concatenate([X, X])
    size = next(iter(exported.range_constraints))
    assert (
        invoke(["compile", str(tmp_path / "net.pt2"), "-o", str(out), "--size", f"{size}=4"]) == 0
    )
    want = net(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(weft.load(out)(x), want, atol=1e-5, rtol=1e-5)
    assert invoke(["compile", str(tmp_path / "net.pt2"), "-o", str(out), "--size", "batch"]) == 2


def test_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import TensorProto, helper, numpy_helper

    w = RNG.standard_normal((3, 5)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(w, "w")],
    )
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    out = tmp_path / "net.weft"
    assert invoke(["compile", str(tmp_path / "net.onnx"), "-o", str(out), "--size", "n=4"]) == 0
    assert invoke(["compile", str(tmp_path / "net.onnx"), "-o", str(out), "--size", "m=4"]) == 2
    x = RNG.standard_normal((4, 3)).astype(np.float32)
    np.testing.assert_allclose(weft.load(out)(x), np.maximum(x @ w, 0), atol=1e-5, rtol=1e-5)


def test_a_lie(compiled: Any, tmp_path: Path) -> None:
    """The file of a model that says that it is a function."""
    import json
    import zipfile

    compiled(x=X, places=PLACES)
    compiled.save(tmp_path / "f.weft")
    with zipfile.ZipFile(tmp_path / "f.weft") as old:
        parts = {name: old.read(name) for name in old.namelist()}
    head = json.loads(parts["weft.json"])
    head["programs"] = {}
    with zipfile.ZipFile(tmp_path / "g.weft", "w") as new:
        for name, data in parts.items():
            new.writestr(name, json.dumps(head) if name == "weft.json" else data)
    with pytest.raises(FileFormatError, match="Program 'main' is missing"):
        weft.load(tmp_path / "g.weft", device="cpu")


def test_a_model_is_loaded_without_what_makes_one(compiled: Any, tmp_path: Path) -> None:
    """A process that plays a function imports no ops, no tracing, no compiler."""
    compiled(x=X, places=PLACES)
    compiled.save(tmp_path / "f.weft")
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, weft\n"
        f"f = weft.load({str(tmp_path / 'f.weft')!r})\n"
        f"f(np.load({str(tmp_path / 'x.npy')!r}), np.array([1, 0, 1]))\n"
        "wrong = ('weft.ops', 'weft.graph', 'weft.compile', 'weft.templates', 'llvmlite.binding')\n"
        "print([m for m in sys.modules if m.startswith(wrong)])"
    )
    for _ in range(2):  # LLVM may have to compile in the first
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_what_was_compiled_here_is_no_strangers(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own Program is not proved harmless again, a changed one is."""
    from weft.program import foreign

    proved = []
    harmless = foreign.harmless
    monkeypatch.setattr(foreign, "harmless", lambda p: proved.append(p) or harmless(p))
    compiled(x=X, places=PLACES)
    compiled.save(tmp_path / "f.weft")
    want = weft.load(tmp_path / "f.weft", device="cpu")(X, PLACES)
    assert not proved
    read = bundle.read(tmp_path / "f.weft")
    program = weft.Program.load(_member(tmp_path, read.programs["main"]))
    proved.clear()
    again = replace(program, name=f"another {time.time_ns()}")
    changed = bundle.Bundle(read.head, {"main": serial.dumps(again)}, read.tensors)
    bundle.write(changed, tmp_path / "g.weft")
    got = weft.load(tmp_path / "g.weft", device="cpu")(X, PLACES)
    assert len(proved) == 1
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def _member(folder: Path, data: bytes) -> Path:
    (folder / "main.weft").write_bytes(data)
    return folder / "main.weft"


def test_parameters_name_the_inputs() -> None:
    def fn(x: weft.Tensor, pair: Any, *more: weft.Tensor, scale: weft.Tensor) -> weft.Tensor:
        return x * scale + pair[0] * pair[1] + more[0]

    compiled = weft.compile(fn, device="interp")
    one = np.ones(3, np.float32)
    compiled(one, (one, one), one, scale=one)
    program = compiled.programs()[0]
    names = [program.buffers[i].name for i in program.inputs]
    assert names == ["x", "pair_0", "pair_1", "arg_2", "scale"]
    net = weft.compile(Net(), device="interp")
    net(X, PLACES)
    assert [net.programs()[0].buffers[i].name for i in net.programs()[0].inputs] == ["x", "places"]


def test_weft_compile_packs_a_graph_or_says_what_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    x = torch.randn(3, 64)
    torch.export.save(torch.export.export(model.eval(), (x,)), tmp_path / "net.pt2")
    sizes = {}
    for scheme in ("", "int8"):
        out = tmp_path / f"net{scheme}.weft"
        more = ["--quant", scheme] if scheme else []
        line = ["compile", str(tmp_path / "net.pt2"), "-o", str(out), "--json", *more]
        assert invoke(line) == 0
        sizes[scheme] = json.loads(capsys.readouterr().out)["weights"]
        got = weft.load(out)(x.numpy())
        assert np.abs(got - model(x).detach().numpy()).max() < (0.03 if scheme else 1e-5)
    assert sizes["int8"] < 0.35 * sizes[""]
    line = ["compile", str(tmp_path / "net.pt2"), "-o", str(out), "--context", "64"]
    assert invoke(line) == 2
    assert "--context goes with a decoder's checkpoint" in capsys.readouterr().err
