"""Counts, places among sorted values, distances."""

from __future__ import annotations

import numpy as np

from weft.core import dtypes as dt
from weft.importers.aten.reductions import norm
from weft.importers.aten.table import aten
from weft.tensor import functional as F
from weft.tensor.core import Tensor


@aten("histc")
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal parts of min..max (of the elements' own range
    if both are equal); the upper end belongs to the last."""
    x = self.reshape(-1).cast(dt.compute_dtype(self.dtype))
    low: Tensor | float = min
    high: Tensor | float = max
    if min == max:
        least, most = x.min(), x.max()
        # If all elements are equal, the range extends around them.
        around = (least == most).where(1.0, 0.0)
        low, high = least - around, most + around
    at = ((x - low) * float(bins) / (high - low)).floor()
    inside = (x >= low) & (x <= high)
    place = inside.where(at.minimum(float(bins - 1)), -1.0).cast(dt.int32)
    return F.one_hot(place, bins, self.dtype).sum(0)


@aten("searchsorted.Tensor", refuses=lambda a, b, *rest, sorter=None, **named: (
    "with a sorter" if sorter is not None else ""))  # fmt: skip
def searchsorted(
    sorted_sequence: Tensor, self: Tensor, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: None = None,
) -> Tensor:  # fmt: skip
    """The number of elements in each row of the sequence that are less than (`right`: or equal to)
    each value."""
    line, value = sorted_sequence.unsqueeze(-2), self.unsqueeze(-1)
    below = line <= value if right or side == "right" else line < value
    return below.cast(dt.int32).sum(-1)


@aten("bucketize.Tensor")
def bucketize(
    self: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    return searchsorted(boundaries, self, right=right)


@aten("median.dim")
def median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of two in the middle; among equals the place may be another than PyTorch's."""
    return kthvalue(self, (self.shape[dim] + 1) // 2, dim, keepdim)


@aten("median")
def median_all(self: Tensor) -> Tensor:
    return median(self.reshape(-1), 0)[0]


@aten("kthvalue")
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest along an axis, from 1 on, and its place."""
    order = self.argsort(dim)
    at = order.narrow(dim, k - 1, 1)
    value = self.take_along_axis(at, dim)
    return (value, at) if keepdim else (value.squeeze(dim), at.squeeze(dim))


# -- distances


@aten("_cdist_forward", "cdist", results=1)
def cdist(x1: Tensor, x2: Tensor, p: float = 2, compute_mode: int | None = None) -> Tensor:
    """Distances of rows [..., N, D] and [..., M, D] by the p-norm: [..., N, M]."""
    return _apart(x1.unsqueeze(-2), x2.unsqueeze(-3), p)


@aten("_pdist_forward", "pdist")
def pdist(self: Tensor, p: float = 2) -> Tensor:
    """Distances of the rows [N, D] in pairs i < j: [N (N - 1) / 2]."""
    low, high = np.triu_indices(self.shape[0], 1)
    first, second = (self.take(at.astype(np.int32), 0) for at in (low, high))
    return _apart(first, second, p)


def _apart(a: Tensor, b: Tensor, p: float) -> Tensor:
    wide = dt.compute_dtype(a.dtype)
    return norm(a.cast(wide) - b.cast(wide), p, -1).cast(a.dtype)
