"""Every function of one argument against NumPy in float64: the largest error in units in the last
place (ulp), over all float16 and bfloat16 values and a million float32 ones.

Two things are forgiven, since devices differ in them: an operand below 2^-126 may be read as zero
of its sign, and a result below 2^-120 may be given as that. NaN, infinities and the sign of zero
have one place each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft import functional
from weft.core import dtypes as dt, text
from weft.core.dtypes import DType
from weft.tensor import Tensor

Array = np.ndarray[Any, Any]
Truth = Callable[[Array], Array]

_LEAST_OPERAND, _LEAST_RESULT = 2.0**-126, 2.0**-120
_FORMAT = {dt.float32: (24, -126, 128), dt.float16: (11, -14, 16), dt.bfloat16: (8, -126, 128)}
_EDGES = (0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x7F7FFFFF, 0x7F800000)


DEVICES: dict[str, str | None] = {"eager": None, "cpu": "cpu", "vulkan": "vulkan"}
HEADER = ["function", *(f"{name}, {kind}" for kind in ("f32", "16 bits") for name in DEVICES)]


@dataclass(frozen=True)
class UnaryFunction:
    """A function of tensors and its meaning in float64. Errors of results below `least` count in
    the ulp of `least`, since such results remain from numbers of that size."""

    name: str
    fn: Callable[[Any], Tensor]
    truth: Truth
    least: float = 0.0


def _each(fn: Callable[[float], float]) -> Truth:
    return np.vectorize(fn, otypes=[np.float64])


_erfc = _each(math.erfc)


def _logistic(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x * 0.5 * _erfc(-x * math.sqrt(0.5))


def _gelu_tanh(x: Array) -> Array:
    return x * _logistic(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


def _named(weft_name: str, numpy_name: str = "") -> UnaryFunction:
    return UnaryFunction(weft_name, getattr(weft, weft_name), getattr(np, numpy_name or weft_name))


_NUMPY = (
    "abs", "ceil", "cos", "cosh", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log",
    "log10", "log1p", "log2", "negative", "positive", "reciprocal", "sign", "sin", "sinh", "sqrt",
    "square", "tan", "tanh", "trunc",
)  # fmt: skip
_OTHER_NAME = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
    "atan": "arctan", "atanh": "arctanh", "round": "rint",
}  # fmt: skip

FUNCTIONS: dict[str, UnaryFunction] = {
    f.name: f
    for f in sorted(
        (
            *(_named(name) for name in _NUMPY),
            *(_named(*names) for names in _OTHER_NAME.items()),
            UnaryFunction("erf", weft.erf, _each(math.erf)),
            UnaryFunction("gelu", functional.gelu, _gelu),
            UnaryFunction(
                "gelu, tanh", lambda x: functional.gelu(x, "tanh"), _gelu_tanh, least=1.0
            ),
            UnaryFunction("relu", functional.relu, lambda x: np.maximum(x, 0.0)),
            UnaryFunction("rsqrt", weft.rsqrt, lambda x: 1.0 / np.sqrt(x)),
            UnaryFunction("sigmoid", weft.sigmoid, _logistic),
            _named("signbit"),
            UnaryFunction("silu", functional.silu, lambda x: x / (1.0 + np.exp(-x))),
        ),
        key=lambda f: f.name,
    )
}


def operands(dtype: DType, count: int) -> Array:
    """All values of a 16-bit float; of float32 `count` spread evenly over the exponents of both
    signs, drawn from a fixed seed, and the edges."""
    if dtype.itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    half = np.arange(count // 2, dtype=np.uint64) * 0x7F800000 // (count // 2)
    step = max(1, 0x7F800000 // (count // 2))
    half = half + np.random.default_rng(0).integers(0, step, half.size, np.uint64)
    bits = np.concatenate([half, np.array(_EDGES, np.uint64)])
    bits = np.concatenate([bits, bits | 0x80000000, np.array([0x7FC00000], np.uint64)])
    return bits.astype(np.uint32).view(np.float32)


def ulps(got: Array, want: Array, dtype: DType, least: float = 0.0) -> Array:
    """|got - want| in ulp of `want` (float64) in a dtype, or of `least` where that is larger; inf
    where NaN, an infinity or the sign of a zero is out of place."""
    if want.dtype == np.bool_:
        return np.where(got == want, 0.0, np.inf)
    bits, lowest, highest = _FORMAT[dtype]
    g, beyond = got.astype(np.float64), 2.0**highest
    # An overflow by rounding counts as the number in infinity's place.
    g = np.where(np.isinf(g) & np.isfinite(want), np.copysign(beyond, g), g)
    w = np.where(np.isfinite(want), np.clip(want, -beyond, beyond), want)
    size = np.maximum(np.where(np.isfinite(w), np.abs(w), 1.0), max(least, 2.0**lowest))
    unit = 2.0 ** (np.minimum(np.frexp(size)[1] - 1, highest - 1) - bits + 1.0)
    error = np.abs(g - w) / unit
    zero = g == 0
    right = (g == w) | (np.isnan(g) & np.isnan(w)) | (zero & (np.abs(w) < _LEAST_RESULT))
    right &= ~zero | (np.signbit(g) == np.signbit(w))
    lost = zero & (np.signbit(g) != np.signbit(w))
    return np.where(right, 0.0, np.where(np.isnan(error) | lost, np.inf, error))


def compute(f: UnaryFunction, x: Array, device: str | None) -> Array:
    """f on a device, compiled; eagerly on the CPU for None."""
    fn = f.fn if device is None else weft.compile(f.fn, device=device)
    return fn(weft.tensor(x)).numpy()


def errors(f: UnaryFunction, x: Array, device: str | None) -> Array:
    """The error of each element in ulp, as forgiven as the head says."""
    dtype = dt.as_dtype(x.dtype)
    with np.errstate(all="ignore"):
        got, exact = compute(f, x, device), x.astype(np.float64)
        found = ulps(got, f.truth(exact), dtype, f.least)
        tiny = np.abs(exact) < _LEAST_OPERAND
        zeros = f.truth(np.copysign(0.0, exact[tiny]))
        found[tiny] = np.minimum(found[tiny], ulps(got[tiny], zeros, dtype, f.least))
    return found


def largest(f: UnaryFunction, device: str | None, count: int = 1_000_000) -> tuple[float, float]:
    """The largest error in float32, and that in the two 16-bit floats."""
    return widths(lambda d: errors(f, operands(d, count), device))


def widths(found: Callable[[dt.DType], Array]) -> tuple[float, float]:
    """Returns the largest error found in float32, and the largest in the two 16-bit floats."""
    wide, *narrow = (float(found(d).max()) for d in (dt.float32, dt.float16, dt.bfloat16))
    return wide, max(narrow)


def table(functions: Iterable[Any] = FUNCTIONS.values(), largest: Any = largest) -> str:
    """The table of docs/numerics.md, measured: errors rounded up to a tenth. `largest` gives a
    function's two errors on a device."""
    rows = []
    for f in functions:
        found = [largest(f, device) for device in DEVICES.values()]
        cells = [e for wide in (0, 1) for e in (pair[wide] for pair in found)]
        rows.append([f.name, *(f"{math.ceil(e * 10) / 10:g}" for e in cells)])
    return text.markdown(HEADER, rows)


def stated(page: str) -> dict[str, dict[str, tuple[float, float]]]:
    """The table read back: function -> column of DEVICES -> (float32, 16 bits)."""
    lines = page[page.index("| " + " | ".join(HEADER) + " |") :].split("\n\n")[0].splitlines()[2:]
    found = {}
    for name, *cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines):
        numbers, n = [float(c) for c in cells], len(DEVICES)
        found[name] = dict(zip(DEVICES, zip(numbers[:n], numbers[n:], strict=True), strict=True))
    return found
