"""PyTorch's functions of matrices outside of torch.linalg."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.tensor import factors, inverses
from weft.tensor.core import Tensor
from weft.tensor.create import eye
from weft.torch import linalg
from weft.torch.expected import want_floats
from weft.torch.results import SVDColumns, Triangular
from weft.torch.tensor import public


@public
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """L with L Lᵀ = input, or U with Uᵀ U = input."""
    return factors.cholesky(input, upper=upper)


def _lower(L: Tensor, upper: bool) -> Tensor:
    """The lower factor; its derivative is that of a whole matrix, as in PyTorch."""
    held = L + (linalg.triangle(L, upper, False) - L).detach()
    return held.mT if upper else held


@public
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose factor is L."""
    low = _lower(L, upper)
    inverse = inverses.inv(low)
    return inverse.mT @ inverse


@public
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with A X = B for the matrix A whose factor is L."""
    low = _lower(L, upper)
    return linalg.solve(low.mT, linalg.solve(low, B)) if B.size else B.clone()


@public
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where it is negative."""
    sign, size = inverses.slogdet(input)
    return (sign < 0).where(float("nan"), size)


@public
def qr(input: Tensor, some: bool = True) -> Any:
    """Q and R with Q R = input."""
    return linalg.qr(input, "reduced" if some else "complete")


@public
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVDColumns:
    """U, S and V with U diag(S) Vᵀ = input."""
    if not compute_uv:
        u, v = (input.new_zeros((*input.shape[:-2], n, n)) for n in input.shape[-2:])
        return SVDColumns(u, factors.svdvals(input), v)
    u, s, vh = linalg.svd(input, not some)
    return SVDColumns(u, s, vh.mT)


@public
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse."""
    return linalg.pinv(input, rcond)


@public
def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Triangular:
    """X with A X = b for a triangular A."""
    half = linalg.triangle(A, upper, unitriangular)
    return Triangular(linalg.solve(half.mT if transpose else half, b), A.clone())


@public
def matrix_exp(A: Tensor) -> Tensor:
    """e to the power of a matrix: the series of A / 2^k, squared k times."""
    if not A.size:
        return A.clone()
    if A.dtype != dt.compute_dtype(A.dtype):
        return matrix_exp(A.cast(dt.float32)).cast(A.dtype)
    size = float(np.abs(A.detach().numpy()).sum(-1).max())
    halvings = max(0, math.ceil(math.log2(size)) + 1) if size > 0 else 0
    x = A * 0.5**halvings
    term = made = eye(A.shape[-1], dtype=A.dtype) + x * 0
    for k in range(1, 15 if A.dtype == dt.float32 else 20):
        term = term @ x * (1 / k)
        made = made + term
    for _ in range(halvings):
        made = made @ made
    return made


@public
def matrix_power(input: Tensor, n: int) -> Tensor:
    """A matrix multiplied by itself n times; its inverse for a negative n."""
    if n < 0:
        want_floats("matrix_power", input, f"call .float() on it for the power {n}")
    return linalg.matrix_power(input, n)


@public
def det(input: Tensor) -> Tensor:
    """The determinant."""
    return inverses.det(input)


@public
def slogdet(input: Tensor) -> Any:
    """The sign of the determinant, and the logarithm of its magnitude."""
    return linalg.slogdet(input)


@public
def inverse(input: Tensor) -> Tensor:
    """The inverse."""
    return inverses.inv(input)
