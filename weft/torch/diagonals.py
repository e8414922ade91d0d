"""PyTorch's functions of diagonals and triangles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core.errors import ShapeError
from weft.ops.rules import axis_of
from weft.tensor import arrays, create
from weft.tensor.base import place
from weft.tensor.core import Tensor, tensor as make
from weft.tensor.torch_names import written
from weft.torch.expected import want_rank
from weft.torch.tensor import method_only, public

# -- diagonals and triangles


@public
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements [i, i + offset] of two axes, as the last axis."""
    return Tensor.diagonal(input, offset, dim1, dim2)


@public
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices, in two new axes, with the last axis on a diagonal and zeros elsewhere."""
    for d in (dim1, dim2):
        axis_of("diag_embed", d, input.ndim + 1)
    n = input.shape[-1] + builtin_abs(offset)
    row = max(-offset, 0)
    wide = input.unsqueeze(-1) * _eye(input)
    lead = [(0, 0)] * (input.ndim - 1)
    square = wide.pad([*lead, (row, n - row - input.shape[-1]), (max(offset, 0), max(-offset, 0))])
    square = square.cast(input.dtype)
    rank = input.ndim + 1
    return arrays.moveaxis(square, (-2, -1), (dim1 % rank, dim2 % rank))


builtin_abs = abs


def _eye(input: Tensor) -> Any:
    from weft.tensor.base import place

    return create.eye(input.shape[-1], dtype=input.dtype, device=place(input))


@public
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix with a vector on its diagonal."""
    want_rank("diag", input, 1, 2)
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    return Tensor.diagonal(input, diagonal)


@public
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements on its diagonal."""
    return diag_embed(input.reshape(-1), offset)


@public
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros above a diagonal of the last two axes."""
    return create.tril(input, diagonal)


@public
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros below a diagonal of the last two axes."""
    return create.triu(input, diagonal)


@method_only
def fill_diagonal_(input: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Takes a value where all indices are equal; with wrap, a tall matrix's diagonal starts again
    below its square."""
    if input.ndim < 2 or (input.ndim > 2 and len({*input.shape}) > 1):
        raise ShapeError(f"fill_diagonal_: {list(input.shape)}; give a matrix, or equal sizes")
    step = sum(math.prod(input.shape[axis + 1 :]) for axis in range(input.ndim))
    length = min(input.shape) and (min(input.shape) - 1) * step + 1
    hit = np.zeros(input.shape, bool)
    hit.reshape(-1)[: None if wrap and input.ndim == 2 else length : step] = True
    mask = make(hit, device=place(input))
    made = mask.where(create.full_like(input, fill_value), input)
    return written(input, made, "fill_diagonal_", "masked_fill")  # type: ignore[no-any-return]


@public
def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    from weft.torch.reductions import sum

    if input.ndim != 2:
        raise ShapeError(f"trace: {input._known()} has {input.ndim} axes, expected 2")
    return sum(Tensor.diagonal(input))


def numel(input: Tensor) -> int:
    """The number of elements."""
    return math.prod(input.shape)
