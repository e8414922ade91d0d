"""Averages of weights, their statistics and schedule against torch.optim.swa_utils."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import nn, optim
from weft.core.errors import ModelError, UsageError

RNG = np.random.default_rng(2)


def twins() -> tuple[Any, Any]:
    mine = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )
    theirs.load_state_dict({k: torch.tensor(v) for k, v in mine.state_dict().items()}, strict=False)
    return mine, theirs


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("decay", [None, 0.9])
@pytest.mark.parametrize("buffers", [False, True])
def test_averages_as_pytorch(compiled: bool, decay: float | None, buffers: bool) -> None:
    swa = torch.optim.swa_utils
    mine, theirs = twins()
    ours = optim.AveragedModel(
        mine, avg_fn=None if decay is None else optim.get_ema_avg_fn(decay), use_buffers=buffers
    )
    want = swa.AveragedModel(
        theirs, avg_fn=None if decay is None else swa.get_ema_avg_fn(decay), use_buffers=buffers
    )

    def take() -> None:
        ours.update_parameters(mine)

    update = weft.compile(take, "cpu") if compiled else take
    for _ in range(4):
        for (_, p), (_, q) in zip(mine.named_parameters(), theirs.named_parameters()):
            new = RNG.standard_normal(p.shape).astype(np.float32)
            with weft.no_grad():
                p.assign(weft.tensor(new))
            q.data = torch.tensor(new)
        x = RNG.standard_normal((5, 3)).astype(np.float32)
        mine(weft.tensor(x))
        theirs(torch.tensor(x))
        update()
        want.update_parameters(theirs)
    state = want.module.state_dict()
    for name, value in ours.module.state_dict().items():
        if buffers and "num_batches" in name:  # PyTorch averages the count as well, cut to integers
            continue
        np.testing.assert_allclose(value, state[name].numpy(), rtol=2e-5, atol=1e-6)
    assert ours.n_averaged.item() == 4


def test_update_bn_as_pytorch() -> None:
    mine, theirs = twins()
    batches = RNG.standard_normal((6, 8, 3)).astype(np.float32) * 3 + 1
    mine.eval()
    optim.update_bn([(weft.tensor(b), 0) for b in batches], mine)
    torch.optim.swa_utils.update_bn([(torch.tensor(b), 0) for b in batches], theirs)
    for name in ("running_mean", "running_var"):
        want = getattr(theirs[1], name).numpy()
        np.testing.assert_allclose(getattr(mine[1], name).numpy(), want, rtol=1e-5, atol=1e-6)
    assert not mine.training and not mine[1].training and mine[1].momentum == 0.1


@pytest.mark.parametrize("way", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [0, 5])
@pytest.mark.filterwarnings("ignore")
def test_rates_of_swa(way: str, epochs: int) -> None:
    w = weft.tensor([1.0], requires_grad=True)
    v = torch.nn.Parameter(torch.ones(1))
    mine, theirs = optim.SGD([w], lr=0.4), torch.optim.SGD([v], lr=0.4)
    ours = optim.SWALR(mine, 0.05, anneal_epochs=epochs, anneal_strategy=way)
    want = torch.optim.swa_utils.SWALR(
        theirs, swa_lr=0.05, anneal_epochs=epochs, anneal_strategy=way
    )
    for _ in range(8):
        assert mine.groups[0].lr == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-5)
        ours.step()
        want.step()


@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, float("inf")])
def test_clipping_by_other_norms(order: float) -> None:
    grads = [RNG.standard_normal(s).astype(np.float32) for s in ((3, 2), (4,))]
    ours = [weft.tensor(g * 0, requires_grad=True) for g in grads]
    theirs = [torch.nn.Parameter(torch.zeros(g.shape)) for g in grads]
    for p, q, g in zip(ours, theirs, grads):
        p.grad, q.grad = weft.tensor(g), torch.tensor(g)
    norm = optim.clip_grad_norm(ours, 0.7, order)
    assert norm.item() == pytest.approx(
        torch.nn.utils.clip_grad_norm_(theirs, 0.7, order).item(), rel=1e-5
    )
    for p, q in zip(ours, theirs):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5)


def test_refusals() -> None:
    with pytest.raises(ModelError, match="other parameters"):
        optim.AveragedModel(nn.Linear(2, 2)).update_parameters(nn.Linear(2, 2, bias=False))
    with pytest.raises(UsageError, match="decay"):
        optim.get_ema_avg_fn(2.0)
    with pytest.raises(UsageError, match="norm_type"):
        w = weft.tensor([1.0], requires_grad=True)
        w.grad = weft.ones(1)
        optim.clip_grad_norm([w], 1.0, 0.0)
