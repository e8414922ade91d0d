"""Values that are given for a Program's buffers, as these want them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft.core.dtypes import DType, int32
from weft.core.errors import (
    DeviceError,
    DTypeError,
    LimitError,
    OutOfMemoryError,
    ShapeError,
    UsageError,
)
from weft.host import memory
from weft.host.pages import LARGE, pages
from weft.program.program import BufferSpec, Program

INT32 = -(2**31), 2**31 - 1


def program_array(array: np.ndarray, what: str) -> np.ndarray:
    """`array` as a Program holds it: int64 as int32, others as they are. Raises DTypeError, which
    names the array by `what`, for a value that int32 cannot hold."""
    if array.dtype != np.int64:
        return array
    if array.size:
        for value in (int(array.min()), int(array.max())):
            if not INT32[0] <= value <= INT32[1]:
                raise DTypeError(
                    f"{what}: int64 values do not fit int32, in which Programs and devices compute "
                    f"integers (it holds {value}); use smaller numbers, or compute it on the host"
                )
    return array.astype(np.int32)


def zeros(spec: BufferSpec) -> np.ndarray:
    """Returns the initial content of a state. A cache is touched here and there, where a huge page
    would be cleared for each few KiB, in the middle of a step. Raises OutOfMemoryError."""
    kind = np.dtype(spec.dtype.numpy)
    try:
        if spec.nbytes < LARGE:
            memory.check(spec.nbytes)
            return np.zeros(spec.shape, kind)
        made: np.ndarray = pages(math.prod(spec.shape) * kind.itemsize, sparse=True)
        return made.view(kind).reshape(spec.shape)
    except (MemoryError, OSError, ValueError, OverflowError):
        raise OutOfMemoryError(
            f"{spec.role} {spec.name!r} takes {spec.nbytes:,} bytes, more than this system has; "
            "use a smaller context, batch or model"
        ) from None


def check_scalars(program: Program, values: tuple[int, ...]) -> None:
    """Raises DeviceError for a wrong count of run-time scalars, or a value beyond int32."""
    names = program.scalars
    if len(values) != len(names):
        raise DeviceError(f"{program.name}: {len(values)} scalars for {list(names)}")
    for name, value in zip(names, values):
        if not INT32[0] <= value <= INT32[1]:
            raise DeviceError(f"{program.name}: scalar {name}={value} is not an int32")


def scalar_values(
    program: Program, ranges: Mapping[str, tuple[int, int]], given: Mapping[str, int]
) -> list[int]:
    """Returns the content of the scalar buffer. Raises UsageError for another set of names or a
    value out of its range (`program.scalar_ranges`), LimitError beyond int32."""
    names = program.scalars
    if len(given) != len(names) or any(name not in given for name in names):
        wrong = min(set(given) ^ set(names))
        what = "needs scalar" if wrong in names else "has no scalar"
        raise UsageError(f"{program.name} {what} {wrong!r}; it takes {', '.join(names)}")
    values = [int(given[name]) for name in names]
    for name, value in zip(names, values):
        if not INT32[0] <= value <= INT32[1]:
            raise LimitError(f"scalar {name!r} = {value} does not fit int32")
        low, high = ranges.get(name, (value, value))
        if not low <= value <= high:
            raise UsageError(f"scalar {name!r} = {value} counts rows of an input that has {high}")
    return values


def alike(value: object, array: np.ndarray) -> bool:
    """True if `value` is an array of the same dtype and shape."""
    return type(value) is np.ndarray and value.dtype is array.dtype and value.shape == array.shape


def check_fit(spec: BufferSpec, shape: tuple[int, ...], dtype: DType, rows: str | None) -> None:
    """Refuses a value of another shape (fewer rows pass where rows are bounded) or dtype."""
    fewer = rows is not None and len(shape) == len(spec.shape) and shape[1:] == spec.shape[1:]
    if shape != spec.shape and not (fewer and shape[0] <= spec.shape[0]):
        raise ShapeError(
            f"{spec.role} {spec.name!r} has shape {list(spec.shape)}, got {list(shape)}"
        )
    if dtype is not spec.dtype:
        raise DTypeError(f"{spec.role} {spec.name!r} is {spec.dtype.name}, got {dtype.name}")


def fitted(spec: BufferSpec, array: np.ndarray, rows: str | None) -> np.ndarray:
    """`array` as the C-contiguous array that `spec` wants; int64 passes as int32 if it fits."""
    if spec.dtype is int32:
        array = program_array(array, f"{spec.role} {spec.name!r}")
    if array.dtype != spec.dtype.numpy:
        got = array.dtype.name
        raise DTypeError(f"{spec.role} {spec.name!r} is {spec.dtype.name}, got {got}")
    check_fit(spec, array.shape, spec.dtype, rows)
    return np.ascontiguousarray(array)
