"""reduce groups on every kind of target, against the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from harness import TIERS, check, group_of, play, random, some_tiers, trace

from weft import ops
from weft.core import dtypes as dt

F32 = dt.float32
AXES = [a for n in (1, 2, 3) for a in itertools.combinations(range(3), n)]


@some_tiers
@pytest.mark.parametrize("axes", AXES, ids=repr)
@pytest.mark.parametrize("shape", [(7, 3, 5), (3, 4, 50), (1, 1, 1), (2, 3, 16)], ids=repr)
def test_sum_and_max(axes: tuple[int, ...], shape: tuple[int, ...], tiers: tuple[str, ...]) -> None:
    x = random(F32, shape)

    def sums(x: Any) -> Any:
        return ops.sum_(ops.mul(x, x), axes)

    def maxima(x: Any) -> Any:
        return ops.add(ops.max_(x, axes), 1.0)

    check(sums, [x], "reduce", "sum", tiers, "reduce")
    check(maxima, [x], "reduce", "max", tiers)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)], ids=repr)
@pytest.mark.parametrize("dtype", [F32, dt.bfloat16, dt.int8], ids=repr)
def test_on_vulkan(dtype: dt.DType, axes: tuple[int, ...]) -> None:
    x = random(dtype, (5, 70, 9))
    check(lambda x: ops.sum_(x, axes), [x], "reduce", "sum", ("vulkan",), "reduce")
    check(lambda x: ops.max_(x, axes), [x], "reduce", "max", ("vulkan",))
    check(lambda x: ops.argmax(x, axes[0]), [x], "reduce", "argmax", ("vulkan",))


@some_tiers
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [F32, dt.bfloat16, dt.int8, dt.uint32], ids=repr)
def test_argmax(axis: int, dtype: dt.DType, tiers: tuple[str, ...]) -> None:
    x = random(dtype, (4, 9, 35))
    x[:, 3] = x[:, 5]  # ties go to the first
    check(lambda x: ops.argmax(x, axis), [x], "reduce", "argmax", tiers)


@pytest.mark.parametrize("axis", [0, 1])
def test_nan(axis: int) -> None:
    x = random(F32, (6, 40))
    x[1, 7], x[2, 39], x[2, 3], x[3, :] = np.nan, np.nan, np.inf, -np.inf
    x[4, 0] = -np.nan
    x[5] = np.where(np.arange(40) % 2, 0.0, -0.0)
    check(lambda x: ops.max_(x, axis), [x], "reduce", "max")
    check(lambda x: ops.argmax(x, axis), [x], "reduce", "argmax")


@some_tiers
@pytest.mark.parametrize("dtype", [d for d in dt.DEVICE if d.kind != "bool"], ids=repr)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=repr)
def test_dtypes(dtype: dt.DType, axes: tuple[int, ...], tiers: tuple[str, ...]) -> None:
    x = random(dtype, (5, 77))
    check(lambda x: ops.sum_(x, axes), [x], "reduce", "sum", tiers, "reduce")
    check(lambda x: ops.max_(x, axes), [x], "reduce", "max", tiers)


def test_views_and_epilogue() -> None:
    x, y = random(F32, (6, 10)), random(F32, (10,))

    def fn(x: Any, y: Any) -> Any:
        s = ops.sum_(ops.transpose(ops.slice_(x, (5, 0), (-1, 10), (-1, 1)), (1, 0)), (1,))
        return ops.reshape(ops.mul(s, y), (2, 5))

    check(fn, [x, y], "reduce", "sum", tolerance="reduce")
    padded = lambda x: ops.sum_(ops.pad(x, (0, 3), (0, 5), 1.0), (1,))  # noqa: E731
    check(padded, [x], "reduce", "sum", tolerance="reduce")


def test_empty_sum() -> None:
    check(lambda x: ops.sum_(x, 1), [random(F32, (5, 0))], "reduce", "sum")
    check(lambda x: ops.sum_(x, 0), [random(F32, (0, 5))], "reduce", "sum")


@pytest.mark.parametrize("shape", [(3, 5000), (3000, 40), (200, 3), (1, 20000)], ids=repr)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=repr)
def test_long(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = random(F32, shape)
    group = group_of(trace(lambda x: ops.sum_(x, axes), [x]), "reduce", "sum")
    want = x.astype(np.float64).sum(axes)
    assert np.allclose(play("cpu", group, [x])[0], want, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("axis", [1, 2])
def test_row_bound(tier: str, axis: int) -> None:
    x = random(F32, (9, 40, 50))
    graph = trace(lambda x: ops.sum_(x, (axis,)), [x])
    group = group_of(graph, "reduce", "sum", rows="n", slots={"n": 0})
    for n in (0, 1, 8, 9):
        got = play(tier, group, [x], n)[0]
        assert np.allclose(got[:n], x.sum(axis)[:n], atol=1e-4)
