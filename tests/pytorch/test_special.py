"""Special functions over their whole range, in float32, beside PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch

WIDE = np.concatenate([-np.logspace(2.5, -4, 300), np.logspace(-4, 3, 300)]).astype(np.float32)
OVER = WIDE[WIDE > 0]
BELOW = WIDE[np.abs(WIDE) < 80]
UNIT = np.concatenate([np.linspace(1e-3, 0.999, 200), [1e-5, 1e-10, 1e-30, 1 - 1e-5]])
UNIT = UNIT.astype(np.float32)
WAVES = 5e-4  # float32 knows the phase of a far wave no better

# name -> where, the largest error in units of the value (at least 0.001)
CASES: dict[str, tuple[np.ndarray, float]] = {
    "lgamma": (WIDE, 2e-4), "digamma": (WIDE, 2e-5), "erfinv": (np.r_[UNIT, -UNIT], 1e-6),
    "sinc": (WIDE[np.abs(WIDE) < 9], 2e-4), "i0": (BELOW, 1e-6),
    "special.erfcx": (WIDE[WIDE > -8], 1e-5), "special.ndtri": (UNIT, 1e-6),
    "special.log_ndtr": (WIDE, 2e-6), "special.ndtr": (WIDE, 2e-6), "special.i0e": (WIDE, 1e-6),
    "special.i1e": (WIDE, 1e-6), "special.i1": (BELOW, 1e-6), "special.entr": (UNIT, 1e-6),
    "special.bessel_j0": (WIDE, WAVES), "special.bessel_j1": (WIDE, WAVES),
    "special.bessel_y0": (OVER, WAVES), "special.bessel_y1": (OVER, WAVES),
    "special.modified_bessel_k0": (OVER[OVER < 80], 2e-6),
    "special.modified_bessel_k1": (OVER[OVER < 80], 2e-6),
    "special.scaled_modified_bessel_k0": (OVER, 2e-6),
    "special.scaled_modified_bessel_k1": (OVER, 2e-6),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_whole_range(name: str) -> None:
    x, most = CASES[name]

    def of(module: Any) -> Any:
        for part in name.split("."):
            module = getattr(module, part)
        return module

    want = of(theirs)(theirs.tensor(x).double()).numpy()
    got = of(torch)(torch.tensor(x)).numpy().astype(np.float64)
    fine = np.isfinite(want) & (np.abs(want) < 3e38)
    error = np.abs(got - want)[fine] / np.maximum(np.abs(want[fine]), 1e-3)
    assert error.max() < most, f"at {x[fine][error.argmax()]}"
    assert (np.isnan(got) == np.isnan(want)).all()


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_xlogy_at_zero(name: str) -> None:
    xs, ys = [0.0, 0.0, 0.0, 2.0, 0.0, -1.0], [0.2, 3.0, 1.0, 0.5, float("nan"), 0.3]

    def run(lib: Any) -> list[Any]:
        x, y = (lib.tensor(v, requires_grad=True) for v in (xs, ys))
        value = getattr(lib.special, name)(x, y)
        value.sum().backward()
        return [t.detach().numpy() for t in (value, x.grad, y.grad)]

    for a, b in zip(run(torch), run(theirs)):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
