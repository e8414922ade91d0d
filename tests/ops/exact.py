"""What integer and division primitives mean, in exact Python arithmetic: the oracle's oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.dtypes import DType


def wrap(value: int, dtype: DType) -> int:
    """The integer of the dtype that is `value` modulo 2^bits."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value


def _truncated(x: int, y: int) -> int:
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _power(x: int, y: int, modulus: int) -> int:
    if y >= 0:
        return pow(x, y, modulus)
    return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)


# name -> (x, y, bits) -> the exact result, before it wraps to the dtype (comparisons: a bool)
INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, n: x + y,
    "sub": lambda x, y, n: x - y,
    "mul": lambda x, y, n: x * y,
    "div": lambda x, y, n: _truncated(x, y),
    "floor_divide": lambda x, y, n: x // y if y else 0,
    "remainder": lambda x, y, n: x % y if y else 0,
    "pow": lambda x, y, n: _power(x, y, 1 << n),
    "maximum": lambda x, y, n: max(x, y),
    "minimum": lambda x, y, n: min(x, y),
    "bitwise_and": lambda x, y, n: x & y,
    "bitwise_or": lambda x, y, n: x | y,
    "bitwise_xor": lambda x, y, n: x ^ y,
    "shift_left": lambda x, y, n: x << y if 0 <= y < n else 0,
    "shift_right": lambda x, y, n: x >> (y if 0 <= y < n else n),
    "less": lambda x, y, n: x < y,
    "less_equal": lambda x, y, n: x <= y,
    "equal": lambda x, y, n: x == y,
}
ONE_INTEGER: dict[str, Callable[[int], int]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "floor": lambda x: x,
    "round": lambda x: x,
    "isnan": lambda x: False,
    "signbit": lambda x: x < 0,
}


def integers(values: Iterable[int], dtype: DType) -> np.ndarray:
    """Exact results wrapped to the dtype; bools as they are."""
    found = list(values)
    if isinstance(found[0], bool):
        return np.array(found, bool)
    return np.array([wrap(v, dtype) for v in found], dtype.numpy)


def binary(name: str, x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    """The integer primitive `name` of two arrays."""
    fn, bits = INTEGER[name], 8 * dtype.itemsize
    return integers((fn(a, c, bits) for a, c in zip(x.tolist(), y.tolist())), dtype)


# -- floats ---------------------------------------------------------------------------------------


def nearest(value: Fraction | int, dtype: np.dtype) -> float:
    """The float of the dtype nearest to an exact value, ties to even; infinite beyond the range."""
    value = Fraction(value)
    info = ml_dtypes.finfo(dtype)
    digits, least = info.nmant + 1, info.minexp - info.nmant
    if value == 0:
        return 0.0
    size = abs(value)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top += size >= Fraction(2) ** (top + 1)
    top -= size < Fraction(2) ** top
    unit = Fraction(2) ** max(top - digits + 1, least)
    rounded = round(size / unit) * unit  # Python rounds halves to even
    found = math.inf if rounded > Fraction(float(info.max)) else float(rounded)
    return found if value > 0 else -found


def remainder(x: float, y: float, dtype: np.dtype) -> float:
    """x - floor(x / y) y rounded once, with y's sign; the rest as Python and NumPy have it."""
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return math.nan
    if math.isinf(y):
        return math.copysign(x if x == 0 or (x < 0) == (y < 0) else math.inf, y)
    exact = Fraction(x) - Fraction(x) // Fraction(y) * Fraction(y)
    return math.copysign(nearest(exact, dtype), y)


def floor_divide(x: float, y: float, dtype: np.dtype) -> float:
    """floor(x / y) rounded once; the rest as NumPy has it."""
    if math.isnan(x) or math.isnan(y):
        return math.nan
    sign = math.copysign(1.0, x) * math.copysign(1.0, y)
    if y == 0:
        return math.nan if x == 0 else sign * math.inf
    if math.isinf(x):
        return math.nan
    if math.isinf(y):
        return -1.0 if x != 0 and sign < 0 else sign * 0.0
    whole = Fraction(x) // Fraction(y)
    return nearest(whole, dtype) if whole else sign * 0.0


def floats(
    fn: Callable[[float, float, np.dtype], float], x: Sequence[Any], y: Sequence[Any]
) -> np.ndarray:
    """fn element by element over two arrays of one dtype."""
    a, c = np.asarray(x), np.asarray(y)
    with np.errstate(all="ignore"):  # signalling NaN
        pairs = zip(a.astype(np.float64).tolist(), c.astype(np.float64).tolist())
    return np.array([fn(p, q, a.dtype) for p, q in pairs]).astype(a.dtype)


def same_bits(got: np.ndarray, want: np.ndarray, what: str = "") -> None:
    """Equal values and signs of zeros, NaN for NaN."""
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, expected {want.dtype}"
    with np.errstate(invalid="ignore"):  # signalling NaN
        g, w = got.astype(np.float64), want.astype(np.float64)
    wrong = ~((g == w) & (np.signbit(g) == np.signbit(w)) | np.isnan(g) & np.isnan(w))
    at = np.flatnonzero(wrong)
    assert not at.size, f"{what}: {at.size} wrong, first [{at[0]}] {g[at[0]]!r}, not {w[at[0]]!r}"
