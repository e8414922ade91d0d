"""Functions of two arguments against NumPy in float64, as `unary` tests those of one.

The result is the largest error in ulp over pairs drawn from a fixed seed and all pairs of edges.
Edges of either sign are zeros, subnormals, ones and their neighbours, integers, the largest
numbers, infinities and NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.conform import unary
from weft.conform.unary import Array, ulps, widths
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.tensor import Tensor

Pairs = tuple[Array, Array]

_LEAST_OPERAND = 2.0**-126
_EDGES = (
    0.0, 1e-45, 2.0**-126, 0.5, 1.0 - 2.0**-24, 1.0, 1.0 + 2.0**-23, 2.0, 2.5, 3.0, 127.0,
    8388609.0, 16777215.0, 2.0**64, 3.4028235e38, math.inf, math.nan,
)  # fmt: skip


@dataclass(frozen=True)
class BinaryFunction:
    """A function of two tensors and its meaning in float64. `pairs(rng, n)` draws further operands,
    in addition to the common ones. Errors of results below `least` count in the ulp of `least`."""

    name: str
    fn: Callable[[Any, Any], Tensor]
    truth: Callable[[Array, Array], Array]
    pairs: Callable[[np.random.Generator, int], Pairs] | None = None
    least: float = 0.0


def _powers(rng: np.random.Generator, n: int) -> Pairs:
    """Half with a result in range, a quarter near 1 to a high power, a quarter of them negative
    with integral exponents."""
    x = np.exp2(rng.uniform(-126, 128, n))
    y = rng.uniform(-126, 128, n) / np.log2(x)
    x[::4], y[::4] = 1.0 + rng.normal(0, 0.01, x[::4].shape), rng.uniform(-5000, 5000, x[::4].shape)
    x[1::4], y[1::4] = -x[1::4], np.rint(y[1::4])
    return x, y


def _quotient(x: Array, y: Array) -> Array:
    """floor(x / y): the exact remainder leaves a multiple of y."""
    exact = np.rint((x - np.remainder(x, y)) / y)
    return np.where(np.isfinite(exact) & (exact != 0), exact, np.floor_divide(x, y))


def _softly(x: Array, y: Array) -> Array:
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.logaddexp(x, y))


FUNCTIONS: dict[str, BinaryFunction] = {
    f.name: f
    for f in (
        BinaryFunction("add", weft.add, np.add),
        BinaryFunction("atan2", weft.atan2, np.arctan2),
        BinaryFunction("divide", weft.divide, np.divide),
        BinaryFunction("floor_divide", weft.floor_divide, _quotient),
        BinaryFunction("hypot", weft.hypot, np.hypot),
        BinaryFunction("logaddexp", weft.logaddexp, _softly, least=1.0),
        BinaryFunction("multiply", weft.multiply, np.multiply),
        BinaryFunction("pow", weft.pow, np.power, _powers),
        BinaryFunction("remainder", weft.remainder, np.remainder),
        BinaryFunction("subtract", weft.subtract, np.subtract),
    )
}


def operands(f: BinaryFunction, dtype: DType, count: int) -> Pairs:
    """About `count` pairs: a third over all bits, a third of like sizes, a third f's own; edges."""
    rng = np.random.default_rng(0)
    n = count // 3
    words = (rng.integers(0, 1 << 8 * dtype.itemsize, n) for _ in "xy")
    wild = [w.astype(f"u{dtype.itemsize}").view(dtype.numpy) for w in words]
    size = np.exp2(rng.uniform(-20, 20, n))
    like = [size * rng.normal(size=n) for _ in "xy"]
    own = f.pairs(rng, n) if f.pairs else (rng.normal(0, 30, n), rng.normal(0, 30, n))
    signed = [*_EDGES, *(-e for e in _EDGES)]
    edges = np.array(list(itertools.product(signed, signed))).T
    rest = [np.concatenate(p) for p in zip(like, own, edges)]
    with np.errstate(all="ignore"):
        x, y = (np.concatenate([w, r.astype(dtype.numpy)]) for w, r in zip(wild, rest))
    return x, y


def compute(f: BinaryFunction, x: Array, y: Array, device: str | None) -> Array:
    """f on a device, compiled; eagerly on the CPU for None."""
    fn = f.fn if device is None else weft.compile(f.fn, device=device)
    return fn(weft.tensor(x), weft.tensor(y)).numpy()


def errors(f: BinaryFunction, x: Array, y: Array, device: str | None) -> Array:
    """The error of each pair in ulp; operands below 2^-126 may be read as zeros of their signs."""
    dtype = dt.as_dtype(x.dtype)
    with np.errstate(all="ignore"):
        got, a, b = compute(f, x, y, device), x.astype(np.float64), y.astype(np.float64)
        flushed = [np.where(np.abs(v) < _LEAST_OPERAND, np.copysign(0.0, v), v) for v in (a, b)]
        ways = itertools.product((a, flushed[0]), (b, flushed[1]))
        found: Array = np.min([ulps(got, f.truth(*way), dtype, f.least) for way in ways], axis=0)
    return found


def largest(f: BinaryFunction, device: str | None, count: int = 100_000) -> tuple[float, float]:
    """The largest error in float32, and that in the two 16-bit floats."""
    return widths(lambda d: errors(f, *operands(f, d, count), device))


def table() -> str:
    """The table of docs/numerics.md, measured: errors rounded up to a tenth."""
    return unary.table(FUNCTIONS.values(), largest)
