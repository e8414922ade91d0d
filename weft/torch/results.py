"""The named results of weft.torch's functions, with PyTorch's names."""

from __future__ import annotations

from typing import Any, NamedTuple


class Picked(NamedTuple):
    """Elements, and their indices on the axis."""

    values: Any
    indices: Any


class Extremes(NamedTuple):
    """The smallest and the largest."""

    min: Any
    max: Any


class QRFactors(NamedTuple):
    """Orthonormal columns, and an upper triangular matrix."""

    Q: Any
    R: Any


class Eigen(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class SVDFactors(NamedTuple):
    """Singular vectors around the singular values."""

    U: Any
    S: Any
    Vh: Any


class SVDColumns(NamedTuple):
    """Singular vectors, all as columns, around the singular values."""

    U: Any
    S: Any
    V: Any


class LogDet(NamedTuple):
    """The sign of a determinant, and the logarithm of its magnitude."""

    sign: Any
    logabsdet: Any


class Cholesky(NamedTuple):
    """A triangular factor, and LAPACK's info."""

    L: Any
    info: Any


class Inverse(NamedTuple):
    """An inverse, and LAPACK's info."""

    inverse: Any
    info: Any


class Solution(NamedTuple):
    """The solution of equations, and LAPACK's info."""

    result: Any
    info: Any


class Triangular(NamedTuple):
    """The solution of triangular equations, and a copy of their matrix."""

    solution: Any
    cloned_coefficient: Any


class Histogram(NamedTuple):
    """Counts, and the edges between which they are."""

    hist: Any
    bin_edges: Any


class Parts(NamedTuple):
    """The mantissa and the exponent of numbers."""

    mantissa: Any
    exponent: Any


class LUFactors(NamedTuple):
    """L and U in one matrix, and the rows exchanged at each step."""

    LU: Any
    pivots: Any


class LUInfo(NamedTuple):
    """LU factors, and the column of the first zero pivot."""

    LU: Any
    pivots: Any
    info: Any


class LUParts(NamedTuple):
    """A permutation, a lower and an upper triangular matrix."""

    P: Any
    L: Any
    U: Any
