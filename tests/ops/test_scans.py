"""Scans and products: their NumPy meaning, their bodies, their derivatives with zeros about."""

from __future__ import annotations

import gradkit
import numpy as np
import pytest
import torch
from opkit import agree, from_torch, to_torch
from rows import few

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.ops.composite import COMPOSITES

TORCH = {
    "sum": torch.cumsum, "prod": torch.cumprod, "max": torch.cummax, "min": torch.cummin,
}  # fmt: skip
WAYS = [(exclusive, reverse) for exclusive in (False, True) for reverse in (False, True)]


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("op", TORCH)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_meaning(op: str, axis: int) -> None:
    for dtype in (dt.float32, dt.bfloat16, dt.int32):
        x = (_numbers(3, 7, 2) * 4).astype(dtype.numpy)
        exact = torch.from_numpy(x.astype(np.float64 if dtype.is_float else np.int64))
        want = TORCH[op](exact, axis)
        values = (want if isinstance(want, torch.Tensor) else want[0]).numpy()
        agree(ops.scan(x, op, axis), values.astype(x.dtype), "reduce", dtype)
        back = np.flip(ops.scan(np.flip(x, axis), op, axis), axis)
        assert np.array_equal(back, ops.scan(x, op, axis, reverse=True))


@pytest.mark.parametrize("op", TORCH)
def test_exclusive_is_the_inclusive_moved_on(op: str) -> None:
    x = _numbers(3, 7)
    for reverse in (False, True):
        whole = ops.scan(x, op, 1, False, reverse)
        moved = ops.scan(x, op, 1, True, reverse)
        assert np.array_equal(
            moved[:, :-1] if reverse else moved[:, 1:], whole[:, 1:] if reverse else whole[:, :-1]
        )
    assert ops.scan(np.zeros((1,), np.int32), op, 0, True)[0] == {
        "sum": 0, "prod": 1, "max": -(2**31), "min": 2**31 - 1,
    }[op]  # fmt: skip


def test_integers_wrap_exactly() -> None:
    rng = np.random.default_rng(0)
    for dtype in (dt.int8, dt.uint8, dt.int32, dt.uint32):
        info = np.iinfo(dtype.numpy)
        x = rng.integers(info.min, info.max, 300, endpoint=True).astype(dtype.numpy)
        for op, start in (("sum", 0), ("prod", 1)):
            want, so_far = [], start
            for v in map(int, x):
                so_far = so_far + v if op == "sum" else so_far * v
                want.append((so_far - info.min) % (1 << info.bits) + info.min)
            assert ops.scan(x, op, 0).tolist() == want
            assert int(ops.prod(x)) == want[-1] or op == "sum"


@pytest.mark.parametrize("op", [*TORCH, "linear"])
def test_bodies_say_the_same(op: str) -> None:
    """The log-step body, and the same scan as totals, carries and blocks."""
    x, a = _numbers(2, 23, 3), _numbers(2, 23, 3, seed=1)
    xs = (x, a) if op == "linear" else (x,)
    serial = np.zeros_like(x)
    for i in range(23):
        serial[:, i] = x[:, i] + (a[:, i] * serial[:, i - 1] if i else 0)
    for exclusive, reverse in WAYS[: 2 if op == "linear" else 4]:
        want = ops.scan(x, op, 1, exclusive, reverse, *xs[1:])
        if op == "linear" and not reverse:
            np.testing.assert_allclose(want, serial, rtol=1e-12)
        at = {"op": op, "axis": 1}
        way = {"exclusive": exclusive, "reverse": reverse}
        body = COMPOSITES["scan"].body(*xs, **at, **way)
        np.testing.assert_allclose(body, want, rtol=1e-10, atol=1e-12)
        for tail in (5, 2, 1, 0):
            cut = {"reverse": reverse, "block": 5, "tail": tail}
            totals = ops.call("scan_totals", *xs, **at, **cut)
            carries = ops.call("scan_carries", totals, **at, exclusive=exclusive)
            blocks = ops.call("scan_blocks", *xs, carries, **at, **cut, exclusive=exclusive)
            np.testing.assert_allclose(blocks, want, rtol=1e-10, atol=1e-12)
        if not exclusive:
            last = ops.call("scan_joined", totals, **at, dtype=dt.float64)
            np.testing.assert_allclose(last, want[:, 0 if reverse else -1], rtol=1e-10, atol=1e-12)
    if op == "prod":
        body = COMPOSITES["prod"].body(x, axes=(0, 1))
        np.testing.assert_allclose(body, ops.prod(x, (0, 1)), rtol=1e-12)
        np.testing.assert_allclose(body, np.prod(x, (0, 1)), rtol=1e-12)


@pytest.mark.parametrize("dtype", [dt.int8, dt.uint8], ids=str)
@pytest.mark.parametrize("op", TORCH)
def test_bodies_of_narrow_integers(op: str, dtype: dt.DType) -> None:
    """Also where an exclusive scan begins: with what no elements of this dtype give."""
    x = (np.abs(_numbers(2, 7)) * 40).astype(dtype.numpy)
    for exclusive, reverse in WAYS:
        way = {"op": op, "axis": 1, "exclusive": exclusive, "reverse": reverse}
        want = ops.scan(x, **way)
        np.testing.assert_array_equal(COMPOSITES["scan"].body(x, **way), want)
        cut = {"op": op, "axis": 1, "reverse": reverse, "block": 3}
        totals = ops.call("scan_totals", x, **cut)
        carries = ops.call("scan_carries", totals, op=op, axis=1, exclusive=exclusive)
        blocks = ops.call("scan_blocks", x, carries, **cut, exclusive=exclusive)
        np.testing.assert_array_equal(blocks, want)


@pytest.mark.parametrize("op", TORCH)
@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_derivatives(op: str, exclusive: bool, reverse: bool) -> None:
    exclusive = exclusive and op in ("sum", "prod")  # no extreme of nothing is finite
    for axis in (0, 1):
        fn = lambda x: ops.scan(x, op, axis, exclusive, reverse)  # noqa: B023, E731
        gradkit.check(fn, _numbers(4, 5))
        gradkit.check_second(fn, _numbers(4, 5))


ZEROS: list[list[int]] = [[], [0], [1], [4], [1, 3], [0, 2, 4], [2, 3]]


@pytest.mark.parametrize("zeros", few(ZEROS, [0], [2, 3]), ids=str)
def test_products_with_zeros(zeros: list[int]) -> None:
    """First and second derivatives, against central differences in float64."""
    x = _numbers(2, 5)
    x[0, zeros] = 0
    for exclusive, reverse in WAYS:
        fn = lambda x: ops.scan(x, "prod", 1, exclusive, reverse)  # noqa: B023, E731
        gradkit.check(fn, x)
        gradkit.check_second(fn, x)
    for axes in ((0,), (1,), (0, 1)):
        fn = lambda x: ops.prod(x, axes)  # noqa: B023, E731
        gradkit.check(fn, x)
        gradkit.check_second(fn, x)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences(reverse: bool) -> None:
    x, a = _numbers(2, 6), _numbers(2, 6, seed=1)
    a[0, 2] = x[1, 3] = 0
    fn = lambda x, a: ops.scan(x, "linear", 1, False, reverse, a)  # noqa: E731
    gradkit.check(fn, x, a)
    gradkit.check_second(fn, x, a)


@pytest.mark.parametrize("op", ["max", "min"])
def test_a_later_tie_takes_the_gradient(op: str) -> None:
    x = np.random.default_rng(0).integers(0, 3, (5, 40)).astype(np.float64)
    x[2, 11] = np.nan
    t = torch.tensor(x, requires_grad=True)
    out = TORCH[op](t, 1)[0]
    out.backward(torch.tensor(gradkit.seed_for(out.detach().numpy())))
    (got,) = gradkit.grads(lambda x: ops.scan(x, op, 1), x)
    np.testing.assert_allclose(got, t.grad.numpy(), rtol=1e-12)


def test_nothing_overflows_that_need_not() -> None:
    """Where products of windows overflow, a zero before them still makes them zero, and gradients
    that nothing flows into stay zero."""
    x = np.array([2.0, 0.0, 3e38, 3e38, 3e38], np.float32)
    assert ops.scan(x, "prod", 0).tolist() == [2, 0, 0, 0, 0]
    (got,) = gradkit.grads(
        lambda x: ops.slice_(ops.scan(x, "prod", 0), (0,), (2,)), x, seed=np.ones(2, np.float32)
    )
    assert got.tolist() == [1, 2, 0, 0, 0]


def test_logcumsumexp() -> None:
    x = _numbers(3, 9) * 20
    x[0, 3] = -np.inf
    want = torch.logcumsumexp(torch.tensor(x), 1).numpy()
    np.testing.assert_allclose(ops.call("logcumsumexp", x, axis=1), want, rtol=1e-12)
    np.testing.assert_allclose(COMPOSITES["logcumsumexp"].body(x, axis=1), want, rtol=1e-12)
    x = _numbers(2, 6)
    gradkit.check(lambda x: ops.call("logcumsumexp", x, axis=1), x)
    gradkit.check_second(lambda x: ops.call("logcumsumexp", x, axis=1), x)
    half = to_torch(x.astype(np.float16))
    agree(
        ops.call("logcumsumexp", from_torch(half), axis=1),
        from_torch(torch.logcumsumexp(half, 1)), "reduce",
    )  # fmt: skip


def test_refusals() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(UsageError, match="no operation 'mean'"):
        ops.scan(x, "mean")
    with pytest.raises(UsageError, match="two"):
        ops.scan(x, "linear")
    with pytest.raises(UsageError, match="shift"):
        ops.scan(x, "linear", exclusive=True, factor=x)
    with pytest.raises(ShapeError, match="axis 2"):
        ops.scan(x, axis=2)
    with pytest.raises(DTypeError, match="bool"):
        ops.scan(x > 0)
    with pytest.raises(ShapeError, match="the last 3 together"):
        ops.call("scan_totals", x, op="sum", axis=1, reverse=False, block=2, tail=3)
    with pytest.raises(ShapeError, match="carries"):
        ops.call("scan_blocks", x, x, op="sum", axis=1, reverse=False, block=2, exclusive=False)


def test_gradients_of_products_out_of_range() -> None:
    """Of the factors that remain, where the product itself vanishes, overflows or is NaN."""
    for x, want in (
        ([1e-30, 1e-20], [1e-20, 1e-30]),
        ([1e30, 1e20], [1e20, 1e30]),
        ([np.inf, 2], [2, np.inf]),
        ([-np.inf, 0, 1], [0, -np.inf, np.nan]),
        ([0, 1e30, 1e30, 0], [0, 0, 0, 0]),
    ):
        numbers = np.array(x, np.float32)
        (got,) = gradkit.grads(ops.prod, numbers, seed=np.ones((), np.float32))
        np.testing.assert_allclose(got, np.array(want, np.float32), rtol=1e-6)
        last = np.eye(len(x), dtype=np.float32)[-1]
        (got,) = gradkit.grads(lambda x: ops.scan(x, "prod", 0), numbers, seed=last)
        if not np.isnan(want).any():
            np.testing.assert_allclose(got, np.array(want, np.float32), rtol=1e-6)
