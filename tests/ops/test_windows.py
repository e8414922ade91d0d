"""Windows as movement: their meaning, their gradients, and pools and convolutions of any window."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gradkit
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rows import covering

import weft
from weft import ops
from weft.core.errors import ShapeError
from weft.ops.composite import COMPOSITES
from weft.ops.windows import windows

sys.path.append(str(Path(__file__).parent.parent / "templates"))
F = weft.functional


def _numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@given(
    st.lists(st.integers(1, 4), max_size=2), st.integers(1, 12),
    st.lists(st.integers(1, 3), max_size=2), st.integers(1, 5), st.integers(1, 6),
    st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_meaning(
    lead: list[int], n: int, rest: list[int], size: int, stride: int, dilation: int
) -> None:
    reach, axis = dilation * (size - 1) + 1, len(lead)
    x = _numbers((*lead, n + reach, *rest))
    got = windows(x, axis, size, stride, dilation)
    count = got.shape[axis + 1]
    assert count == n // stride + 1
    want = [
        np.take(x, range(k * dilation, k * dilation + (count - 1) * stride + 1, stride), axis)
        for k in range(size)
    ]
    np.testing.assert_array_equal(got, np.stack(want, axis))
    leaf = weft.tensor(x.astype(np.float32))
    compiled = weft.compile(lambda t: weft.Tensor(windows(t.value, axis, size, stride, dilation)))
    np.testing.assert_array_equal(compiled(leaf).numpy(), got.astype(np.float32))


@pytest.mark.parametrize(("by", "length"), [(1, 12), (2, 9), (0, 15), (4, 1)])
def test_skewed(by: int, length: int) -> None:
    x = _numbers((2, 4, 15, 3))
    params = {"axis": 1, "by": by, "length": length}
    got = ops.call("skewed", x, **params)
    for k in range(4):
        np.testing.assert_array_equal(got[:, k], x[:, k, k * by : k * by + length])
    np.testing.assert_array_equal(COMPOSITES["skewed"].body(x, **params), got)
    gradkit.check(lambda x: ops.call("skewed", x, **params), x[:1, :, :, :1])
    if length == 1:
        gradkit.check_second(lambda x: ops.exp(ops.call("skewed", x, **params)), x[:1, :, :, :1])


def test_skewed_on_every_target() -> None:
    """Windows around what is computed and below what computes, in one kernel."""
    from harness import check

    x = _numbers((3, 20, 5)).astype(np.float32)
    check(lambda x: ops.exp(windows(ops.neg(x), 1, 4, 2)), [x])
    check(lambda x: ops.max_(windows(x, 1, 9), 1), [x], "reduce", "max")


def test_skewed_refuses() -> None:
    for params in ({"by": 3, "length": 4}, {"by": -1, "length": 1}, {"by": 1, "length": 8}):
        with pytest.raises(ShapeError, match="skewed"):
            ops.call("skewed", np.zeros((3, 9)), axis=0, **params)
    assert ops.call("skewed", np.zeros((0, 3, 9)), axis=1, by=1, length=5).shape == (0, 3, 5)


POOLS: list[tuple[Any, Any, Any, Any]] = [
    (2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (5, 5, 2, 1), (7, 1, 3, 1), (3, 2, 1, 2),
    ((4, 6), (3, 1), (2, 1), (1, 2)), (9, 4, 0, 1), ((1, 20), 1, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("pool,compiled", covering(POOLS, [True, False]))
def test_pools(pool: tuple[Any, Any, Any, Any], compiled: bool) -> None:
    """Values and gradients, with ties and NaN."""
    kernel, stride, padding, dilation = pool
    x = np.random.default_rng(0).integers(0, 6, (2, 3, 21, 23)).astype(np.float32)
    x[1, 2, 11, 7] = np.nan

    def ours(fn: Any) -> tuple[np.ndarray, np.ndarray]:
        def both(t: weft.Tensor) -> Any:
            leaf = t.detach().requires_grad_()
            y = fn(leaf)
            scale = weft.arange(y.size, dtype=weft.float32).reshape(y.shape).cos()
            return y, weft.grad((y * scale).sum(), [leaf])[0]

        y, slope = (weft.compile(both) if compiled else both)(weft.tensor(x))
        return y.numpy(), slope.numpy()

    def theirs(fn: Any) -> tuple[np.ndarray, np.ndarray]:
        leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
        y = fn(leaf)
        (y * torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape).cos()).sum().backward()
        return y.detach().numpy(), leaf.grad.numpy()

    library = torch.nn.functional
    pairs = [(
        lambda t: F.max_pool2d(t, kernel, stride, padding, dilation),
        lambda t: library.max_pool2d(t, kernel, stride, padding, dilation),
    )]  # fmt: skip
    if dilation == 1:
        pairs.append((
            lambda t: F.avg_pool2d(t, kernel, stride, padding),
            lambda t: library.avg_pool2d(t, kernel, stride, padding),
        ))  # fmt: skip
    for mine, other in pairs:
        for got, want in zip(ours(mine), theirs(other)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


CONVS: list[tuple[Any, Any, dict[str, Any]]] = [
    ((2, 3, 20, 9), (4, 3, 7, 5), {"padding": 2}),
    ((2, 3, 20, 9), (4, 3, 7, 5), {"stride": (3, 2), "padding": (1, 4)}),
    ((1, 4, 15, 15), (6, 2, 4, 4), {"groups": 2, "dilation": 2}),
    ((2, 5, 18, 18), (5, 1, 9, 9), {"groups": 5, "stride": 2}),
    ((1, 2, 1, 300), (3, 2, 1, 129), {"dilation": (1, 2)}),
    ((3, 1, 6, 6), (2, 1, 6, 6), {}),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "more"), CONVS)
def test_convolutions(shape: Any, kernel: Any, more: dict[str, Any], compiled: bool) -> None:
    x, w = (_numbers(s, i).astype(np.float32) for i, s in enumerate((shape, kernel)))

    def both(x: weft.Tensor, w: weft.Tensor) -> Any:
        a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = F.conv2d(a, b, **more)
        return y, *weft.grad((y * y).sum(), [a, b])

    got = (weft.compile(both) if compiled else both)(weft.tensor(x), weft.tensor(w))
    a, b = (torch.tensor(v.astype(np.float64), requires_grad=True) for v in (x, w))
    y = torch.nn.functional.conv2d(a, b, **more)
    (y * y).sum().backward()
    for mine, want in zip(got, (y.detach(), a.grad, b.grad)):
        scale = float(want.abs().max())
        np.testing.assert_allclose(mine.numpy(), want.numpy(), atol=2e-5 * scale, rtol=0)
