"""The parts of an index: what each entry of a key is, and integer indices as int32 tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import AxisError, DTypeError, ShapeError, TraceError
from weft.graph.ir import Node
from weft.ops.primitive import looks_at
from weft.tensor.arith import Arithmetic
from weft.tensor.base import CURRENT, TensorBase, place

T = TypeVar("T", bound=Arithmetic)
Lengths = TensorBase | Sequence[int] | int


def is_mask(k: Any) -> bool:
    """True if an entry of a key is a boolean array, list or bool."""
    if isinstance(k, TensorBase):
        return k.dtype == dt.bool_
    if isinstance(k, np.ndarray | np.generic):
        return k.dtype == np.bool_
    return isinstance(k, bool) or (isinstance(k, list) and np.asarray(k).dtype == np.bool_)


def is_switch(k: Any) -> bool:
    """True if a key is a 0-d boolean array, which keeps all of a tensor or nothing."""
    return isinstance(k, TensorBase | np.ndarray | np.bool_) and not k.ndim and is_mask(k)


def axes_taken(k: Any) -> int:
    """The number of axes that an entry of a key indexes."""
    if k is None or k is Ellipsis:
        return 0
    return int(np.ndim(k) if not isinstance(k, TensorBase) else k.ndim) if is_mask(k) else 1


def is_int(k: Any) -> bool:
    """True if an entry is one integer that is known now."""
    return isinstance(k, int | np.integer)


def canonical(k: slice, n: int) -> tuple[int, int, int]:
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


def integer(k: int, n: int, axis: int, shape: tuple[int, ...]) -> int:
    """An index of an axis of size n counted from the front; AxisError for one out of range."""
    if not -n <= k < n:
        raise AxisError(f"index: {k} is out of range for axis {axis} of {list(shape)}")
    return k % n


def index_array(like: Any, k: Any, n: int) -> Any:
    """An integer index of an axis of size n as an int32 tensor where `like` is, -n..-1 counted from
    the front. The values of a list or NumPy array are checked here (AxisError); those of a tensor
    are data: one out of range stays out of range."""
    if isinstance(k, Arithmetic):
        index = as_index(k)
        if _within(index):
            return index
        return (index < 0).where(index + n, index)
    array = np.asarray(k)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"index: {k!r} is not an integer, slice, None, ... or integer array")
    wrong = array[(array < -n) | (array >= n)]
    if wrong.size:
        raise AxisError(f"index: {wrong.flat[0]} is out of range for size {n}")
    counted = np.where(array < 0, array + n, array).astype(np.int32)
    return like._wrap(place_like(like, counted))


def as_index(k: T) -> T:
    """A tensor of integers as int32; what int32 cannot hold becomes its nearest number, which is
    outside every axis as well."""
    if not k.dtype.is_int:
        raise DTypeError(f"a {k.dtype.name} tensor is not an index; cast it to int32")
    if k.dtype == dt.int64:
        k = k.maximum(-(1 << 31))
    if k.dtype in (dt.int64, dt.uint32):
        k = k.minimum((1 << 31) - 1)
    return k._as(dt.int32)


def lengths_of(name: str, given: Lengths, like: Any, count: int, most: int) -> Any:
    """The lengths of `count` sequences as int32 [count] where `like` is. Raises ShapeError for
    another number of them, and for a number outside 0..most where numbers are given."""
    if isinstance(given, Arithmetic):
        index: Any = as_index(given)
        found = index.reshape(-1)
    else:
        numbers = np.asarray(given).reshape(-1)
        if ((numbers < 0) | (numbers > most)).any():
            raise ShapeError(f"{name} {numbers.tolist()}; expected 0..{most}")
        found = index_array(like, numbers.astype(np.int64), most + 1)
    if found.shape != (count,):
        raise ShapeError(f"{name} {list(found.shape)} for {count} sequences")
    return found


def _within(index: Any, n: int | None = None) -> bool:
    """True if the values of an index are at hand and 0 or more (below n)."""
    value = index._value
    if isinstance(value, Node) and value.op == "const":
        value = value.attrs["value"]

    def look(at: np.ndarray) -> None:
        wrong = at.size and (at.min() < 0 or (n is not None and at.max() >= n))
        if wrong:
            raise _OutsideError

    return isinstance(value, np.ndarray) and not looks_at(value, look, _OutsideError)


class _OutsideError(ValueError):
    """A repeated call has other values than were met before: it takes the long way."""


def out_of_range(index: Any, n: int) -> Any:
    """True where an index counted from the front is outside an axis of size n. Returns None if no
    index is outside."""
    return None if _within(index, n) else (index < 0) | (index >= n)


def place_like(tensor: TensorBase, array: Any) -> Any:
    """A host array where `tensor` is: on its device, or as it is."""
    if (device := place(tensor)) is not None and CURRENT.trace is None:
        from weft.tensor.device import upload

        return upload(device, array)
    return array


def host_key(k: Any) -> Any:
    """An entry of a key as NumPy takes it."""
    if isinstance(k, TensorBase):
        return k._host("an index")
    if isinstance(k, Node):
        raise TraceError("an index is a traced value")
    return k
