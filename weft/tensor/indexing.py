"""Indexing of Tensor: x[...], x[...] = value, gather, take_along_axis, embedding rows."""

from __future__ import annotations

import math
from typing import Any, Self
from weakref import ref

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, GradientError, ShapeError
from weft.ops.batching import frames
from weft.ops.primitive import is_wrapper, reads_values
from weft.ops.rules import axis_of, countable
from weft.ops.tape import Tracked, plain, recording
from weft.tensor import views
from weft.tensor.base import CURRENT, TensorBase, broadcast_shapes, check_devices, run, values
from weft.tensor.keys import (
    axes_taken,
    canonical,
    host_key,
    index_array,
    integer,
    is_int,
    is_mask,
    is_switch,
    out_of_range,
    place_like,
)
from weft.tensor.reductions import Reductions

_FULL = slice(None)


class Indexing(Reductions):
    """Basic and integer-array indexing, and updates."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        if is_switch(key):  # one more axis in front, as long as the mask is true
            return self.unsqueeze(0)[[0] if self._held(key) else []]
        keys = self._expand_key(key)
        x, arrays = self._basic(keys)
        return x._advanced(arrays) if arrays else self._linked(x, keys)

    def _linked(self, x: Self, keys: list[Any]) -> Self:
        """The view that basic keys cut out."""
        old, own, axis = views.strides(self), self.shape, 0
        starts, stops, steps = [], [], []
        strides: list[int] = []
        for k in keys:
            if k is None:
                strides.append(0)
                continue
            if isinstance(k, slice):
                a, z, s = canonical(k, own[axis])
                strides.append(old[axis] * s)
            else:
                a, s = integer(int(k), own[axis], axis, own), 1
                z = a + 1
            starts.append(a)
            stops.append(z)
            steps.append(s)
            axis += 1
        shape, key = x.shape, tuple(keys)

        def take(value: Any) -> Any:
            cut = ops.slice_(value, starts, stops, steps) if starts else value
            return ops.reshape(cut, shape)

        made: Self = views.link(
            x, self, take, lambda base, v: base._replaced(key, v), tuple(strides)
        )
        return made

    def _held(self, mask: Any) -> bool:
        """The value of a 0-d mask."""
        t = mask if isinstance(mask, TensorBase) else self._wrap(np.asarray(mask))
        return bool(t._host("indexing with a boolean mask"))

    def _expand_key(self, key: Any) -> list[Any]:
        """One entry per axis, with None for new axes; boolean masks become index arrays."""
        keys = list(key) if isinstance(key, tuple) else [key]
        flat: list[Any] = []
        for i, k in enumerate(keys):
            flat += self._mask_indices(k, keys, i) if is_mask(k) else [k]
        used = sum(k is not None and k is not Ellipsis for k in flat)
        dots = [i for i, k in enumerate(flat) if k is Ellipsis]
        if len(dots) > 1 or used > self.ndim:
            raise ShapeError(
                f"index: {used} indices and {len(dots)} ellipses for {self.ndim} axes of "
                f"{list(self.shape)}"
            )
        if any(isinstance(k, TensorBase | np.ndarray | list) for k in flat):  # NumPy joins a plain
            flat = [np.asarray(k) if is_int(k) else k for k in flat]  # index with index arrays
        at = dots[0] if dots else len(flat)
        return [*flat[:at], *[_FULL] * (self.ndim - used), *flat[at + 1 :]]

    def _mask_indices(self, mask: Any, keys: list[Any], at: int) -> list[Any]:
        """The positions where a boolean mask, entry `at` of the keys, holds; their count depends on
        values: eager only. Raises ShapeError unless its shape is that of the axes it is for."""
        t = mask if isinstance(mask, TensorBase) else self._wrap(np.asarray(mask))
        if not t.ndim:
            raise DTypeError("index: True and False are not indices; use a boolean array or None")
        before = sum(map(axes_taken, keys[:at]))
        if any(k is Ellipsis for k in keys[:at]):
            before = self.ndim - t.ndim - sum(map(axes_taken, keys[at + 1 :]))
        if before < 0 or self.shape[before : before + t.ndim] != t.shape:
            raise ShapeError(
                f"index: a boolean mask {list(t.shape)} at axis {before} of {list(self.shape)}; "
                f"expected {list(self.shape[before : before + t.ndim])}"
            )
        return list(np.nonzero(t._host("indexing with a boolean mask")))

    def _basic(self, keys: list[Any]) -> tuple[Self, list[tuple[int, Any]]]:
        """Ints, slices and None applied; what is left are (axis of the result, index array)."""
        starts: list[int] = []
        stops: list[int] = []
        steps: list[int] = []
        shape: list[int] = []
        arrays: list[tuple[int, Any]] = []
        axis = 0
        for k in keys:
            if k is None:
                shape.append(1)
                continue
            n = self.shape[axis]
            if isinstance(k, slice):
                a, z, s = canonical(k, n)
                shape.append(len(range(a, z, s)))
            elif is_int(k):
                a, s = integer(int(k), n, axis, self.shape), 1
                z = a + 1
            else:
                arrays.append((len(shape), index_array(self, k, n)))
                a, z, s = 0, n, 1
                shape.append(n)
            starts.append(a)
            stops.append(z)
            steps.append(s)
            axis += 1
        cut = ops.slice_(self.value, starts, stops, steps) if axis else self.value
        return self._wrap(ops.reshape(cut, shape)), arrays

    def _advanced(self, arrays: list[tuple[int, Any]]) -> Self:
        """Integer arrays: broadcast together, then one gather from the axes made adjacent."""
        shape = broadcast_shapes("index", *(a.shape for _, a in arrays))
        axes = [axis for axis, _ in arrays]
        adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
        rest = [i for i in range(self.ndim) if i not in axes]
        front = self.permute([*axes, *rest])
        sizes = [self.shape[a] for a in axes]
        countable("index", math.prod(sizes))
        flat = front.reshape((math.prod(sizes), *(self.shape[i] for i in rest)))
        index, *others = (array._to_shape(shape) for _, array in arrays)
        missed = [out_of_range(one, n) for one, n in zip((index, *others), sizes) if others]
        for one, size in zip(others, sizes[1:]):
            index = index * size + one
        for wrong in missed:  # A wrong index must not reach another row of the merged axis.
            index = index if wrong is None else wrong.where(-1, index)
        source, rows = values("index", (flat, index))
        out = self._wrap(ops.gather(source, rows, 0))
        if not adjacent or not axes[0]:
            return out  # NumPy puts the new axes first unless the arrays are adjacent
        k, r, at = len(shape), len(rest), axes[0]
        order = [*range(k, k + at), *range(k), *range(k + at, k + r)]
        return out.permute(order)

    # -- gathering by an index tensor

    def take(self, indices: Any, axis: int = 0) -> Self:
        """Slices along an axis at integer indices; see `weft.take`."""
        a = axis_of("take", axis, self.ndim)
        index = index_array(self, indices, self.shape[a])
        source, rows = values("take", (self, index))
        return self._wrap(ops.gather(source, rows, a))

    def take_along_axis(self, indices: Any, axis: int = -1) -> Self:
        """out[..., i, ...] = x[..., indices[..., i, ...], ...]: other axes must agree; indices as
        in `weft.take`."""
        a = axis_of("take_along_axis", axis, self.ndim)
        index = index_array(self, indices, self.shape[a])
        agree = index.ndim == self.ndim and all(
            i == a or d == e for i, (d, e) in enumerate(zip(index.shape, self.shape))
        )
        if not agree:
            raise ShapeError(
                f"take_along_axis: indices {list(index.shape)} for {list(self.shape)}; all "
                f"axes but {a} must agree"
            )
        return self._along(index, a, out_of_range(index, self.shape[a]))

    def _along(self, index: Any, a: int, wrong: Any = None) -> Self:
        """The elements at `index` (int32) along axis a; NaN, 0 or False where `wrong` is true."""
        n = self.shape[a]
        x, index = self.transpose(a, -1), index.transpose(a, -1)
        rows = math.prod(x.shape[:-1])
        countable("take_along_axis", rows * n)
        base = ops.iota((index.shape[:-1] and (rows,)) or (1,), 0, dt.int32)
        start = self._wrap(place_like(self, base)).reshape((*x.shape[:-1], 1)) * n
        flat = x.reshape((rows * n,))
        index = index + start
        index = index if wrong is None else wrong.transpose(a, -1).where(-1, index)
        source, at = values("take_along_axis", (flat, index))
        out = self._wrap(ops.gather(source, at, 0))
        return out.transpose(a, -1)

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """The k largest (or smallest) along an axis, in order, and their indices (int32)."""
        a = axis_of("topk", axis, self.ndim)
        if not 0 <= k <= self.shape[a]:
            raise ShapeError(f"topk: k = {k} of {self.shape[a]} elements; 0 <= k <= the axis size")
        order = self.argsort(a, descending=largest).narrow(a, 0, k)
        return self._along(order, a), order

    def gather(self, axis: int, index: Any) -> Self:
        """PyTorch's gather: take_along_axis with the axis first."""
        return self.take_along_axis(index, axis)

    # -- writing

    def assign(self, value: Any) -> Self:
        """This tensor takes a new value of the same shape and dtype. In a traced function the
        tensor becomes state of the Program, updated in place on the device."""
        reads_values()
        new = self._coerce("assign", value)
        new = new if isinstance(new, TensorBase) else self._full(new, self.dtype, self.shape)
        if new.shape != self.shape or new.dtype != self.dtype:
            given = f"{new._known()} to {self._known()}"
            raise ShapeError(f"assign: {given}; shape and dtype must agree")
        if self._leaf and recording():
            raise GradientError(
                f"assign: {self._known()} requires gradients; assign to it under weft.no_grad()"
            )
        if not new._weak and CURRENT.trace is None:
            check_devices("assign", (self, new))
        if self._view is not None:
            if new._weak and CURRENT.trace is None:
                new = self._wrap(place_like(self, np.array(new._value)))
            views.write(self, new)
            return self
        if self._tape is not None and not recording():
            raise GradientError(
                f"assign: {self._known()} was computed from tensors that require gradients, and "
                "under no_grad its history would not know of the write; detach() it, or assign "
                "outside of no_grad"
            )
        self._take_on(new)
        if self._views:
            views.push(self)
        return self

    def _take_on(self, new: Any) -> None:
        """The content of `new` becomes that of this tensor, which is not a view."""
        if CURRENT.trace is not None:
            value = new.value
            if self._in_trace():  # a local tensor keeps its history
                self._tape = value if isinstance(value, Tracked) else None
            CURRENT.trace.assign(self, plain(value))
            return
        if self._home is not None:  # Programs hold this buffer: write into it
            self._home.version += 1
            self._home.device.write(self._home.buffer, np.ascontiguousarray(new._host("assign")))
        elif new._weak:
            self._value, self._tape = place_like(self, np.array(new._value)), None
        else:
            value, before = new.value, (self._value, self._tape)
            self._value, self._tape = plain(value), views.history(self._tape, value)
            if is_wrapper(self._value) and (inside := frames()):
                inside[-1].written.append((ref(self), before))

    def __setitem__(self, key: Any, value: Any) -> None:
        if is_switch(key):
            if not self._held(key):
                return
            key = ...
        self.assign(self._replaced(key, value))

    def _replaced(self, key: Any, value: Any) -> Self:
        """This tensor's content with `value` at a key."""
        y = self._coerce("assignment", value)
        taped = self.requires_grad or (isinstance(y, TensorBase) and y.requires_grad)
        parts = key if isinstance(key, tuple) else (key,)
        held = [k for k in parts if isinstance(k, TensorBase)]
        data = any(k.dtype != dt.bool_ or is_wrapper(k._value) for k in held)
        taped = taped or (isinstance(y, TensorBase) and is_wrapper(y._value))
        if isinstance(self._value, np.ndarray) and CURRENT.trace is None and not (taped or data):
            return self._set_on_host(key, y)
        keys = self._expand_key(key)
        if all(isinstance(k, slice) and k == _FULL for k in keys):
            return self._filled_with(y, self.shape)
        rows = self._rows(keys)
        if rows is not None:  # whole rows of axis 0: one update, no flattening
            new = self._filled_with(y, (rows.size, *self.shape[1:]))
            return run(self, "update", self, rows, new)
        index = self._places(keys)
        new = self._filled_with(y, index.shape, (index.size,))
        flat = run(self, "update", self.reshape(self.size), index.reshape(index.size), new)
        return flat.reshape(self.shape)

    def _filled_with(
        self, value: Any, shape: tuple[int, ...], final: tuple[int, ...] | None = None
    ) -> Self:
        """A tensor or number as this tensor's dtype, broadcast to a shape and given a final one."""
        if not isinstance(value, TensorBase):
            return self._full(value, self.dtype, final or shape)
        extra = value.ndim - len(shape)
        if extra > 0 and value.shape[:extra] == (1,) * extra:  # NumPy also lets a number take [1].
            value = value.reshape(value.shape[extra:])  # type: ignore[attr-defined]
        new: Self = value._as(self.dtype)._to_shape(shape)
        return new if final is None else new.reshape(final)

    def _set_on_host(self, key: Any, value: Any) -> Self:
        if not isinstance(value, TensorBase):
            value = self._full(value, self.dtype, ())
        check_devices("assignment", (self, value))
        array = np.array(self._value)
        keys = tuple(host_key(k) for k in (key if isinstance(key, tuple) else (key,)))
        try:
            array[keys] = value._as(self.dtype).value
        except (IndexError, ValueError) as error:
            raise ShapeError(
                f"assignment to {self._known()} at {key!r} of {value._known()}: {error}"
            ) from None
        return self._wrap(array)

    def _places(self, keys: list[Any]) -> Self:
        """The flat position (int32) of every element that the keys name; -1 for one outside."""
        countable("assignment", self.size)
        flat = ops.iota((self.size,), 0, dt.int32)
        own = self._wrap(place_like(self, flat)).reshape(self.shape)
        index, arrays = own._basic(keys)
        if not arrays:
            return index
        # The numbers start from 1, since indices outside gather 0.
        return (index + 1)._advanced(arrays) - 1

    def _rows(self, keys: list[Any]) -> Self | None:
        """The index array, when the key is one 1-d integer array on axis 0 and all of the rest."""
        first = keys[0] if keys else None
        if not isinstance(first, TensorBase | np.ndarray | list) or any(
            not isinstance(k, slice) or k != _FULL for k in keys[1:]
        ):
            return None
        index = index_array(self, first, self.shape[0])
        return index if index.ndim == 1 else None
