"""Casts between floats, bit for bit, subnormals included: every 16-bit pattern widened, and floats
at and beside every boundary of rounding narrowed, against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact import nearest, same_bits
from present import opened

import weft
from weft.core import dtypes as dt
from weft.core.dtypes import DType

NARROW = (dt.float16, dt.bfloat16)


@pytest.fixture(params=["oracle", "cpu", "vulkan", "interp"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param != "oracle":
        opened(request.param)
    return str(request.param)


def cast(x: np.ndarray, goal: DType, device: str) -> np.ndarray:
    fn: Any = lambda t: t.cast(goal)  # noqa: E731
    run = fn if device == "oracle" else weft.compile(fn, device=device)
    out: np.ndarray = run(weft.tensor(x)).numpy()
    return out


@pytest.mark.parametrize("source", NARROW, ids=str)
def test_every_pattern_widens(source: DType, device: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(source.numpy)
    same_bits(cast(x, dt.float32, device), x.astype(np.float32))


def around(goal: DType) -> np.ndarray:
    """Values of the dtype, the middles of neighbours, and the floats beside them: small exponents
    and large ones, both signs."""
    patterns = np.concatenate([np.arange(0, 1 << 15, 37), np.arange(300), np.arange(31000, 32640)])
    with np.errstate(over="ignore", invalid="ignore"):
        low = patterns.astype(np.uint16).view(goal.numpy).astype(np.float32)
        high = (patterns + 1).astype(np.uint16).view(goal.numpy).astype(np.float32)
        middle = (low.astype(np.float64) / 2 + high.astype(np.float64) / 2).astype(np.float32)
        beside = [np.nextafter(middle, np.float32(s) * np.inf) for s in (-1, 1)]
    found = np.concatenate([low, middle, *beside])
    found = found[np.isfinite(found)]
    return np.concatenate([found, -found])


@pytest.mark.parametrize("goal", NARROW, ids=str)
def test_narrowing_rounds_to_nearest(goal: DType, device: str) -> None:
    x = around(goal)
    want = [nearest(Fraction(v), goal.numpy) for v in x.tolist()]
    want = [np.copysign(w, v) for w, v in zip(want, x.tolist())]
    same_bits(cast(x, goal, device), np.array(want).astype(goal.numpy), str(goal))


def test_subnormal_bfloats_are_there_and_back(device: str) -> None:
    """1e-39 and its like: below the least normal float, which a CPU's own instruction drops."""
    x = np.float32([1e-39, -1e-39, 9.2e-41, -4.6e-41, 1.1e-38, 2e-41])
    want = x.astype(ml_dtypes.bfloat16)
    assert np.count_nonzero(want) == 5
    same_bits(cast(x, dt.bfloat16, device), want)
