"""Resampling along axes: each element of the result is a weighted sum of a few of the operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.ops.rules import axis_of
from weft.tensor.core import Tensor
from weft.tensor.keys import place_like
from weft.tensor.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

CUBIC = -0.75  # Keys' free coefficient, with PyTorch's value
_AREA = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}
_LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}
_MODES = ("nearest", "nearest-exact", "bicubic", "area", *_LINEAR)


def resample(
    x: Tensor, axis: int, index: np.ndarray, weights: np.ndarray | None = None,
    inside: np.ndarray | None = None,
) -> Tensor:  # fmt: skip
    """out[..., i, ...] = sum over t of weights[t, i] x[..., index[t, i], ...] along an axis, in
    float32 for narrow floats. index and weights are [taps, n], indices in 0..size-1. Without
    weights (and one tap) elements are copied; taps that are not `inside` [taps, n] are not read.
    Every resize has this form."""
    a = axis_of("resample", axis, x.ndim)
    if index.ndim != 2 or (weights is None and len(index) != 1):
        raise ShapeError(f"resample: index {list(index.shape)}; expected [taps, n] and weights")
    if weights is None:
        return x.take(index[0].astype(np.int32), a)
    if weights.shape != index.shape:
        raise ShapeError(f"resample: weights {list(weights.shape)}, index {list(index.shape)}")
    wide = x.cast(dt.compute_dtype(x.dtype))
    shape = [-1 if i == a else 1 for i in range(x.ndim)]
    total = None
    for number, (at, share) in enumerate(zip(index, weights)):
        factor = wide._wrap(place_like(wide, share.astype(wide.dtype.numpy).reshape(shape)))
        part = wide.take(at.astype(np.int32), a) * factor
        if inside is not None and not inside[number].all():
            real = wide._wrap(place_like(wide, inside[number].reshape(shape)))
            part = real.where(part, 0.0)
        total = part if total is None else total + part
    assert total is not None
    return total.cast(x.dtype)


def linear_taps(at: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(index, weights) [2, m] of linear interpolation at coordinates `at` [m] among n elements;
    those beyond the ends take the end's value."""
    at = np.clip(at, 0.0, n - 1.0)
    low = np.minimum(np.floor(at).astype(np.int64), n - 1)
    share = at - low
    return np.stack([low, np.minimum(low + 1, n - 1)]), np.stack([1.0 - share, share])


def cubic_taps(at: np.ndarray, n: int, a: float = CUBIC) -> tuple[np.ndarray, np.ndarray]:
    """(index, weights) [4, m] of cubic convolution (Keys 1981) with coefficient `a`; taps beyond
    the ends take the end's value."""
    low = np.floor(at)
    d = np.abs(at - (low + np.arange(-1, 3)[:, None]))
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    index = low.astype(np.int64) + np.arange(-1, 3)[:, None]
    return np.clip(index, 0, n - 1), np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def filtered_taps(
    n: int, m: int, step: float, corners: bool, cubic: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(index, weights, inside) [taps, m] where the kernel, a triangle or Keys' with -0.5, is as
    wide as `step` of n elements says, so that no element is passed over (PyTorch's antialias)."""
    if corners:
        step = (n - 1) / (m - 1) if m > 1 else 0.0
    wide = max(step, 1.0)
    reach = (2.0 if cubic else 1.0) * wide
    centre = step * (np.arange(m) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), n)
    index = first + np.arange(int((last - first).max()))[:, None]
    d = np.abs((index - centre + 0.5) / wide)
    if cubic:
        near, far = (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2
        share = np.where(d < 1, near, np.where(d < 2, far, 0.0))
    else:
        share = np.maximum(1.0 - d, 0.0)
    inside = index < last
    share = np.where(inside, share, 0.0)
    return np.minimum(index, n - 1), share / share.sum(0), inside


def interpolate(
    x: Tensor, size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """x[N, C, ...] resized along its one to three last axes to `size`, or by `scale_factor`.

    mode: "nearest", "nearest-exact", "linear" (1 axis), "bilinear", "bicubic" (2), "trilinear" (3)
    or "area". Elements are cells whose centres are at i + 0.5, or, with align_corners, points whose
    first and last stay in place. With antialias ("bilinear", "bicubic") an axis that shrinks is
    filtered. Coordinates, names and defaults are PyTorch's.

    >>> F.interpolate(weft.tensor([[[1.0, 2.0]]]), scale_factor=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    rank = x.ndim - 2
    if mode not in _MODES:
        raise UsageError(f"interpolate: mode {mode!r}; expected one of {', '.join(_MODES)}")
    if rank not in (1, 2, 3) or {**_LINEAR, "bicubic": 2}.get(mode, rank) != rank:
        raise ShapeError(f"interpolate: x {list(x.shape)} does not fit mode {mode!r}")
    if not x.dtype.is_float and not mode.startswith("nearest"):
        raise DTypeError(f"interpolate: {x.dtype.name} cannot hold means; cast x to float32 first")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise UsageError(f"interpolate: align_corners does not apply to mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise UsageError(f"interpolate: antialias does not apply to mode {mode!r}")
    out, steps = _out_sizes(x, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return _AREA[rank](x, out)
    for axis, (n, m, step) in enumerate(zip(x.shape[2:], out, steps), 2):
        if n == 0 or m == 0:
            raise ShapeError(f"interpolate: {list(x.shape)} to {list(out)}; an axis is empty")
        if antialias:
            taps = filtered_taps(n, m, step, bool(align_corners), mode == "bicubic")
            x = resample(x, axis, *taps)
        else:
            x = _along(x, axis, m, step, mode, bool(align_corners))
    return x


def _along(x: Tensor, axis: int, m: int, step: float, mode: str, corners: bool) -> Tensor:
    n, i = x.shape[axis], np.arange(m, dtype=np.float64)
    if mode.startswith("nearest"):
        half = 0.5 if mode == "nearest-exact" else 0.0
        at = np.float32(step) * (i + half).astype(np.float32)  # float32 arithmetic, as in PyTorch
        return resample(x, axis, np.minimum(np.floor(at).astype(np.int64), n - 1)[None])
    if corners:
        at = i * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        at = (i + 0.5) * step - 0.5
    if n == m and np.array_equal(at, i):
        return x._fresh()
    return resample(x, axis, *(cubic_taps(at, n) if mode == "bicubic" else linear_taps(at, n)))


def _out_sizes(
    x: Tensor, size: int | Sequence[int] | None, factor: float | Sequence[float] | None,
    recompute: bool,
) -> tuple[tuple[int, ...], list[float]]:  # fmt: skip
    """The size wanted, and how far apart in x neighbours of the result are."""
    if (size is None) == (factor is None):
        raise UsageError("interpolate: give size or scale_factor, and not both")
    given, rank = x.shape[2:], x.ndim - 2
    if size is not None:
        out = tuple(size) if isinstance(size, Sequence) else (size,) * rank
        factors: tuple[float, ...] = ()
    else:
        assert factor is not None
        factors = tuple(factor) if isinstance(factor, Sequence) else (factor,) * rank
        if any(not f > 0 for f in factors):
            raise UsageError(f"interpolate: scale_factor {factor}; expected positive numbers")
        out = tuple(math.floor(n * f) for n, f in zip(given, factors))
    if len(out) != rank or any(m < 1 for m in out):
        raise ShapeError(f"interpolate: x {list(x.shape)} to {list(out)}; one size per axis, >= 1")
    if factors and not recompute:
        return out, [1.0 / f for f in factors]
    return out, [n / m for n, m in zip(given, out)]
