"""Optimisers' state dicts have PyTorch's form, and go from one library to the other and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.errors import ModelError, ShapeError, UsageError
from weft.optim import Optimizer

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, "Adam": {"amsgrad": True},
    "AdamW": {"lr": 0.01}, "Adagrad": {}, "Adadelta": {},
    "RMSprop": {"momentum": 0.9, "centered": True}, "Adamax": {}, "NAdam": {}, "RAdam": {},
    "ASGD": {"t0": 2.0}, "Rprop": {}, "Adafactor": {}, "Muon": {},
}  # fmt: skip
SHAPES = [(4, 3), (2, 4), (3, 3)]


class Run:
    """Two groups of parameters and an optimiser, in one of the libraries."""

    def __init__(self, lib: Any, kind: str) -> None:
        draw = np.random.default_rng(1)
        self.lib = lib
        self.params = [
            lib.nn.Parameter(lib.tensor(draw.standard_normal(s).astype("f4"))) for s in SHAPES
        ]
        groups = [{"params": self.params[:2]}, {"params": self.params[2:], "lr": 0.05}]
        self.opt = getattr(lib.optim, kind)(groups, **KINDS[kind])

    def steps(self, first: int, count: int) -> None:
        for i in range(first, first + count):
            draw = np.random.default_rng(i)
            for p in self.params:
                p.grad = self.lib.tensor(draw.standard_normal(p.shape).astype("f4"))
            self.opt.step()

    def copied(self, lib: Any, kind: str) -> Run:
        """The run in a library, from its parameters and its state dict alone."""
        made = Run(lib, kind)
        with lib.no_grad():
            for p, q in zip(made.params, self.params):
                p.copy_(lib.tensor(q.detach().numpy()))
        made.opt.load_state_dict(carried(self.opt.state_dict(), lib))
        return made

    def values(self) -> list[np.ndarray]:
        return [p.detach().numpy() for p in self.params]


def carried(x: Any, lib: Any) -> Any:
    """A nested state with tensors of a library."""
    if isinstance(x, dict):
        return {k: carried(v, lib) for k, v in x.items()}
    return lib.tensor(x.detach().numpy()) if hasattr(x, "detach") else copy.copy(x)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_both_ways(kind: str) -> None:
    mine, want = Run(torch, kind), Run(theirs, kind)
    mine.steps(0, 3)
    want.steps(0, 3)
    ours, known = mine.opt.state_dict(), want.opt.state_dict()
    assert ours["state"].keys() == known["state"].keys()
    for number, held in known["state"].items():
        assert ours["state"][number].keys() == held.keys()
        for name, t in held.items():
            got = ours["state"][number][name]
            assert got.shape == t.shape
            np.testing.assert_allclose(got.numpy(), t.numpy(), 1e-4, 1e-6, err_msg=name)
    for group, there in zip(ours["param_groups"], known["param_groups"]):
        assert group["params"] == there["params"] and group["lr"] == there["lr"]
        assert there.keys() <= group.keys() | {"foreach", "fused", "capturable", "differentiable"}
        shared = there.keys() - {"params", "eps"}
        assert all(group[k] == there[k] for k in shared), (group, there)
    here, there = want.copied(torch, kind), mine.copied(theirs, kind)
    runs = [mine, want, here, there, mine.copied(torch, kind)]
    for run in runs:
        run.steps(3, 3)
    for values in zip(*(run.values() for run in runs)):
        for other in values[1:]:
            near = 1e-3 if kind == "Muon" else 1e-5  # PyTorch's computes in bfloat16
            np.testing.assert_allclose(other, values[0], 10 * near, near)


def test_a_state_is_found_by_its_parameter() -> None:
    runs = [Run(lib, "Adam") for lib in (torch, theirs)]
    for run in runs:
        run.steps(0, 2)
    mine, want = (run.opt.state[run.params[1]]["exp_avg"].numpy() for run in runs)
    np.testing.assert_allclose(mine, want, 1e-5, 1e-6)
    again = copy.deepcopy(runs[0].opt)
    np.testing.assert_array_equal(again.state[again.groups[0].params[1][1]]["exp_avg"], mine)
    with pytest.raises(UsageError, match="no parameter"):
        runs[0].opt.state[torch.ones(2)]


def test_a_checkpoint_goes_on(tmp_path: Any) -> None:
    run, path = Run(torch, "AdamW"), str(tmp_path / "at.safetensors")
    run.steps(0, 2)
    saved = {"params": run.values(), "optimizer": run.opt.state_dict(), "epoch": 2}
    torch.save(saved, path)
    read = torch.load(path)
    again = Run(torch, "AdamW")
    with torch.no_grad():
        for p, value in zip(again.params, read["params"]):
            p.copy_(value)
    again.opt.load_state_dict(read["optimizer"])
    assert again.opt.param_groups[1]["lr"] == 0.05 and read["epoch"] == 2
    run.steps(2, 2)
    again.steps(2, 2)
    for a, b in zip(run.values(), again.values()):
        np.testing.assert_array_equal(a, b)


def test_states_that_do_not_fit_change_nothing() -> None:
    run = Run(torch, "Adam")
    run.steps(0, 1)
    good = run.opt.state_dict()

    def changed(change: Any) -> Any:
        bad = copy.deepcopy(carried(good, torch))
        change(bad)
        return bad

    refused = {
        "groups of": changed(lambda s: s["param_groups"].pop()),
        "unknown option": changed(lambda s: s["param_groups"][0].update(rho=1)),
        "keeps exp_avg": changed(lambda s: s["state"][0].update(momentum_buffer=torch.ones(1))),
        "steps": changed(lambda s: s["state"][0].update(step=torch.tensor(9.0))),
        "expected": changed(lambda s: s["state"][1].update(exp_avg=torch.ones(7))),
    }
    for message, bad in refused.items():
        with pytest.raises((ModelError, ShapeError), match=message):
            run.opt.load_state_dict(bad)
    np.testing.assert_equal(carried(run.opt.state_dict(), np_like), carried(good, np_like))
    run.opt.load_state_dict(Optimizer.state_dict(run.opt))  # weft.optim's form


class np_like:
    tensor = staticmethod(np.asarray)


def test_lbfgs_shows_its_group() -> None:
    w = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    opt = torch.optim.LBFGS([w], lr=0.8)
    assert isinstance(opt, torch.optim.Optimizer)
    opt.param_groups[0]["lr"] = 0.5
    assert opt.param_groups[0]["lr"] == 0.5 and opt.param_groups[0]["params"] == [w]

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 25.0
    again = torch.optim.LBFGS([w])
    again.load_state_dict(opt.state_dict())
    assert again.param_groups[0]["lr"] == 0.5
