"""Movement methods of Tensor: they rename elements and copy none where the device allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np

from weft import ops
from weft.core.dtypes import promote
from weft.core.errors import ShapeError
from weft.host.boundary import torch_form
from weft.ops.rules import axes_of, axis_of, integers
from weft.tensor import views
from weft.tensor.arith import Arithmetic
from weft.tensor.base import broadcast_shapes, check_devices, values
from weft.tensor.played import played

T = TypeVar("T", bound="Movement")


def _shape_args(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """reshape(2, 3) and reshape((2, 3)) alike."""
    return integers("a shape", "each size", shape[0] if len(shape) == 1 else shape)


def _squeezed_along(self: Any, dim: int | Sequence[int]) -> Any:
    """PyTorch's squeeze(dim): axes of other sizes stay."""
    named = axes_of("squeeze", dim, self.ndim)
    return self.squeeze([a for a in named if self.shape[a] == 1])


class Movement(Arithmetic):
    """Reshaping, reordering, repeating, joining and cutting."""

    __slots__ = ()

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The same elements in row-major order; one size may be -1. A view, or a copy where
        PyTorch copies: of a transposed tensor whose axes are merged."""
        out, old = self._wrap(ops.reshape(self.value, _shape_args(shape))), self.shape
        strides = views.restrided(old, views.strides(self), out.shape)
        if strides is None:
            return out
        new = out.shape
        made: Self = views.link(
            out, self, lambda v: ops.reshape(v, new), lambda _, v: v.reshape(old), strides
        )
        return made

    view = reshape

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Axes start..end merged into one."""
        if not self.ndim:
            return self.reshape(1)
        a, z = axis_of("flatten", start, self.ndim), axis_of("flatten", end, self.ndim)
        merged = math.prod(self.shape[a : z + 1])
        return self.reshape((*self.shape[:a], merged, *self.shape[z + 1 :]))

    def permute(self, *axes: int | Sequence[int]) -> Self:
        """Axis i of the result is axis axes[i]; a view."""
        return self._permuted(axes_of("permute", _shape_args(axes), self.ndim))

    def _permuted(self, order: Sequence[int]) -> Self:
        out = self._wrap(ops.transpose(self.value, order))
        back = [list(order).index(a) for a in range(self.ndim)]
        old = views.strides(self)
        made: Self = views.link(
            out,
            self,
            lambda v: ops.transpose(v, order),
            lambda _, v: v._permuted(back),
            tuple(old[a] for a in order),
        )
        return made

    def transpose(self, a: int, b: int) -> Self:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        i, j = axis_of("transpose", a, self.ndim), axis_of("transpose", b, self.ndim)
        order[i], order[j] = order[j], order[i]
        return self.permute(order)

    @property
    def T(self) -> Self:
        """All axes reversed: a matrix transposed."""
        return self._permuted(range(self.ndim)[::-1])

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self.transpose(-1, -2)

    @torch_form(_squeezed_along)
    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Without axes of size 1: all of them, or those named (which must have size 1)."""
        if axis is None:
            return self.reshape([d for d in self.shape if d != 1])
        gone = axes_of("squeeze", axis, self.ndim)
        for a in gone:
            if self.shape[a] != 1:
                raise ShapeError(
                    f"squeeze: axis {a} of {list(self.shape)} has size {self.shape[a]}"
                )
        return self.reshape([d for i, d in enumerate(self.shape) if i not in gone])

    def unsqueeze(self, axis: int) -> Self:
        """A new axis of size 1 at position `axis` of the result."""
        a = axis_of("unsqueeze", axis, self.ndim + 1)
        return self.reshape((*self.shape[:a], 1, *self.shape[a:]))

    def expand(self, *shape: int | Sequence[int]) -> Self:
        """Repeated along size-1 and new leading axes; -1 keeps a size."""
        wanted = list(_shape_args(shape))
        lead = len(wanted) - self.ndim
        for i, d in enumerate(wanted):
            if d == -1 and i >= lead:
                wanted[i] = self.shape[i - lead]
        out = self._wrap(ops.broadcast(self.value, wanted))
        old, own = views.strides(self), self.shape
        kept = (s if d == e else 0 for s, d, e in zip(old, own, out.shape[lead:]))
        made: Self = views.link(
            out, self, lambda v: ops.broadcast(v, wanted), _shrunk, (*(0,) * lead, *kept)
        )
        return made

    broadcast_to = expand

    def flip(self, *axes: int | Sequence[int]) -> Self:
        """Reversed along the axes: all by default, none for an empty sequence."""
        given = _shape_args(axes) if axes else tuple(range(self.ndim))
        turned = axes_of("flip", given, self.ndim)
        starts, stops, steps = [0] * self.ndim, list(self.shape), [1] * self.ndim
        for a in turned:
            starts[a], stops[a], steps[a] = self.shape[a] - 1, -1, -1
        if 0 in self.shape:
            return self._fresh()
        return self._wrap(ops.slice_(self.value, starts, stops, steps))

    def pad(self, widths: Sequence[tuple[int, int]], value: float = 0) -> Self:
        """`value` added before and after: one (low, high) per axis, as numpy.pad takes them."""
        if len(widths) != self.ndim:
            raise ShapeError(f"pad: {len(widths)} widths for {self.ndim} axes; give one per axis")
        low, high = [w[0] for w in widths], [w[1] for w in widths]
        return self._wrap(ops.pad(self.value, low, high, value))

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> tuple[Self, ...]:
        """Pieces along an axis: all of one size (the last may be smaller), or one size per
        piece."""
        a = axis_of("split", axis, self.ndim)
        n = self.shape[a]
        each = integers("split", "sizes", sizes)
        if not isinstance(sizes, Sequence | np.ndarray):
            if each[0] < 1:
                raise ShapeError(f"split: pieces have a size of at least 1, not {sizes}")
            each = tuple(min(each[0], n - i) for i in range(0, n, each[0])) or (0,)
        if sum(each) != n:
            raise ShapeError(f"split: sizes {list(each)} add up to {sum(each)}, axis {a} has {n}")
        pieces, start = [], 0
        for size in each:
            pieces.append(self.narrow(a, start, size))
            start += size
        return tuple(pieces)

    def chunk(self, count: int, axis: int = 0) -> tuple[Self, ...]:
        """At most `count` pieces of equal size (the last may be smaller)."""
        if count < 1:
            raise ShapeError(f"chunk: give at least 1 piece, not {count}")
        size = self.shape[axis_of("chunk", axis, self.ndim)]
        return self.split(max(-(-size // count), 1), axis)

    def narrow(self, axis: int, start: int, length: int) -> Self:
        """Elements start..start+length-1 along one axis."""
        a = axis_of("narrow", axis, self.ndim)
        start, length = integers("narrow", "start or length", (start, length))
        if start < 0 or length < 0 or start + length > self.shape[a]:
            raise ShapeError(
                f"narrow: {start}..{start + length} leaves axis {a} of size {self.shape[a]}"
            )
        starts, stops = [0] * self.ndim, list(self.shape)
        starts[a], stops[a] = start, start + length
        out = self._wrap(ops.slice_(self.value, starts, stops))
        key = tuple(map(slice, starts, stops))
        made: Self = views.link(
            out,
            self,
            lambda v: ops.slice_(v, starts, stops),
            lambda base, v: base._replaced(key, v),
            views.strides(self),
        )
        return made

    def repeat_interleave(self, repeats: int, axis: int) -> Self:
        """Each slice along an axis repeated this many times, side by side."""
        a = axis_of("repeat_interleave", axis, self.ndim)
        (repeats,) = integers("repeat_interleave", "repeats", (repeats,))
        split = (*self.shape[: a + 1], 1, *self.shape[a + 1 :])
        wide = (*self.shape[: a + 1], repeats, *self.shape[a + 1 :])
        out = (*self.shape[:a], self.shape[a] * repeats, *self.shape[a + 1 :])
        return self.reshape(split).expand(wide).reshape(out)._fresh()

    def contiguous(self) -> Self:
        """This tensor, or a copy where PyTorch copies: of a transposed or cut one."""
        plain = views.is_contiguous(self.shape, views.strides(self))
        return self if plain else self._fresh()


def _shrunk(base: Any, new: Any) -> Any:
    """The value that a write to an expanded view gives its base, if each element occurs there
    once."""
    if math.prod(base.shape) != math.prod(new.shape):
        raise ShapeError(
            f"assign: an expanded view {list(new.shape)} shows elements of {list(base.shape)} "
            "several times; write to the tensor itself, or to a copy: x + 0"
        )
    return new.reshape(base.shape)


@played
def cat(tensors: Sequence[T], axis: int = 0) -> T:
    """Tensors joined along an axis, in their promoted dtype. Raises ShapeError for none, and for
    shapes that differ along another axis.

    >>> weft.cat([weft.tensor([1, 2]), weft.tensor([3])]).tolist()
    [1, 2, 3]
    """
    if not tensors:
        raise ShapeError("cat: nothing to join; give at least one tensor")
    dtype = tensors[0].dtype
    for t in tensors[1:]:
        dtype = promote(dtype, t.dtype)
    same = [t.cast(dtype) for t in tensors]
    return tensors[0]._wrap(ops.concat(values("cat", same), axis))


@played
def stack(tensors: Sequence[T], axis: int = 0) -> T:
    """Tensors of one shape joined along a new axis. Raises ShapeError.

    >>> weft.stack([weft.tensor([1, 2]), weft.tensor([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    for t in tensors[1:]:
        if t.shape != tensors[0].shape:
            raise ShapeError(f"stack: shapes {list(tensors[0].shape)} and {list(t.shape)} differ")
    return cat([t.unsqueeze(axis) for t in tensors], axis)


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """The tensors expanded to their common shape."""
    check_devices("broadcast_tensors", tensors)
    shape = broadcast_shapes("broadcast_tensors", *(t.shape for t in tensors))
    return tuple(t.expand(shape) for t in tensors)
