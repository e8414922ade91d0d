"""L-BFGS against PyTorch's, evaluation by evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import optim
from weft.core.errors import UsageError

START = np.array([-1.2, 1.0, 0.7, -0.4])


def rosenbrock(x: Any) -> Any:
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def losses(opt: Any, w: Any, steps: int, run: Any = rosenbrock) -> list[float]:
    seen: list[float] = []

    def closure() -> Any:
        opt.zero_grad()
        loss = run(w)
        loss.backward()
        seen.append(float(loss.item()))
        return loss

    for _ in range(steps):
        opt.step(closure)
    return seen


@pytest.mark.parametrize("options", [
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 7},
    {"line_search_fn": "strong_wolfe", "lr": 0.3, "max_eval": 9},
    {"lr": 0.002, "max_iter": 30},
    {"lr": 0.001, "max_iter": 5, "history_size": 2},
])  # fmt: skip
def test_each_evaluation_is_pytorchs(options: dict[str, Any]) -> None:
    w, v = weft.tensor(START, requires_grad=True), torch.tensor(START, requires_grad=True)
    ours = losses(optim.LBFGS([w], **options), w, 6)
    theirs = losses(torch.optim.LBFGS([v], **options), v, 6)
    assert len(ours) == len(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(w.numpy(), v.detach().numpy(), rtol=1e-6)


def test_a_compiled_closure_and_several_parameters() -> None:
    rng = np.random.default_rng(0)
    x, y = (weft.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((64, 5), (64, 2)))
    w = weft.tensor(np.zeros((5, 2), np.float32), requires_grad=True)
    b = weft.tensor(np.zeros(2, np.float32), requires_grad=True)
    opt = optim.LBFGS([w, b], line_search_fn="strong_wolfe")

    def closure() -> Any:
        opt.zero_grad()
        loss = ((x @ w + b - y) ** 2).mean()
        loss.backward()
        return loss

    run = weft.compile(closure, "cpu")
    for _ in range(3):
        opt.step(run)
    exact = np.linalg.lstsq(np.c_[x.numpy(), np.ones(64)], y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(w.numpy(), exact[:-1], atol=2e-4)
    np.testing.assert_allclose(b.numpy(), exact[-1], atol=2e-4)


def test_goes_on_from_a_saved_state() -> None:
    w = weft.tensor(START, requires_grad=True)
    opt = optim.LBFGS([w], line_search_fn="strong_wolfe", max_iter=5)
    losses(opt, w, 2)
    v = weft.tensor(w.numpy(), requires_grad=True)
    again = optim.LBFGS([v], line_search_fn="strong_wolfe", max_iter=5)
    again.load_state_dict(opt.state_dict())
    assert losses(opt, w, 2) == losses(again, v, 2)


def test_refusals() -> None:
    w = weft.tensor(START, requires_grad=True)
    with pytest.raises(UsageError, match="needs a function"):
        optim.LBFGS([w]).step()
    with pytest.raises(UsageError, match="strong_wolfe"):
        optim.LBFGS([w], line_search_fn="other")
    with pytest.raises(UsageError, match="give one"):
        optim.LBFGS([{"params": [w]}, {"params": [weft.tensor(START, requires_grad=True)]}])
