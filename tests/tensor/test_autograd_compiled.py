"""Gradients inside weft.compile (.grad between calls, training steps) and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from autograd_kit import B, W, X, close, leaf, mlp

import weft
from weft.core.errors import GradientError, TraceError
from weft.tensor import Tensor


def test_a_compiled_step_leaves_gradients(device: str) -> None:
    w, b = leaf(W), leaf(B)

    def step(x: Tensor) -> Tensor:
        out = mlp(x, w, b)
        out.backward()
        return out

    compiled = weft.compile(step, device=device)
    theirs = [torch.tensor(a, requires_grad=True) for a in (W, B)]
    for n in (1, 2, 3):
        close(compiled(X), mlp(torch.tensor(X), *theirs))
        mlp(torch.tensor(X), *theirs).backward()
        close(w.grad, theirs[0].grad, 1e-4)
        close(b.grad, theirs[1].grad, 1e-4)
        assert len(compiled.programs()) == min(n, 2)  # with and without a .grad to add to


def test_gradients_dropped_inside(device: str) -> None:
    w = leaf(W)

    def step(x: Tensor) -> Tensor:
        w.grad = None
        ((x @ w) ** 2).sum().backward()
        assert w.grad is not None
        return w.grad.square().sum()

    compiled = weft.compile(step, device=device)
    want = 2 * X.T @ (X @ W)
    for _ in range(3):
        close(compiled(X), np.square(want).sum(), 1e-3)
        close(w.grad, want, 1e-4)
    assert len(compiled.programs()) <= 2


def test_a_whole_training_step_is_one_program(device: str) -> None:
    w, m = leaf(W), weft.zeros((5, 3))

    def step(x: Tensor) -> Tensor:
        loss = ((x @ w) ** 2).mean()
        loss.backward()
        with weft.no_grad():
            m.assign(0.9 * m + w.grad)
            w.assign(w - 0.1 * m)
        w.grad = None
        return loss

    compiled = weft.compile(step, device=device)
    t, momentum = torch.tensor(W, requires_grad=True), torch.zeros(5, 3)
    for _ in range(4):
        want = ((torch.tensor(X) @ t) ** 2).mean()
        close(compiled(X), want, 1e-4)
        (g,) = torch.autograd.grad(want, [t])
        with torch.no_grad():
            momentum = 0.9 * momentum + g
            t -= 0.1 * momentum
        close(w, t, 1e-4)
    assert len(compiled.programs()) == 1 and w.grad is None and w.requires_grad


def test_micro_batches_do_not_compile_again_and_again(device: str) -> None:
    w = leaf(W)

    def add(x: Tensor) -> Tensor:
        out = ((x @ w) ** 2).sum()
        out.backward()
        return out

    compiled = weft.compile(add, device=device)
    for cycle in range(4):
        w.grad = None
        for _ in range(2):
            compiled(X)
        close(w.grad, 4 * X.T @ (X @ W), 1e-4)
        assert len(compiled.programs()) <= 2, f"cycle {cycle}: {len(compiled.programs())}"


def test_a_gradient_may_be_rearranged_in_place(device: str) -> None:
    n = 1 << 16  # too large for a private copy
    w = leaf(np.arange(n))

    def square() -> Tensor:
        out = (w * w).sum()
        out.backward()
        return out

    def flip() -> Tensor:
        old = w.grad
        w.grad = old.flip(0)
        return old * 2

    compiled = [weft.compile(f, device=device) for f in (square, flip)]
    compiled[0]()
    for _ in range(2):
        before = w.grad.numpy().copy()
        close(compiled[1](), before * 2)
        close(w.grad, before[::-1])
    w.grad = weft.tensor(np.arange(n, dtype=np.float32))
    close(compiled[1](), 2.0 * np.arange(n))
    close(w.grad, np.arange(n)[::-1])


def test_a_state_may_be_passed_to_what_writes_it(device: str) -> None:
    w = weft.tensor(np.arange(1 << 16, dtype=np.float32))

    def turn(x: Tensor) -> Tensor:
        w.assign(x.flip(0))
        return x.sum()

    compiled = weft.compile(turn, device=device)
    for _ in range(3):
        before = w.numpy().copy()
        compiled(w)
        close(w, before[::-1])


def test_traced_history_does_not_leak(device: str) -> None:
    x = leaf(X)
    outside = x * 2
    with pytest.raises(TraceError, match="detach"):
        weft.compile(lambda y: (outside * y).sum(), device="cpu")(X)
    out = weft.compile(lambda y: (x * y).sum(), device="cpu")(X)
    assert not out.requires_grad
    with pytest.raises(GradientError, match="call backward inside"):
        out.backward()


def test_a_failed_trace_leaves_dot_grad_as_it_was() -> None:
    w = leaf(W)
    w.grad = weft.ones((5, 3))
    before = w.grad

    def broken(x: Tensor) -> Tensor:
        (x @ w).sum().backward()
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        weft.compile(broken, device="cpu")(X)
    assert w.grad is before
    close(w.grad, np.ones((5, 3)))


def test_checkpoint_gives_the_same_gradients(device: str) -> None:
    w, b = leaf(W), leaf(B)

    def block(x: Tensor) -> Tensor:
        return ((x @ w + b).tanh() @ w.T).tanh()

    def run(x: Tensor, kept: bool) -> Tensor:
        for _ in range(3):
            x = block(x) if kept else weft.checkpoint(block, x)
        loss = x.square().sum()
        loss.backward()
        return loss

    found = []
    for kept in (True, False):
        w.grad = b.grad = None
        value = weft.compile(lambda x, kept=kept: run(x, kept), device=device)(X)
        found.append([v.numpy() for v in (value, w.grad, b.grad)])
    w.grad = b.grad = None
    value = run(weft.tensor(X), False)
    found.append([v.numpy() for v in (value, w.grad, b.grad)])
    for one in found[1:]:
        for got, want in zip(one, found[0]):
            close(got, want)


def test_second_derivatives_through_a_checkpoint() -> None:
    x, w = leaf([2.0, -1.0]), leaf([3.0, 0.5])

    def fn(t: Tensor) -> Tensor:
        return t**3 * w * w

    found = []
    for part in (fn(x), weft.checkpoint(fn, x)):
        (g,) = weft.grad((part + x * x).sum(), [x], create_graph=True)
        found.append([g, *weft.grad(g.sum(), [x, w])])
    for got, want in zip(found[1], found[0]):
        close(got, want.numpy())
    close(found[1][1], 6 * np.array([2.0, -1.0]) * np.array([9.0, 0.25]) + 2)


def test_checkpoints_nest_and_take_integers() -> None:
    x, w, index = leaf([0.5, -1.0]), leaf([0.7, 0.9]), weft.tensor(np.array([0, 1, 1], np.int32))

    def inner(t: Tensor) -> Tensor:
        return (t * w).tanh()

    def outer(t: Tensor) -> Tensor:
        return weft.checkpoint(inner, weft.checkpoint(inner, t) * t)

    want = weft.grad(inner(inner(x) * x).sum(), [x, w])
    for got, one in zip(weft.grad(weft.checkpoint(outer, x).sum(), [x, w]), want):
        close(got, one.numpy())
    weft.checkpoint(lambda i, t: t[i] * t[i], index, x).sum().backward()
    close(x.grad, [1.0, -4.0])
    y = weft.checkpoint(lambda t: t, w)
    y.sum().backward()
    close(w.grad, [1.0, 1.0])


def test_freezing_a_parameter_and_no_grad_are_noticed(device: str) -> None:
    w, v = leaf(W), leaf(W)

    def both(x: Tensor) -> Tensor:
        out = ((x @ w) * (x @ v)).sum()
        if weft.is_grad_enabled():
            out.backward()
        return out

    compiled = weft.compile(both, device=device)
    compiled(X)
    assert w.grad is not None and v.grad is not None
    w.grad = v.grad = None
    v.requires_grad_(False)
    compiled(X)
    close(w.grad, X.T @ (X @ W), 1e-4)
    assert v.grad is None
    w.grad = None
    with weft.no_grad():
        compiled(X)
    assert w.grad is None and len(compiled.programs()) == 3
