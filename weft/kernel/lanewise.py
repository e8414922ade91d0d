"""The meaning of each lane-wise operation of the Kernel IR, on NumPy arrays of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import DType

Array = np.ndarray[Any, Any]


def _div(a: Array, b: Array) -> Array:
    """True division on floats; on integers truncation toward zero."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    return (a - np.fmod(a, b)) // b


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        count = b & b.dtype.type(8 * b.dtype.itemsize - 1)
        moved: Array = np.left_shift(a, count) if left else np.right_shift(a, count)
        return moved

    return shift


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "rem": np.fmod,
    "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shl": _shift(True), "shr": _shift(False),
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip

UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "not": np.invert, "sqrt": np.sqrt, "floor": np.floor,
    "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "keep": np.positive,
}  # fmt: skip


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c: the product is exact in float64, the sum rounds there and then once to f32."""
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


def cast(x: Array, dtype: DType) -> Array:
    """A value conversion as `ir.Cast` has it: floats saturate to integers, NaN gives 0."""
    target = dtype.numpy
    if dtype.kind == "bool":
        made: Array = x != 0
        return made
    if dtype.is_int and x.dtype.kind not in "iub":
        info = np.iinfo(target)
        wide = np.trunc(x.astype(np.float64))
        made = np.clip(np.nan_to_num(wide, nan=0.0), info.min, info.max).astype(target)
        return made
    return x.astype(target)


def dot(acc: Array, a: Array, b: Array) -> Array:
    """Dot products: acc[..., i] plus the products of a's and b's lanes of block i."""
    wide = np.float64 if acc.dtype.kind == "f" else np.int64
    products = a.astype(wide) * b.astype(wide)
    lanes = acc.shape[-1]
    total = products.reshape(*products.shape[:-1], lanes, products.shape[-1] // lanes).sum(-1)
    out: Array = (acc + total).astype(acc.dtype)
    return out


def butterfly(x: Array, width: int, op: str) -> Array:
    """x[threads, lanes] reduced over blocks of `width` threads, the total in every thread, by
    exchanges at distances width/2 ... 1."""
    blocks = x.reshape(-1, width, x.shape[-1])
    lane = np.arange(width)
    distance = width // 2
    while distance:
        blocks = BINARY[op](blocks, blocks[:, lane ^ distance])
        distance //= 2
    return blocks.reshape(x.shape)
