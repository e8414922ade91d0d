"""Running sums, products and extremes of the public surface, eager and compiled, against NumPy in
float64 and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rows import covering

import weft
from weft.conform.harness import check_close
from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.tensor import Tensor

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
DEVICES = (None, "cpu")  # eagerly, and compiled


def _run(device: str | None, fn: Any, *xs: Tensor) -> Any:
    return fn(*xs) if device is None else weft.compile(fn, device=device)(*xs)


def _numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 1.5, shape).astype(np.float32)


def _torch(name: str, x: torch.Tensor, axis: int) -> torch.Tensor:
    out = getattr(torch, name)(x, axis)
    return out if isinstance(out, torch.Tensor) else out.values


def _values(name: str, x: Tensor, axis: int) -> Tensor:
    out = getattr(x, name)(axis)
    return out[0] if isinstance(out, tuple) else out


SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(SHAPES, st.data(), st.sampled_from(NAMES), st.sampled_from(DEVICES))
@settings(max_examples=60, deadline=None)
def test_any_shape_axis_and_dtype(shape: list[int], data: Any, name: str, device: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from((dt.float32, dt.float16, dt.bfloat16, dt.int32)))
    x = _numbers(tuple(shape), seed=sum(shape))
    x = (x * 4 - 3).astype(np.int32) if dtype.is_int else x.astype(dtype.numpy)
    exact = torch.from_numpy(x.astype(np.float64))
    got = _run(device, lambda t: _values(name, t, axis), weft.tensor(x)).numpy()
    want = _torch(name, exact, axis).numpy()
    kept = dt.float32 if name == "logcumsumexp" and dtype.is_int else dtype
    assert got.shape == x.shape and got.dtype == kept.numpy
    check_close(got, want.astype(kept.numpy), "reduce", kept)


@pytest.mark.parametrize(
    "name,where,device", covering(NAMES, [((3, 40), 1), ((70_000,), 0), ((50, 3), 0)], DEVICES)
)
def test_gradients(name: str, where: tuple[tuple[int, ...], int], device: str | None) -> None:
    """With weights of both signs, against PyTorch in float64."""
    shape, axis = where
    x = 1 + _numbers(shape) / 1000 if name == "cumprod" else _numbers(shape)
    w = np.sin(np.arange(x.size, dtype=np.float64)).reshape(shape)
    t = torch.tensor(x.astype(np.float64), requires_grad=True)
    (_torch(name, t, axis) * torch.tensor(w)).sum().backward()

    def slope(x: Tensor, w: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        return weft.grad((_values(name, leaf, axis) * w).sum(), [leaf])[0]

    got = _run(device, slope, weft.tensor(x), weft.tensor(w.astype(np.float32))).numpy()
    scale = float(np.abs(t.grad.numpy()).max())
    assert np.abs(got - t.grad.numpy()).max() <= 3e-5 * scale


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", [[], [3], [3, 17], [0, 1, 39]], ids=str)
def test_products_with_zeros(zeros: list[int], device: str | None) -> None:
    x = _numbers((2, 40))
    x[:, zeros] = 0
    w = np.cos(np.arange(80, dtype=np.float32)).reshape(2, 40)
    for fn in (lambda x, w: (x.cumprod(1) * w).sum(), lambda x, w: (x.prod(1) * w[:, 0]).sum()):

        def slope(x: Tensor, w: Tensor, fn: Any = fn) -> Tensor:
            leaf = x.detach().requires_grad_()
            return weft.grad(fn(leaf, w), [leaf])[0]

        got = _run(device, slope, weft.tensor(x), weft.tensor(w)).numpy()
        t = torch.tensor(x.astype(np.float64), requires_grad=True)
        fn(t, torch.tensor(w.astype(np.float64))).backward()
        np.testing.assert_allclose(got, t.grad.numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_indices_of_extremes(device: str | None) -> None:
    x = np.random.default_rng(0).integers(0, 4, (3, 30)).astype(np.float32)
    x[1, 20] = np.nan
    x[2, 0] = -np.inf
    for name in ("cummax", "cummin"):
        values, at = _run(device, lambda t: getattr(t, name)(1), weft.tensor(x))  # noqa: B023
        want = getattr(torch, name)(torch.tensor(x), 1)
        np.testing.assert_array_equal(values.numpy(), want.values.numpy())
        np.testing.assert_array_equal(at.numpy(), want.indices.numpy())
        assert at.dtype == weft.int32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("initial", [False, True])
def test_array_api(initial: bool, device: str | None) -> None:
    x = (np.arange(12) % 5 - 2).astype(np.int8).reshape(3, 4)
    for name, ufunc, first in (("sum", np.add, 0), ("prod", np.multiply, 1)):
        fn = getattr(weft, f"cumulative_{name}")
        for axis in (0, 1, -1):
            got = _run(device, lambda t: fn(t, axis=axis, include_initial=initial), weft.tensor(x))  # noqa: B023
            want = ufunc.accumulate(x.astype(np.int32), axis)
            if initial:
                start = np.full_like(np.take(want, [0], axis), first)
                want = np.concatenate([start, want], axis)
            np.testing.assert_array_equal(got.numpy(), want)
            assert got.dtype == weft.int32
        assert fn(weft.tensor(x), axis=1, dtype=weft.float32).dtype == weft.float32
        assert fn(weft.tensor(x[0]), include_initial=initial).shape == (4 + initial,)
        empty = fn(weft.zeros((2, 0)), axis=1, include_initial=initial)
        assert empty.numpy().tolist() == [[first] * initial] * 2
        with pytest.raises(ShapeError, match="name one"):
            fn(weft.tensor(x))
        with pytest.raises(ShapeError, match="axis 2"):
            fn(weft.tensor(x), axis=2)


def test_bool_is_counted() -> None:
    flags = weft.tensor(np.array([True, False, True]))
    assert flags.cumsum(0).numpy().tolist() == [1, 1, 2] and flags.cumsum(0).dtype == weft.int32
    assert flags.cummax(0)[0].numpy().tolist() == [True, True, True]


@pytest.mark.parametrize("n", [1, 7, 1000, 4097, 70_001, 1_000_000])
def test_any_length(n: int) -> None:
    x = np.random.default_rng(n).uniform(0, 1, n).astype(np.float32)
    got = weft.compile(lambda t: t.cumsum(0))(weft.tensor(x)).numpy()
    want = np.cumsum(x.astype(np.float64))
    assert np.abs(got - want).max() <= 1e-6 * want[-1]
    ones = weft.ones(n, dtype=weft.int32)
    exact = weft.compile(lambda t: t.cumsum(0))(ones).numpy()
    assert np.array_equal(exact, np.arange(1, n + 1))
    mask = weft.compile(lambda t: t.prod())(weft.tensor(1 + x * 1e-5))
    assert abs(mask.item() / np.exp(np.log1p(x.astype(np.float64) * 1e-5).sum()) - 1) < 2e-2
