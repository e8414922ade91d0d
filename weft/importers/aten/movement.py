"""Operators that move elements: shapes, slices, joins, padding, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import ShapeError
from weft.importers.aten.numbers import together
from weft.importers.aten.table import aten, rows
from weft.tensor import arrays, create, functional as F
from weft.tensor.core import Tensor
from weft.tensor.shapes import broadcast_tensors, cat as join, stack as join_new

rows(__name__, {
    "view _unsafe_view _reshape_copy view_copy": (arrays.reshape, "self size"),
    "reshape": (arrays.reshape, "self shape"),
    "permute permute_copy": (arrays.permute_dims, "self dims"),
    "mT": (arrays.matrix_transpose, "self"),
    "movedim.int movedim.intlist moveaxis.int moveaxis.intlist": (
        arrays.moveaxis, "self source destination"),
    "unsqueeze": (Tensor.unsqueeze, "self dim"),
    "flatten.using_ints": (Tensor.flatten, "self start_dim end_dim"),
    "chunk": (Tensor.chunk, "self chunks dim"),
    "unbind.int unbind_copy.int": (arrays.unstack, "self dim"),
    "repeat": (arrays.tile, "self repeats"),
    "tile": (arrays.tile, "self dims"),
    "repeat_interleave.self_int": (arrays.repeat, "self repeats dim -output_size"),
    "flip": (arrays.flip, "self dims"),
    "tril": (create.tril, "self diagonal"),
    "triu": (create.triu, "self diagonal"),
})  # fmt: skip


@aten("detach", "detach_copy")
def detached(self: Tensor | int) -> Tensor | int:
    """A size that a region without gradients returns is not a tensor."""
    return self.detach() if isinstance(self, Tensor) else self


@aten("t", "numpy_T")
def turned(self: Tensor) -> Tensor:
    return self.T


@aten("expand", "broadcast_to", "expand_copy")
def expand(self: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    return self.expand(list(size))


@aten("meshgrid", "meshgrid.indexing")
def meshgrid(tensors: Sequence[Tensor], indexing: str = "ij") -> list[Tensor]:
    return arrays.meshgrid(*tensors, indexing=indexing)


@aten("view_as", "reshape_as")
def view_as(self: Tensor, other: Tensor) -> Tensor:
    return self.reshape(other.shape)


@aten("transpose.int", "swapaxes", "swapdims")
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    return self.transpose(dim0, dim1) if self.ndim else self


@aten("expand_as")
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    return self.expand(other.shape)


@aten("broadcast_tensors")
def broadcast(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return broadcast_tensors(*tensors)


@aten("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Axes of other sizes than 1 stay."""
    if dim is None:
        return self.squeeze()
    dims = [dim] if isinstance(dim, int) else dim
    return self.squeeze([d for d in dims if self.ndim and self.shape[d] == 1])


@aten("unflatten.int")
def unflatten(self: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    d = dim % self.ndim
    return self.reshape((*self.shape[:d], *sizes, *self.shape[d + 1 :]))


def span(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The beginning and end of a slice of an axis of size n, by Python's rules."""
    begin, stop, _ = slice(start, end).indices(n)
    return begin, max(begin, stop)


@aten("slice.Tensor", "slice_copy.Tensor")
def cut(
    self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    d = dim % self.ndim
    begin, stop = span(self.shape[d], start, end)
    if step == 1:
        return self.narrow(d, begin, stop - begin)
    return self[(*[slice(None)] * d, slice(begin, stop, step))]


@aten("narrow")
def narrow(self: Tensor, dim: int, start: int, length: int) -> Tensor:
    return self.narrow(dim, start % max(self.shape[dim], 1) if start < 0 else start, length)


@aten("select.int", "select_copy.int")
def select(self: Tensor, dim: int, index: int) -> Tensor:
    d = dim % self.ndim
    if not -self.shape[d] <= index < self.shape[d]:
        raise ShapeError(f"index {index} is out of range for axis {d} of {list(self.shape)}")
    return self.narrow(d, index % self.shape[d], 1).squeeze(d)


@aten(
    "split.Tensor", "split.sizes", "split_with_sizes", "split_with_sizes_copy", "split_copy.Tensor"
)
def split(
    self: Tensor, split_size: Any = None, dim: int = 0, *, split_sizes: Any = None
) -> tuple[Tensor, ...]:
    return self.split(split_sizes if split_size is None else split_size, dim)


@aten("cat", "concat", "concatenate")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of shape [0] are skipped, as PyTorch does for old programs' sake."""
    kept = [t for t in together(*tensors) if t.shape != (0,)]
    joined: Tensor = join(kept, dim) if kept else tensors[0]
    return joined


@aten("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    joined: Tensor = join_new(together(*tensors), dim)
    return joined


@aten("roll")
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    return arrays.roll(self, list(shifts) if dims else shifts[0], list(dims) or None)


@aten("diagonal", "diagonal_copy")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim1 % self.ndim, dim2 % self.ndim
    rest = [i for i in range(self.ndim) if i not in (a, b)]
    x = self.permute([*rest, a, b])
    n, m = x.shape[-2:]
    rows, columns = max(-offset, 0), max(offset, 0)
    count = max(min(n - rows, m - columns), 0)
    flat = x.reshape((*x.shape[:-2], n * m))
    first = rows * m + columns
    return flat[..., first : first + max((count - 1) * (m + 1) + 1, 0) : m + 1] if count else (
        flat.narrow(-1, 0, 0)
    )  # fmt: skip


# -- the same elements


@aten("clone", "contiguous", "alias", "alias_copy", "lift_fresh_copy", "lift_fresh")
def same(self: Tensor) -> Tensor:
    return self


@aten("_to_copy", "to.device", "to.dtype", "to.dtype_layout", "type_as", "to.other")
def to(self: Tensor, *options: Any, dtype: DType | None = None, **rest: Any) -> Tensor:
    """Another dtype, where one is named (devices are weft's to choose)."""
    for option in options:
        if isinstance(option, DType | Tensor):
            dtype = option if isinstance(option, DType) else option.dtype
    other = rest.get("other")
    return self.cast(other.dtype if isinstance(other, Tensor) else dtype)


@aten("copy")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.cast(self.dtype).expand(self.shape)


# -- padding


@aten("constant_pad_nd")
def constant_pad(self: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    return F.pad(self, pad, "constant", value)


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(self, padding, "reflect")


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(self, padding, "replicate")


@aten("pad")
def pad(
    self: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    return F.pad(self, pad, mode, value or 0)


# -- writing a part, and getting a new whole


@aten("slice_scatter")
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    d = dim % self.ndim
    n = self.shape[d]
    begin, stop = span(n, start, end)
    src = src.cast(self.dtype)
    if step == 1:
        parts = (self.narrow(d, 0, begin), src, self.narrow(d, stop, n - stop))
        joined: Tensor = join([p for p in parts if p.shape[d]] or [self], d)
        return joined
    order = np.zeros(n, np.int32)
    taken = range(begin, stop, step)
    order[:] = np.arange(n)
    order[taken] = n + np.arange(len(taken))
    joined = join([self, src], d)
    return joined.take(order, d)


@aten("select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    d = dim % self.ndim
    i = index % self.shape[d]
    return slice_scatter(self, src.unsqueeze(d), d, i, i + 1)


@aten("channel_shuffle")
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    return F.channel_shuffle(self, groups)


@aten("one_hot")
def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise ShapeError("one_hot without num_classes: the result's shape depends on values")
    return F.one_hot(self, num_classes, dt.int32)
