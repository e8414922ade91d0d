"""The module tree: names, saved state, modes, devices."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from nnkit import random
from present import opened

import weft
from weft import nn
from weft.core.errors import DeviceError, ModelError, ShapeError, TraceError, UsageError


class Net(nn.Module):
    """A module with every kind of member."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.norm = nn.BatchNorm1d(6)
        self.named = nn.ModuleDict({"gate": nn.Linear(6, 2, bias=False)})
        self.scale = nn.Parameter(np.ones(2, np.float32))
        self.drop = nn.Dropout(0.5)
        self.tied = self.first

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).relu()
        return self.named["gate"](self.drop(self.norm(x))) * self.scale


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        T = torch.nn
        self.first = T.Linear(4, 6)
        self.blocks = T.ModuleList([T.Linear(6, 6), T.Linear(6, 6)])
        self.norm = T.BatchNorm1d(6)
        self.named = T.ModuleDict({"gate": T.Linear(6, 2, bias=False)})
        self.scale = T.Parameter(torch.ones(2))
        self.drop = T.Dropout(0.5)
        self.tied = self.first


def test_names_are_pytorchs() -> None:
    ours, theirs = Net(), TorchNet()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert {n for n, _ in ours.named_buffers()} == {n for n, _ in theirs.named_buffers()} | {
        "drop.key"
    }
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    assert ours.blocks[1].weight.name == "blocks.1.weight"
    assert "(gate): Linear(6, 2, bias=False)" in repr(ours)


@pytest.mark.parametrize("kind", ["torch", "numpy", "bfloat16", "weft"])
def test_a_pytorch_state_dict_loads(kind: str) -> None:
    ours, theirs = Net(), TorchNet()
    state = theirs.state_dict()
    want = {k: v.numpy() for k, v in state.items()}
    if kind == "bfloat16":
        state = {k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}
        want = {k: v.float().numpy() for k, v in state.items()}
    given = {"numpy": want, "weft": {k: weft.tensor(v) for k, v in want.items()}}.get(kind, state)
    assert ours.load_state_dict(given) == ([], [])
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, want[name])
    theirs.load_state_dict({k: torch.tensor(v) for k, v in ours.state_dict().items()})


def test_what_does_not_fit_is_listed() -> None:
    net = Net()
    before = net.state_dict()
    state = dict(before)
    state["extra"] = state.pop("norm.weight")
    with pytest.raises(ModelError, match=r"missing norm\.weight; unexpected extra"):
        net.load_state_dict(state)
    assert net.load_state_dict(state, strict=False) == (["norm.weight"], ["extra"])
    wrong = {k: v + 1 for k, v in before.items()} | {"scale": np.zeros(3, np.float32)}
    with pytest.raises(ShapeError, match=r"scale \[3\] for \[2\]"):
        net.load_state_dict(wrong)
    np.testing.assert_array_equal(net.state_dict()["first.bias"], before["first.bias"])


def test_saved_state_is_a_copy_and_loads_into_a_program() -> None:
    net = nn.Linear(3, 3)
    saved = net.state_dict()
    opt = weft.optim.SGD(net.parameters(), lr=0.1)

    def step(x: weft.Tensor) -> weft.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    run = weft.compile(step, "cpu")
    x = random(4, 3)
    first = [run(x).item() for _ in range(3)]
    assert not np.array_equal(saved["weight"], net.weight.numpy())
    net.load_state_dict(saved)
    assert [run(x).item() for _ in range(3)] == first
    assert len(run.programs()) == 1
    y = weft.compile(lambda x: net(x), "cpu")  # sees the weights that training changes
    before = y(x).numpy().copy()
    run(x)
    assert not np.array_equal(before, y(x).numpy())
    np.testing.assert_allclose(y(x).numpy(), net(weft.tensor(x)).numpy(), atol=1e-6)


def test_modes_recompile_only_when_they_matter() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    run, plain = weft.compile(lambda x: net(x), "cpu"), weft.compile(lambda x: net[0](x), "cpu")
    x = random(16, 4)
    outs = []
    for mode in (True, False, True, False):
        net.train(mode)
        outs.append(run(x).numpy().copy())
        plain(x)
    assert (len(run.programs()), len(plain.programs())) == (2, 1)
    np.testing.assert_array_equal(outs[1], outs[3])
    assert (outs[0] == 0).mean() > 0.3 and not np.array_equal(outs[0], outs[2])


def test_modules_move_and_one_device_serves_a_step() -> None:
    net, x = Net(), weft.tensor(random(8, 4))
    want = net.eval()(x)
    net.to(opened("vulkan"))
    assert {t.device for t in (*net.parameters(), *net.buffers())} == {"vulkan:0"}
    np.testing.assert_allclose(net(x.to("vulkan")).numpy(), want.numpy(), atol=1e-5)
    with pytest.raises(DeviceError, match=r"is on cpu and .* on vulkan"):
        net(x)
    net.train()
    out = net(x.to("vulkan"))
    with pytest.raises(DeviceError, match=r"backward: .* is on vulkan:0 and .* on cpu"):
        out.backward(weft.ones(out.shape))  # a gradient from elsewhere
    out.sum().backward()
    assert {p.grad.device for p in net.parameters()} == {"vulkan:0"}
    net.to("cpu")
    assert {p.grad.device for p in net.parameters()} == {"cpu"}
    np.testing.assert_allclose(net.eval()(x).numpy(), want.numpy(), atol=0.5)


def test_cpu_forward_with_device_backward_is_refused() -> None:
    net = nn.Linear(4, 2)
    x = weft.tensor(random(8, 4))
    loss = net(x).square().mean()
    on_device = loss.detach().to(opened("vulkan"))
    with pytest.raises(DeviceError, match=r"is on cpu and .* on vulkan:0; move one"):
        loss.backward(on_device)
    with pytest.raises(TraceError, match="computed outside of the traced function"):
        weft.compile(lambda: loss.backward(), "vulkan")()
    net.to("vulkan")
    with pytest.raises(DeviceError, match=r"is on vulkan:0.* that it reads|it reads is on vulkan"):
        weft.compile(lambda x: net(x), "cpu")(x)
    opt = weft.optim.SGD(nn.Linear(4, 2).parameters(), lr=0.1)
    for p in opt.parameters():
        p.grad = weft.zeros(p.shape)
        p.grad.to_("vulkan")
    with pytest.raises(DeviceError, match="on vulkan:0"):
        opt.step()


def test_casting_leaves_integers() -> None:
    net = Net().to(weft.float16)
    assert net.first.weight.dtype == weft.float16 and net.first.weight.requires_grad
    assert net.norm.num_batches_tracked.dtype == weft.int32


def test_freezing_and_apply() -> None:
    net = Net()
    net.blocks.requires_grad_(False)
    net(weft.tensor(random(8, 4))).sum().backward()
    assert net.blocks[0].weight.grad is None and net.first.weight.grad is not None
    net.zero_grad()
    assert net.first.weight.grad is None
    seen: list[str] = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[-1] == "Net" and seen.count("Linear") == 5
    assert type(net.scale * 2) is weft.Tensor and type(net.scale.detach()) is weft.Tensor


def test_wrong_use_is_named() -> None:
    with pytest.raises(UsageError, match="no forward"):
        nn.Module()(1)
    with pytest.raises(UsageError, match="is not a Module"):
        nn.Sequential(lambda x: x)
    with pytest.raises(UsageError, match="cannot be called 'items'"):
        nn.ModuleDict({"items": nn.Identity()})


def test_init_is_seeded_and_pytorch_shaped() -> None:
    weft.manual_seed(3)
    a = nn.Linear(64, 32)
    weft.manual_seed(3)
    b = nn.Linear(64, 32)
    np.testing.assert_array_equal(a.weight.numpy(), b.weight.numpy())
    assert np.abs(a.weight.numpy()).max() <= 1 / 8 and not np.array_equal(a.weight, a.weight * 0)
    t = nn.Parameter(np.zeros((256, 64, 3), np.float32))
    wanted = {
        "xavier_uniform_": (6 / (192 + 768)) ** 0.5 / 3**0.5,
        "xavier_normal_": (2 / (192 + 768)) ** 0.5,
        "kaiming_uniform_": (2 / 192) ** 0.5,
        "kaiming_normal_": (2 / 192) ** 0.5,
        "normal_": 1.0,
        "uniform_": 1 / 12**0.5,
        "trunc_normal_": 0.8796,  # of a normal held within two deviations
    }
    for name, deviation in wanted.items():
        values = getattr(nn.init, name)(t, key=7).numpy()
        assert values.std() == pytest.approx(deviation, rel=0.02), name
        np.testing.assert_array_equal(getattr(nn.init, name)(t, key=7).numpy(), values)
    assert np.abs(values).max() <= 2
    assert nn.init.calculate_gain("leaky_relu", 0.2) == torch.nn.init.calculate_gain(
        "leaky_relu", 0.2
    )


def test_importing_weft_stays_cheap() -> None:
    code = "import sys, weft; print('weft.nn' in sys.modules, 'torch' in sys.modules)"
    code += "; weft.nn, weft.optim, weft.autocast; print('weft.nn' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False", "True"]


def test_training_moves_between_devices() -> None:
    net = nn.Linear(3, 2)
    opt = weft.optim.Adam(net.parameters(), 0.1)

    def step(x: weft.Tensor) -> weft.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    on_cpu, x = weft.compile(step, "cpu"), random(4, 3)
    on_cpu(x)
    net_state, opt_state = net.state_dict(), opt.state_dict()
    want = [on_cpu(x).item() for _ in range(3)]
    net.load_state_dict(net_state)
    opt.load_state_dict(opt_state)
    net.to(opened("vulkan"))
    opt.to("vulkan")
    there = weft.compile(step, "vulkan")
    np.testing.assert_allclose([there(x).item() for _ in range(3)], want, rtol=1e-5)
    with pytest.raises(DeviceError, match=r"'weight' that it reads is on vulkan"):
        on_cpu(x)
    net.to("cpu")
    opt.to("cpu")
    assert on_cpu(x).item() < want[-1] and len(on_cpu.programs()) == 1


def test_orthogonal_identical_and_sparse_starts() -> None:
    for shape in ((3, 5), (5, 3), (4, 2, 3)):
        w = nn.init.orthogonal_(nn.Parameter(np.zeros(shape, np.float32)), 2.0, key=7).numpy()
        flat = w.reshape(shape[0], -1)
        flat = flat if flat.shape[0] <= flat.shape[1] else flat.T
        np.testing.assert_allclose(flat @ flat.T, 4 * np.eye(len(flat)), atol=1e-5)
    for shape, groups in (((4, 2, 3), 1), ((4, 2, 3, 3), 2), ((2, 4, 2, 3, 5), 1)):
        made = nn.init.dirac_(nn.Parameter(np.ones(shape, np.float32)), groups).numpy()
        want = torch.nn.init.dirac_(torch.ones(shape), groups).numpy()
        np.testing.assert_array_equal(made, want)
    np.testing.assert_array_equal(nn.init.eye_(weft.zeros((2, 3))).numpy(), np.eye(2, 3))
    drawn = nn.init.sparse_(weft.zeros((50, 20)), 0.3, key=7).numpy()
    assert ((drawn == 0).sum(0) == 15).all() and 0.005 < drawn[drawn != 0].std() < 0.015
