"""Modules of weft beside those of PyTorch: same state dict, same inputs, same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
from weft import nn


def random(*shape: int, seed: int = 0, low: float | None = None) -> np.ndarray:
    """Standard normal float32 (shifted up by `low`)."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x if low is None else np.abs(x) + np.float32(low)


def twin(ours: nn.Module, theirs: torch.nn.Module) -> None:
    """Gives ours the state of theirs; their names must be equal, in order."""
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict(state)


def close(got: Any, want: Any, tol: float = 1e-5) -> None:
    """Equal within tol, relative to the largest."""
    a = np.asarray(got.numpy() if hasattr(got, "numpy") else got, np.float64)
    b = (want.detach().numpy() if isinstance(want, torch.Tensor) else np.asarray(want)).astype(
        float
    )
    assert a.shape == b.shape
    scale = max(float(np.max(np.abs(b), initial=0.0)), 1.0)
    np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tol)


def check(
    ours: nn.Module,
    theirs: torch.nn.Module,
    *inputs: np.ndarray,
    tol: float = 1e-5,
    ways: tuple[str, ...] = ("eager", "compiled"),
) -> None:
    """Forward, gradients of parameters and of float inputs, and buffers afterwards; ours eagerly
    and as one compiled Program."""
    twin(ours, theirs)
    theirs.zero_grad()
    before = ours.state_dict()
    given = [torch.tensor(x) for x in inputs]
    for x in given:
        x.requires_grad_(x.is_floating_point())
    out = theirs(*given)
    weight = random(*out.shape, seed=99)
    (out * torch.tensor(weight)).sum().backward()

    def run(*xs: Any) -> Any:
        leaves = [x.detach().requires_grad_(x.dtype.is_float) for x in xs]
        y = ours(*leaves)
        (y * weft.tensor(weight)).sum().backward()
        grads = [x.grad for x in leaves if x.grad is not None]
        return y.detach(), grads, [p.grad for p in ours.parameters()]

    for fn in (run if way == "eager" else weft.compile(run, "cpu") for way in ways):
        ours.load_state_dict(before)
        ours.zero_grad()
        y, dx, dp = fn(*(weft.tensor(x) for x in inputs))
        close(y, out, tol)
        for a, b in zip(dx, [x.grad for x in given if x.grad is not None], strict=True):
            close(a, b, tol)
        for a, p in zip(dp, theirs.parameters(), strict=True):
            close(a, p.grad, tol)
        for (name, b), a in zip(theirs.state_dict().items(), ours.state_dict().values()):
            assert a.shape == tuple(b.shape), name
            close(a, b, tol)
