"""Schedulers under PyTorch's names give its rates, epoch by epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import optim
from weft.core.errors import UsageError
from weft.optim import lr_scheduler


def fixed_momentum(module: Any) -> dict[str, bool]:
    return {} if module is lr_scheduler else {"cycle_momentum": False}


MAKE: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda m, o: m.StepLR(o, 3, 0.5),
    "milestones": lambda m, o: m.MultiStepLR(o, [9, 4, 4], 0.3),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.9),
    "constant": lambda m, o: m.ConstantLR(o, 0.25, 4),
    "linear": lambda m, o: m.LinearLR(o, 0.1, 0.8, 7),
    "polynomial": lambda m, o: m.PolynomialLR(o, 8, 2.0),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 6, 0.01),
    "restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "lambda": lambda m, o: m.LambdaLR(o, lambda epoch: 1.0 / (1 + epoch)),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda epoch: 0.9 + 0.01 * epoch),
    "cyclic": lambda m, o: m.CyclicLR(o, 0.01, 0.2, 4, **fixed_momentum(m)),
    "cyclic, halving": lambda m, o: m.CyclicLR(
        o, 0.01, 0.2, 3, 5, "triangular2", **fixed_momentum(m)),
    "cyclic, shrinking": lambda m, o: m.CyclicLR(
        o, 0.01, 0.2, 3, None, "exp_range", 0.9, **fixed_momentum(m)),
    "chained": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 3), m.ExponentialLR(o, 0.9)]),
    "one cycle": lambda m, o: m.OneCycleLR(o, 0.4, 20, **fixed_momentum(m)),
    "one cycle, lines": lambda m, o: m.OneCycleLR(
        o, 0.4, 20, pct_start=0.4, anneal_strategy="linear", **fixed_momentum(m)),
    "sequence": lambda m, o: m.SequentialLR(
        o, [m.ConstantLR(o, 0.1, 3), m.ExponentialLR(o, 0.9)], [5]),
}  # fmt: skip


def pair() -> tuple[Any, Any]:
    w = torch.nn.Parameter(torch.ones(2))
    v = torch.nn.Parameter(torch.ones(2))
    theirs = torch.optim.SGD([{"params": [w]}, {"params": [v], "lr": 0.02}], lr=0.2)
    mine = optim.SGD(
        [{"params": [("w", weft.ones(2))]}, {"params": [("v", weft.ones(2))], "lr": 0.02}], lr=0.2
    )
    return mine, theirs


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.filterwarnings("ignore")
def test_rates_are_pytorchs(name: str) -> None:
    mine, theirs = pair()
    ours = MAKE[name](lr_scheduler, mine)
    want = MAKE[name](torch.optim.lr_scheduler, theirs)
    for _ in range(19):
        rates = [group["lr"] for group in theirs.param_groups]
        np.testing.assert_allclose([g.lr for g in mine.groups], rates, rtol=1e-5)
        np.testing.assert_allclose(ours.get_last_lr(), rates, rtol=1e-5)
        ours.step()
        theirs.step()
        want.step()


def test_a_plateau() -> None:
    measures = [
        3.0,
        2.0,
        2.0,
        2.0,
        1.9999,
        2.1,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        0.2,
        float("nan"),
        1,
        1,
    ]
    for options in ({}, {"mode": "max"}, {"threshold_mode": "abs", "threshold": 0.5},
                    {"cooldown": 2, "min_lr": 0.03}):  # fmt: skip
        mine, theirs = pair()
        ours = lr_scheduler.ReduceLROnPlateau(mine, patience=2, factor=0.5, **options)  # type: ignore[arg-type]
        want = torch.optim.lr_scheduler.ReduceLROnPlateau(
            theirs,
            patience=2,
            factor=0.5,
            **options,  # type: ignore[arg-type]
        )
        for measure in measures:
            ours.step(measure)
            want.step(measure)
            rates = [group["lr"] for group in theirs.param_groups]
            np.testing.assert_allclose([g.lr for g in mine.groups], rates, rtol=1e-6)


def test_a_compiled_step_follows_the_rates() -> None:
    w = weft.ones(1).requires_grad_()
    opt = optim.SGD([w], lr=1.0)
    scheduler = lr_scheduler.StepLR(opt, 1, 0.5)

    @weft.compile
    def step() -> Any:
        loss = w.sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    found = []
    for _ in range(4):
        step()
        scheduler.step()
        found.append(w.item())
    assert found == [0.0, -0.5, -0.75, -0.875]


def test_a_state_goes_on() -> None:
    mine, _ = pair()
    first = lr_scheduler.CosineAnnealingLR(mine, 10)
    for _ in range(4):
        first.step()
    state = json.loads(json.dumps(first.state_dict()))
    other, _ = pair()
    second = lr_scheduler.CosineAnnealingLR(other, 10)
    second.load_state_dict(state)
    assert second.get_last_lr() == first.get_last_lr() and second.last_epoch == 4


def test_a_schedule_has_no_scheduler() -> None:
    opt = optim.SGD([weft.ones(1)], lr=optim.constant(0.1))
    with pytest.raises(UsageError, match="schedule"):
        lr_scheduler.StepLR(opt, 2)
    mine, _ = pair()
    with pytest.raises(UsageError, match="milestone"):
        lr_scheduler.SequentialLR(mine, [lr_scheduler.StepLR(mine, 2)], [3])
