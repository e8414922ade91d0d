"""Tensors that become another view in place, beside PyTorch: shapes, sharing, gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft
import weft.torch as torch
from weft.errors import DTypeError, GradientError, ShapeError, TraceError, UsageError, WeftError

START = np.arange(12, dtype=np.float32).reshape(3, 4)
VIEWS = ["index", "slice", "T", "merge", "unsqueeze", "detach", "flat"]
TURNS = ["t_", "transpose_", "swapaxes_", "squeeze_", "squeeze_d", "unsqueeze_"]
OTHER = ["data", "data of a copy", "swap data", "add_", "write", "resize_", "+0"]


def step(held: list[Any], what: str, which: int, a: int, b: int) -> None:
    """One step of a program over a growing list of tensors."""
    t, other = held[which % len(held)], held[b % len(held)]
    n = max(t.ndim, 1)
    if 0 in t.shape:
        return
    if what == "index" and t.ndim:
        held.append(t[a % t.shape[0]])
    elif what == "slice" and t.ndim:
        held.append(t[..., a % t.shape[-1] :: 1 + b % 2])
    elif what == "T" and t.ndim > 1:
        held.append(t.transpose(a % n, b % n))
    elif what == "merge" and t.ndim > 1:
        held.append(t.reshape((t.shape[0] * t.shape[1], *t.shape[2:])))
    elif what == "flat":
        held.append(t.reshape(-1))
    elif what == "unsqueeze":
        held.append(t.unsqueeze(a % (t.ndim + 1)))
    elif what == "detach":
        held.append(t.detach())
    elif what == "t_" and t.ndim < 3:
        t.t_()
    elif what in ("transpose_", "swapaxes_") and t.ndim:
        getattr(t, what)(a % n, b % n)
    elif what == "squeeze_":
        t.squeeze_()
    elif what == "squeeze_d" and t.ndim:
        t.squeeze_(a % n)
    elif what == "unsqueeze_":
        t.unsqueeze_(a % (t.ndim + 1))
    elif what == "data":
        t.data = other
    elif what == "data of a copy":
        t.data = (t.data * 2).contiguous()  # weft keeps no strides of operands
    elif what == "swap data":
        t.data, other.data = other.data, t.data
    elif what == "resize_" and t.ndim:
        t.resize_(t.shape[0] - a % 2, *t.shape[1:])
    elif what == "add_":
        t.add_(float(a))
    elif what == "write" and t.ndim:
        t[a % t.shape[0]] = float(b)
    elif what == "+0":
        held.append((t + 0).contiguous())


def programs(count: int, *kinds: list[str]) -> list[Any]:
    rng = random.Random(0)
    names = [name for kind in kinds for name in kind]
    draw = rng.randrange
    return [
        [(rng.choice(names), draw(6), draw(6), draw(6)) for _ in range(draw(1, 12))]
        for _ in range(count)
    ]


def played(program: Any, x: Any) -> list[Any] | None:
    """The tensors at a program's end; None where a step is refused."""
    held = [x, x[1:]]
    try:
        for one in program:
            step(held, *one)
    except (WeftError, RuntimeError) as error:
        assert isinstance(error, WeftError) == isinstance(x, weft.Tensor)
        return None
    return held


def test_programs_as_pytorch() -> None:
    done = 0
    for program in programs(1500, VIEWS, TURNS, OTHER):
        want, got = played(program, theirs.tensor(START)), played(program, torch.tensor(START))
        if got is None and any(name == "resize_" for name, *_ in program):
            continue  # of a part of some memory: refused
        assert (got is None) == (want is None), program
        for a, b in zip(got or (), want or ()):
            assert a.tolist() == b.tolist() and a.shape == tuple(b.shape), program
        done += got is not None
    assert done > 1000


def test_programs_traced() -> None:
    for program in programs(60, VIEWS, TURNS, ["add_", "write", "+0", "data of a copy"]):
        want = played(program, theirs.tensor(START))

        def fn(x: Any, program: Any = program) -> Any:
            held = [x * 1.0]
            held.append(held[0][1:])
            for one in program:
                step(held, *one)
            return held

        if want is None:
            continue
        for a, b in zip(torch.compile(fn)(torch.tensor(START)), want):
            assert a.tolist() == b.tolist(), program


def test_gradients_as_pytorch() -> None:
    done = 0
    for program in programs(300, VIEWS, TURNS, ["add_", "write", "+0", "mul_"]):
        found = []
        for m in (theirs, torch):
            x = m.tensor(START, requires_grad=True)
            held = [x * 3.0, x * 2.0]
            try:
                for one in program:
                    step(held, *one)
                total = sum((t * t).sum() for t in held if t.requires_grad)
                total.backward()
            except (RuntimeError, WeftError):
                break
            found.append(np.asarray(x.grad.detach()))
        if len(found) == 2:
            assert np.allclose(*found, rtol=1e-4), program
            done += 1
    assert done > 200


def backup(m: Any, log: list[Any]) -> None:
    """Weights that are exchanged for averages, and come back."""
    p = m.nn.Parameter(m.tensor([1.0, 2.0]))
    kept, view = p.data, p.detach()[:1]
    p.data = m.zeros(2)
    log.append((p.tolist(), kept.tolist(), view.tolist()))
    p.data.add_(1)
    p.data = kept
    kept.mul_(3)
    log.append((p.tolist(), view.tolist(), p.requires_grad, p.is_leaf))


def flattened(m: Any, log: list[Any]) -> None:
    """Parameters that are parts of one vector."""
    net = m.nn.Linear(2, 1)
    flat = m.arange(3.0)
    net.weight.data, net.bias.data = flat[:2].view(1, 2), flat[2:]
    flat.add_(1)
    log.append((net.weight.tolist(), net.bias.tolist()))
    opt = m.optim.SGD(net.parameters(), lr=1.0)
    net(m.tensor([3.0, 5.0])).sum().backward()
    opt.step()
    log.append(flat.tolist())


def by_hand(m: Any, log: list[Any]) -> None:
    """Gradient descent as tutorials write it."""
    w = m.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(3):
        (w * w).sum().backward()
        w.data = w.data - 0.1 * w.grad.data
        w.grad.zero_()
        w.data -= 0.5
    log.append([round(v, 5) for v in w.tolist()])


def cast(m: Any, log: list[Any]) -> None:
    net = m.nn.Linear(2, 2)
    for p in net.parameters():
        p.data = p.data.double()
    log.append([str(p.dtype).replace("torch.", "") for p in net.parameters()])
    x = m.zeros(2, 3)
    x.set_(m.ones(4))
    log.append(x.tolist())
    x.set_()
    log.append(tuple(x.shape))


def bits(m: Any, log: list[Any]) -> None:
    x = m.tensor([[1.0, -2.0], [0.5, 3.0]])
    i = x.view(m.int32)
    i[0] &= 0x7FFFFFFF
    i[1, 0] = 0
    log.append((i.tolist(), x.tolist(), str(i.dtype)[-5:]))
    x.mul_(2)
    log.append((i.tolist(), x.view(m.uint8).tolist(), x.view(m.int64).tolist()))
    log.append((x.t().view(m.int32).tolist(), x[:, :1].view(m.int32).tolist()))


def strides(m: Any, log: list[Any]) -> None:
    x = m.zeros(2, 3, 4)
    for y in (x, x.transpose(0, 1), x[:, 1:], x[0], x.unsqueeze(0).squeeze()):
        log.append((y.stride(), y.stride(0), y.is_contiguous(), y.contiguous().is_contiguous()))


@pytest.mark.parametrize("program", [backup, flattened, by_hand, cast, bits, strides])
def test_data_as_pytorch(program: Callable[[Any, list[Any]], None]) -> None:
    mine: list[Any] = []
    other: list[Any] = []
    program(torch, mine)
    program(theirs, other)
    assert mine == other


def test_compiled_functions_follow() -> None:
    w = weft.tensor([[1.0, 2.0]], requires_grad=True)
    count = weft.zeros((2,))
    view = w.detach()[0]

    @weft.compile(device="cpu")
    def fn(x: Any) -> Any:
        count.add_(1)
        return (w * x).sum(), view * 1

    def both(x: Any) -> list[Any]:
        return [t.tolist() for t in fn(weft.tensor(x))]

    assert both([[1.0, 10.0]]) == [21.0, [1.0, 2.0]]
    w.data = weft.tensor([[3.0, 4.0]])  # the view keeps what it shows
    assert both([[1.0, 10.0]]) == [43.0, [1.0, 2.0]]
    with weft.no_grad():
        w.t_()
    assert both([[1.0], [10.0]]) == [43.0, [1.0, 2.0]]
    new = weft.tensor([1.0, 1.0])
    w.data = new[None]
    assert both([[1.0, 10.0]]) == [11.0, [1.0, 2.0]]
    new.add_(1)
    assert both([[1.0, 10.0]]) == [22.0, [1.0, 2.0]]
    assert count.tolist() == [5.0, 5.0]
    count.unsqueeze_(0)
    assert both([[1.0, 10.0]]) == [22.0, [1.0, 2.0]] and count.tolist() == [[6.0, 6.0]]

    w = weft.tensor([[2.0, 2.0]], requires_grad=True)

    @weft.compile(device="cpu")
    def step() -> Any:
        loss = (w * w).sum()
        loss.backward()
        w.data = w.data - 0.25 * w.grad
        w.grad = None
        return loss

    assert step().item() == 8.0 and step().item() == 2.0 and w.tolist() == [[0.5, 0.5]]


def test_what_cannot_be_right_is_refused() -> None:
    w, x = weft.tensor([[1.0, 2.0]], requires_grad=True), weft.zeros((2, 2))
    with pytest.raises(GradientError, match="no_grad"):
        w.t_()
    with pytest.raises(GradientError, match="detach"):
        (w * 2).data = x
    with pytest.raises(GradientError, match="requires gradients"):
        w.data = weft.tensor([1, 2])
    with pytest.raises(GradientError, match="requires gradients"):
        w.resize_(1)
    with pytest.raises(UsageError, match="shares its memory"):
        x[0].resize_(3)
    with pytest.raises(UsageError, match="int"):
        x.data = 3
    with pytest.raises(TraceError, match="t_"):
        weft.compile(lambda: x.t_(), device="cpu")()
    with pytest.raises(TraceError, match="squeeze_"):
        weft.compile(lambda t: t.squeeze_(), device="cpu")(x)
    with pytest.raises(TraceError, match="data"):
        weft.compile(lambda: setattr(x, "data", x[0] * 2), device="cpu")()
    with pytest.raises(DTypeError, match="set_"):
        torch.zeros(2).set_(torch.zeros(2, dtype=torch.int32))
    with pytest.raises(UsageError, match="storages"):
        torch.zeros(2).set_(torch.zeros(2), 1, (1,))
    with pytest.raises(ShapeError, match="last axis"):
        torch.zeros(3).view(torch.int64)
    with pytest.raises(UsageError, match="on the host"):
        torch.compile(lambda t: t.view(torch.int32))(torch.zeros(3))
