"""Reading and writing at integer tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.importers.aten import creation
from weft.importers.aten.table import aten, named, rows
from weft.importers.imported import here
from weft.tensor import bags, functional as F
from weft.tensor.core import Tensor
from weft.tensor.create import arange
from weft.tensor.keys import index_array
from weft.tensor.scattering import scatter_join

Indices = Sequence[Tensor | None]


def _key(indices: Indices) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


@aten("index.Tensor")
def index(self: Tensor, indices: Indices) -> Tensor:
    """NumPy's indexing; an index out of range gives NaN (0 for integers), where PyTorch stops."""
    return self[_key(indices)]


@aten("unfold")
def windows(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` along an axis, `step` apart, their elements along a new last axis."""
    d = dimension % self.ndim
    starts = np.arange((self.shape[d] - size) // step + 1) * step
    at = (starts[:, None] + np.arange(size)).astype(np.int32)
    made = self.take(at.reshape(-1), d)
    made = made.reshape((*self.shape[:d], *at.shape, *self.shape[d + 1 :]))
    return made.permute([a for a in range(made.ndim) if a != d + 1] + [d + 1])


@named("weft.chosen")
def chosen(test: Any, yes: Any, no: Any) -> Any:
    """The result that torch.cond selects from those of its branches."""
    if isinstance(test, Tensor):
        return test.where(yes, no)
    return yes if test else no


rows(__name__, {
    "index_select": (Tensor.take, "self dim>axis index"),
    "embedding": (F.embedding, "weight indices padding_idx:index -scale_grad_by_freq -sparse"),
})  # fmt: skip


@aten("gather")
def gather(self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if not self.ndim:
        return self.reshape(1).take(index, 0)
    d = dim % self.ndim
    for axis, size in enumerate(index.shape):
        if axis != d:
            self = self.narrow(axis, 0, size)
    return self.take_along_axis(index, d)


@aten("take_along_dim")
def take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    return self.reshape(-1).take(indices.reshape(-1), 0) if dim is None else (
        self.take_along_axis(indices, dim)
    )  # fmt: skip


# -- writing: each gives a new tensor


def _rows_first(self: Tensor, axis: int, index: Tensor, rows: Tensor, add: bool) -> Tensor:
    """self with slices index[r] of an axis replaced by (or increased by) those of `rows`."""
    at = index_array(self, index, self.shape[axis])
    write = F.scatter_add if add else F.update
    moved = write(self.transpose(0, axis), at, rows.transpose(0, axis))
    return moved.transpose(0, axis)


@aten("index_copy")
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    d = dim % self.ndim
    return _rows_first(self, d, index.reshape(-1), source.cast(self.dtype), add=False)


@aten("index_add")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    d = dim % self.ndim
    rows = source.cast(self.dtype)
    rows = rows if alpha == 1 else rows * alpha
    return _rows_first(self, d, index.reshape(-1), rows, add=True)


@aten("index_fill.int_Scalar")
def index_fill(self: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    d = dim % self.ndim
    at = index.reshape(-1)
    shape = (*self.shape[:d], at.size, *self.shape[d + 1 :])
    return index_copy(self, d, at, creation.full(shape, value, self.dtype))


@aten("index_put", "_unsafe_index_put")
def index_put(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    values = values.cast(self.dtype)
    if len(given) == 1 and given[0][1].dtype != dt.bool_ and given[0][1].ndim == 1:
        axis, at = given[0]
        shape = (*self.shape[:axis], at.size, *self.shape[axis + 1 :])
        return _rows_first(self, axis, at, values.expand(shape), accumulate)
    masks = [i for _, i in given if i.dtype == dt.bool_]
    if len(given) == 1 and masks and values.size == 1:  # nothing to count
        mask = masks[0].reshape((*masks[0].shape, *[1] * (self.ndim - masks[0].ndim)))
        one = values.reshape(())
        return mask.where(self + one if accumulate else one, self)
    places = _positions(self)[_key(indices)]
    return _scattered(self, places, values.expand(places.shape), accumulate)


def _positions(x: Tensor) -> Tensor:
    """The number of each element in row-major order, in x's shape."""
    return arange(x.size, device=here()).reshape(x.shape)


def _scattered(x: Tensor, places: Tensor, values: Tensor, add: bool) -> Tensor:
    """x with values written (or added) at flat positions."""
    write = F.scatter_add if add else F.update
    return write(x.reshape(x.size), places.reshape(places.size), values.reshape(-1)).reshape(
        x.shape
    )


def _places(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """The flat positions in `self` that scatter's index names."""
    d = dim % self.ndim
    at = index_array(self, index, self.shape[d])
    total: Tensor = at * math.prod(self.shape[d + 1 :])
    for axis, size in enumerate(index.shape):
        if axis != d:
            line = [size if i == axis else 1 for i in range(self.ndim)]
            steps = arange(size, device=here()) * math.prod(self.shape[axis + 1 :])
            total = total + steps.reshape(line)
    return total


@aten("scatter.src")
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    for axis, size in enumerate(index.shape):
        src = src.narrow(axis, 0, size)
    return _scattered(self, _places(self, dim, index), src.cast(self.dtype), add=False)


@aten("scatter.value")
def scatter_value(self: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    values = creation.full(index.shape, value, self.dtype)
    return _scattered(self, _places(self, dim, index), values, add=False)


@aten("scatter_add")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    for axis, size in enumerate(index.shape):
        src = src.narrow(axis, 0, size)
    return _scattered(self, _places(self, dim, index), src.cast(self.dtype), add=True)


@aten("scatter_reduce.two")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """Joins the values that fall on one place: by "sum", "prod", "mean", "amax" or "amin"."""
    for axis, size in enumerate(index.shape):
        src = src.narrow(axis, 0, size)
    places, rows = _places(self, dim, index).reshape(-1), src.reshape(-1).cast(self.dtype)
    flat = self.reshape(-1)
    how = {"amax": "max", "amin": "min", "prod": "mul"}.get(reduce)
    if how is not None:
        return scatter_join(flat, places, rows, how, include_self).reshape(self.shape)
    none, each = creation.zeros(flat.shape, dt.int32), creation.ones(rows.shape, dt.int32)
    some = F.scatter_add(none, places, each)
    total = F.scatter_add(flat if include_self else (some > 0).where(0, flat), places, rows)
    if reduce == "mean":
        count = (some + 1 if include_self else some).maximum(1)
        total = total // count if self.dtype.is_int else total / count
    return total.cast(self.dtype).reshape(self.shape)


@aten("index_reduce")
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    line = [index.size if a == dim % self.ndim else 1 for a in range(self.ndim)]
    at = index.reshape(line).expand(source.shape)
    return scatter_reduce(self, dim, at, source, reduce, include_self)


@aten("_embedding_bag", results=1)
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: int = 0, sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Tensor, None, None, None]:  # fmt: skip
    left_out = None if padding_idx < 0 else padding_idx
    how = (bags.MODES[mode], per_sample_weights, include_last_offset, left_out)
    return F.embedding_bag(indices, weight, offsets, *how), None, None, None


@aten("masked_scatter")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Elements where the mask holds take those of `source`, in order."""
    held = mask.expand(self.shape)
    before = held.cast(dt.int32).reshape(-1).cumsum(0) - 1
    taken = source.reshape(-1).take(before.maximum(0).minimum(source.size - 1), 0)
    return held.where(taken.reshape(self.shape).cast(self.dtype), self)
