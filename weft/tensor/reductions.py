"""Reductions, products and orderings of Tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype, promote
from weft.core.errors import DTypeError, ShapeError
from weft.host.boundary import torch_form
from weft.ops.reduce import refuse_empty
from weft.ops.rules import axes_of, axis_of
from weft.tensor.autocast import narrowed
from weft.tensor.base import broadcast_shapes, default_float, run, values
from weft.tensor.shapes import Movement

Axes = int | Sequence[int] | None


class Picked(NamedTuple):
    """The result of PyTorch's max, min and sort: elements, and their indices on the axis."""

    values: Any
    indices: Any


def _extreme_along(name: str) -> Any:
    def form(self: Any, dim: int, keepdim: bool = False) -> Picked:
        at = getattr(self, name)(dim, True)
        found = Picked(self._along(at, axis_of(name, dim, self.ndim)), at)
        return found if keepdim else Picked(*(x.squeeze(dim) for x in found))

    return form


def _sort_along(self: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Picked:
    order = self.argsort(dim, descending=descending)
    return Picked(self._along(order, axis_of("sort", dim, self.ndim)), order)


def _variance_along(name: str) -> Any:
    def form(self: Any, dim: Axes = None, keepdim: bool = False, **options: Any) -> Any:
        unbiased = options.pop("unbiased", True)
        correction = options.pop("correction", 1 if unbiased else 0)
        return getattr(self, name)(dim, keepdim, correction, **options)

    return form


class Reductions(Movement):
    """Sums, extremes, products, matmul and sorting."""

    __slots__ = ()

    def _axes(self, op: str, axis: Axes) -> tuple[int, ...]:
        return tuple(sorted(axes_of(op, axis, self.ndim)))

    def _kept(self, reduced: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        if not keepdims:
            return reduced
        return reduced.reshape([1 if i in axes else d for i, d in enumerate(self.shape)])

    def _reduce(self, op: str, axis: Axes, keepdims: bool, called: str = "") -> Self:
        """`op` over the axes; errors name `called`, the user's method (default: op)."""
        axes = self._axes(called or op, axis)
        if not axes:
            return self._fresh()
        if op == "max":
            refuse_empty(called or op, self.shape, axes)
        out: Self = self._kept(run(self, op, self, axes=axes), axes, keepdims)
        return out

    def sum(
        self, axis: Axes = None, keepdims: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """The sum over the axes (all by default). bool and integers of 8 and 16 bits are summed in
        int32, unsigned ones in uint32; f16 and bf16 accumulate in f32 and round once."""
        return self._as(self._summed(dtype))._reduce("sum", axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """The average (float32 of integers); NaN over no elements. f16 and bf16 in f32."""
        n = math.prod(self.shape[a] for a in self._axes("mean", axis))
        x = self._as(dt.compute_dtype(default_float(self.dtype)))
        mean = x.sum(axis, keepdims) * (1.0 / n if n else math.nan)
        return mean._as(default_float(self.dtype))

    @torch_form(_variance_along("var"))
    def var(self, axis: Axes = None, keepdims: bool = False, correction: float = 0) -> Self:
        """The mean squared deviation, divided by n - correction."""
        return self._variance("var", axis, keepdims, correction)

    def _variance(self, called: str, axis: Axes, keepdims: bool, correction: float) -> Self:
        n = math.prod(self.shape[a] for a in self._axes(called, axis))
        x = self._as(dt.compute_dtype(default_float(self.dtype)))
        centred = x - x.mean(axis, keepdims=True)
        total = (centred * centred).sum(axis, keepdims)
        out = total * (1.0 / (n - correction) if n - correction > 0 else math.nan)
        return out._as(default_float(self.dtype))

    @torch_form(_variance_along("std"))
    def std(self, axis: Axes = None, keepdims: bool = False, correction: float = 0) -> Self:
        """The square root of var, computed in float32 for narrow floats."""
        dtype = default_float(self.dtype)
        var = self._as(dt.compute_dtype(dtype))._variance("std", axis, keepdims, correction)
        return var._length()._as(dtype)

    @torch_form(_extreme_along("argmax"))
    def max(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """The largest; NaN wins. Raises ShapeError over no elements."""
        return self._as_number()._reduce("max", axis, keepdims)._as(self.dtype)

    @torch_form(_extreme_along("argmin"))
    def min(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """The smallest; NaN wins. Raises ShapeError over no elements."""
        x = self._mirror()
        return x._reduce("max", axis, keepdims, "min")._unmirror(self.dtype)

    def _as_number(self) -> Self:
        return self._as(dt.int32) if self.dtype == dt.bool_ else self

    def _mirror(self) -> Self:
        """Order reversed without overflow: -x for floats, every bit flipped for integers."""
        x = self._as_number()
        return -x if x.dtype.is_float else ~x

    def _unmirror(self, dtype: DType) -> Self:
        return (-self if self.dtype.is_float else ~self)._as(dtype)

    def any(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """True if any element is not zero (bool); False over none."""
        return self._as(dt.bool_)._any("any", axis, keepdims)

    def _any(self, called: str, axis: Axes, keepdims: bool) -> Self:
        return self._as(dt.int32)._reduce("sum", axis, keepdims, called)._as(dt.bool_)

    def all(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """True if every element is not zero (bool); True over none."""
        return ~(~self._as(dt.bool_))._any("all", axis, keepdims)

    def prod(
        self, axis: Axes = None, keepdims: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """The product over the axes (all by default), in the dtypes of `sum`; f16 and bf16 are
        multiplied in f32 and rounded once. No partial product overflows: only the result."""
        x = self._as(self._summed(dtype))
        axes = x._axes("prod", axis)
        if not axes:
            return x._fresh()
        out: Self = x._kept(x._wrap(ops.prod(x.value, axes)), axes, keepdims)
        return out

    def _summed(self, dtype: DType | str | None) -> DType:
        """The dtype that sums and products of this tensor use, unless a dtype is named."""
        if dtype is not None:
            return as_dtype(dtype)
        if self.dtype.is_float or self.dtype.itemsize >= 4:
            return self.dtype
        return dt.uint32 if self.dtype.kind == "uint" else dt.int32

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The first index (int32) of the largest, along an axis or in the flattened tensor."""
        return self._as_number()._arg("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The first index (int32) of the smallest, along an axis or in the flattened tensor."""
        return self._mirror()._arg("argmin", axis, keepdims)

    def _arg(self, called: str, axis: int | None, keepdims: bool) -> Self:
        over = range(self.ndim) if axis is None else [axis_of(called, axis, self.ndim)]
        refuse_empty(called, self.shape, over)
        if axis is None:
            found: Self = run(
                self, "argmax", self.reshape(-1) if self.size else self.flatten(), axis=0
            )
            return found.reshape([1] * self.ndim) if keepdims else found
        out: Self = self._kept(run(self, "argmax", self, axis=over[0]), (over[0],), keepdims)
        return out

    def softmax(self, axis: int = -1) -> Self:
        """exp(x - max) / sum along an axis."""
        return self._along_last("softmax", axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """x - max - log(sum(exp(x - max))) along an axis."""
        return self._along_last("log_softmax", axis)

    def _along_last(self, name: str, axis: int) -> Self:
        a = axis_of(name, axis, self.ndim)
        x = self._as(default_float(self.dtype))
        if a == self.ndim - 1:
            return x._call(name)
        return x.transpose(a, -1)._call(name).transpose(a, -1)

    # -- running

    def cumsum(self, axis: int, dtype: DType | str | None = None) -> Self:
        """Running sums along an axis, in the dtypes of `sum`; f16 and bf16 are added in f32, each
        sum rounded once."""
        return self._as(self._summed(dtype))._running("cumsum", "sum", axis)

    def cumprod(self, axis: int, dtype: DType | str | None = None) -> Self:
        """Running products along an axis, in the dtypes of cumsum."""
        return self._as(self._summed(dtype))._running("cumprod", "prod", axis)

    def cummax(self, axis: int) -> tuple[Self, Self]:
        """The largest so far along an axis (NaN wins), and its last index so far (int32)."""
        return self._extreme("cummax", "max", axis)

    def cummin(self, axis: int) -> tuple[Self, Self]:
        """The smallest so far along an axis (NaN wins), and its last index so far (int32)."""
        return self._extreme("cummin", "min", axis)

    def logcumsumexp(self, axis: int) -> Self:
        """log(cumsum(exp(x))) along an axis, for x of any size; integers give float32."""
        x = self._as(default_float(self.dtype))
        a = axis_of("logcumsumexp", axis, self.ndim)
        return self._wrap(ops.call("logcumsumexp", x.value, axis=a))

    def _running(self, name: str, op: str, axis: int, exclusive: bool = False) -> Self:
        a = axis_of(name, axis, self.ndim)
        return self._wrap(ops.scan(self.value, op, a, exclusive))

    def _extreme(self, name: str, op: str, axis: int) -> tuple[Self, Self]:
        a = axis_of(name, axis, self.ndim)
        x = self._as_number()
        found = x._running(name, op, a)
        won: Self = x == found
        won = won | x.isnan() if x.dtype.is_float else won
        index = self._wrap(ops.iota(self.shape, a, dt.int32))
        index._weak = True  # the index may meet tensors of any device
        return found._as(self.dtype), won.where(index, 0)._running(name, "max", a)

    # -- products

    def __matmul__(self, other: Any) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Self:
        y = self._coerce("matmul", other)
        if not isinstance(y, Reductions):
            raise DTypeError("matmul: a number is not a matrix; use * to scale")
        return y.matmul(self)

    def matmul(self, other: Any, out_dtype: DType | str | None = None) -> Self:
        """Matrix product with NumPy's rules for vectors and batches, in the promoted dtype or in
        `out_dtype`. Floats accumulate in f32. 8-bit integers accumulate in int32 and wrap in their
        own dtype: out_dtype="int32" keeps the sums."""
        y = self._coerce("matmul", other)
        if not isinstance(y, Reductions):
            raise DTypeError("matmul: a number is not a matrix; use * to scale")
        out_dtype = None if out_dtype is None else as_dtype(out_dtype)
        x, y = narrowed(self, y)
        dtype = promote(x.dtype, y.dtype)
        bytes_ = x.dtype.itemsize == y.dtype.itemsize == 1 and dtype.is_int
        if bytes_ and out_dtype is None:
            return x.matmul(y, dt.int32).cast(dtype)  # type: ignore[no-any-return]
        x, y = (x, y) if bytes_ else (x._as(dtype), y._as(dtype))
        if not x.ndim or not y.ndim:
            raise ShapeError("matmul: a 0-d tensor is not a matrix; use * to scale")
        left, right = x.ndim == 1, y.ndim == 1
        x = x.unsqueeze(0) if left else x
        y = y.unsqueeze(1) if right else y
        out: Self = x._matmul(y, out_dtype)
        if left and right:
            return out.reshape(out.shape[:-2])
        return out.squeeze(-2) if left else out.squeeze(-1) if right else out

    def _matmul(self, y: Any, out_dtype: DType | None) -> Self:
        if self.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"matmul: {list(self.shape)} @ {list(y.shape)}: the last axis of the first "
                f"({self.shape[-1]}) must equal the second-last of the second ({y.shape[-2]})"
            )
        if y.ndim == 2 and self.ndim > 2:  # one matrix for all: merge the batch into the rows
            rows = self.reshape((math.prod(self.shape[:-1]), self.shape[-1]))
            out = rows._matmul(y, out_dtype)
            return out.reshape((*self.shape[:-1], y.shape[-1]))
        batch = broadcast_shapes("matmul", self.shape[:-2], y.shape[:-2])
        a = self._to_shape((*batch, *self.shape[-2:]))
        b = y._to_shape((*batch, *y.shape[-2:]))
        left, right = values("matmul", (a, b))
        return self._wrap(ops.dot(left, right, out_dtype))

    # -- order

    @torch_form(_sort_along)
    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """Sorted along an axis; NaN counts as the largest."""
        return self._sort(axis, descending, False)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """The indices (int32) that sort along an axis; equal elements keep their order."""
        return self._sort(axis, descending, True)

    def _sort(self, axis: int, descending: bool, indices: bool) -> Self:
        if not self.ndim:
            return self._as(dt.int32) * 0 if indices else self._fresh()
        a = axis_of("argsort" if indices else "sort", axis, self.ndim)
        x = self._as_number()
        out = self._wrap(ops.sort(x.value, a, descending, indices))
        return out if indices else out._as(self.dtype)
