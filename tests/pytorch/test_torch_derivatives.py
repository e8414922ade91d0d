"""Derivatives in weft.torch beside PyTorch's: one's own functions, transforms, checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import UsageError

A = np.random.default_rng(0).uniform(-2, 2, (3, 4)).astype(np.float32)


def test_transforms_of_functions() -> None:
    def fn(m: Any) -> Any:
        return lambda x: (x.max(0).values ** 2).sum() + x.std()

    for name in ("grad", "jacrev"):
        mine = getattr(torch.func, name)(fn(torch))(torch.tensor(A))
        other = getattr(theirs.func, name)(fn(theirs))(theirs.tensor(A))
        assert type(mine) is torch.Tensor
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    rows = torch.func.vmap(lambda r: r.max(0)[0] - r.sum())(torch.tensor(A))
    np.testing.assert_allclose(rows.numpy(), A.max(1) - A.sum(1), rtol=1e-5)


def test_functions_with_a_derivative_of_their_own() -> None:
    def run(m: Any) -> list[Any]:
        class Straight(m.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any, scale: float) -> Any:
                ctx.save_for_backward(x)
                ctx.scale = scale
                return x.round() * scale, x.sign()

            @staticmethod
            def backward(ctx: Any, g: Any, h: Any) -> Any:
                (x,) = ctx.saved_tensors
                return g * ctx.scale + h * x.clamp(-1, 1), None

        x = m.tensor(A).requires_grad_()
        a, b = Straight.apply(x * 2, 3.0)
        (a.sum() + (b * b.detach()).sum()).backward()
        return [a.detach().numpy(), b.detach().numpy(), x.grad.numpy()]

    for mine, other in zip(run(torch), run(theirs)):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_derivatives_of_functions() -> None:
    def run(m: Any) -> list[Any]:
        f, x, y = m.autograd.functional, m.tensor(A), m.tensor(A[::-1].copy())
        found = [
            f.jacobian(lambda a: a.sin() * a.sum(), x),
            *f.jacobian(lambda a, b: a * b, (x, y)),
            f.hessian(lambda a: (a**3).sum(), x),
            *f.vjp(lambda a: a * a, x, y),
            *f.jvp(lambda a: a * a, x, y),
            f.vjp(lambda a: (a * a).sum(), x)[1],
            *f.hvp(lambda a: (a**3).sum(), x, y),
            *f.vhp(lambda a, b: (a**2 * b).sum(), (x, y), (y, x))[1],
        ]
        return [t.numpy() for t in found]

    for mine, want in zip(run(torch), run(theirs)):
        np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-5)


def test_gradients_beside_differences() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: (a**3, a.exp().sum()), (x,))
    assert not torch.autograd.gradcheck(Wrong.apply, x, raise_exception=False)
    with pytest.raises(RuntimeError, match="the gradient is 1, differences give 4"):
        torch.autograd.gradcheck(Wrong.apply, (x,))
    with pytest.raises(UsageError, match="float64"):
        torch.autograd.gradcheck(lambda a: a, (torch.ones(2, requires_grad=True),))


def test_values_that_are_computed_again() -> None:
    runs = []

    def block(x: Any, scale: float) -> Any:
        runs.append(1)
        return (x * scale).tanh()

    x = torch.tensor(A).requires_grad_()
    torch.utils.checkpoint.checkpoint(block, x, 2.0, use_reentrant=False).sum().backward()
    other = theirs.tensor(A).requires_grad_()
    (other * 2.0).tanh().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), atol=1e-6)
    assert len(runs) == 2
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    y = torch.ones(2, 3)
    made = torch.utils.checkpoint.checkpoint_sequential(net, 2, y, use_reentrant=False)
    assert made.tolist() == net(y).tolist()
