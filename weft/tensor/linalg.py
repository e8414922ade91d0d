"""weft.linalg: the array API's linear algebra (Python array API standard 2024.12).

Products and norms are formulas over primitives, which run and compile on every device. Inverses,
determinants and factors come from NumPy (LAPACK) on the host: never inside weft.compile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import guard_functions as _guard_functions
from weft.ops.rules import axes_of, axis_of
from weft.tensor import distances, shapes
from weft.tensor.arrays import matrix_transpose
from weft.tensor.core import Tensor
from weft.tensor.create import eye
from weft.tensor.elementwise import as_tensor, reals
from weft.tensor.factors import (
    EighResult,
    QRResult,
    SVDResult,
    cholesky,
    eigh,
    eigvalsh,
    matrix_rank,
    qr,
    svd,
    svdvals,
)
from weft.tensor.folding import matmul, tensordot, vecdot
from weft.tensor.inverses import SlogdetResult, det, inv, pinv, slogdet, solve
from weft.tensor.lapack import Operand, matrices, place_of

__all__ = [
    "EighResult", "QRResult", "SVDResult", "SlogdetResult", "cholesky", "cross", "det", "diagonal",
    "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip


def cross(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Tensor:
    """The vector products along an axis of size 3 of both, the others broadcast. Raises ShapeError.

    >>> weft.linalg.cross(weft.tensor([1, 0, 0]), weft.tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    a, b = as_tensor(x1), as_tensor(x2)
    rank = min(a.ndim, b.ndim)
    at = axis_of("linalg.cross", axis, rank) - rank  # from the end, which broadcasting aligns
    if a.shape[at] != 3 or b.shape[at] != 3:
        raise ShapeError(f"linalg.cross: axis {axis} of {a._known()} and {b._known()}; expected 3")
    (a0, a1, a2), (b0, b1, b2) = ([t.narrow(at, i, 1) for i in range(3)] for t in (a, b))
    return shapes.cat([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], at)


def diagonal(x: Operand, /, *, offset: int = 0) -> Tensor:
    """The diagonals [..., k] of matrices [..., m, n], `offset` above the main one. Raises
    ShapeError.

    >>> weft.linalg.diagonal(weft.tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    t = _stack("diagonal", x)
    m, n = t.shape[-2:]
    first, size = max(-offset, 0), max(min(m + min(offset, 0), n - max(offset, 0)), 0)
    flat = t.reshape((*t.shape[:-2], m * n))
    start = first * n + max(offset, 0)
    places = range(start, start + size * (n + 1), n + 1) if size else ()
    made: Tensor = flat.take(list(places), -1)
    return made


def trace(x: Operand, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sums [...] of the diagonals of matrices [..., m, n], in the dtypes of `weft.sum`. Raises
    ShapeError.

    >>> weft.linalg.trace(weft.tensor([[1, 2], [3, 4]])).item()
    5
    """
    return diagonal(x, offset=offset).sum(-1, dtype=dtype)


def _stack(name: str, x: Operand) -> Tensor:
    t = as_tensor(x)
    if t.ndim < 2:
        raise ShapeError(f"linalg.{name}: {t._known()}; expected matrices [..., m, n]")
    return t


def outer(x1: Operand, x2: Operand, /) -> Tensor:
    """The products [m, n] of each element of x1 [m] with each of x2 [n]. Raises ShapeError.

    >>> weft.linalg.outer(weft.tensor([1, 2]), weft.tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    a, b = as_tensor(x1), as_tensor(x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"linalg.outer: {a._known()} and {b._known()}; expected vectors")
    return a.unsqueeze(1) * b.unsqueeze(0)


def matrix_power(x: Operand, n: int, /) -> Tensor:
    """Square matrices [..., k, k] multiplied n times with themselves; of a negative n the inverses
    (see `inv`). Raises ShapeError.

    >>> weft.linalg.matrix_power(weft.tensor([[1, 1], [0, 1]]), 3).tolist()
    [[1, 3], [0, 1]]
    """
    t = _stack("matrix_power", x)
    if t.shape[-1] != t.shape[-2]:
        raise ShapeError(f"linalg.matrix_power: {t._known()}; expected square matrices")
    t = inv(t) if n < 0 else t
    if n == 0:
        return eye(t.shape[-1], dtype=t.dtype, device=place_of(t)).expand(t.shape)._fresh()
    made, square, count = None, t, abs(n)
    while count:
        if count & 1:
            made = square if made is None else made @ square
        count >>= 1
        square = square @ square if count else square
    return made if made is not t else t._fresh()  # type: ignore[return-value]


def matrix_norm(x: Operand, /, *, keepdims: bool = False, ord: float | str = "fro") -> Tensor:
    """The norms [...] of matrices [..., m, n]. "fro" is the root of the sum of squares. 1 and inf
    are the largest sum of magnitudes of a column and of a row, -1 and -inf the smallest. 2, -2 and
    "nuc" are the largest, the smallest and the sum of singular values, on the host (see `svdvals`).
    Raises ShapeError, UsageError.

    >>> weft.linalg.matrix_norm(weft.tensor([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    """
    t = matrices("matrix_norm", x)
    if ord == "fro":
        made = distances.vector_norm(t, 2.0, (-2, -1))
    elif ord in ("nuc", 2, -2):
        s = svdvals(t)
        made = s.sum(-1) if ord == "nuc" else s.max(-1) if ord == 2 else s.min(-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = t.abs().sum(-2 if abs(float(ord)) == 1 else -1)
        made = sums.max(-1) if float(ord) > 0 else sums.min(-1)
    else:
        raise UsageError(f'linalg.matrix_norm: ord={ord!r:.40}; use "fro", "nuc", 1, 2, inf or a -')
    return made.unsqueeze(-1).unsqueeze(-1) if keepdims else made


def vector_norm(
    x: Operand, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False,
    ord: float = 2,
) -> Tensor:  # fmt: skip
    """(sum of |x|^ord)^(1 / ord) over axes (all by default): the largest |x| for inf, the smallest
    for -inf, the number of elements that are not zero for 0. Raises ShapeError.

    >>> weft.linalg.vector_norm(weft.tensor([3.0, -4.0])).item()
    5.0
    """
    t = reals(x)
    return distances.vector_norm(t, ord, axes_of("linalg.vector_norm", axis, t.ndim), keepdims)


_guard_functions(globals(), __all__)
