"""PyTorch's functions that read and write at indices. An index out of range is an error where its
value is known (everywhere but in compiled functions and on devices)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import AxisError, DTypeError, ShapeError, UsageError
from weft.importers.aten import indexing
from weft.ops.primitive import looks_at, reads_values
from weft.ops.rules import axis_of
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.quick import row
from weft.torch.tensor import (
    public,
    unlisted,
    whole,
)


def known(x: Any) -> np.ndarray | None:
    """The values of a tensor with elements; None where they are not known yet."""
    reads_values()
    if not isinstance(x, Tensor) or CURRENT.trace is not None or not x.size:
        return None
    return x._value if isinstance(x._value, np.ndarray) else None


def look_at(x: Any, look: Callable[[np.ndarray], None]) -> None:
    """Calls `look`, which may raise an error, with the values of a tensor that has elements, where
    they are known; at repeated calls too."""
    if isinstance(x, Tensor) and CURRENT.trace is None and x.size:
        held = x._value
        if isinstance(held, np.ndarray):
            looks_at(held, look, ())


def inside(name: str, index: Tensor, size: int, below: bool = False) -> Tensor:
    """The index, if its values are 0..size-1 (with `below` also from -size on) or not known yet.
    Raises AxisError."""
    start = -size if below else 0

    def look(at: np.ndarray) -> None:
        least, most = np.minimum.reduce(at, None), np.maximum.reduce(at, None)
        if least < start or most >= size:
            wrong = int(most if most >= size else least)
            raise AxisError(f"{name}: index {wrong} is out of range for an axis of size {size}")

    look_at(index, look)
    return index


def keys_inside(name: str, input: Tensor, keys: Sequence[Any]) -> None:
    """Raises AxisError for an index tensor among keys that is out of range for its axis."""
    taken, used = 0, sum(_axes(k) for k in keys)
    for k in keys:
        if k is Ellipsis:
            taken += input.ndim - used
        elif isinstance(k, Tensor) and k.dtype.is_int and taken < input.ndim:
            inside(name, k, input.shape[taken], below=True)
        taken += _axes(k)


def axis_at(name: str, input: Tensor, dim: int) -> int:
    return axis_of(name, dim, input.ndim) if input.ndim else 0


def with_axis(input: Tensor) -> Tensor:
    """A number as a vector of one, so that it has an axis to pick from."""
    return input if input.ndim else input.reshape(1)


@partial(unlisted, short=row, count=2)
def getitem(input: Tensor, key: Any) -> Tensor:
    """input[key]."""
    keys = key if isinstance(key, tuple) else (key,)
    lists = [Tensor(np.asarray(k)) if isinstance(k, list) and k else k for k in keys]
    _forward("index", keys)
    keys_inside("index", input, lists)
    masks = [k.cast(dt.bool_) if _is_byte(k) else k for k in lists]
    return Tensor.__getitem__(input, tuple(masks) if isinstance(key, tuple) else masks[0])


@unlisted
def setitem(input: Tensor, key: Any, value: Any) -> None:
    """input[key] = value."""
    keys = key if isinstance(key, tuple) else (key,)
    keys_inside("index", input, keys)
    _forward("index", keys)
    Tensor.__setitem__(input, key, value)


def _forward(name: str, keys: Sequence[Any]) -> None:
    """Raises UsageError for a slice that goes backwards, of which PyTorch has no views."""
    for k in keys:
        if isinstance(k, slice) and isinstance(k.step, int) and k.step < 1:
            raise UsageError(f"{name}: a slice with step {k.step}; use flip, or a step above 0")


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
    if index.dtype not in (dt.int32, dt.int64):
        raise DTypeError(f"index_select: index {index._known()}; call .long() on it")
    if index.ndim > 1:
        raise ShapeError(f"index_select: index {index._known()}; expected a vector")
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
    at = inside("take", index, input.size, below=True)
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
    at = inside("take_along_dim", at, input.shape[a], below=True)
    return Tensor.take_along_axis(x, at, a)


@public
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask, a tensor of bools, holds."""
    if mask.dtype != dt.bool_:
        raise DTypeError(f"masked_select: mask {mask._known()}; expected bool: call .bool() on it")
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
