"""Indexing of Tensor: x[...], x[...] = value, gather, take_along_axis, embedding rows."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, GradientError, ShapeError, TraceError
from weft.graph.ir import Node
from weft.ops.rules import axis_of
from weft.ops.tape import Tracked, plain, recording
from weft.program.array import DeviceArray
from weft.tensor.base import CURRENT, TensorBase, broadcast_shapes, check_devices, run, values
from weft.tensor.reductions import Reductions

_FULL = slice(None)


class Indexing(Reductions):
    """Basic and integer-array indexing, and updates."""

    __slots__ = ()

    # -- reading

    def __getitem__(self, key: Any) -> Self:
        keys = self._expand_key(key)
        x, arrays = self._basic(keys)
        return x if not arrays else x._advanced(arrays)

    def _expand_key(self, key: Any) -> list[Any]:
        """One entry per axis, with None for new axes; boolean masks become index arrays."""
        keys = list(key) if isinstance(key, tuple) else [key]
        flat: list[Any] = []
        for k in keys:
            flat += self._mask_indices(k) if _is_mask(k) else [k]
        used = sum(k is not None and k is not Ellipsis for k in flat)
        dots = [i for i, k in enumerate(flat) if k is Ellipsis]
        if len(dots) > 1 or used > self.ndim:
            raise ShapeError(
                f"index: {used} indices and {len(dots)} ellipses for {self.ndim} axes of "
                f"{list(self.shape)}"
            )
        if any(isinstance(k, TensorBase | np.ndarray | list) for k in flat):  # as in NumPy, a
            flat = [np.asarray(k) if _is_int(k) else k for k in flat]  # plain index joins arrays
        at = dots[0] if dots else len(flat)
        return [*flat[:at], *[_FULL] * (self.ndim - used), *flat[at + 1 :]]

    def _mask_indices(self, mask: Any) -> list[Any]:
        """The positions where a boolean mask holds; their number depends on values: eager only."""
        if isinstance(mask, bool):
            raise DTypeError("index: True and False are not indices; use a boolean array or None")
        t = mask if isinstance(mask, TensorBase) else self._wrap(np.asarray(mask))
        host = t._host("indexing with a boolean mask")
        return [self._wrap(_place_like(self, i.astype(np.int32))) for i in np.nonzero(host)]

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
                a, z, s = _canonical(k, n)
                shape.append(len(range(a, z, s)))
            elif _is_int(k):
                a, s = _integer(int(k), n, axis, self.shape), 1
                z = a + 1
            else:
                arrays.append((len(shape), _index_array(self, k)))
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
        flat = front.reshape((math.prod(sizes), *(self.shape[i] for i in rest)))
        index = None
        for size, (axis, array) in zip(sizes, arrays):
            one = _in_range(array, size, axis)._to_shape(shape)
            index = one if index is None else index * size + one
        assert index is not None
        source, rows = values("index", (flat, index))
        out = self._wrap(ops.gather(source, rows, 0))
        if not adjacent or not axes[0]:
            return out  # NumPy puts the new axes first unless the arrays stand side by side
        k, r, at = len(shape), len(rest), axes[0]
        order = [*range(k, k + at), *range(k), *range(k + at, k + r)]
        return out.permute(order)

    # -- gathering by an index tensor

    def take(self, indices: Any, axis: int = 0) -> Self:
        """Slices along an axis at integer indices (negative ones count from the end)."""
        a = axis_of("take", axis, self.ndim)
        index = _in_range(_index_array(self, indices), self.shape[a], a)
        source, rows = values("take", (self, index))
        return self._wrap(ops.gather(source, rows, a))

    def take_along_axis(self, indices: Any, axis: int = -1) -> Self:
        """out[..., i, ...] = x[..., indices[..., i, ...], ...]: other axes must agree."""
        a = axis_of("take_along_axis", axis, self.ndim)
        index = _index_array(self, indices)
        agree = index.ndim == self.ndim and all(
            i == a or d == e for i, (d, e) in enumerate(zip(index.shape, self.shape))
        )
        if not agree:
            raise ShapeError(
                f"take_along_axis: indices {list(index.shape)} for {list(self.shape)}; all "
                f"axes but {a} must agree"
            )
        n = self.shape[a]
        x = self.transpose(a, -1)
        index = _in_range(index, n, a).transpose(a, -1)
        rows = math.prod(x.shape[:-1])
        base = ops.iota((index.shape[:-1] and (rows,)) or (1,), 0, dt.int32)
        start = self._wrap(_place_like(self, base)).reshape((*x.shape[:-1], 1)) * n
        flat = x.reshape((rows * n,))
        source, at = values("take_along_axis", (flat, index + start))
        out = self._wrap(ops.gather(source, at, 0))
        return out.transpose(a, -1)

    def gather(self, axis: int, index: Any) -> Self:
        """PyTorch's gather: take_along_axis with the axis first."""
        return self.take_along_axis(index, axis)

    # -- writing

    def assign(self, value: Any) -> Self:
        """This tensor takes a new value of the same shape and dtype. In a traced function the
        tensor becomes state of the Program, updated in place on the device."""
        y = self._coerce("assign", value)
        new = y if isinstance(y, TensorBase) else self._full(y, self.dtype, self.shape)
        if new.shape != self.shape or new.dtype != self.dtype:
            raise ShapeError(
                f"assign: {new._known()} to {self._known()}; shape and dtype must agree"
            )
        if self._leaf and recording():
            raise GradientError(
                f"assign: {self._known()} requires gradients; assign to it under weft.no_grad()"
            )
        if CURRENT.trace is not None:
            value = new.value
            if isinstance(self._value, Node) and isinstance(value, Tracked):
                self._tape = value  # a local tensor: its history goes on
            CURRENT.trace.assign(self, plain(value))
            return self
        if not new._weak:
            check_devices("assign", (self, new))
        if self._home is not None:  # Programs hold this buffer: write into it
            self._home.version += 1
            self._home.device.write(self._home.buffer, np.ascontiguousarray(new._host("assign")))
        elif new._weak:
            self._value = _place_like(self, np.array(new._value))
        else:
            value = new.value
            self._value = plain(value)
            self._tape = value if isinstance(value, Tracked) else None
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        y = self._coerce("assignment", value)
        taped = self.requires_grad or (isinstance(y, TensorBase) and y.requires_grad)
        if isinstance(self._value, np.ndarray) and CURRENT.trace is None and not taped:
            self._set_on_host(key, y)
            return
        keys = self._expand_key(key)
        where = self._positions()._basic(keys)
        index = where[0] if not where[1] else where[0]._advanced(where[1])
        rows = self._rows(keys)
        count = rows.size if rows is not None else index.size
        one = (count, *self.shape[1:]) if rows is not None else (count,)
        if isinstance(y, TensorBase):
            new = y._as(self.dtype)._to_shape(index.shape).reshape(one)
        else:
            new = self._full(y, self.dtype, one)
        if index.shape == self.shape and all(k == _FULL for k in keys):
            self.assign(new.reshape(self.shape) if isinstance(y, TensorBase) else y)
        elif rows is not None:  # whole rows of axis 0: one update, no flattening
            self.assign(run(self, "update", self, rows, new))
        else:
            flat = run(self, "update", self.reshape(self.size), index.reshape(count), new)
            self.assign(flat.reshape(self.shape))

    def _set_on_host(self, key: Any, value: Any) -> None:
        if not isinstance(value, TensorBase):
            value = self._full(value, self.dtype, ())
        check_devices("assignment", (self, value))
        array = np.array(self._value)
        keys = tuple(_host_key(k) for k in (key if isinstance(key, tuple) else (key,)))
        try:
            array[keys] = value._as(self.dtype).value
        except (IndexError, ValueError) as error:
            raise ShapeError(
                f"assignment to {self._known()} at {key!r} of {value._known()}: {error}"
            ) from None
        self.assign(array)

    def _positions(self) -> Self:
        """The flat position of every element (int32), where this tensor is."""
        flat = ops.iota((self.size,), 0, dt.int32)
        return self._wrap(_place_like(self, flat)).reshape(self.shape)

    def _rows(self, keys: list[Any]) -> Self | None:
        """The index array, when the key is one 1-d integer array on axis 0 and all of the rest."""
        first = keys[0] if keys else None
        if not isinstance(first, TensorBase | np.ndarray | list) or any(
            not isinstance(k, slice) or k != _FULL for k in keys[1:]
        ):
            return None
        index = _index_array(self, first)
        return _in_range(index, self.shape[0], 0) if index.ndim == 1 else None


def _is_mask(k: Any) -> bool:
    if isinstance(k, TensorBase):
        return k.dtype == dt.bool_
    if isinstance(k, np.ndarray):
        return k.dtype == np.bool_
    return isinstance(k, bool) or (isinstance(k, list) and np.asarray(k).dtype == np.bool_)


def _is_int(k: Any) -> bool:
    return isinstance(k, int | np.integer)


def _canonical(k: slice, n: int) -> tuple[int, int, int]:
    """start, stop, step as the primitive takes them (stop -1: through index 0)."""
    for part in (k.start, k.stop, k.step):
        if isinstance(part, TensorBase) and part.is_traced:
            raise TraceError(
                "a slice bound is a traced value; its length would not be known: use where with an "
                "iota, or a runtime scalar bound (Spec rows)"
            )
    if k.step == 0:
        raise ShapeError("index: a slice step of 0; use a positive or negative step")
    return k.indices(n)


def _integer(k: int, n: int, axis: int, shape: tuple[int, ...]) -> int:
    if not -n <= k < n:
        raise ShapeError(f"index: {k} is out of range for axis {axis} of {list(shape)}")
    return k % n


def _index_array(like: Any, k: Any) -> Any:
    """An integer index as an int32 tensor where `like` is."""
    if not isinstance(k, TensorBase):
        array = np.asarray(k)
        if array.size == 0 and array.dtype.kind == "f":
            array = array.astype(np.int32)
        if array.dtype.kind not in "iu":
            raise DTypeError(f"index: {k!r} is not an integer, slice, None, ... or integer array")
        if array.size and not -(1 << 31) <= int(array.min()) <= int(array.max()) < 1 << 31:
            raise ShapeError("index: values do not fit int32")
        return like._wrap(_place_like(like, array.astype(np.int32)))
    if not k.dtype.is_int:
        raise DTypeError(f"index: a {k.dtype.name} tensor is not an index; cast it to int32")
    return k._as(dt.int32)  # type: ignore[attr-defined]


def _in_range(index: Any, n: int, axis: int) -> Any:
    """Negative indices counted from the end. An index whose values are at hand is checked; on a
    device and in a trace, one out of range is clamped when reading and dropped when writing."""
    known = index._value
    if isinstance(known, Node) and known.op == "const":
        known = known.attrs["value"]
    if isinstance(known, np.ndarray) and known.size:
        low, high = int(known.min()), int(known.max())
        if low < -n or high >= n:
            raise ShapeError(f"index: {low if low < -n else high} is out of range for size {n}")
        if low >= 0:
            return index
    return (index < 0).where(index + n, index)


def _place_like(tensor: TensorBase, array: Any) -> Any:
    """A host array where `tensor` is: on its device, or as it is."""
    if isinstance(tensor._value, DeviceArray) and CURRENT.trace is None:
        from weft.tensor.device import upload

        return upload(tensor._value.device, array)
    return array


def _host_key(k: Any) -> Any:
    if isinstance(k, TensorBase):
        return k._host("an index")
    if isinstance(k, Node):
        raise TraceError("an index is a traced value")
    return k
