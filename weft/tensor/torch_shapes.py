"""Methods of Tensor under PyTorch's names that move, pick, scatter and reduce elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from weft.core.dtypes import as_dtype, int32
from weft.core.errors import ShapeError, UsageError
from weft.ops.rules import axes_of, axis_of, integers
from weft.tensor.base import TensorBase
from weft.tensor.keys import index_array, out_of_range
from weft.tensor.rebinding import resize, turn
from weft.tensor.reductions import Axes
from weft.tensor.torch_names import Named, function, in_place

_scatter_add: Any = function("scatter_add", "functional")
_vector_norm: Any = function("vector_norm", "functional")


def reshaped(name: str) -> Any:
    """The method `name`, as whose result this tensor goes on. Its other views stay as they are."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return turn(f"{name}_", self, lambda t: getattr(t, name)(*args, **kwargs))

    method.__doc__ = f"Becomes the result of `{name}`; views of this tensor stay as they are."
    return method


class TorchNames(Named):
    """Movement, picking, scattering, reductions and products."""

    __slots__ = ()

    # -- movement

    def clone(self) -> Self:
        """A copy, through which gradients flow."""
        return self._fresh()

    def t(self) -> Self:
        """A matrix transposed; a vector or number as it is."""
        if self.ndim > 2:
            raise ShapeError(f"t: {self._known()} has {self.ndim} axes, expected at most 2")
        return self.T

    def repeat(self, *counts: int | Sequence[int]) -> Self:
        """The tensor repeated along each axis, new ones first (NumPy's tile)."""
        given = integers("repeat", "each count", counts[0] if len(counts) == 1 else counts)
        if len(given) < self.ndim:
            raise ShapeError(f"repeat: {list(given)} for {self.ndim} axes; give one per axis")
        made: Self = self.tile(given)
        return made

    t_ = reshaped("t")
    transpose_ = swapaxes_ = swapdims_ = reshaped("transpose")
    squeeze_ = reshaped("squeeze")
    unsqueeze_ = reshaped("unsqueeze")

    def resize_(self, *shape: int | Sequence[int]) -> Self:
        """Takes another shape: the first elements, and zeros after the last one. Raises UsageError
        for more elements of a tensor that shares its memory."""
        sizes = integers("resize_", "sizes", shape[0] if len(shape) == 1 else shape)
        made: Self = resize(self, sizes)
        return made

    tile = function("tile", "arrays")
    roll = function("roll", "arrays")
    moveaxis = movedim = function("moveaxis", "arrays")
    swapaxes = swapdims = Named.transpose
    tril = function("tril", "create")
    triu = function("triu", "create")

    def expand_as(self, other: TensorBase) -> Self:
        """Expanded to another tensor's shape."""
        return self.expand(other.shape)

    def view_as(self, other: TensorBase) -> Self:
        """Reshaped to another tensor's shape."""
        return self.reshape(other.shape)

    reshape_as = view_as

    def ravel(self) -> Self:
        """All axes merged into one."""
        return self.reshape(-1)

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """An axis divided into axes of the given sizes, one of which may be -1."""
        a = axis_of("unflatten", axis, self.ndim)
        given, n = list(integers("unflatten", "each size", sizes)), self.shape[a]
        known = math.prod(d for d in given if d >= 0)
        if given.count(-1) > 1 or (n % known if -1 in given and known else n != known):
            raise ShapeError(f"unflatten: sizes {given} do not divide axis {a} of {n}")
        whole = [n // known if d == -1 and known else d for d in given]
        return self.reshape((*self.shape[:a], *whole, *self.shape[a + 1 :]))

    def unbind(self, axis: int = 0) -> tuple[Self, ...]:
        """The slices along an axis, without it."""
        a = axis_of("unbind", axis, self.ndim)
        return tuple(self.select(a, i) for i in range(self.shape[a]))

    def select(self, axis: int, index: int) -> Self:
        """The slice at `index` of an axis, a view without the axis."""
        a = axis_of("select", axis, self.ndim)
        return self[(*[slice(None)] * a, index)]

    def diagonal(self, offset: int = 0, a: int = 0, b: int = 1) -> Self:
        """The elements [i, i + offset] of axes a and b, as the last axis of a copy."""
        i, j = axes_of("diagonal", (a, b), self.ndim)
        moved = self.permute([k for k in range(self.ndim) if k not in (i, j)] + [i, j])
        rows, columns = moved.shape[-2:]
        first, up = max(-offset, 0), max(offset, 0)
        count = max(min(rows - first, columns - up), 0)
        at = (first + np.arange(count)) * columns + up + np.arange(count)
        flat = moved.reshape((*moved.shape[:-2], rows * columns))
        return flat.take(at.astype(np.int32), -1)

    def fliplr(self) -> Self:
        """Axis 1 reversed."""
        return self.flip(1)

    def flipud(self) -> Self:
        """Axis 0 reversed."""
        return self.flip(0)

    # -- new tensors of the same dtype and place

    def new_full(self, size: Sequence[int], fill_value: Any, dtype: Any = None) -> Self:
        """A tensor of this dtype (or another) and device with one value."""
        made = self._full(fill_value, as_dtype(dtype) if dtype else self.dtype, tuple(size))
        return made._fresh()

    def new_zeros(self, *size: Any, dtype: Any = None) -> Self:
        """A tensor of zeros; see `new_full`."""
        return self.new_full(size[0] if len(size) == 1 and _many(size[0]) else size, 0, dtype)

    def new_ones(self, *size: Any, dtype: Any = None) -> Self:
        """A tensor of ones; see `new_full`."""
        return self.new_full(size[0] if len(size) == 1 and _many(size[0]) else size, 1, dtype)

    # -- picking and scattering

    take_along_dim = Named.take_along_axis

    def index_select(self, axis: int, index: Any) -> Self:
        """The slices at these indices of an axis; see `take`."""
        return self.take(index, axis)

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value` where `mask` holds, else this tensor."""
        filled = value.cast(self.dtype) if isinstance(value, Named) else value
        made: Self = mask.where(filled, self)
        return made

    def masked_select(self, mask: Any) -> Self:
        """The elements where `mask` holds, as a vector; not inside weft.compile."""
        shape = np.broadcast_shapes(self.shape, mask.shape)
        return self.expand(shape)[mask.expand(shape)]

    def scatter(self, axis: int, index: Any, src: Any) -> Self:
        """A copy in which element `index` of the axis is that of `src` (a tensor of the index's
        shape, or a number), position by position. If indices repeat, any value may win in PyTorch;
        here the last does."""
        a = axis_of("scatter", axis, self.ndim)
        given: Any = src if isinstance(src, TensorBase) else self.new_full(index.shape, src)
        places = _along(self, a, index)
        out = self.clone()
        out[places] = given[tuple(slice(n) for n in index.shape)].cast(self.dtype)
        return out

    def scatter_add(self, axis: int, index: Any, src: Any) -> Self:
        """A copy to which `src` is added at `index` of the axis, position by position; indices as
        in `weft.take`."""
        a = axis_of("scatter_add", axis, self.ndim)
        index = index_array(self, index, self.shape[a])
        if self.ndim and _but(index.shape, a) == _but(self.shape, a) == _but(src.shape, a):
            new = src.narrow(a, 0, index.shape[a])
            moved = (v.moveaxis(a, 0) for v in (self, index, new))
            added: Self = _scatter_add(*moved).moveaxis(0, a)
            return added
        wrong, place = out_of_range(index, self.shape[a]), index * 0
        for k, at in enumerate(_along(self, a, index)):
            place = place + at * math.prod(self.shape[k + 1 :])
        place = place if wrong is None else wrong.where(-1, place)
        new = src[tuple(slice(n) for n in index.shape)].reshape(-1)
        made: Self = _scatter_add(self.reshape(-1), place.reshape(-1), new).reshape(self.shape)
        return made

    def index_add(self, axis: int, index: Any, source: Any, alpha: Any = 1) -> Self:
        """A copy to which slices of `source` are added at these indices of an axis; indices as in
        `weft.take`."""
        a = axis_of("index_add", axis, self.ndim)
        new = (source if alpha == 1 else source * alpha).moveaxis(a, 0)
        at = index_array(self, index, self.shape[a])
        made: Self = _scatter_add(self.moveaxis(a, 0), at, new).moveaxis(0, a)
        return made

    # -- reductions

    def amax(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """The largest over axes; see `max`."""
        return self.max(axis, keepdims)

    def amin(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """The smallest over axes; see `min`."""
        return self.min(axis, keepdims)

    def norm(self, p: float | str = 2, axis: Axes = None, keepdims: bool = False) -> Self:
        """(sum of |x|^p)^(1 / p) over axes (all by default); p is 2, "fro" or any number. Not the
        spectral and nuclear norms of matrices."""
        if isinstance(p, str):
            if p != "fro":
                raise UsageError(f'norm: p is {p!r}; expected a number or "fro"')
            p = 2
        made: Self = _vector_norm(self, p, axes_of("norm", axis, self.ndim), keepdims)
        return made

    count_nonzero = function("count_nonzero", "folding")
    diff = function("diff", "folding")
    logsumexp = function("logsumexp", "special")

    def trace(self) -> Self:
        """The sum of a matrix's diagonal."""
        if self.ndim != 2:
            raise ShapeError(f"trace: {self._known()} has {self.ndim} axes, expected 2")
        return self.diagonal().sum()

    def equal(self, other: TensorBase) -> bool:
        """True if shapes and all elements are equal; not inside weft.compile. (`weft.equal` follows
        the array API: it compares element by element.)"""
        return self.shape == other.shape and bool((self == other).all())

    def allclose(self, other: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """True if |self - other| <= atol + rtol |other| everywhere; not inside weft.compile."""
        return bool(self.isclose(other, rtol, atol).all())

    def isclose(self, other: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Self:
        """True where |self - other| <= atol + rtol |other|, or both are the same infinity."""
        near: Self = (self - other).abs() <= atol + abs(other) * rtol
        both: Self = (self == other) | (near & self.isfinite())
        return both

    # -- products

    def mm(self, other: Any) -> Self:
        """The product of two matrices."""
        return self._product("mm", other, 2, 2)

    def bmm(self, other: Any) -> Self:
        """The products of two batches of matrices."""
        return self._product("bmm", other, 3, 3)

    def mv(self, vector: Any) -> Self:
        """A matrix times a vector."""
        return self._product("mv", vector, 2, 1)

    def dot(self, other: Any) -> Self:
        """The sum of products of two vectors."""
        return self._product("dot", other, 1, 1)

    def _product(self, name: str, other: Any, left: int, right: int) -> Self:
        if self.ndim != left or other.ndim != right:
            raise ShapeError(
                f"{name}: {self._known()} and {other._known()}; expected {left} and {right} axes"
            )
        made: Self = self @ other
        return made

    def outer(self, other: Any) -> Self:
        """All products of two vectors, [N, M]."""
        made: Self = self.reshape((-1, 1)) * other.reshape((1, -1))
        return made

    def addmm(self, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Self:
        """beta * self + alpha * (a @ b)."""
        made: Self = a @ b * alpha if alpha != 1 else a @ b
        return made + (self if beta == 1 else self * beta)

    addmv = baddbmm = addmm

    masked_fill_ = in_place("masked_fill")
    scatter_ = in_place("scatter")
    scatter_add_ = in_place("scatter_add")
    index_add_ = in_place("index_add")


def _many(size: Any) -> bool:
    return isinstance(size, Sequence)


def _but(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """The lengths of all axes but one."""
    return (*shape[:axis], *shape[axis + 1 :])


def _along(x: TensorBase, axis: int, index: Any) -> tuple[Any, ...]:
    """Returns one index tensor of index.shape for each axis of x: `index` itself for `axis`."""
    if index.ndim != x.ndim or any(n > x.shape[k] for k, n in enumerate(index.shape) if k != axis):
        raise ShapeError(f"index {index._known()} does not fit {x._known()} but for axis {axis}")
    grids = np.indices(index.shape, np.int32, sparse=True)
    at = index.cast(int32)
    return tuple(at if k == axis else at * 0 + grids[k] for k in range(x.ndim))
