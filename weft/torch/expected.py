"""Checks of arguments that PyTorch refuses and weft's formulas would take."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import CallError, DTypeError, ShapeError, UsageError
from weft.tensor.core import Tensor
from weft.tensor.namespace import finfo
from weft.torch.picking import look_at
from weft.torch.tensor import check_traced


def want_rank(name: str, x: Tensor, *ranks: int) -> None:
    """Raises ShapeError unless x has one of these numbers of axes."""
    if x.ndim not in ranks:
        raise ShapeError(f"{name}: {x._known()} has {x.ndim} axes; expected "
                         f"{' or '.join(map(str, ranks))}")  # fmt: skip


def want(fits: bool, name: str, given: str, expected: str) -> None:
    """Raises UsageError with what was given and what is expected, unless it fits."""
    if not fits:
        raise UsageError(f"{name}: {given}; expected {expected}")


def want_one_of(name: str, what: str, value: Any, choices: Collection[Any]) -> None:
    """Raises UsageError for a value that is none of the choices."""
    want(value in choices, name, f"{what} {value!r}", f"one of {', '.join(map(str, choices))}")


def want_dtype(name: str, x: Tensor, other: Tensor) -> None:
    """Raises DTypeError unless two tensors have one dtype."""
    if x.dtype != other.dtype:
        raise DTypeError(f"{name}: {x.dtype.name} with {other.dtype.name}; cast one of them first")


def want_floats(name: str, x: Tensor, but: str = "cast it first") -> None:
    """Raises DTypeError for a tensor of integers or bools."""
    if not x.dtype.is_float:
        raise DTypeError(f"{name}: {x._known()} is not of floats; {but}")


def want_integers(name: str, x: Tensor) -> None:
    """Raises DTypeError for a tensor that is not of integers."""
    if not x.dtype.is_int:
        raise DTypeError(f"{name}: {x._known()} is not of integers; cast it first")


def fitted(name: str, value: Any, dtype: DType) -> Any:
    """A number that fills a tensor of this dtype; negative ones wrap in unsigned integers. Raises
    DTypeError for one beyond the dtype's range, CallError for anything else than a number."""
    if not isinstance(value, bool | int | float | np.generic):
        raise CallError(f"{name}: {type(value).__name__} is not a number; give one, such as 0.0")
    number = value.item() if isinstance(value, np.generic) else value
    check_traced(number, dtype)
    if dtype.is_int:
        limits = np.iinfo(dtype.numpy)
        least = -limits.max if limits.min == 0 and isinstance(number, int) else limits.min
        fits = not isinstance(number, float) or math.isfinite(number)
        if not fits or not least <= int(number) <= limits.max:
            raise _beyond(name, value, dtype)
        return int(np.asarray(int(number)).astype(dtype.numpy))
    if dtype.is_float and math.isfinite(number) and abs(number) > finfo(dtype).max:
        raise _beyond(name, value, dtype)
    return number


def _beyond(name: str, value: Any, dtype: DType) -> DTypeError:
    return DTypeError(f"{name}: {value} does not fit {dtype.name}; give a wider dtype")


def want_divisor(name: str, x: Tensor, y: Any) -> None:
    """Raises UsageError where integers x are divided by a y that is known to have a zero."""
    if x.dtype.is_float:
        return

    def look(held: Any) -> None:
        if not held.all():
            raise UsageError(f"{name}: integers divided by 0; give others, or cast to floats")

    if isinstance(y, Tensor):
        look_at(y, look)
    else:
        look(np.asarray(y))
