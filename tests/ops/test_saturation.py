"""Activations far from zero: values exactly what they tend to, gradients 0 or 1 and never NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from present import opened
from rows import covering

import weft
from weft import functional as F

FAR = [30.0, 150.0, 65504.0]
HUGE = [*FAR, 1e20, 3.4e38, np.inf]
# name -> (function, its slope far to the left, far to the right)
SLOPES: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "gelu": (F.gelu, 0, 1),
    "gelu, tanh": (lambda x: F.gelu(x, "tanh"), 0, 1),
    "silu": (F.silu, 0, 1),
    "relu": (F.relu, 0, 1),
    "sigmoid": (weft.sigmoid, 0, 0),
    "tanh": (weft.tanh, 0, 0),
    "erf": (weft.erf, 0, 0),
}


DEVICES = ("eager", "cpu", "interp", "vulkan")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "eager" else opened(request.param).info.id


def far_out(dtype: weft.DType) -> np.ndarray:
    reach = np.array([*FAR, np.inf] if dtype == weft.float16 else HUGE)
    return np.concatenate([-reach, reach]).astype(dtype.numpy)


@pytest.mark.parametrize(
    "name,dtype,device",
    covering(SLOPES, [weft.float32, weft.float16, weft.bfloat16], DEVICES),
    indirect=["device"],
)
def test_slopes(name: str, dtype: weft.DType, device: str | None) -> None:
    fn, left, right = SLOPES[name]
    x = far_out(dtype)
    both = weft.value_and_grad(lambda t: fn(t).sum())
    run = both if device is None else weft.compile(both, device=device)
    got = run(weft.tensor(x))[1].numpy().astype(np.float64)
    want = np.where(x < 0, left, right)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [weft.float32, weft.float16, weft.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["gelu", "gelu, tanh", "silu"])
def test_values(name: str, dtype: weft.DType, device: str | None) -> None:
    fn = SLOPES[name][0]
    x = far_out(dtype)[np.isfinite(far_out(dtype))]
    got = (fn if device is None else weft.compile(fn, device=device))(weft.tensor(x)).numpy()
    want = np.where(x < 0, 0, x.astype(np.float64))
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=1e-11)
    ends = np.array([-np.inf, np.inf], dtype.numpy)
    got = (fn if device is None else weft.compile(fn, device=device))(weft.tensor(ends)).numpy()
    assert np.isnan(got[0]) and got[1] == np.inf
