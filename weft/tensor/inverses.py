"""Inverses, solutions and determinants of square matrices (`weft.linalg`); see lapack.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.tensor.base import broadcast_shapes
from weft.tensor.core import Tensor
from weft.tensor.elementwise import reals
from weft.tensor.lapack import Operand, by_numpy, column, matrices, refused, still


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    logabsdet: Tensor


def inv(x: Operand, /) -> Tensor:
    """The inverse of square matrices [..., n, n], by LAPACK on the host. Raises ShapeError,
    UsageError for a singular one, TraceError inside weft.compile.

    >>> weft.linalg.inv(weft.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """

    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        return [-(out[0].mT @ g @ out[0].mT)]

    return by_numpy("inv", np.linalg.inv, [matrices("inv", x, True)], slope)[0]


def solve(x1: Operand, x2: Operand, /) -> Tensor:
    """X of x1 X = x2, for square matrices x1 [..., n, n] and x2 [..., n, k], or one vector x2 [n].
    By LAPACK on the host. Raises ShapeError, UsageError for a singular matrix, TraceError inside
    weft.compile.

    >>> weft.linalg.solve(weft.tensor([[2.0, 0.0], [0.0, 4.0]]), weft.tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    a, b = matrices("solve", x1, True), reals(x2)
    dtype, vector = dt.promote(a.dtype, b.dtype), b.ndim == 1
    b = b.unsqueeze(-1) if vector else b
    if not b.ndim or b.shape[-2] != a.shape[-1]:
        raise ShapeError(
            f"linalg.solve: {a._known()} and {b._known()}; expected {a.shape[-1]} rows"
        )
    batch = broadcast_shapes("linalg.solve", a.shape[:-2], b.shape[:-2])
    a = a.cast(dtype)._to_shape((*batch, *a.shape[-2:]))
    b = b.cast(dtype)._to_shape((*batch, *b.shape[-2:]))

    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        back = solve(given[0].mT, g)
        return [-(back @ out[0].mT), back]

    found = by_numpy("solve", np.linalg.solve, [a, b], slope)[0]
    return found.squeeze(-1) if vector else found


def _cofactors(a: np.ndarray) -> np.ndarray:
    """The derivative of the determinant, also of singular matrices."""
    u, s, vh = np.linalg.svd(a)
    n = s.shape[-1]
    others = np.prod(np.where(np.eye(n, dtype=bool), 1, s[..., None, :]), -1)
    sign = np.linalg.det(u) * np.linalg.det(vh)
    made: np.ndarray = sign[..., None, None] * (u * others[..., None, :]) @ vh
    return made


def det(x: Operand, /) -> Tensor:
    """The determinants [...] of square matrices [..., n, n], by LAPACK on the host. Raises
    ShapeError, TraceError inside weft.compile.

    >>> weft.linalg.det(weft.tensor([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """
    once = refused("det: only first derivatives")

    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        return [column(g) * by_numpy("det", _cofactors, given, once)[0]]

    return by_numpy("det", np.linalg.det, [matrices("det", x, True)], slope)[0]


def slogdet(x: Operand, /) -> SlogdetResult:
    """The sign and the logarithm of the magnitude of the determinants of square matrices
    [..., n, n], by LAPACK on the host. Raises ShapeError, TraceError inside weft.compile.

    >>> weft.linalg.slogdet(weft.tensor([[-1.0]])).sign.item()
    -1.0
    """

    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        return [column(g) * inv(given[0]).mT]

    given = [matrices("slogdet", x, True)]
    sign, size = by_numpy("slogdet", lambda a: tuple(np.linalg.slogdet(a)), given, still, slope)
    return SlogdetResult(sign, size)


def pinv(x: Operand, /, *, rtol: float | Operand | None = None) -> Tensor:
    """The pseudo-inverses [..., n, m] of matrices [..., m, n], by LAPACK on the host. Singular
    values below rtol times the largest count as 0 (by default max(m, n) eps). Raises ShapeError,
    TraceError inside weft.compile.

    >>> weft.linalg.pinv(weft.tensor([[2.0], [0.0]])).tolist()
    [[0.5, 0.0]]
    """
    limit: Any = None if rtol is None else np.asarray(rtol)

    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        (p,), (a,), gt = out, given, g.mT
        left, right = gt @ p @ p.mT, p.mT @ p @ gt
        return [left - a @ (p @ left) + right - (right @ p) @ a - p.mT @ g @ p.mT]

    def of(a: np.ndarray) -> np.ndarray:
        return np.linalg.pinv(a, rtol=limit)

    return by_numpy("pinv", of, [matrices("pinv", x)], slope)[0]
