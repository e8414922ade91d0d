"""torch.linalg's norms of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError
from weft.tensor import functional as F, linalg as plain
from weft.tensor.core import Tensor
from weft.torch import reductions
from weft.torch.expected import want
from weft.torch.tensor import function_only, real


@function_only
def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """(sum of |x|^ord)^(1 / ord) over axes (all by default)."""
    x = real(x.cast(dtype))
    return F.vector_norm(x, float(ord), reductions.dims(x, dim), keepdim)


@function_only
def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *,
    dtype: Any = None,
) -> Tensor:  # fmt: skip
    """The norm of matrices in two axes: "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    from weft.tensor.arrays import moveaxis

    if A.ndim < 2:
        raise ShapeError(f"matrix_norm: {A._known()} is not a matrix")
    x = moveaxis(A.cast(dtype), tuple(dim), (-2, -1))
    if 0 in x.shape[-2:]:
        made = x.new_zeros(x.shape[:-2])
    else:
        made = plain.matrix_norm(x, ord=ord)
    for axis in sorted(d % A.ndim for d in dim) if keepdim else ():
        made = made.unsqueeze(axis)
    return made


@function_only
def norm(
    A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """`vector_norm` of all, or of the axis named; `matrix_norm` for two axes or an order of it."""
    axes = None if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if ord is None or (axes is not None and len(axes) == 1):
        return vector_norm(A, 2 if ord is None else ord, axes, keepdim, dtype=dtype)
    if axes is None and A.ndim < 2:
        return vector_norm(A, ord, None, keepdim, dtype=dtype)
    want(axes is not None or A.ndim == 2, "norm", f"ord {ord!r} of {A._known()}",
         "a vector or a matrix, or dim")  # fmt: skip
    return matrix_norm(A, ord, axes or (-2, -1), keepdim, dtype=dtype)
