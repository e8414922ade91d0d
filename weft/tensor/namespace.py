"""The array API's facts about a namespace and its dtypes (Python array API standard 2024.12):
`weft.__array_namespace_info__()`, `weft.finfo`, `weft.can_cast`, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, UsageError
from weft.core.records import dataclass
from weft.program.device import HOST

__array_api_version__ = "2024.12"

_KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda d: d.kind == "bool",
    "signed integer": lambda d: d.kind == "int",
    "unsigned integer": lambda d: d.kind == "uint",
    "integral": lambda d: d.is_int,
    "real floating": lambda d: d.is_float,
    "complex floating": lambda d: False,
    "numeric": lambda d: d.kind != "bool",
}


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Limits of a floating dtype, as Python numbers."""

    dtype: DType
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    resolution: float

    @property
    def tiny(self) -> float:
        """NumPy's name of `smallest_normal`."""
        return self.smallest_normal


@dataclass(frozen=True, slots=True)
class IntInfo:
    """Limits of an integer dtype."""

    dtype: DType
    bits: int
    max: int
    min: int


class NamespaceInfo:
    """The abilities of weft, in the words of the array API standard."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks index, shapes may depend on values (eager, not in weft.compile), and an
        array has at most 64 axes (NumPy's limit, as the host's arrays are NumPy's)."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": 64,
        }

    def default_device(self) -> str:
        """The place of a new tensor: "cpu"."""
        return HOST

    def devices(self) -> list[str]:
        """The devices that this machine has, as `device=` and `.to(...)` take them: without
        rasterisers and emulators, which run on the CPU too."""
        from weft.backends import registry

        found = [d.id for d in registry.devices() if d.available and not d.software]
        return [HOST, *(d for d in found if d.partition(":")[0] != HOST)]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes of Python's numbers and of indices; complex ones do not exist."""
        return {"real floating": dt.float32, "integral": dt.int32, "indexing": dt.int32}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The standard's dtypes of a kind ("integral", "real floating", ..., a tuple of them; None:
        all) that a device holds (None: the host, which holds all). The standard lacks float16 and
        bfloat16, which every device has."""
        from weft.backends import registry

        known: tuple[DType, ...] = (*dt.INTS, dt.bool_, dt.float32, dt.float64)
        if device is not None and str(device).partition(":")[0] != HOST:
            opened = registry.get(device)
            known = tuple(d for d in known if opened.supports(d))
        return {d.name: d for d in known if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Devices, dtypes and capabilities of this namespace (array API standard).

    >>> weft.__array_namespace_info__().default_device()
    'cpu'
    """
    return NamespaceInfo()


def _dtype_of(x: Any) -> DType:
    return as_dtype(getattr(x, "dtype", x))


def finfo(dtype: Any, /) -> FloatInfo:
    """Limits of a floating dtype, or of a tensor's: bits, eps, max, min, smallest_normal. Raises
    DTypeError for other dtypes.

    >>> weft.finfo(weft.float32).eps
    1.1920928955078125e-07
    """
    d = _dtype_of(dtype)
    if not d.is_float:
        raise DTypeError(f"finfo: {d.name} is not a floating dtype; use iinfo for integers")
    info: Any = ml_dtypes.finfo(d.numpy)  # type: ignore[no-untyped-call]
    numbers = (info.eps, info.max, info.min, info.smallest_normal, info.resolution)
    return FloatInfo(d, info.bits, *map(float, numbers))


def iinfo(dtype: Any, /) -> IntInfo:
    """Limits of an integer dtype, or of a tensor's: bits, max, min. Raises DTypeError for other
    dtypes.

    >>> weft.iinfo(weft.int8).max
    127
    """
    d = _dtype_of(dtype)
    if not d.is_int:
        raise DTypeError(f"iinfo: {d.name} is not an integer dtype; use finfo for floats")
    info = np.iinfo(d.numpy)
    return IntInfo(d, info.bits, int(info.max), int(info.min))


def isdtype(dtype: Any, kind: Any) -> bool:
    """True if a dtype is of a kind: another dtype, "bool", "signed integer", "unsigned integer",
    "integral", "real floating", "complex floating" or "numeric", or any of a tuple of them. Raises
    UsageError for another kind.

    >>> weft.isdtype(weft.int8, "integral"), weft.isdtype(weft.int8, ("bool", weft.uint8))
    (True, False)
    """
    d = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind](d)
    if isinstance(kind, DType | np.dtype):
        return d is as_dtype(kind)
    raise UsageError(f"isdtype: kind {kind!r:.60}; give a dtype or one of {', '.join(_KINDS)}")


def can_cast(from_: Any, to: Any, /) -> bool:
    """True if promotion may turn a dtype (or a tensor's) into another: all of its values fit.

    >>> weft.can_cast(weft.int8, weft.int16), weft.can_cast(weft.int32, weft.int16)
    (True, False)
    """
    a, b = _dtype_of(from_), as_dtype(to)
    if a is b or a.kind == "bool":
        return True
    if a.is_float or b.is_float or b.kind == "bool":
        return a.is_float and b.is_float and a.itemsize < b.itemsize
    return np.can_cast(a.numpy, b.numpy)


def result_type(*operands: Any) -> DType:
    """The dtype that an operation on these tensors, dtypes and Python numbers computes in; a number
    takes the dtype of the rest unless it is of a higher kind. Raises UsageError without a tensor or
    dtype.

    >>> weft.result_type(weft.int8, weft.uint8), weft.result_type(weft.int8, 1.5)
    (int16, float32)
    """
    numbers = [x for x in operands if isinstance(x, bool | int | float)]
    found = [_dtype_of(x) for x in operands if not isinstance(x, bool | int | float)]
    if not found:
        raise UsageError("result_type: give at least one tensor or dtype")
    result = found[0]
    for d in found[1:]:
        result = dt.promote(result, d)
    for kind, default in ((float, dt.float32), (int, dt.int32)):
        given = any(isinstance(x, kind) and not isinstance(x, bool) for x in numbers)
        if given and (result.kind == "bool" or (kind is float and not result.is_float)):
            return default
    return result
