"""Counts and sums over many elements of narrow floats are those of float64, rounded once: bfloat16
stops counting at 256, float16 at 2,048, and ends at 65,504."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.tensor.losses import mse_loss
from weft.tensor.pooling import avg_pool2d

MANY = 70_000


def gradient(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def found(x: Any) -> Any:
        w = x.detach().requires_grad_()
        return weft.grad(fn(w).sum(), [w])[0]

    return found


ROWS: dict[str, tuple[Callable[[Any], Any], float]] = {  # of ones [2, MANY]: all results are equal
    "mean": (lambda x: x.mean(1), 1.0),
    "std": (lambda x: (x + (weft.arange(MANY) % 2) * 1.0).std(1), 0.5),
    "gradient of max": (gradient(lambda x: x.max(1)), 1 / MANY),
    "gradient of min": (gradient(lambda x: x.min(1)), 1 / MANY),
    "gradient of max over all": (gradient(lambda x: x.max()), 1 / (2 * MANY)),
    "gradient of mean": (gradient(lambda x: x.mean(1)), 1 / MANY),
    "running sum": (lambda x: (x * 0.5).cumsum(1)[:, 59_999], 30_000),
    "gradient of expand": (gradient(lambda x: x[:, :1].expand(2, MANY) * 0.5), MANY / 2),
    "softmax": (lambda x: x.softmax(1), 1 / MANY),
    "average pool": (
        lambda x: avg_pool2d(x.reshape(2, 1, 7, MANY // 7), (7, MANY // 7)),
        1.0,
    ),
    "mean of a loss": (lambda x: mse_loss(x, x * 0.0), 1.0),
}


def taken(x: Any) -> Any:
    return x[:, :1].take(weft.zeros((MANY,), weft.int32), 1) * 0.5


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [*ROWS, "gradient of take"])
def test_narrow_floats(name: str, dtype: str, compiled: bool) -> None:
    fn, want = ROWS.get(name, (gradient(taken), MANY / 2))
    x = weft.ones((2, MANY)).cast(dtype)
    got = (weft.compile(fn, device="cpu") if compiled else fn)(x)
    values = got.cast(weft.float32).numpy().astype(np.float64)
    if name in ("gradient of expand", "gradient of take"):
        values = values[:, 0]
    np.testing.assert_allclose(values, want, rtol=0.01 if dtype == "bfloat16" else 0.02)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_narrow_integers(dtype: str) -> None:
    x = weft.ones((1000,)).cast(dtype)
    for fn, want in (
        (lambda x: x.sum(), 1000),
        (lambda x: weft.cumulative_sum(x)[-1], 1000),
        (lambda x: x.mean(), 1.0),
        (lambda x: weft.count_nonzero(x), 1000),
        (lambda x: (x * 0).cast(dtype).argmax(), 0),
        (lambda x: weft.concat([x * 0, x]).cast(weft.int32).argmax(), 1000),
    ):
        assert fn(x).item() == want == weft.compile(fn, device="cpu")(x).item()
