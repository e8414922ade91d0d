"""Functions near 0 and 1: their small values and slopes are right to a few ulp, not as what is
left of two large numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from present import opened

import weft
from weft import functional as F
from weft.conform import unary
from weft.core import dtypes as dt

Array = np.ndarray[Any, Any]
_erfc = np.vectorize(math.erfc, otypes=[np.float64])
LEAST = 2.0**-118  # smaller results may be flushed


def slope(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: weft.value_and_grad(lambda v: fn(v).sum())(x)[1]


def phi(x: Array) -> Array:
    return 0.5 * _erfc(-x * math.sqrt(0.5))


def bell(x: Array) -> Array:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def logistic(x: Array) -> Array:
    return np.where(x < 0, np.exp(x), 1.0) / (1.0 + np.exp(-np.abs(x)))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def loss(y: float) -> Callable[[Any], Any]:
    return lambda x: F.binary_cross_entropy_with_logits(x, x * 0.0 + y, reduction="none")


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array], float]] = {
    "gelu": (F.gelu, lambda x: x * phi(x), math.nan),
    "gelu's slope": (slope(F.gelu), lambda x: phi(x) + x * bell(x), -0.7517916),
    "sigmoid": (weft.sigmoid, logistic, math.nan),
    "sigmoid's slope": (slope(weft.sigmoid), lambda x: logistic(x) * logistic(-x), math.nan),
    "silu": (F.silu, lambda x: x * logistic(x), math.nan),
    "silu's slope": (
        slope(F.silu), lambda x: logistic(x) * (1.0 + x * logistic(-x)), -1.2784645,
    ),
    "logaddexp": (lambda x: weft.logaddexp(x, 0.0), softplus, math.nan),
    "logaddexp's slope": (slope(lambda x: weft.logaddexp(x, 0.0)), logistic, math.nan),
    "softplus": (lambda x: F.softplus(x, threshold=math.inf), softplus, math.nan),
    "loss of 0": (loss(0.0), softplus, math.nan),
    "loss of 1": (loss(1.0), lambda x: softplus(-x), math.nan),
    "loss's slope": (slope(loss(1.0)), lambda x: -logistic(-x), math.nan),
}  # fmt: skip


@pytest.mark.parametrize("device", unary.DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_small_values_keep_their_digits(name: str, device: str) -> None:
    if device == "vulkan":
        opened(device)
    fn, truth, root = CASES[name]
    x = np.concatenate([np.linspace(-13, 13, 40_001), np.linspace(-80, 80, 20_001)])
    x = x.astype(np.float32)
    x = x[~(np.abs(x - root) < 0.25)]  # where a sum is zero, only its absolute error is small
    want = truth(x.astype(np.float64))
    x, want = x[np.abs(want) > LEAST], want[np.abs(want) > LEAST]
    got = unary.compute(unary.UnaryFunction(name, fn, truth), x, unary.DEVICES[device])
    error = unary.ulps(got, want, dt.float32)
    at = int(error.argmax())
    assert error[at] < 16, f"{name}({x[at]}): {got[at]}, expected {want[at]}: {error[at]:.3g} ulp"
