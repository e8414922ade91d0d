"""PyTorch's functions that read and write at indices. An index out of range is an error where its
value is known (everywhere but in compiled functions and on devices)."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.importers.aten import indexing
from weft.ops.primitive import reads_values
from weft.ops.rules import axis_of
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.torch.tensor import (
    public,
    unlisted,
    whole,
)


def inside(name: str, index: Tensor, size: int) -> Tensor:
    """The index, if its values are in range or not known yet. Raises ShapeError."""
    known = CURRENT.trace is None and isinstance(index._value, np.ndarray)
    reads_values()
    if known and index.size:
        at = index._value
        least, most = int(at.min()), int(at.max())
        if least < -size or most >= size:
            wrong = most if most >= size else least
            raise ShapeError(f"{name}: index {wrong} is out of range for an axis of size {size}")
    return index


def axis_at(name: str, input: Tensor, dim: int) -> int:
    return axis_of(name, dim, input.ndim) if input.ndim else 0


def with_axis(input: Tensor) -> Tensor:
    """A number as a vector of one, so that it has an axis to pick from."""
    return input if input.ndim else input.reshape(1)


@unlisted
def getitem(input: Tensor, key: Any) -> Tensor:
    """input[key]."""
    keys = key if isinstance(key, tuple) else (key,)
    lists = [Tensor(np.asarray(k)) if isinstance(k, list) and k else k for k in keys]
    taken, used = 0, sum(_axes(k) for k in lists)
    for k in lists:
        if k is Ellipsis:
            taken += input.ndim - used
        elif isinstance(k, Tensor) and k.dtype.is_int and taken < input.ndim:
            inside("index", k, input.shape[taken])
        taken += _axes(k)
    masks = [k.cast(dt.bool_) if _is_byte(k) else k for k in lists]
    return Tensor.__getitem__(input, tuple(masks) if isinstance(key, tuple) else masks[0])


def _is_byte(k: Any) -> bool:
    return isinstance(k, Tensor) and k.dtype == dt.uint8


def _axes(k: Any) -> int:
    if k is None or k is Ellipsis or isinstance(k, bool):
        return 0
    return k.ndim if isinstance(k, Tensor) and k.dtype == dt.bool_ else 1


@public
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at these indices of an axis."""
    a = axis_at("index_select", input, dim)
    x = with_axis(input)
    at = inside("index_select", index.reshape(-1), x.shape[a])
    made = Tensor.take(x, at, a)
    return made if input.ndim else made.reshape(())


@public
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """out[..., i, ...] = input[..., index[..., i, ...], ...] along an axis."""
    a = axis_at("gather", input, dim)
    if not index.ndim or not input.ndim:
        made = Tensor.take(input.reshape(-1), inside("gather", index.reshape(-1), input.size), 0)
        return made.reshape(index.shape)
    if not index.size:
        return Tensor.reshape(input.reshape(-1)[:0], index.shape)
    return indexing.gather(input, a, inside("gather", index, input.shape[a]))


@public
def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements of the flattened tensor at these indices."""
    at = inside("take", index, input.size)
    return Tensor.take(input.reshape(-1), at.reshape(-1), 0).reshape(index.shape)


@public
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements at `indices` along an axis, both broadcast; of all elements without one."""
    if dim is None:
        return take(input, indices.reshape(-1))
    a = axis_of("take_along_dim", dim, input.ndim)
    rest = [list(s) for s in (input.shape, indices.shape)]
    rest[0][a] = rest[1][a] = 1
    shape = list(np.broadcast_shapes(*map(tuple, rest)))
    x = input.expand([*shape[:a], input.shape[a], *shape[a + 1 :]])
    at = indices.expand([*shape[:a], indices.shape[a], *shape[a + 1 :]])
    return Tensor.take_along_axis(x, inside("take_along_dim", at, input.shape[a]), a)


@public
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds."""
    return Tensor.masked_select(input, mask)


@public
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The places of elements that are not zero: one row each, or one vector per axis."""
    found = np.nonzero(np.atleast_1d(input.numpy()))
    width = whole().numpy
    if as_tuple:
        return tuple(Tensor(at.astype(width)) for at in found)
    at = np.stack(found, 1).astype(width)
    return Tensor(at if input.ndim else at[:, :0])


argwhere = nonzero


@public
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` places of elements that are not zero; missing rows hold `fill_value`."""
    at = nonzero(input)
    short = max(size - at.shape[0], 0)
    made: Tensor = at[:size].pad([(0, short), (0, 0)], fill_value)
    return made
