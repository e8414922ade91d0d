"""PyTorch's type promotion: next to a tensor with axes, a 0-d tensor or a number counts only by its
kind (bool, integer, float).

Source: PyTorch's documentation, "Tensor Attributes: torch.dtype". Integers of 64 bits are int32
here, so Python's integers and the results of sums are.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType, promote
from weft.core.errors import DTypeError
from weft.tensor.core import Tensor

KINDS = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def number_dtype(value: bool | int | float, whole: DType = dt.int32) -> DType:
    """The dtype of a tensor made of a Python number; `whole` is that of integers."""
    if isinstance(value, bool):
        return dt.bool_
    return whole if isinstance(value, int) else dt.float32


def common(*operands: Any, whole: DType = dt.int32) -> DType:
    """The dtype in which an op computes with the given tensors and numbers."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    groups = (
        [t.dtype for t in tensors if t.ndim],
        [t.dtype for t in tensors if not t.ndim],
        [number_dtype(x, whole) for x in operands if isinstance(x, bool | int | float)],
    )
    found: DType | None = None
    for group in groups:
        if not group:
            continue
        dtype = functools.reduce(promote, group)
        if found is None or KINDS[dtype.kind] > KINDS[found.kind]:
            found = dtype
    if found is None:
        raise DTypeError("an op without a tensor or a number")
    return found


def together(*operands: Any) -> list[Any]:
    """The operands with tensors in their common dtype; numbers as they are."""
    dtype = common(*operands)
    return [x.cast(dtype) if isinstance(x, Tensor) else x for x in operands]


def fitting(value: Any, dtype: DType) -> Any:
    """A number for a tensor of `dtype`. Raises DTypeError for an integer beyond its range."""
    if dtype.is_int and isinstance(value, int | float) and value == value:
        limits = np.iinfo(dtype.numpy)
        least, most = int(limits.min), int(limits.max)
        if not least <= value <= most:
            raise DTypeError(f"{value} is beyond {dtype.name}, which weft has for 64-bit integers")
        return int(value)
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype == dt.bool_ else value
