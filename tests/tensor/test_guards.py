"""A compiled function gives what the eager one gives after any change to a module or an optimiser
that its trace read; a change back finds the earlier Program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim


class Net(nn.Module):
    """Reads attributes of several kinds."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.drop = nn.Dropout(0.5).eval()
        self.tail = nn.Sequential(nn.Linear(4, 4))
        self.more = nn.ModuleList([nn.Linear(4, 4)])
        self.register_buffer("offset", weft.ones(4))
        self.scale = 2.0
        self.powers = [1, 2]
        self.table = {"shift": 0.25}
        self.activation = "tanh"

    def forward(self, x: Any) -> Any:
        h = self.norm(self.first(x)) * self.scale + self.offset
        for power in self.powers:
            h = h + self.drop(x) * power + self.table["shift"]
        h = h.tanh() if self.activation == "tanh" else h.relu()
        for module in self.more:
            h = module(h)
        return self.tail(self.second(h))


def swap(net: Net) -> None:
    net.first.weight, net.second.weight = net.second.weight, net.first.weight


def parameter(net: Net) -> None:
    net.first.weight = nn.Parameter(np.full((4, 4), 0.5, np.float32))


def no_bias(net: Net) -> None:
    net.first.bias = None


def tie(net: Net) -> None:
    net.second.weight = net.first.weight


def submodule(net: Net) -> None:
    net.tail = nn.Linear(4, 2)


def nested(net: Net) -> None:
    setattr(net.tail, "0", nn.Linear(4, 3))


def append(net: Net) -> None:
    net.more.append(nn.Linear(4, 4))


def append_to_sequential(net: Net) -> None:
    net.tail.append(nn.Linear(4, 5))


def remove(net: Net) -> None:
    delattr(net.more, "0")


def number(net: Net) -> None:
    net.scale = 3.0


def eps(net: Net) -> None:
    net.norm.eps = 0.5


def in_list(net: Net) -> None:
    net.powers.append(3)


def in_dict(net: Net) -> None:
    net.table["shift"] = 0.5


def text(net: Net) -> None:
    net.activation = "relu"


def buffer(net: Net) -> None:
    net.offset = weft.full((4,), 3.0)


def own_forward(net: Net) -> None:
    net.second.forward = lambda x: x * 2.0  # type: ignore[method-assign]


def other_class(net: Net) -> None:
    net.second.__class__ = type("Other", (nn.Linear,), {"forward": lambda self, x: x - 1.0})


def load(net: Net) -> None:
    net.load_state_dict({k: v + 1.0 for k, v in net.state_dict().items()})


def cast(net: Net) -> None:
    net.first.to(weft.float16)


CHANGES = [
    swap, parameter, no_bias, tie, submodule, nested, append, append_to_sequential, remove, number,
    eps, in_list, in_dict, text, buffer, own_forward, other_class, load, cast,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[Net], None]) -> None:
    weft.manual_seed(0)
    net, x = Net(), weft.randn(3, 4)
    fast = weft.compile(net, device="cpu")
    for _ in range(6):  # also by the shorter way
        assert np.allclose(fast(x).numpy(), net(x).numpy(), atol=1e-5)
    change(net)
    for _ in range(2):
        assert np.allclose(fast(x).numpy(), net(x).numpy(), atol=1e-3)


def test_a_change_back_finds_the_earlier_program() -> None:
    net, x = Net(), weft.randn(3, 4)
    fast = weft.compile(net, device="cpu")
    before, weight = fast(x).numpy(), net.first.weight
    for _ in range(3):
        net.scale, net.first.weight = 3.0, nn.Parameter(weight.numpy() * 2)
        fast(x)
        net.scale, net.first.weight = 2.0, weight
        assert np.array_equal(fast(x).numpy(), before)
        swap(net)
        fast(x)
        swap(net)
    assert len(fast.programs()) == 5  # each new Parameter is one more


def test_dropout_and_training() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    fast, x = weft.compile(net, device="cpu"), weft.ones((64, 3))
    fast(x)
    net[0].p = 0.0
    assert np.allclose(fast(x).numpy(), 0, atol=1e-6)  # without a loss all are the mean
    net[1].momentum = 1.0
    fast(x)
    assert np.allclose(net[1].running_mean.numpy(), 1, atol=1e-6)
    net.eval()
    assert np.allclose(fast(x).numpy(), net(x).numpy(), atol=1e-6)
    net[1].running_mean = weft.full((3,), 5.0)
    assert np.allclose(fast(x).numpy(), net(x).numpy(), atol=1e-6)


def test_a_module_read_without_being_called() -> None:
    net = nn.Linear(2, 2)
    fast = weft.compile(lambda x: x @ net.weight.T + len(list(net.parameters())), device="cpu")
    x = weft.ones((1, 2))
    fast(x)
    net.weight, net.bias = nn.Parameter(np.eye(2, dtype=np.float32)), None
    assert fast(x).tolist() == [[2.0, 2.0]]


def test_an_unrelated_attribute_changes_nothing() -> None:
    net, x = Net(), weft.randn(3, 4)
    fast = weft.compile(net, device="cpu")
    for step in range(3):
        net.step = step  # never read
        Net().scale = step
        fast(x)
    assert len(fast.programs()) == 1


def stepped(opt: Any, w: Any, compiled: bool, changes: list[Callable[[Any], None]]) -> list[Any]:
    def step() -> Any:
        opt.zero_grad()
        loss = ((w - 1.0) * weft.tensor([1.0, 2.0, 3.0])).square().sum()
        loss.backward()
        opt.step()
        return loss

    run = weft.compile(step, device="cpu") if compiled else step
    out = []
    for change in changes:
        for _ in range(2):
            run()
        change(opt)
        run()
        out.append(w.numpy().copy())
    return out


def options(name: str, *values: Any) -> list[Callable[[Any], None]]:
    def put(value: Any) -> Callable[[Any], None]:
        return lambda opt: opt.groups[0].__setitem__(name, value)

    return [put(v) for v in values]


def new_state(opt: Any) -> None:
    for slots in opt.state.values():
        for name, t in slots.items():
            slots[name] = weft.full(t.shape, 0.5)


def new_count(opt: Any) -> None:
    opt.count = weft.tensor(np.array(100, np.int32))


def rate(opt: Any) -> None:
    opt.lr = 0.3


def schedule(opt: Any) -> None:
    opt.lr = optim.linear(0.2, 10)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (optim.Adam, options("betas", (0.5, 0.9), (0.9, 0.999)) + options("eps", 0.5)),
        (optim.AdamW, [*options("weight_decay", 0.3, 0.0), new_state, new_count]),
        (optim.Adam, [*options("maximize", True, False), rate, schedule, rate]),
        (lambda p: optim.SGD(p, momentum=0.9), [*options("momentum", 0.5), new_state]),
        (lambda p: optim.SGD(p, momentum=0.9), [*options("nesterov", True), rate]),
    ],
)
def test_optimisers(make: Any, changes: list[Any]) -> None:
    found = []
    for compiled in (False, True):
        w = weft.tensor([1.0, -2.0, 3.0], requires_grad=True)
        found.append(stepped(make([("w", w)]), w, compiled, changes))
    for eager, fast in zip(*found):
        assert np.allclose(eager, fast, rtol=1e-5, atol=1e-6)


def test_options_that_come_back() -> None:
    w = weft.tensor([1.0], requires_grad=True)
    opt = optim.Adam([w])

    def step() -> None:
        (w * w).sum().backward()
        opt.step()
        opt.zero_grad()

    fast = weft.compile(step, device="cpu")
    for i in range(6):
        opt.groups[0]["eps"] = (1e-8, 1e-4)[i % 2]
        fast()
    assert len(fast.programs()) == 2


def test_requires_grad() -> None:
    net = nn.Linear(2, 1)

    def step(x: Any) -> Any:
        net.zero_grad()
        loss = net(x).sum()
        loss.backward()
        return loss

    fast = weft.compile(step, device="cpu")
    fast(weft.ones((1, 2)))
    assert net.weight.grad is not None
    net.weight.requires_grad_(False)
    fast(weft.ones((1, 2)))
    assert net.weight.grad is None and net.bias.grad is not None
    wanted = weft.compile(lambda x: x * 2.0 if net.weight.requires_grad else x, device="cpu")
    assert wanted(weft.ones(1)).item() == 1.0
    net.weight.requires_grad_()
    assert wanted(weft.ones(1)).item() == 2.0
