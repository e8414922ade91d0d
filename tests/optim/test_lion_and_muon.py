"""Lion against its formula in NumPy, Muon against PyTorch's, which iterates in bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import optim
from weft.core.errors import ShapeError, UsageError

rng = np.random.default_rng(0)
STARTS = [rng.standard_normal(s).astype(np.float32) for s in ((4, 6), (6, 4), (5, 5))]
GRADS = rng.standard_normal((6, 36)).astype(np.float32)


def run(opt: optim.Optimizer, ws: list[Any], compiled: bool) -> None:
    def step(g: Any) -> None:
        for w in ws:
            w.grad = g[: w.size].reshape(w.shape)
        opt.step()
        opt.zero_grad()

    play = weft.compile(step, device="cpu") if compiled else step
    for g in GRADS:
        play(weft.tensor(g))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_lion(compiled: bool) -> None:
    ws = [weft.tensor(w, requires_grad=True) for w in STARTS]
    run(optim.Lion(ws, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1), ws, compiled)
    for w, start in zip(ws, STARTS):
        want, mean = start.astype(np.float64), np.zeros(start.shape)
        for g in GRADS:
            one = g[: start.size].reshape(start.shape)
            want = want * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.9 * mean + 0.1 * one)
            mean = 0.95 * mean + 0.05 * one
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("options", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}])
def test_muon(options: dict[str, Any], compiled: bool) -> None:
    ws = [weft.tensor(w, requires_grad=True) for w in STARTS]
    run(optim.Muon(ws, lr=0.02, **options), ws, compiled)
    theirs = [torch.nn.Parameter(torch.tensor(w)) for w in STARTS]
    opt = torch.optim.Muon(theirs, lr=0.02, **options)
    for g in GRADS:
        for p in theirs:
            p.grad = torch.tensor(g[: p.numel()]).reshape(p.shape)
        opt.step()
    for w, p, start in zip(ws, theirs, STARTS):
        moved = p.detach().numpy() - start
        apart = np.abs(w.numpy() - start - moved).max() / np.abs(moved).max()
        assert apart < 0.02, apart


def test_options_out_of_range() -> None:
    with pytest.raises(ShapeError, match="matrices"):
        optim.Muon([weft.ones(3)])
    with pytest.raises(UsageError, match="adjust_lr_fn"):
        optim.Muon([weft.ones((2, 2))], adjust_lr_fn="other")
    for make in (
        lambda: optim.Lion([weft.ones(2)], betas=(1.0, 0.9)),
        lambda: optim.RMSprop([weft.ones(2)], alpha=1.0),
        lambda: optim.Adagrad([weft.ones(2)], eps=-1.0),
        lambda: optim.NAdam([weft.ones(2)], betas=(0.9, 1.0)),
        lambda: optim.Adam([weft.ones(2)], eps=float("nan")),
        lambda: optim.SGD([weft.ones(2)], momentum=float("nan")),
        lambda: optim.Adafactor([weft.ones(2)], d=float("nan")),
    ):
        with pytest.raises(UsageError):
            make()
