"""scatter_add and update on every kind of target, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import TIERS, check, group_of, play, random, some_tiers, trace

from weft import ops
from weft.core import dtypes as dt
from weft.ops.evaluate import evaluate

F32 = dt.float32
SHAPES = [(7, 12, (33,)), (1, 3, (1,)), (10, 9, (2, 4)), (30, 20, ()), (3, 5, (64,))]
DTYPES = [F32, dt.bfloat16, dt.int32, dt.int8]


def _case(v: int, r: int, rest: tuple[int, ...], dtype: dt.DType) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(v + r)
    many = rng.integers(-2, v + 2, r).astype(np.int32)
    unique = np.array((list(rng.permutation(v)) + [-1] * r)[:r], np.int32)
    return random(dtype, (v, *rest)), many, unique, random(dtype, (r, *rest), 1)


@pytest.mark.parametrize("tiers", [*some_tiers.args[1], pytest.param(("vulkan",), id="vulkan")])
@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_out_of_place(shape: Any, dtype: dt.DType, tiers: tuple[str, ...]) -> None:
    x, many, unique, rows = _case(*shape, dtype)
    check(ops.scatter_add, [x, many, rows], "scatter", "scatter_add", tiers, "reduce")
    check(ops.update, [x, unique, rows], "scatter", "update", tiers, "exact")


@pytest.mark.parametrize("tiers", [*some_tiers.args[1], pytest.param(("vulkan",), id="vulkan")])
@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("shape", [*SHAPES[:3], (5, 6, (7, 20))], ids=repr)
def test_columns_of_their_own(shape: Any, dtype: dt.DType, tiers: tuple[str, ...]) -> None:
    """An index for each element, outside of x too."""
    x, _, _, rows = _case(*shape, dtype)
    index = np.random.default_rng(0).integers(-2, len(x) + 2, rows.shape).astype(np.int32)
    check(ops.scatter_add, [x, index, rows], "scatter", "scatter_add", tiers, "reduce")

    def wide(v: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(v, 0, -1))

    if dtype == F32 and len(shape[2]) == 1:
        check(
            lambda x, i, r: ops.scatter_add(*(ops.transpose(v, (1, 0)) for v in (x, i, r))),
            [wide(x), wide(index), wide(rows)],
            "scatter",
            "scatter_add",
            tiers,
            "reduce",
        )


@pytest.mark.parametrize("rows", [3, 700, 70_000])
def test_columns_of_their_own_in_blocks(rows: int) -> None:
    """More rows than a group keeps, more columns than one group's; bounded, and in place."""
    x, _, _, new = _case(rows, 40, (37,), F32)
    index = np.random.default_rng(0).integers(-1, rows + 1, new.shape).astype(np.int32)
    graph = trace(ops.scatter_add, [x, index, new])
    more = {"rows": "n", "slots": {"n": 0}, "in_place": {0: 0}}
    group = group_of(graph, "scatter", "scatter_add", **more)
    for n in (0, 11, 40):
        want = evaluate(graph, [x, np.where(np.arange(40)[:, None] < n, index, -1), new])[0]
        assert np.array_equal(play("cpu", group, [x, index, new], n)[0], want)


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_in_place_with_row_bound(shape: Any, dtype: dt.DType) -> None:
    x, _, unique, rows = _case(*shape, dtype)
    graph = trace(lambda x, i, r: ops.update(x, i, ops.neg(r)), [x, unique, rows])
    bounded = {"rows": "n", "slots": {"n": 0}, "in_place": {0: 0}}
    group = group_of(graph, "scatter", "update", **bounded)
    for n in (0, len(unique) // 2, len(unique)):
        cut = np.where(np.arange(len(unique)) < n, unique, -1).astype(np.int32)
        want = evaluate(graph, [x, cut, rows])[0]
        for tier in TIERS:
            assert np.array_equal(play(tier, group, [x, unique, rows], n)[0], want), tier


def test_wide_rows_and_fused_operands() -> None:
    x, many, _, rows = _case(3, 4, (70000,), F32)
    check(
        lambda x, i, r: ops.scatter_add(ops.mul(x, 2.0), i, ops.neg(r)),
        [x, many, rows], "scatter", "scatter_add", tiers=("cpu",), tolerance="reduce",
    )  # fmt: skip


def test_scatter_add_in_place() -> None:
    x, many, _, rows = _case(300, 500, (24,), F32)
    graph = trace(ops.scatter_add, [x, many, rows])
    group = group_of(graph, "scatter", "scatter_add", in_place={0: 0})
    want = evaluate(graph, [x, many, rows])[0]
    assert np.allclose(play("cpu", group, [x, many, rows])[0], want, atol=1e-5)


def test_many_to_one_row_with_row_bound() -> None:
    """Equal indices side by side add up in their order, none beyond the bound."""
    x, rows = random(F32, (3, 32)), random(F32, (48, 32), 1)
    idx = np.where(np.arange(48) % 5 == 0, 2, 0).astype(np.int32)
    idx[20], idx[21] = -4, 9
    graph = trace(ops.scatter_add, [x, idx, rows])
    group = group_of(graph, "scatter", "scatter_add", rows="n", slots={"n": 0})
    for n in (0, 1, 17, 48):
        want = x.copy()
        for i, row in zip(idx[:n], rows):
            if 0 <= i < 3:
                want[i] += row
        for tier in TIERS:
            assert np.array_equal(play(tier, group, [x, idx, rows], n)[0], want), (tier, n)
