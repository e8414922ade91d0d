"""Hooks of tensors and modules: called with what PyTorch calls them with, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch as theirs

import weft
import weft.torch as torch
from weft.core.errors import GradientError, ShapeError, TraceError, UsageError

Log = list[Any]


def leaf(m: Any, *values: float) -> Any:
    return m.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def shown(tensors: Any) -> Any:
    return tuple(None if t is None else t.tolist() for t in tensors)


def in_order(m: Any, log: Log) -> None:
    x = leaf(m)
    x.register_hook(lambda g: log.append(g.tolist()))
    second = x.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: log.append(g.tolist()))
    x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
    (x * x + x).sum().backward()  # one call, with the sum of both parts
    second.remove()
    second.remove()
    (x * 3).sum().backward()
    log.append(x.grad.tolist())


def of_computed(m: Any, log: Log) -> None:
    x, w = leaf(m), leaf(m, 0.5, 0.25, 2.0)
    y = x * w + x
    y.retain_grad()  # after all hooks, though registered first
    y.register_hook(lambda g: g + 1)
    z = (y * y).sum()
    z.retain_grad()
    for _ in range(2):
        z.backward(retain_graph=True)
        log.append(shown((x.grad, w.grad, y.grad, z.grad)))
    log.append((x.is_leaf, y.is_leaf, y.retains_grad, x.retains_grad, x.grad_fn, y.grad_fn is None))


def in_grad(m: Any, log: Log) -> None:
    x, w = leaf(m), leaf(m)
    y, unused = x * 2, w * 3
    y.register_hook(lambda g: g * 5)
    unused.register_hook(lambda g: log.append("not on the way to x"))
    with x.register_hook(lambda g: g * 100):
        log.append(shown(m.autograd.grad((y + unused).sum(), [x], retain_graph=True)))
    log.append(shown(m.autograd.grad((y + unused).sum(), [x])))
    log.append(x.grad)


def after_writes(m: Any, log: Log) -> None:
    x, w = leaf(m), leaf(m)
    v = x * 1
    v.retain_grad()  # of the last value
    v.register_hook(lambda g: log.append(g.tolist()))  # of the value at this point
    v.mul_(3)
    v[0] = w[0]
    part = v[1:]
    part.retain_grad()
    v.mul_(2)
    ((v * v).sum() + part.sum()).backward()
    log.append(shown((v.grad, part.grad, x.grad, w.grad)))


def in_place(m: Any, log: Log) -> None:
    x = leaf(m)
    x.register_hook(lambda g: g.clamp_(-3, 3))
    (x * x).sum().backward()
    log.append(x.grad.tolist())


def steps_in_backward(m: Any, log: Log) -> None:
    net = m.nn.Linear(2, 1)
    with m.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    steps = {p: m.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def step(p: Any) -> None:
        steps[p].step()
        steps[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    net(m.tensor([[1.0, -2.0]])).sum().backward()
    log += [p.grad for p in net.parameters()]
    log += [round(v, 6) for v in [*net.weight[0].tolist(), *net.bias.tolist()]]


def twice(m: Any, log: Log) -> None:
    x = leaf(m)
    y = x * x * x
    y.register_hook(lambda g: g * x)
    (g,) = m.autograd.grad(y.sum(), x, create_graph=True)
    g.sum().backward()
    log.append(shown((g, x.grad)))


def of_modules(m: Any, log: Log) -> None:
    class Two(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = m.nn.Parameter(m.tensor([2.0, 3.0]))

        def forward(self, a: Any, b: Any, k: int = 1) -> Any:
            return a * self.w * b, a + b * k

    net, a, b = Two(), leaf(m, 1.0, 2.0), m.tensor([5.0, 7.0])
    net.register_full_backward_hook(lambda _, i, o: log.append((shown(i), shown(o))))
    net.register_full_backward_pre_hook(lambda _, o: log.append(shown(o)))
    handles = [
        net.register_full_backward_pre_hook(lambda _, o: tuple(g * 2 for g in o)),
        net.register_full_backward_hook(lambda _, i, o: tuple(g * 10 for g in i)),
    ]
    p, q = net(a, b)
    (p.sum() + q.sum() * 3).backward()
    log.append(shown((a.grad, net.w.grad)))
    for handle in handles:
        handle.remove()
    net(a, b)[0].sum().backward()
    log.append(shown((a.grad, net.w.grad)))
    net.register_forward_pre_hook(lambda _, args, kw: (args, {**kw, "k": 4}), with_kwargs=True)
    net.register_forward_hook(lambda _, args, kw, out: log.append(kw), with_kwargs=True)
    net.register_forward_hook(lambda _, args, out: log.append("first"), prepend=True)
    log.append(shown(net(a, b, k=2)))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_module_whose_input_needs_no_gradient() -> None:
    for m in (torch, theirs):
        log: Log = []
        layer = m.nn.Linear(2, 1)
        layer.register_full_backward_hook(lambda _, i, o, log=log: log.append((i, shown(o))))
        layer(m.tensor([1.0, 2.0])).sum().backward()
        assert log == [((None,), ([1.0],))]


@pytest.mark.parametrize(
    "program",
    [in_order, of_computed, in_grad, after_writes, in_place, steps_in_backward, twice, of_modules],
)
def test_hooks_are_called_as_in_pytorch(program: Callable[[Any, Log], None]) -> None:
    mine: Log = []
    other: Log = []
    program(torch, mine)
    program(theirs, other)
    assert mine == other


def test_tensors_of_weft_have_hooks() -> None:
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    hook = x.register_hook(lambda g: g * 10)
    weft.checkpoint(lambda t: t * t, x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [20.0, 40.0]
    hook.remove()
    assert weft.grad((x * x).sum(), [x])[0].tolist() == [2.0, 4.0]


def test_operations_have_names() -> None:
    x = leaf(torch)
    for _ in range(4):  # repeated calls are played from a recording
        assert [f(x).grad_fn.name() for f in (torch.exp, lambda t: t.softmax(0))] == [
            "ExpBackward0", "SoftmaxBackward0"
        ]  # fmt: skip
        node = (x * 2).grad_fn
    assert node.name() == "MulBackward0" == (theirs.ones(1, requires_grad=True) * 2).grad_fn.name()
    ((below, at), none) = node.next_functions
    assert (below.name(), at, none) == ("AccumulateGrad", 0, (None, 0))
    assert below.variable is x and below == (x + 1).grad_fn.next_functions[0][0]
    assert repr(node).startswith("<MulBackward0 object at 0x") and x.grad_fn is None


def test_what_a_hook_raises_is_raised() -> None:
    x = leaf(torch)

    def bad(gradient: Any) -> Any:
        raise KeyError("mine")

    with x.register_hook(bad), pytest.raises(KeyError, match="mine"):
        (x * x).sum().backward()
    for result, error in ((3, UsageError), (torch.ones(2), ShapeError), (x.double(), ShapeError)):
        with x.register_hook(lambda g, r=result: r), pytest.raises(error, match="lambda"):
            (x * x).sum().backward()
    with pytest.raises(GradientError, match="requires_grad_"):
        torch.ones(2).register_hook(print)
    with pytest.raises(GradientError, match="leaves"):
        (x * 2).register_post_accumulate_grad_hook(print)


def test_compiled_functions_refuse_hooks() -> None:
    w, net = weft.tensor([1.0, 2.0], requires_grad=True), weft.nn.Linear(2, 2)

    @weft.compile
    def train(x: Any) -> Any:
        loss = (w * x).sum()
        loss.backward()
        return loss

    @weft.compile
    def infer(x: Any) -> Any:
        return net(x)

    x = weft.ones(2)
    train(x), infer(x)
    hook = w.register_hook(lambda g: g * 2)  # the Programs that exist are no longer valid
    with pytest.raises(TraceError, match="hooks of"):
        train(x)
    hook.remove()
    train(x)
    with net.register_full_backward_hook(print), pytest.raises(TraceError, match="hooks of"):
        infer(x)
    infer(x)
    with pytest.raises(TraceError, match="register_hook"):
        weft.compile(lambda t: t.register_hook(print))(x)
    with pytest.raises(TraceError, match="register_hook"):
        weft.func.vmap(lambda t: t.register_hook(print))(x)
