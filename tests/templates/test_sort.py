"""Stable sorts on every kind of target, against NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from harness import TIERS, check, group_of, play, random, some_tiers, trace
from rows import covering

from weft import ops
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.ops.evaluate import evaluate

SORTABLE = [d for d in dt.DEVICE if d.kind != "bool"]


def _values(dtype: dt.DType, shape: tuple[int, ...]) -> np.ndarray:
    x = random(dtype, shape)
    if dtype.is_float:  # ties, infinities, both zeros, NaN
        rng = np.random.default_rng(1)
        for v in (np.nan, -np.inf, np.inf, -0.0, 0.0):
            x[rng.random(shape) < 0.1] = v
    return x


@some_tiers
@pytest.mark.parametrize("dtype,n", covering(SORTABLE, [13, 1, 2]), ids=repr)
def test_sorts(n: int, dtype: dt.DType, tiers: tuple[str, ...]) -> None:
    x = _values(dtype, (2, n, 2))
    for descending in (False, True):
        for indices in (False, True):
            check(
                lambda x: ops.sort(x, 1, descending, indices),  # noqa: B023
                [x], "sort", "sort", tolerance="exact",
                tiers=tiers if dtype == dt.float32 else tiers[1::2],
            )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.int8], ids=repr)
def test_on_vulkan(dtype: dt.DType, axis: int) -> None:
    x = _values(dtype, (9, 30))
    check(lambda x: ops.sort(x, axis), [x], "sort", "sort", ("vulkan",), "exact")


@pytest.mark.parametrize("n", [100, 4096, 50000])
@pytest.mark.parametrize("axis", [0, 1])
def test_long(n: int, axis: int) -> None:
    x = _values(dt.float32, (n, 2) if axis == 0 else (2, n))
    for fn in (lambda x: ops.sort(x, axis, True, True), lambda x: ops.sort(ops.neg(x), axis)):
        check(fn, [x], "sort", "sort", tolerance="exact", tiers=("cpu",))


def test_rows_beyond_shared_and_scratch_memory() -> None:
    """Where a row fits neither, elements count their predecessors."""
    x = _values(dt.float32, (2, 150))
    graph = trace(lambda x: ops.sort(x, 1, False, True), [x])
    group = group_of(graph, "sort", "sort")
    for name in ("cpu-avx2", "cuda"):
        caps = dataclasses.replace(PRESETS[name], scratch_bytes=0, shared_bytes=64)
        assert np.array_equal(play(caps, group, [x])[0], evaluate(graph, [x])[0])


def test_row_bound() -> None:
    x = _values(dt.float32, (4, 9))
    group = group_of(trace(lambda x: ops.sort(x, 1), [x]), "sort", "sort", rows="n", slots={"n": 0})
    want = np.sort(x, 1)
    for tier in TIERS:
        assert np.array_equal(play(tier, group, [x], 3)[0][:3], want[:3], equal_nan=True), tier
