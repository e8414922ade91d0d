"""Graphs that a device cannot run whole: refused by name, or cut into parts when asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from partition_kit import NARROW, X, counts, lacking, no_halves, same, session_of

import weft
from weft import Tensor
from weft.backends import registry
from weft.backends.registry import devices
from weft.core.caps import PRESETS
from weft.core.errors import CompileError, DTypeError, LimitError
from weft.program.device import Device
from weft.program.parted import PartedSession
from weft.tensor import functional as F

VULKAN = any(d.kind == "vulkan" and d.available for d in devices())
RNG = np.random.default_rng(5)
W = RNG.standard_normal((8, 8)).astype(np.float32)


def through_half(x: Tensor) -> Tensor:
    y = (x * 2).exp()
    z = y.cast("float16") + 1
    return z.cast("float32") * x


def test_refused_by_name_unless_asked() -> None:
    compiled = weft.compile(through_half, no_halves())
    with pytest.raises(DTypeError, match=r"webgpu has no float16: cast float16\[4, 8\]") as error:
        compiled(X)
    assert f"{__file__}:{through_half.__code__.co_firstlineno + 2}" in str(error.value)
    assert "with partition=True 4 of 8 nodes would run on the CPU" in str(error.value)
    assert not compiled.programs()


def test_parts_agree_with_the_oracle_and_transfers_are_counted() -> None:
    compiled = weft.compile(through_half, no_halves(), partition=True)
    for run in (1, 2):
        got = compiled(X)
        same(got, through_half(weft.tensor(X)), 2e-3)
        assert got.device == "interp:0"
        assert counts(compiled) == (3, 2 * run, 2 * run * X.nbytes)
    report = compiled.report()
    assert "through_half: 3 parts, 2 transfers of 256 bytes per run" in report
    assert f"{__file__}:{through_half.__code__.co_firstlineno + 2}" in report
    assert "webgpu has no float16" in report
    assert len(compiled.programs()) == 3 and len(compiled.graphs()) == 1


def test_nothing_to_cut_is_one_part() -> None:
    compiled = weft.compile(lambda x: x @ W + 1, no_halves(), partition=True)
    same(compiled(X), weft.tensor(X) @ W + 1)
    assert len(compiled.programs()) == 1
    assert "1 part, 0 transfers of 0 bytes" in compiled.report()


def test_all_on_the_host() -> None:
    w = weft.tensor(W.astype(np.float16), name="w")
    compiled = weft.compile(lambda x: F.softmax(x @ w, -1), no_halves(), partition=True)
    half = weft.tensor(X.astype(np.float16))
    got = compiled(half)
    assert got.device == "cpu" and counts(compiled) == (1, 0, 0)
    same(got, F.softmax(half @ w, -1), 4e-3)


def test_a_value_moves_once_for_all_its_readers() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        a = y.cast("float16").cast("float32")  # y goes to the host, a comes back
        b = (a * y).cast("bfloat16").cast("float32")  # a * y and b likewise
        return a + b, b - a

    compiled = weft.compile(fn, no_halves(), partition=True)
    for got, want in zip(compiled(X), fn(weft.tensor(X))):
        same(got, want, 3e-2)
    assert counts(compiled) == (5, 4, 4 * X.nbytes)


def test_arguments_on_the_device_and_outputs_that_are_arguments() -> None:
    device = no_halves()
    x = Tensor(X).to(device)
    fn = lambda x: (x, x.cast("float16"), x.cast("float16").cast("float32").sum())  # noqa: E731
    compiled = weft.compile(fn, device, partition=True)
    got = compiled(x)
    for g, want in zip(got, fn(weft.tensor(X))):
        same(g, want, 1e-2)
    assert [g.device for g in got] == ["interp:0", "cpu", "interp:0"]
    assert counts(compiled)[1] == 2  # x to the host, its rounded value back


def test_a_weight_larger_than_a_buffer_runs_on_the_host() -> None:
    """One that is read otherwise than by whole rows: those are cut (tests/compile)."""
    device = lacking(max_buffer_bytes=4096, max_binding_bytes=4096)
    big = weft.tensor(RNG.standard_normal((8, 256)).astype(np.float32), name="big")
    small = weft.tensor(RNG.standard_normal((64, 3)).astype(np.float32), name="small")

    def fn(x: Tensor) -> Tensor:
        return (x.tanh() @ big[:, :64]).relu() @ small

    with pytest.raises(
        LimitError, match=r"'big' float32\[8, 256\] takes 8,192 .* allows 4,096 "
    ) as error:
        weft.compile(fn, device)(X)
    line = f"{__file__}:{fn.__code__.co_firstlineno + 1}"
    assert "with partition=True " in str(error.value) and line in str(error.value)
    compiled = weft.compile(fn, device, partition=True)
    same(compiled(X), fn(weft.tensor(X)), 1e-4)
    assert counts(compiled) == (2, 1, 8 * 64 * 4)
    assert "weight 'big' of 8,192 bytes, webgpu allows 4,096 per buffer" in compiled.report()


@pytest.mark.parametrize("stored", [False, True], ids=["output", "scratch"])
def test_a_large_result_is_named(stored: bool) -> None:
    device = lacking(max_buffer_bytes=4096, max_binding_bytes=4096)

    def fn(x: Tensor) -> Tensor:
        y = x.reshape(32, 1) @ x.reshape(1, 32) @ weft.ones((32, 64))
        return y.sort(1) if stored else y

    with pytest.raises(
        LimitError, match=rf"\[32, 64\] \({__file__}:\d+\).* 8,192 .*partition=True"
    ):
        weft.compile(fn, device)(X)
    compiled = weft.compile(fn, device, partition=True)
    got = compiled(X)
    same(got, fn(weft.tensor(X)))
    assert got.device == "cpu" and counts(compiled) == (2, 1, 4096)


def test_both_sides_may_read_a_weight() -> None:
    device = no_halves()
    w = weft.tensor(W, name="w").to(device)
    fn = lambda x, w: (x @ w.T).cast("float16") + w.T[:4].cast("float16")  # noqa: E731
    compiled = weft.compile(lambda x: fn(x, w), device, partition=True)
    same(compiled(X), fn(weft.tensor(X), weft.tensor(W)), 1e-2)
    assert counts(compiled)[:2] == (2, 1)


def test_what_the_cpu_cannot_hold_either_is_refused() -> None:
    compiled = weft.compile(lambda x: x + 1, no_halves(), partition=True)
    with pytest.raises(DTypeError, match="float64; cast first"):
        compiled(X.astype(np.float64))
    same(weft.compile(through_half, "cpu", partition=True)(X), through_half(weft.tensor(X)), 2e-3)


@pytest.mark.skipif(not VULKAN, reason="no vulkan device")
def test_on_vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Device = registry.get("vulkan")
    whole = weft.compile(through_half, device, partition=True)
    same(whole(X), through_half(weft.tensor(X)), 2e-3)
    assert len(whole.programs()) == 1
    monkeypatch.setattr(device, "caps", replace(device.caps, dtypes=device.caps.dtypes - NARROW))
    compiled = weft.compile(through_half, device, partition=True)
    for run in (1, 2, 3):
        x = X * run / 2
        same(compiled(x), through_half(weft.tensor(x)), 2e-3)
    assert counts(compiled) == (3, 6, 6 * X.nbytes)


def mixed(choices: list[tuple[int, int, int]], x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """A graph of float32 and float16 values over an input and a float32 state."""
    values = [x, s * 1, x.T]
    for op, i, j in choices:
        a, b = values[i % len(values)], values[j % len(values)]
        made = [a.cast("float16"), a.cast("float32"), a.cast(b.dtype) + b, (a.T * 0.5).tanh()]
        values.append(made[op % 4].cast("float16") if op >= 4 else made[op])
    s.assign(values[-2].cast("float32"))
    return values[-1], values[len(values) // 2], x


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 7)] * 3), min_size=1, max_size=9))
def test_any_mixture_agrees_and_the_report_counts_what_ran(
    choices: list[tuple[int, int, int]],
) -> None:
    x = RNG.standard_normal((3, 3)).astype(np.float32)
    want_state, got_state = weft.tensor(x + 1), weft.tensor(x + 1)
    compiled = weft.compile(lambda x: mixed(choices, x, got_state), no_halves(), partition=True)
    for run in (1, 2):
        want = mixed(choices, weft.tensor(x), want_state)
        try:
            got = compiled(x)
        except CompileError as error:
            assert "would be used on both sides" in str(error)
            return
        for g, w in zip(got, want):
            same(g, w, 2e-2)
        same(got_state, want_state, 2e-2)
        session = session_of(compiled)
        if isinstance(session, PartedSession):
            plan = session.parted.meta["report"]
            assert session.transfers == run * len(plan.transfers)
            assert session.moved == run * plan.moved


@pytest.mark.parametrize("short", ["no float16", "small buffers"])
@pytest.mark.parametrize("kind", ["torch", "onnx", "module"])
def test_imported_graphs_with_folded_norms(tmp_path: Any, kind: str, short: str) -> None:
    """Weights that are worked out from others (a norm in its convolution) are made on each side."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
            self.out = torch.nn.Linear(8, 300)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.norm(self.conv(x))).mean((2, 3)).half().float()
            return torch.relu(self.out(y)).sort(-1)[0]

    torch.manual_seed(0)
    net, x = Net().eval(), torch.rand(2, 3, 10, 10)
    net.norm.running_mean.copy_(torch.rand(8))
    caps: dict[str, Any] = {"dtypes": PRESETS["webgpu"].dtypes - NARROW}
    if short == "small buffers":
        caps = {"max_buffer_bytes": 2048, "max_binding_bytes": 2048}
    compiled = weft.compile(_imported(net, x, kind, tmp_path), lacking(**caps), partition=True,
                            frozen=True)  # fmt: skip
    got = compiled(x.numpy())
    tolerance = 1e-5 if kind == "torch" else 2e-3  # the others round to half on their own
    np.testing.assert_allclose(
        np.sort(got.to("cpu").numpy()), net(x).detach().numpy(), atol=tolerance, rtol=tolerance
    )
    parts, transfers, moved = counts(compiled)
    assert parts > 1 and transfers and moved
    assert any(p.formulas for p in compiled.programs())


def _imported(net: Any, x: Any, kind: str, folder: Any) -> Any:
    """The net by way of torch.export, as weft's own modules, or as an ONNX file without the sort,
    which other cases have."""
    import torch

    from weft import nn
    from weft.importers import from_onnx, from_torch

    if kind == "torch":
        return from_torch(torch.export.export(net, (x,)))
    state = {k: v.detach().numpy() for k, v in net.state_dict().items()}
    if kind == "module":
        own = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
        own[0].load_state_dict({k[5:]: v for k, v in state.items() if k.startswith("conv.")})
        own[1].load_state_dict({k[5:]: v for k, v in state.items() if k.startswith("norm.")})
        w, b = weft.tensor(state["out.weight"]), weft.tensor(state["out.bias"])

        def forward(x: Tensor) -> Tensor:
            y = own(x).relu().mean((2, 3)).cast("float16").cast("float32")
            return (y @ w.T + b).relu().sort(1)

        return forward
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    make, t = onnx.helper.make_node, onnx.numpy_helper.from_array
    nodes = [
        make("Conv", ["x", "conv.weight", "conv.bias"], ["a"]),
        make("BatchNormalization", ["a", *(f"norm.{n}" for n in (
            "weight", "bias", "running_mean", "running_var"))], ["b"]),
        make("Relu", ["b"], ["c"]), make("GlobalAveragePool", ["c"], ["d"]),
        make("Flatten", ["d"], ["e"]), make("Cast", ["e"], ["f"], to=10),
        make("Cast", ["f"], ["g"], to=1),
        make("Gemm", ["g", "out.weight", "out.bias"], ["h"], transB=1), make("Relu", ["h"], ["y"]),
    ]  # fmt: skip
    ports = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in
             (("x", [2, 3, 10, 10]), ("y", [2, 300]))]  # fmt: skip
    tensors = [t(v, k) for k, v in state.items() if v.dtype == np.float32]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    onnx.save(onnx.helper.make_model(graph), folder / "n.onnx")
    return from_onnx(folder / "n.onnx")
