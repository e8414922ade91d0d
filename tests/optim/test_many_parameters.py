"""Steps over many small parameters: their updates are one node each, with the bits of the formulas
written out, and the work of compiling grows with the number of parameters alone."""

from __future__ import annotations

import cProfile
from typing import Any

import numpy as np
import pytest
from rows import covering

import weft
from weft import optim
from weft.optim import optimizer
from weft.tensor.tracing import trace

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd-momentum": (
        "SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    ),
    "sgd-nesterov": ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "maximize": True}),
    "adam-decay": ("Adam", {"lr": 0.02, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"lr": 0.02}),
    "adamw-amsgrad": ("AdamW", {"lr": 0.02, "amsgrad": True, "maximize": True}),
}  # fmt: skip


class Sums:
    """The sum of products of one vector with `n` parameters, by an optimiser of theirs."""

    def __init__(
        self, kind: str, options: Any, n: int, dtype: Any = np.float32, device: str = "cpu"
    ) -> None:
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(8).astype(np.float32) for _ in range(n)]
        self.params = [
            weft.tensor(a, dtype=dtype, requires_grad=True, device=device) for a in arrays
        ]
        self.opt = getattr(optim, kind)(self.params, **options)
        self.x = weft.tensor(rng.standard_normal(8).astype(np.float32), device=device)

    def step(self, x: Any, skip: Any = None) -> Any:
        loss: Any = 0.0
        for p in self.params:
            loss = loss + (p * x).sum()
        loss.backward()
        self.opt.step(unless=skip)
        self.opt.zero_grad()
        return loss


@pytest.mark.parametrize("name,device", covering(OPTIONS, ["cpu", "interp", "vulkan"]))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits(name: str, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for many in (1, 1 << 30):
        monkeypatch.setattr(optimizer, "MANY", many)
        ours = Sums(*OPTIONS[name], 3, dtype, device)
        step = weft.compile(ours.step, device)
        for skip in (False, True, False):
            step(ours.x, weft.tensor(skip, device=device))
        states = [x for each in ours.opt.state.values() for x in each.values()]
        found.append([t.numpy().tobytes() for t in (*ours.params, *states)])
    assert found[0] == found[1]


def calls(n: int, kind: str) -> int:
    """Function calls until the first step of `n` parameters is done."""
    ours, watch = Sums(kind, {}, n), cProfile.Profile()
    step = weft.compile(ours.step)
    watch.enable()
    step(ours.x)
    watch.disable()
    return sum(entry.callcount for entry in watch.getstats())


@pytest.mark.slow
def test_work_grows_with_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    few, some, many = (calls(n, "SGD") for n in (300, 600, 1200))
    assert many - some < 2.3 * (some - few)


def test_an_update_is_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "MANY", 20)
    sizes = [len(_traced(n).nodes()) for n in (20, 40)]
    assert sizes[1] - sizes[0] <= 20 * 13, sizes


def _traced(n: int) -> Any:
    ours = Sums("AdamW", {}, n)
    return trace(ours.step, [weft.Spec((8,))])
