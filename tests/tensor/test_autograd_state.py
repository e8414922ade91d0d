"""Tapes that outlive a write: the gradient of what was computed, or an error; never another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from present import opened

import weft
from weft.core.errors import GradientError
from weft.tensor import Tensor

X = np.array([1.0, 2.0, 3.0], np.float32)
DEVICES = ("interp", "vulkan")


def state(device: str) -> tuple[Tensor, Any, Tensor]:
    """A leaf that lives in a compiled function's state, that function (it adds 1), and x."""
    opened(device)
    w = weft.tensor(X, name="w", requires_grad=True)

    @weft.no_grad()
    def step(by: Tensor) -> Tensor:
        w.assign(w + by)
        return w.sum()

    compiled = weft.compile(step, device=device)
    compiled(np.float32(0).reshape(()))
    x = weft.tensor(X) if device == "cpu" else weft.tensor(X).to(device)
    return w, compiled, x


ONE = np.float32(1).reshape(())


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_between_forward_and_backward(device: str) -> None:
    w, compiled, x = state(device)
    loss = (w * w * x).sum()
    compiled(ONE)
    with pytest.raises(GradientError, match=r"mul.*'w' float32\[3\].*written"):
        loss.backward()
    assert w.grad is None
    (w * w * x).sum().backward()  # computed from what it is now
    np.testing.assert_allclose(w.grad.numpy(), 2 * (X + 1) * X)


@pytest.mark.parametrize("device", DEVICES)
def test_assigning_between_forward_and_backward(device: str) -> None:
    w, _, x = state(device)
    loss = (w * x).sum() + (x * w).exp().sum()
    with weft.no_grad():
        w.assign(w * 2.0)
    with pytest.raises(GradientError, match="'w'"):
        loss.backward()


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_without_gradients_is_held_as_well(device: str) -> None:
    w, compiled, x = state(device)
    w.requires_grad_(False)
    leaf = x.detach().requires_grad_()
    loss = (leaf * w).sum()
    compiled(ONE)
    with pytest.raises(GradientError, match="'w'"):
        loss.backward()


@pytest.mark.parametrize("compiled_first", [False, True])
def test_host_memory_keeps_what_was_computed_with(compiled_first: bool) -> None:
    """An assignment gives a host tensor other memory; what a tape holds of a state is a copy."""
    w = weft.tensor(X, requires_grad=True)
    if compiled_first:
        w, compiled, _ = state("cpu")
    c = weft.tensor(X)
    loss = (w * w * c).sum()
    c[1] = 100.0
    if compiled_first:
        compiled(ONE)
    with weft.no_grad():
        w.assign(w * 10.0)
    loss.backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * X * X)


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
@pytest.mark.parametrize("how", ["step", "assign"])
def test_a_checkpoint_computes_again_only_with_what_it_had(device: str, how: str) -> None:
    w, compiled, x = state(device)
    loss = weft.checkpoint(lambda a: a * w * w, x).sum()
    if how == "step":
        compiled(ONE)
    else:
        with weft.no_grad():
            w.assign(w * 2.0)
    with pytest.raises(GradientError, match=r"checkpoint.*'w' float32\[3\].*written"):
        loss.backward()
    weft.checkpoint(lambda a: a * w * w, x).sum().backward()
    assert w.grad is not None


def test_a_checkpoint_in_a_traced_step_as_well() -> None:
    w = weft.tensor(X, name="w", requires_grad=True)

    def step(x: Tensor) -> Tensor:
        loss = weft.checkpoint(lambda a: a * w * w, x).sum()
        with weft.no_grad():
            w.assign(w * 2.0)
        loss.backward()
        return loss

    with pytest.raises(GradientError, match=r"checkpoint.*'w'"):
        weft.compile(step, device="cpu")(X)
