"""Lengths of vectors along axes, and distances and angles between them.

Narrow floats are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.core import dtypes as dt
from weft.tensor.core import Tensor

Axes = int | Sequence[int] | None


def vector_norm(x: Tensor, p: float = 2.0, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """(sum of |x|^p)^(1 / p) over axes (all by default): the largest |x| for p = inf, the smallest
    for -inf, the number of nonzero elements for 0. Where a norm of p = 2 is 0 its gradient is 0.

    >>> F.vector_norm(weft.tensor([3.0, -4.0])).item()
    5.0
    """
    wide = x.cast(dt.compute_dtype(x.dtype))
    if abs(p) == math.inf:
        made = wide.abs().max(axis, keepdims) if p > 0 else wide.abs().min(axis, keepdims)
    elif p == 0:
        made = (wide != 0).cast(wide.dtype).sum(axis, keepdims)
    else:
        made = root(power(wide, p).sum(axis, keepdims), p)
    return made.cast(x.dtype)


def power(x: Tensor, p: float) -> Tensor:
    """Returns |x|^p for a p that is not 0."""
    return x * x if p == 2 else x.abs() if p == 1 else x.abs() ** float(p)


def root(total: Tensor, p: float) -> Tensor:
    """Returns total^(1 / p) of a sum of powers; that of 0 has the gradient 0."""
    if p == 2:
        return total._length()
    nothing = total == 0
    made = total if p == 1 else nothing.where(1.0, total) ** (1.0 / p)
    return nothing.where(0.0 if p > 0 else math.inf, made)


def normalize(x: Tensor, axis: Axes = -1, eps: float = 1e-12, p: float = 2.0) -> Tensor:
    """x divided by its p-norm along an axis, which is at least eps.

    >>> F.normalize(weft.tensor([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    wide = x.cast(dt.compute_dtype(x.dtype))
    return (wide / vector_norm(wide, p, axis, True).maximum(eps)).cast(x.dtype)


def cosine_similarity(x1: Tensor, x2: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 along an axis; each length is at least eps.

    >>> F.cosine_similarity(weft.tensor([[1.0, 0.0]]), weft.tensor([[1.0, 1.0]])).item()
    0.7071067690849304
    """
    dtype = dt.promote(x1.dtype, x2.dtype)
    a, b = (x.cast(dt.compute_dtype(dtype)) for x in (x1, x2))
    return (normalize(a, axis, eps) * normalize(b, axis, eps)).sum(axis).cast(dtype)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis; both broadcast.

    >>> F.pairwise_distance(weft.zeros((1, 2)), weft.tensor([[3.0, 4.0]]), eps=0.0).tolist()
    [5.0]
    """
    wide = dt.compute_dtype(dt.promote(x1.dtype, x2.dtype))
    apart = x1.cast(wide) - x2.cast(wide)
    return vector_norm(apart + eps if eps else apart, p, -1, keepdims).cast(
        dt.promote(x1.dtype, x2.dtype)
    )


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """The distances by the p-norm of rows [..., N, D] and [..., M, D]: [..., N, M].

    >>> F.cdist(weft.zeros((1, 2)), weft.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [[5.0, 1.0]]
    """
    return pairwise_distance(x1.unsqueeze(-2), x2.unsqueeze(-3), p, 0.0)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The distances by the p-norm of the rows [N, D] in pairs i < j: [N (N - 1) / 2].

    >>> F.pdist(weft.tensor([[0.0], [1.0], [3.0]])).tolist()
    [1.0, 3.0, 2.0]
    """
    first, second = (x.take(at.astype(np.int32), 0) for at in np.triu_indices(x.shape[0], 1))
    return pairwise_distance(first, second, p, 0.0)
