"""Counts, places among sorted values, distances."""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.importers.aten.table import aten, rows
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
    each value. NaN is the largest."""
    line, value = sorted_sequence, self.unsqueeze(-1)
    line = line if line.ndim == 1 else line.unsqueeze(-2)
    after = right or side == "right"
    below = line <= value if after else line < value
    if line.dtype.is_float:
        last = value.isnan()
        below = below | last if after else below | (last & ~line.isnan())
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


rows(__name__, {
    "cdist": (F.cdist, "x1 x2 p -compute_mode"),
    "pdist _pdist_forward": (F.pdist, "self p"),
    "pairwise_distance": (F.pairwise_distance, "x1 x2 p eps keepdim"),
    "cosine_similarity": (F.cosine_similarity, "x1 x2 dim eps"),
})  # fmt: skip


@aten("_cdist_forward", results=1)
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return F.cdist(x1, x2, p)
