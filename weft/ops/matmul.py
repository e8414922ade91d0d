"""dot: a[*B, M, K] . b[*B, K, N] -> [*B, M, N], accumulated in f32 (int32 for 8-bit integers)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.functions import Value
from weft.ops.primitive import Aval, Primitive, aval, register
from weft.ops.rules import want, wide

_BYTES = (dt.int8, dt.uint8)


def _abstract(a: Aval, b: Aval, *, out_dtype: DType) -> Aval:
    want("dot", a, "numeric")
    if a.dtype != b.dtype and not (a.dtype in _BYTES and b.dtype in _BYTES):
        raise DTypeError(f"dot: {a.dtype.name} with {b.dtype.name}; cast one first")
    if out_dtype.kind == "bool" or out_dtype.is_float != a.dtype.is_float:
        raise DTypeError(
            f"dot: {a.dtype.name} values cannot give {out_dtype.name}; cast the operands or result"
        )
    (*batch, m, k), (*batch2, k2, n) = _matrix(a), _matrix(b)
    if k != k2:
        raise ShapeError(
            f"dot: {list(a.shape)} with {list(b.shape)}: the last axis of the first ({k}) must "
            f"equal the second-last of the second ({k2})"
        )
    if batch != batch2:
        raise ShapeError(
            f"dot: leading axes of {list(a.shape)} and {list(b.shape)} differ; broadcast one first"
        )
    return Aval((*batch, m, n), out_dtype)


def _matrix(x: Aval) -> tuple[int, ...]:
    if len(x.shape) < 2:
        raise ShapeError(f"dot: {list(x.shape)} is not a matrix; give it two axes with reshape")
    return x.shape


def _numpy(a: np.ndarray, b: np.ndarray, *, out_dtype: DType) -> np.ndarray:
    if a.dtype.itemsize == 1:  # products fit 2**14, so float64 sums are exact; then wrap
        exact: np.ndarray = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return exact.astype(np.int64).astype(np.int32).astype(out_dtype.numpy)
    product: np.ndarray = np.matmul(wide(a), wide(b))
    return product.astype(out_dtype.numpy)


def _vjp(g: Value, out: Value, a: Value, b: Value, *, out_dtype: Any) -> Sequence[Any]:
    d = aval(a).dtype
    g = f.cast(g, d)
    return (lambda: f.dot(g, f.swap_last(b), d)), (lambda: f.dot(f.swap_last(a), g, d))


register(Primitive("dot", "dot", _abstract, _numpy, vjp=_vjp))
