"""Products of matrices."""

from __future__ import annotations

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.importers.onnx.table import Call, Value, op
from weft.tensor.core import Tensor


@op("MatMul", either=True)
def matmul(call: Call, a: Value, b: Value) -> Value:
    return product(a, b) if isinstance(a, Tensor) else np.matmul(a, b)


def product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product in the operands' type; integers as int32."""
    if a.dtype.is_int and a.dtype.itemsize > 1:
        wide = (a.unsqueeze(-1) if a.ndim > 1 else a.reshape(1, -1, 1)) * b.unsqueeze(
            -3 if b.ndim > 1 else 0
        )
        if a.ndim > 1 and b.ndim > 1:
            return wide.sum(-2).cast(a.dtype)
    return a @ b


@op("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha A B + beta C, A and B transposed where told."""
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    out = product(a, b)
    out = out if alpha == 1.0 else out * alpha
    if c is None or beta == 0.0:
        return out
    return out + (c if beta == 1.0 else c * beta).cast(out.dtype)


@op("Einsum")
def einsum(call: Call, *operands: Tensor) -> Tensor:
    equation = call.need("equation").replace(" ", "")
    dtype = operands[0].dtype
    if dtype.is_int:  # exact below 2^24
        operands = tuple(x.cast(dt.float32) for x in operands)
    return weft.einsum(equation, *operands).cast(dtype)


@op("Det")
def det(call: Call, x: Tensor) -> np.ndarray:
    """Determinants: with row exchanges that depend on values, so on the host."""
    host = call.host(x, "the matrix")
    made: np.ndarray = np.asarray(np.linalg.det(host)).astype(host.dtype)
    return made
