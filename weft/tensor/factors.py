"""Factors of matrices, their eigenvalues and singular values (`weft.linalg`); see lapack.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.tensor.core import Tensor
from weft.tensor.create import eye, triu
from weft.tensor.elementwise import as_tensor
from weft.tensor.inverses import solve
from weft.tensor.lapack import (
    Operand,
    Slope,
    by_numpy,
    half_of_diagonal,
    matrices,
    place_of,
    refused,
    row,
)


class EighResult(NamedTuple):
    """The result of `eigh`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Tensor
    R: Tensor


class SVDResult(NamedTuple):
    """The result of `svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def cholesky(x: Operand, /, *, upper: bool = False) -> Tensor:
    """L [..., n, n], lower triangular, with L Lᵀ = x, or U with Uᵀ U = x; x is symmetric and
    positive definite. By LAPACK on the host. Raises ShapeError, UsageError for other matrices,
    TraceError inside weft.compile.

    >>> weft.linalg.cholesky(weft.tensor([[4.0]])).tolist()
    [[2.0]]
    """

    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        (low,) = out
        inner = half_of_diagonal(low.mT @ g)
        made = solve(low.mT, solve(low.mT, inner.mT).mT)
        return [(made + made.mT) * 0.5]

    given = [matrices("cholesky", x, True)]
    found = by_numpy("cholesky", np.linalg.cholesky, given, slope)[0]
    return found.mT if upper else found


def qr(x: Operand, /, *, mode: str = "reduced") -> QRResult:
    """Q, whose columns are orthonormal, and R, upper triangular, with Q R = x. Matrices [..., m, n]
    with k = min(m, n) give Q [..., m, k] and R [..., k, n]. With mode="complete" they give Q [...,
    m, m] and R [..., m, n]. By LAPACK on the host; gradients for m >= n. Raises ShapeError,
    UsageError, TraceError inside weft.compile.

    >>> weft.linalg.qr(weft.tensor([[3.0], [4.0]])).R.shape
    (1, 1)
    """
    if mode not in ("reduced", "complete"):
        raise UsageError(f'linalg.qr: mode={mode!r:.40}; use "reduced" or "complete"')
    t = matrices("qr", x)
    m, n = t.shape[-2:]

    def back(middle: Tensor, out: list[Tensor], g: Tensor | None = None) -> Sequence[Tensor]:
        q, r = out
        upper = triu(middle)
        both = upper + upper.mT - eye(n, dtype=r.dtype, device=place_of(r)) * upper
        made = q @ both if g is None else g + q @ both
        return [solve(r, made.mT).mT]

    slopes: tuple[Slope, Slope] = (
        lambda g, out, given: back(-(out[0].mT @ g), out, g),
        lambda g, out, given: back(g @ out[1].mT, out),
    )
    if m < n or (mode == "complete" and m > n):
        slopes = (refused(f"qr: no gradient of {t._known()} with mode={mode!r}"),) * 2
    q, r = by_numpy("qr", lambda a: tuple(np.linalg.qr(a, mode)), [t], *slopes)  # type: ignore
    return QRResult(q, r)


def eigh(x: Operand, /) -> EighResult:
    """The eigenvalues [..., n], ascending, and eigenvectors [..., n, n], in columns, of symmetric
    matrices, whose lower triangle is read. By LAPACK on the host. Gradients of eigenvectors are
    finite where eigenvalues differ. Raises ShapeError, UsageError, TraceError inside weft.compile.

    >>> weft.linalg.eigh(weft.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """

    def of_values(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        return [(out[1] * row(g)) @ out[1].mT]

    def of_vectors(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        w, v = out
        return [v @ _apart(v.mT @ g, row(w) - w.unsqueeze(-1)) @ v.mT]

    given = [matrices("eigh", x, True)]
    w, v = by_numpy("eigh", lambda a: tuple(np.linalg.eigh(a)), given, of_values, of_vectors)
    return EighResult(w, v)


def _apart(x: Tensor, distances: Tensor) -> Tensor:
    """x / distances off the diagonal, 0 on it."""
    diagonal = eye(x.shape[-1], dtype="bool", device=place_of(x))
    return diagonal.where(0.0, x / diagonal.where(1.0, distances))


def eigvalsh(x: Operand, /) -> Tensor:
    """The eigenvalues [..., n], ascending, of symmetric matrices; see `eigh`.

    >>> weft.linalg.eigvalsh(weft.tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return eigh(x).eigenvalues


def svd(x: Operand, /, *, full_matrices: bool = True) -> SVDResult:
    """U [..., m, m], S [..., k], descending, and Vh [..., n, n] of matrices [..., m, n], k the
    smaller side: (U[..., :k] * S) @ Vh[..., :k, :] = x. With full_matrices=False, U is [..., m, k]
    and Vh [..., k, n], and both have gradients (finite where singular values differ). By LAPACK on
    the host. Raises ShapeError, UsageError, TraceError inside weft.compile.

    >>> weft.linalg.svd(weft.tensor([[3.0, 0.0], [0.0, 4.0]])).S.tolist()
    [4.0, 3.0]
    """
    t = matrices("svd", x)
    k = min(t.shape[-2:])

    def of_u(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        u, s, vh = out
        inner = _apart(_skew(u.mT @ g), _squares(s)) * row(s)
        outside = (g - u @ (u.mT @ g)) / row(s) if u.shape[-2] > k else 0.0
        return [(u @ inner + outside) @ vh]

    def of_s(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        u, _, vh = out
        return [(u[..., :k] * row(g)) @ vh[..., :k, :]]

    def of_vh(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        u, s, vh = out
        inner = _apart(_skew(vh @ g.mT), _squares(s)) * s.unsqueeze(-1)
        outside = (g - (g @ vh.mT) @ vh) / s.unsqueeze(-1) if vh.shape[-1] > k else 0.0
        return [u @ (inner @ vh + outside)]

    slopes: tuple[Slope, Slope, Slope] = (of_u, of_s, of_vh)
    if full_matrices and t.shape[-1] != t.shape[-2]:
        wide = refused("svd: no gradient of U and Vh with full_matrices=True; ask for False")
        slopes = (wide, of_s, wide)
    found = by_numpy("svd", lambda a: tuple(np.linalg.svd(a, full_matrices)), [t], *slopes)
    return SVDResult(*found)


def _skew(x: Tensor) -> Tensor:
    return x - x.mT


def _squares(s: Tensor) -> Tensor:
    """s_j² - s_i² at [..., i, j]."""
    return (row(s) - s.unsqueeze(-1)) * (row(s) + s.unsqueeze(-1))


def svdvals(x: Operand, /) -> Tensor:
    """The singular values [..., k], descending, of matrices [..., m, n], k the smaller side; see
    `svd`.

    >>> weft.linalg.svdvals(weft.tensor([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [4.0, 3.0]
    """
    return svd(x, full_matrices=False).S


def matrix_rank(x: Operand, /, *, rtol: float | Operand | None = None) -> Tensor:
    """The numbers (int32 [...]) of singular values of matrices [..., m, n] above rtol times the
    largest (by default max(m, n) eps); see `svdvals`.

    >>> weft.linalg.matrix_rank(weft.tensor([[1.0, 1.0], [1.0, 1.0]])).item()
    1
    """
    t = matrices("matrix_rank", x)
    s = svdvals(t.detach())
    limit = max(t.shape[-2:]) * float(np.finfo(dt.compute_dtype(t.dtype).numpy).eps)
    top = s.max(-1, keepdims=True) if s.shape[-1] else s
    scale = limit if rtol is None else rtol if isinstance(rtol, float) else as_tensor(rtol)
    scale = scale.unsqueeze(-1) if isinstance(scale, Tensor) else scale
    return (s > top * scale).cast(dt.int32).sum(-1)
