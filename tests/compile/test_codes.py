"""Convolutions and products between dequantize_linear and quantize_linear are done on the codes,
and the results are those of the floats that the eager oracle computes, a step apart at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rows import by_turns, few

import weft
from weft.core import dtypes as dt
from weft.ops.codes import DEQUANTIZE, QUANTIZE

F = weft.functional
RNG = np.random.default_rng(7)


def codes(*shape: int, dtype: Any = np.int8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def q(x: Any, scale: float, zero: int, dtype: Any = dt.uint8) -> Any:
    return x._call(QUANTIZE, weft.full((), scale, dt.float32), weft.full((), zero, dtype))


def d(x: Any, scale: Any, zero: int = 0) -> Any:
    """Codes as reals; scales are one, or one per slice of the first axis."""
    if isinstance(scale, np.ndarray):
        part = weft.tensor(scale.reshape(-1, *([1] * (x.ndim - 1))))
    else:
        part = weft.full((), scale, dt.float32)
    return x._call(DEQUANTIZE, part, weft.full((), zero, x.dtype))


X = codes(2, 8, 9, 7, dtype=np.uint8)
W, V = weft.tensor(codes(6, 8, 3, 3)), weft.tensor(codes(8, 1, 3, 3))
LINE, W6 = weft.tensor(codes(6, 8, 3)), weft.tensor(codes(6, 6, 3, 3))
ODD = weft.tensor(codes(6, 3, 3, 3))
U = weft.tensor(codes(6, 8, 3, 3, dtype=np.uint8))
M = weft.tensor(codes(8, 10))
BIAS = weft.tensor(RNG.integers(-3000, 3000, 6).astype(np.int32))
S = (RNG.random(6) * 1e-3 + 5e-4).astype(np.float32)
S8 = (RNG.random(8) * 1e-3 + 5e-4).astype(np.float32)


def conv(x: Any, w: Any = W, scale: Any = S, zero: int = 0, **more: Any) -> Any:
    return F.conv2d(x, d(w, scale, zero), d(BIAS, 2e-3), padding=1, **more)


NETS: dict[str, tuple[Callable[[Any], Any], int]] = {  # (net, kernels)
    "conv": (lambda x: q(conv(d(x, 0.02, 3)), 0.05, 130), 1),
    "to int8": (lambda x: q(conv(d(x, 0.02, 3)), 0.05, -3, dt.int8), 1),
    "relu": (lambda x: q(conv(d(x, 0.02, 128)).relu(), 0.03, 0), 1),
    "clipped": (lambda x: q(conv(d(x, 0.02)).maximum(0.0).minimum(6.0), 0.03, 0), 1),
    "silu": (lambda x: q(conv(d(x, 0.02)).silu(), 0.03, 5), 1),
    "no bias": (lambda x: q(F.conv2d(d(x, 0.02), d(W, 0.001)), 0.03, 5), 1),
    "of channels": (lambda x: q(F.conv2d(d(x, 0.02, 9), d(V, S8), groups=8), 0.05, 128), 1),
    "unsigned weights": (lambda x: q(conv(d(x, 0.02, 3), U, 1e-3, 128), 0.05, 130), 1),
    "odd": (lambda x: q(conv(d(x[:, :3], 0.02, 77), ODD, S, 0), 0.05, 130), 2),
    "two": (
        lambda x: q(F.conv2d(d(q(conv(d(x, 0.02)), 0.05, 100), 0.05, 100), d(W6, S)), 0.1, 9),
        3,  # six channels become eight
    ),
    "residual": (lambda x: _residual(x), 2),
    "to floats": (lambda x: conv(d(x, 0.02, 3)), 1),
    "pool": (lambda x: q(F.max_pool2d(d(q(conv(d(x, 0.02)), 0.05, 9), 0.05, 9), 2), 0.05, 9), 2),
    "product": (lambda x: q(d(x, 0.02, 50).permute(0, 2, 3, 1) @ d(M, 0.01), 0.06, 128), 2),
    "line": (lambda x: q(F.conv1d(d(x[:, :, 0], 0.02), d(LINE, S)), 0.05, 120), 2),
}


def _residual(x: Any) -> Any:
    first = q(conv(d(x, 0.02)), 0.06, 120)
    second = q(conv(d(x, 0.02), stride=1), 0.05, 110)
    return q((d(first, 0.06, 120) + d(second, 0.05, 110)).relu(), 0.07, 2)


def near(got: Any, want: Any) -> None:
    """The same codes but for a step, rarely."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype.is_float:
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-4)
        return
    a, b = got.numpy().astype(int), want.numpy().astype(int)
    assert np.abs(a - b).max() <= 1 and (a == b).mean() > 0.99
    assert len(np.unique(b)) > 20  # not all at an end of the range


@pytest.mark.parametrize("name,frozen", by_turns(NETS, [True, False]))
def test_meaning(name: str, frozen: bool) -> None:
    net, kernels = NETS[name]
    fn = weft.compile(net, frozen=frozen)
    near(fn(X), net(weft.tensor(X)))
    (program,) = fn.programs()
    labels = [s.label for s in program.steps]
    assert any("codes" in label for label in labels), labels
    if frozen:
        assert len(labels) <= kernels + 2, labels  # which turn the image around, and back


@pytest.mark.parametrize("name", few(NETS, *list(NETS)[::4]))
def test_one_image_or_two(name: str) -> None:
    """An image gives the same bits whatever stands beside it."""
    fn = weft.compile(NETS[name][0], frozen=True)
    np.testing.assert_array_equal(fn(X[1:]).numpy(), fn(X).numpy()[1:])


def test_what_has_no_codes_stays_as_it_is() -> None:
    """Scales that are computed, weights that are, and zero points of weights."""

    def net(x: Any, scale: Any) -> Any:
        y = x._call(DEQUANTIZE, scale, weft.full((), 3, x.dtype))
        return F.conv2d(y, d(W, S))

    fn, scale = weft.compile(net, frozen=True), weft.tensor(np.float32(0.02))
    near(fn(X, scale), net(weft.tensor(X), scale))
    other = weft.compile(lambda x: F.conv2d(d(x, 0.02, 3), d(W, S, 5)), frozen=True)
    near(other(X), F.conv2d(d(weft.tensor(X), 0.02, 3), d(W, S, 5)))


def test_weights_are_bytes_in_memory() -> None:
    fn = weft.compile(NETS["conv"][0], frozen=True)
    fn(X)
    (program,) = fn.programs()
    weights = [b for b in program.buffers if b.role == "weight"]
    assert {b.dtype.name for b in weights} == {"int8", "int32", "float32"}
    assert all(b.dtype.name == "int8" for b in weights if b.nbytes > 64)


def test_whole_numbers_by_whole_weights() -> None:
    a = codes(3, 5, 8)
    fn = weft.compile(lambda x: x.matmul(M, "int32"), frozen=True)
    want = a.astype(np.int32) @ M.numpy().astype(np.int32)
    np.testing.assert_array_equal(fn(a).numpy(), want)
    (program,) = fn.programs()
    assert any("codes" in s.label for s in program.steps)
