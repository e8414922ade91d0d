"""torch.linalg over weft.linalg, with PyTorch's names of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.tensor import factors, folding, inverses, linalg as plain
from weft.tensor.core import Tensor
from weft.torch import products
from weft.torch.diagonals import diagonal as _diagonal
from weft.torch.expected import want, want_floats
from weft.torch.joining import cat, stack
from weft.torch.norms import matrix_norm as matrix_norm, norm as norm, vector_norm as vector_norm
from weft.torch.results import Cholesky, Eigen, Inverse, LogDet, QRFactors, Solution, SVDFactors
from weft.torch.solving import solve as solve
from weft.torch.tensor import function_only, functions, index_of, together, whole
from weft.torch.triangular import (  # noqa: F401
    lu as lu,
    lu_factor as lu_factor,
    lu_factor_ex as lu_factor_ex,
    solve_lu as lu_solve,
)


def _info(A: Tensor, square: bool = True) -> Tensor:
    """LAPACK's zeros: everything went well."""
    return Tensor(np.zeros(A.shape[:-2], np.int32))


@function_only
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """L with L Lᵀ = A, or U with Uᵀ U = A."""
    return factors.cholesky(A, upper=upper)


@function_only
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Cholesky:
    """`cholesky`, and LAPACK's info: 0."""
    return Cholesky(factors.cholesky(A, upper=upper), _info(A))


@function_only
def qr(A: Tensor, mode: str = "reduced") -> QRFactors:
    """Q and R with Q R = A: "reduced", "complete" or "r"."""
    m, n = A.shape[-2:]
    if m < n:  # the first columns give Q
        q, r = factors.qr(A[..., :m])
        q, r = q, cat([r, q.mT @ A[..., m:]], -1)
    else:
        q, r = factors.qr(A, mode="reduced" if mode == "r" else mode)
    return QRFactors(A.new_zeros(0) if mode == "r" else q, r)


@function_only
def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, of which one triangle is
    read."""
    return Eigen(*factors.eigh(_symmetric(A, UPLO)))


def _symmetric(A: Tensor, UPLO: str) -> Tensor:
    from weft.tensor.create import tril, triu

    lower = UPLO.upper() == "L"
    whole = tril(A) + tril(A, -1).mT if lower else triu(A) + triu(A, 1).mT
    return A + (whole - A).detach()  # the derivative is that of a symmetric matrix


@function_only
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues, ascending, of a symmetric matrix."""
    return factors.eigvalsh(_symmetric(A, UPLO))


@function_only
def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVDFactors:
    """U, S and Vh with U diag(S) Vh = A."""
    if not full_matrices or not A.requires_grad:
        return SVDFactors(*factors.svd(A, full_matrices=full_matrices))
    u, s, vh = factors.svd(A, full_matrices=False)  # only these vectors have a derivative
    whole, _, rest = factors.svd(A.detach())
    k = s.shape[-1]
    return SVDFactors(cat([u, whole[..., k:]], -1), s, cat([vh, rest[..., k:, :]], -2))


@function_only
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values, descending."""
    return factors.svdvals(A)


@function_only
def inv(A: Tensor) -> Tensor:
    """The inverse."""
    return inverses.inv(A)


@function_only
def inv_ex(A: Tensor, *, check_errors: bool = False) -> Inverse:
    """`inv`, and LAPACK's info: 0."""
    return Inverse(inverses.inv(A), _info(A))


@function_only
def det(A: Tensor) -> Tensor:
    """The determinant."""
    return inverses.det(A)


@function_only
def slogdet(A: Tensor) -> LogDet:
    """The sign of the determinant, and the logarithm of its magnitude."""
    return LogDet(*inverses.slogdet(A))


@function_only
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Solution:
    """`solve`, and LAPACK's info: 0."""
    return Solution(solve(A, B, left=left), _info(A))


@function_only
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with A X = B (or X A = B) for a triangular A, of which the other triangle is not read."""
    return solve(triangle(A, upper, unitriangular), B, left=left)


def triangle(A: Tensor, upper: bool, unit: bool) -> Tensor:
    """One triangle of a matrix, with ones on its diagonal if `unit`."""
    from weft.tensor.create import eye, tril, triu

    if unit:
        one = eye(A.shape[-1], dtype=A.dtype)
        return (triu(A, 1) if upper else tril(A, -1)) + one
    return triu(A) if upper else tril(A)


@function_only
def pinv(
    A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Tensor:
    """The pseudo-inverse: singular values up to max(atol, rtol * the largest) count as 0."""
    rtol = rtol if rcond is None else rcond
    A = _symmetric(A, "L") if hermitian else A
    size = factors.svdvals(A.detach())
    if not size.shape[-1]:
        return A.mT.clone()
    top = size.max(-1, True)
    share = _least(A, size, atol, rtol) / (top == 0).where(1.0, top)
    return inverses.pinv(A, rtol=share.expand(top.shape).squeeze(-1))


def _least(A: Tensor, size: Tensor, atol: Any, rtol: Any) -> Tensor:
    """The size up to which values count as 0."""
    given = 0.0 if atol is None else atol
    if rtol is None:
        some = atol is not None and (isinstance(atol, Tensor) or atol > 0)
        rtol = 0.0 if some else max(A.shape[-2:]) * float(np.finfo(A.dtype.numpy).eps)
    if not size.shape[-1]:
        return size
    top = size.max(-1, True).detach()
    rtol = rtol.unsqueeze(-1) if isinstance(rtol, Tensor) else rtol
    given = given.unsqueeze(-1) if isinstance(given, Tensor) else given
    rtol, given = (x.cast(top.dtype) if isinstance(x, Tensor) else x for x in (rtol, given))
    made: Tensor = (top * rtol).maximum(given)
    return made


@function_only
def matrix_rank(
    A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Tensor:
    """The number of singular values above max(atol, rtol * the largest)."""
    atol = atol if tol is None else tol
    size = factors.eigvalsh(A).abs() if hermitian else factors.svdvals(A)
    rtol = 0.0 if tol is not None and rtol is None else rtol
    made: Tensor = index_of((size > _least(A, size, atol, rtol)).cast(dt.int32).sum(-1))
    return made


@function_only
def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices; torch.matrix_exp."""
    from weft.torch.matrices import matrix_exp as of_matrices

    return of_matrices(A)


@function_only
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The product of matrices; torch.matmul."""
    return products.matmul(input, other)


@function_only
def matrix_power(A: Tensor, n: int) -> Tensor:
    """A multiplied by itself; its inverse for a negative n."""
    if n < 0:
        want_floats("matrix_power", A, f"call .float() on it for the power {n}")
    return plain.matrix_power(A, n)


@function_only
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices; the first and last may be vectors."""
    want(len(tensors) > 1, "multi_dot", f"{len(tensors)} tensors", "two or more")
    made = tensors[0]
    for t in tensors[1:]:
        made = made @ t
    return made


@function_only
def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0..N-1 of elements, along a new last axis."""
    want(x.dtype != dt.bool_, "vander", "bools", "numbers: call .int() on them first")
    x = x if x.ndim else x.reshape(1)
    n = x.shape[-1] if N is None else N
    x = x if x.dtype.is_float else x.cast(whole(x))
    return stack([x**k if k else x * 0 + 1 for k in range(n)], -1)


@function_only
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product along an axis of 3."""
    return products.cross(input, other, dim)


@function_only
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The elements [i, i + offset] of two axes, as the last axis."""
    return _diagonal(A, offset, dim1, dim2)


@function_only
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sums of products along an axis."""
    a, b = together(x, y)
    return folding.vecdot(*np_broadcast(a, b), axis=dim)


def np_broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors in their common shape."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    return a.expand(shape), b.expand(shape)


@function_only
def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number: the largest singular value over the smallest, or norms of A and its
    inverse."""
    if p in (None, 2, -2):
        s = factors.svdvals(A)
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    return matrix_norm(A, p) * matrix_norm(inverses.inv(A), p)


@function_only
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of what `tensordot(A, x, x.ndim)` computes; the first `ind` axes are rows."""
    n = math.prod(A.shape[ind:])
    made = inverses.inv(A.reshape((-1, n)))
    return made.reshape((*A.shape[ind:], *A.shape[:ind]))


@function_only
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B."""
    if dims is not None:
        from weft.tensor.arrays import moveaxis

        A = moveaxis(A, tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    shape = A.shape[B.ndim :]
    made = inverses.solve(A.reshape((-1, math.prod(shape))), B.reshape((-1, 1)))
    return made.reshape(shape)


@function_only
def lstsq(
    A: Tensor, B: Tensor, rcond: Any = None, *, driver: str | None = None
) -> tuple[Tensor, ...]:
    """X with the least |A X - B|; the residuals, the rank and the singular values are empty."""
    made = inverses.pinv(A) @ B
    nothing = A.new_zeros(0)
    apart = A @ made - B
    tall = A.shape[-2] > A.shape[-1] and driver != "gelsy"
    far = (apart * apart).sum(-2) if tall else nothing
    rank = matrix_rank(A) if driver != "gels" else nothing.cast(dt.int64)
    return made, far, rank, factors.svdvals(A) if driver in ("gelsd", "gelss") else nothing


def __dir__() -> list[str]:
    return functions(globals(), "cat stack")
