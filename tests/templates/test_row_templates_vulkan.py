"""The map, reduce, scatter and sort templates on a Vulkan device (lavapipe suffices)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import check, random
from present import opened
from test_map import CASES

from weft import ops
from weft.core import dtypes as dt

F32 = dt.float32


@pytest.fixture(scope="module")
def vulkan() -> Any:
    return opened("vulkan")


def _check(vulkan: Any, fn: Any, arrays: list[np.ndarray], *args: Any, **extra: Any) -> None:
    if not all(vulkan.supports(dt.as_dtype(a.dtype)) for a in arrays):
        pytest.skip(f"{vulkan.info.id} does not store this dtype")
    check(fn, arrays, *args, targets=(), cpu=False, device=vulkan, **extra)


@pytest.mark.parametrize("name", CASES)
def test_map(vulkan: Any, name: str) -> None:
    _check(vulkan, *CASES[name])


@pytest.mark.parametrize("dtype", dt.DEVICE, ids=repr)
def test_dtypes(vulkan: Any, dtype: dt.DType) -> None:
    op = ops.bitwise_xor if dtype.kind == "bool" else ops.add
    for shape in ((1,), (5,), (3, 8), (2, 37)):
        _check(vulkan, op, [random(dtype, shape), random(dtype, shape, 1)])


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)], ids=repr)
def test_reduce(vulkan: Any, axes: tuple[int, ...]) -> None:
    for dtype in (F32, dt.bfloat16, dt.int8):
        x = random(dtype, (5, 70, 9))
        _check(vulkan, lambda x: ops.sum_(x, axes), [x], "reduce", "sum", tolerance="reduce")
        _check(vulkan, lambda x: ops.max_(x, axes), [x], "reduce", "max")
    _check(vulkan, lambda x: ops.argmax(x, axes[0]), [x], "reduce", "argmax")


@pytest.mark.parametrize("dtype", [F32, dt.bfloat16, dt.int8], ids=repr)
def test_scatter_and_sort(vulkan: Any, dtype: dt.DType) -> None:
    x, rows = random(dtype, (9, 30)), random(dtype, (12, 30), 1)
    many = np.array([0, 3, 3, 8, -1, 9, 3, 0, 7, 7, 2, 1], np.int32)
    unique = np.array([4, 0, -1, 8, 9, 3, -5, 7, 6, 1, 2, 5], np.int32)
    _check(vulkan, ops.scatter_add, [x, many, rows], "scatter", "scatter_add", tolerance="reduce")
    _check(vulkan, ops.update, [x, unique, rows], "scatter", "update", tolerance="exact")
    for axis in (0, 1):
        _check(vulkan, lambda x: ops.sort(x, axis), [x], "sort", "sort", tolerance="exact")  # noqa: B023
