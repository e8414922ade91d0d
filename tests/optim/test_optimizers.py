"""Every optimiser option against torch.optim over twenty steps, eagerly and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fitting_kit import START, Ours, X, Y, same, theirs
from rows import by_turns

import weft
from weft import optim
from weft.core.errors import GradientError, ModelError, ShapeError, UsageError

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd-decay": ("SGD", {"lr": 0.1, "weight_decay": 0.2}),
    "sgd-momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "sgd-dampening": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3}),
    "sgd-nesterov": ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    "sgd-maximize": ("SGD", {"lr": 0.01, "maximize": True}),
    "adam": ("Adam", {"lr": 0.02}),
    "adam-options": ("Adam", {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    "adam-amsgrad": ("Adam", {"lr": 0.02, "amsgrad": True}),
    "adam-nobeta": ("Adam", {"lr": 0.02, "betas": (0.0, 0.9)}),
    "adamw": ("AdamW", {"lr": 0.02}),
    "adamw-options": ("AdamW", {"lr": 0.02, "weight_decay": 0.3, "amsgrad": True}),
    "adamw-maximize": ("AdamW", {"lr": 0.02, "maximize": True}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop-options": (
        "RMSprop",
        {
            "lr": 0.01,
            "alpha": 0.9,
            "eps": 1e-3,
            "weight_decay": 0.1,
            "momentum": 0.8,
            "centered": True,
            "maximize": True,
        },
    ),
    "adagrad": ("Adagrad", {"lr": 0.1}),
    "adagrad-options": (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3},
    ),
    "adadelta": ("Adadelta", {}),
    "adadelta-options": ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    "adamax": ("Adamax", {}),
    "adamax-options": ("Adamax", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "nadam": ("NAdam", {"lr": 0.02}),
    "nadam-options": (
        "NAdam",
        {"lr": 0.02, "momentum_decay": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True},
    ),
    "adafactor": ("Adafactor", {"lr": 0.02}),
    "adafactor-options": (
        "Adafactor",
        {
            "lr": 0.05,
            "beta2_decay": -0.5,
            "eps": (1e-4, 1e-2),
            "d": 1.5,
            "weight_decay": 0.1,
            "maximize": True,
        },
    ),
    "asgd": ("ASGD", {"lr": 0.1}),
    "asgd-options": ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 5, "weight_decay": 0.1}),
    "rprop": ("Rprop", {"lr": 0.02}),
    "rprop-options": (
        "Rprop",
        {"lr": 0.02, "etas": (0.6, 1.3), "step_sizes": (1e-3, 0.1), "maximize": True},
    ),
    "radam": ("RAdam", {"lr": 0.02}),
    "radam-options": ("RAdam", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "radam-decoupled": (
        "RAdam",
        {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    ),
}


@pytest.mark.parametrize("name,way", by_turns(OPTIONS, ["compiled", "eager"]))
def test_twenty_steps_are_pytorchs(name: str, way: str) -> None:
    kind, options = OPTIONS[name]
    want = theirs(lambda p: getattr(torch.optim, kind)(p, **options))
    run = Ours(lambda p: getattr(optim, kind)(p, **options), compiled=way == "compiled")
    same(run.steps(), want)
    assert run.opt.count.item() == 20


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("device", ["interp", "vulkan"])
def test_devices_agree(device: str, compiled: bool) -> None:
    try:
        weft.zeros(1, device=device)
    except weft.errors.DeviceError as error:
        pytest.skip(str(error))
    make = lambda p: optim.AdamW(p, lr=optim.cosine(0.05, 20, 3))  # noqa: E731
    want = Ours(make, clip=0.5, compiled=False).steps(last=6)
    same(Ours(make, device, compiled, clip=0.5).steps(last=6), want)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_clipping_and_groups_are_pytorchs(compiled: bool) -> None:
    def make(kind: Any, p: list[Any]) -> Any:
        groups = [{"params": [p[0]], "weight_decay": 0.5}, {"params": [p[1]], "lr": 0.001}]
        return kind(groups, lr=0.05, weight_decay=0.0)

    want = theirs(lambda p: make(torch.optim.AdamW, p), clip=0.7)
    run = Ours(lambda p: make(optim.AdamW, p), compiled=compiled, clip=0.7)
    same(run.steps(), want)
    assert [g["weight_decay"] for g in run.opt.groups] == [0.5, 0.0]


def test_clipping_returns_the_length_and_leaves_small_gradients() -> None:
    p = weft.tensor([3.0, 4.0], requires_grad=True)
    (p * p).sum().backward()
    assert optim.clip_grad_norm([p], 100.0).item() == pytest.approx(10.0)
    np.testing.assert_array_equal(p.grad.numpy(), [6.0, 8.0])
    assert optim.clip_grad_norm([p], 5.0).item() == pytest.approx(10.0)
    np.testing.assert_allclose(p.grad.numpy(), [3.0, 4.0], rtol=1e-5)
    p.grad = None
    with pytest.raises(GradientError, match="no parameter has a gradient"):
        optim.clip_grad_norm([p], 5.0)


SCHEDULES = {
    "constant": (optim.constant(0.1, 4), lambda n: min((n + 1) / 4, 1.0)),
    "linear": (
        optim.linear(0.1, 16, 4, final=0.02),
        lambda n: (n + 1) / 4 if n < 4 else 1 - 0.8 * min((n - 4) / 12, 1.0),
    ),
    "cosine": (
        optim.cosine(0.1, 16, 4, final=0.01),
        lambda n: (n + 1) / 4 if n < 4
        else 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * min((n - 4) / 12, 1.0))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_change_the_rate_of_one_program(name: str) -> None:
    ours, factor = SCHEDULES[name]
    run = Ours(lambda p: optim.SGD(p, lr=ours))
    rates = []

    class Scheduled(torch.optim.SGD):
        def step(self, *args: Any) -> Any:
            self.param_groups[0]["lr"] = 0.1 * factor(len(rates))
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args)

    want = theirs(lambda p: Scheduled(p, lr=0.1))
    same(run.steps(), want)
    assert len(run.run.programs()) == 1
    for n, rate in enumerate(rates):
        assert float(ours(weft.tensor(n))) == pytest.approx(rate, rel=1e-5), n
    assert run.opt.lr == pytest.approx(0.1 * factor(20), rel=1e-5)


def test_setting_lr_reaches_the_compiled_step() -> None:
    run, other = (Ours(lambda p: optim.SGD(p, lr=0.1), compiled=c) for c in (True, False))
    for r in (run, other):
        r.steps(0, 3)
        r.opt.lr = 0.01
    assert run.opt.lr == pytest.approx(0.01)
    same(run.steps(3, 6), other.steps(3, 6))
    assert len(run.run.programs()) == 1
    for r in (run, other):
        r.opt.lr = optim.constant(0.02)
        r.opt.groups[0]["weight_decay"] = 0.1
    same(run.steps(6, 9), other.steps(6, 9))
    assert len(run.run.programs()) == 2  # schedules and options are part of the program


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_accumulate_over_calls(compiled: bool) -> None:
    run = Ours(lambda p: optim.SGD(p, 0.1), compiled=False)

    def backward(x: Any, y: Any) -> Any:
        loss = (x @ run.params["weight"].T + run.params["bias"] - y).square().mean() / 2
        loss.backward()
        return loss

    def update() -> None:
        run.opt.step()
        run.opt.zero_grad()

    add, apply = (weft.compile(f, "cpu") if compiled else f for f in (backward, update))
    for i in (0, 2):
        for j in (i, i + 1):
            add(weft.tensor(X[j]), weft.tensor(Y[j]))
        apply()
    want = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in START.items()}
    opt = torch.optim.SGD(want.values(), 0.1)
    for i in (0, 2):
        opt.zero_grad()
        for j in (i, i + 1):
            pred = torch.tensor(X[j]) @ want["weight"].T + want["bias"]
            ((pred - torch.tensor(Y[j])).square().mean() / 2).backward()
        opt.step()
    for name, p in run.params.items():
        np.testing.assert_allclose(p.numpy(), want[name].detach().numpy(), atol=1e-6)


def test_zero_grad_in_place_and_missing_gradients() -> None:
    a, b = (weft.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    opt = optim.SGD([("a", a), ("b", b)], lr=1.0, momentum=0.5)
    (a * 3).sum().backward()
    opt.step()
    np.testing.assert_array_equal(a.numpy(), [-2.0, -1.0])
    np.testing.assert_array_equal(b.numpy(), [1.0, 2.0])  # no gradient, no step
    opt.zero_grad(set_to_none=False)
    np.testing.assert_array_equal(a.grad.numpy(), [0.0, 0.0])
    assert b.grad is None
    opt.zero_grad()
    assert a.grad is None


def test_wrong_use_is_named() -> None:
    p = weft.tensor([1.0], requires_grad=True)
    with pytest.raises(UsageError, match="no parameters"):
        optim.SGD([])
    with pytest.raises(UsageError, match="give a list"):
        optim.SGD(p)
    with pytest.raises(UsageError, match="is not a tensor"):
        optim.SGD([1.0])
    with pytest.raises(UsageError, match="given twice"):
        optim.SGD([("w", p), ("w", p)])
    with pytest.raises(UsageError, match="no option beta; known: lr, betas"):
        optim.Adam([{"params": [p], "beta": 1}])
    with pytest.raises(UsageError, match="nesterov"):
        optim.SGD([p], nesterov=True)
    with pytest.raises(UsageError, match="betas"):
        optim.Adam([p], betas=(0.9, 1.0))
    with pytest.raises(UsageError, match="learning rate"):
        optim.Adam([p], lr=float("nan"))
    with pytest.raises(GradientError, match="not a leaf"):
        optim.SGD([p * 2])
    with pytest.raises(UsageError, match="warmup"):
        optim.cosine(0.1, 3, warmup=4)
    opt = optim.Adam([p])
    state = opt.state_dict()
    with pytest.raises(ModelError, match=r"missing exp_avg\.0; unexpected extra"):
        opt.load_state_dict({k: v for k, v in state.items() if k != "exp_avg.0"} | {"extra": 1})
    with pytest.raises(ShapeError, match=r"exp_avg\.0 is \[3\], expected \[1\]"):
        opt.load_state_dict({**state, "exp_avg.0": np.zeros(3)})
