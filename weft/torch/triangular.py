"""PyTorch's LU factors, with partial pivoting. The rows to exchange are found on the host; the
factors themselves are a formula of the matrix, so they have a derivative."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.errors import ShapeError, TraceError
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.create import eye, tril, triu
from weft.torch.expected import want_dtype, want_floats
from weft.torch.joining import cat
from weft.torch.results import LUFactors, LUInfo, LUParts
from weft.torch.solving import solve
from weft.torch.tensor import function_only, public


def _pivots(array: np.ndarray) -> np.ndarray:
    """For each column the row (from 1 on) that is exchanged with the column's own: the largest."""
    a = array.astype(np.float64)
    m, n = a.shape[-2:]
    found = np.zeros((*a.shape[:-2], min(m, n)), np.int32)
    for at in np.ndindex(a.shape[:-2]):
        x = a[at].copy()
        for k in range(min(m, n)):
            row = k + int(np.abs(x[k:, k]).argmax())
            found[(*at, k)] = row + 1
            x[[k, row]] = x[[row, k]]
            if x[k, k] != 0:
                x[k + 1 :] -= np.outer(x[k + 1 :, k] / x[k, k], x[k])
    return found


def _order(pivots: np.ndarray, rows: int) -> np.ndarray:
    """The rows in the order to which the exchanges bring them."""
    made = np.broadcast_to(np.arange(rows, dtype=np.int32), (*pivots.shape[:-1], rows)).copy()
    for at in np.ndindex(pivots.shape[:-1]):
        for k, row in enumerate(pivots[at]):
            made[at][[k, row - 1]] = made[at][[row - 1, k]]
    return made


def _packed(A: Tensor) -> Tensor:
    """L below the diagonal and U on and above it, of a matrix whose rows are in order."""
    m, n = A.shape[-2:]
    for k in range(min(m, n)):
        top, rest = A[..., : k + 1, :], A[..., k + 1 :, :]
        pivot = A[..., k : k + 1, k : k + 1]
        none = pivot == 0
        factor = none.where(0.0, rest[..., k : k + 1] / none.where(1.0, pivot))
        right = rest[..., k + 1 :] - factor * A[..., k : k + 1, k + 1 :]
        A = cat([top, cat([rest[..., :k], factor, right], -1)], -2)
    return A


@function_only
def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactors:
    """L and U in one matrix, and the rows exchanged at each step (from 1 on)."""
    if CURRENT.trace is not None:
        raise TraceError("lu_factor: the pivots depend on values; call it outside of weft.compile")
    k = min(A.shape[-2:])
    if pivot:
        rows = _pivots(A.detach().numpy())
    else:
        rows = np.broadcast_to(np.arange(1, k + 1, dtype=np.int32), (*A.shape[:-2], k)).copy()
    return LUFactors(_packed(_exchanged(A, rows)), Tensor(rows))


def _exchanged(A: Tensor, pivots: np.ndarray) -> Tensor:
    order = _order(pivots, A.shape[-2])[..., None]
    at = np.broadcast_to(order, A.shape).astype(np.int32)
    return A.take_along_axis(Tensor(at.copy()), -2) if A.size else A.clone()


@function_only
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUInfo:
    """`lu_factor`, and the column (from 1 on) of the first zero pivot; 0 for none."""
    packed, pivots = lu_factor(A, pivot=pivot)
    zero = packed.detach().numpy().diagonal(0, -2, -1) == 0
    info = np.where(zero.any(-1), zero.argmax(-1) + 1, 0).astype(np.int32)
    return LUInfo(packed, pivots, Tensor(np.asarray(info)))


@public
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> LUParts:
    """P, L and U of what `lu_factor` gave."""
    m, n = LU_data.shape[-2:]
    k, empty = min(m, n), LU_data.new_zeros(0)
    low = up = p = empty
    if unpack_data:
        low = tril(LU_data[..., :k], -1) + eye(m, k, dtype=LU_data.dtype)
        up = triu(LU_data[..., :k, :])
    if unpack_pivots:
        order = _order(LU_pivots.numpy(), m)
        p = Tensor((order[..., None, :] == np.arange(m)[:, None]).astype(LU_data.dtype.numpy))
    return LUParts(p, low, up)


@function_only
def lu(A: Tensor, *, pivot: bool = True) -> LUParts:
    """P, L and U with P L U = A; P is empty without pivots."""
    packed, pivots = lu_factor(A, pivot=pivot)
    return lu_unpack(packed, pivots, True, pivot)


def _solved(packed: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool) -> Tensor:
    want_floats("lu_solve", B, "call .float() on it first")
    want_dtype("lu_solve", packed, B)
    if not left:
        turned: Tensor = _solved(packed, pivots, B.mT, True, not adjoint).mT
        return turned
    p, low, up = lu_unpack(packed, pivots)
    if adjoint:
        made: Tensor = p @ solve(low.mT, solve(up.mT, B))
        return made
    return solve(up, solve(low, p.mT @ B))


@function_only
def solve_lu(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with A X = B (left=False: X A = B; adjoint: Aᵀ instead of A) by A's LU factors."""
    return _solved(LU, pivots, B, left, adjoint)


@public
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """X with A X = b by A's LU factors."""
    if b.ndim < 2:
        raise ShapeError(f"lu_solve: b is {b._known()}; expected a matrix")
    return _solved(LU_data, LU_pivots, b, True, False)


def whole(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """PyTorch's older `lu`: what `lu_factor_ex` gives, the info only if asked."""
    packed, pivots, info = lu_factor_ex(A, pivot=pivot)
    return (packed, pivots, info) if get_infos else (packed, pivots)
