"""The state of optimizers: saved, loaded into a running Program, wider than parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fitting_kit import START, Ours

import weft
from weft import optim


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_saved_state_goes_on_bit_by_bit(kind: str) -> None:
    def make(p: list[Any]) -> optim.Optimizer:
        return optim.SGD(p, 0.1, momentum=0.9) if kind == "SGD" else optim.Adam(p, 0.1)

    whole = Ours(make)
    want = whole.steps()
    first = Ours(make)
    first.steps(0, 10)
    state = first.opt.state_dict()
    slot = "momentum_buffer" if kind == "SGD" else "exp_avg"
    assert {"count", "lr.0", f"{slot}.weight", f"{slot}.bias"} <= set(state)
    again = Ours(make)
    again.opt.load_state_dict(state)
    with weft.no_grad():
        for name, p in again.params.items():
            p.assign(first.params[name].numpy())
    for a, b in zip(again.steps(10, 20), want[10:], strict=True):
        for name in START:
            np.testing.assert_array_equal(a[name], b[name])
    np.testing.assert_array_equal(again.opt.state_dict()["count"], 20)


def test_state_loads_into_a_running_program() -> None:
    run = Ours(lambda p: optim.Adam(p, 0.1))
    run.steps(0, 4)
    state, params = run.opt.state_dict(), {k: p.numpy().copy() for k, p in run.params.items()}
    want = run.steps(4, 8)
    run.opt.load_state_dict(state)
    with weft.no_grad():
        for name, p in run.params.items():
            p.assign(params[name])
    for a, b in zip(run.steps(4, 8), want, strict=True):
        np.testing.assert_array_equal(a["weight"], b["weight"])
    assert len(run.run.programs()) == 1


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_parameters_keep_wide_state(dtype: str) -> None:
    p = weft.tensor(START["bias"], dtype=dtype, requires_grad=True)
    opt = optim.Adam([p], lr=0.1)
    (p * p).sum().backward()
    opt.step()
    assert p.dtype.itemsize == 2
    assert opt.state_dict()["exp_avg.0"].dtype == np.float32
    want = START["bias"] - 0.1 * np.sign(START["bias"])
    np.testing.assert_allclose(p.numpy().astype(np.float32), want, atol=0.02)
