"""Functions that make tensors: zeros, ones, full, arange, linspace, eye and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import ShapeError, UsageError
from weft.ops.rules import dims, integers
from weft.tensor.base import Number, place
from weft.tensor.core import Tensor

Shape = int | Sequence[int]


def placed(value: Any, device: Any) -> Tensor:
    """A value of an op on numbers alone, as a tensor on `device` (None: the host)."""
    t = Tensor(value)
    return t if device is None or t.is_traced else t.to(device)


def _dims(shape: Shape) -> tuple[int, ...]:
    return dims("shape", integers("shape", "a size", shape))


def wanted_dtype(call: str, dtype: Any, default: DType = dt.float32) -> DType:
    """The dtype that a call asks for, or its default. Raises UsageError for a number: it is a size
    in the dtype's position."""
    if isinstance(dtype, int):
        raise UsageError(f"{call}: {dtype} is not a dtype; give the shape as one tuple: (2, 3)")
    return default if dtype is None else as_dtype(dtype)


def full(shape: Shape, fill_value: Number, dtype: Any = None, device: Any = None) -> Tensor:
    """`fill_value` everywhere; bool, int32 or float32 after the number unless dtype is given.

    >>> weft.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    kind = type(fill_value)
    default = dt.bool_ if kind is bool else dt.int32 if kind is int else dt.float32
    return _filled(shape, fill_value, wanted_dtype("full", dtype, default), device)


def _filled(shape: Shape, value: Number, dtype: DType, device: Any) -> Tensor:
    out = ops.broadcast(ops.const(value, dtype), _dims(shape))
    return placed(out if ops.tracing() else out.copy(), device)


def zeros(shape: Shape, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros, float32 by default. The shape is one tuple, or an integer.

    >>> weft.zeros((2, 3)).shape
    (2, 3)
    """
    return _filled(shape, 0, wanted_dtype("zeros", dtype), device)


def ones(shape: Shape, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones, float32 by default. The shape is one tuple, or an integer.

    >>> weft.ones(2, dtype="int32").tolist()
    [1, 1]
    """
    return _filled(shape, 1, wanted_dtype("ones", dtype), device)


def empty(shape: Shape, dtype: Any = None, device: Any = None) -> Tensor:
    """A Tensor to be filled, float32 by default. It holds zeros: weft shows no uninitialised
    memory. The shape is one tuple, or an integer."""
    return _filled(shape, 0, wanted_dtype("empty", dtype), device)


def full_like(x: Tensor, fill_value: Number, dtype: Any = None, device: Any = None) -> Tensor:
    """`fill_value` in the shape of x, and in its dtype and place unless others are given."""
    if device is None and not x.is_traced:
        device = x.device
    return _filled(x.shape, fill_value, wanted_dtype("full_like", dtype, x.dtype), device)


def zeros_like(x: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros in the shape of x, and in its dtype and place unless others are given."""
    return full_like(x, 0, dtype, device)


def ones_like(x: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones in the shape of x, and in its dtype and place unless others are given."""
    return full_like(x, 1, dtype, device)


def empty_like(x: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros in the shape of x, and in its dtype and place unless others are given."""
    return full_like(x, 0, dtype, device)


def _count(n: int, dtype: DType) -> Any:
    return ops.iota((n,), 0, dtype)


def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: Any = None,
    device: Any = None,
) -> Tensor:  # fmt: skip
    """start, start + step, ... below (for a negative step: above) stop; int32 when all are
    integers, else float32. Raises UsageError for a step of 0.

    >>> weft.arange(1, 7, 2).tolist()
    [1, 3, 5]
    """
    begin, end = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise UsageError(
            "arange: a step of 0 never reaches the end; use a positive or negative one"
        )
    whole = all(isinstance(v, int) for v in (begin, end, step))
    wanted = wanted_dtype("arange", dtype, dt.int32 if whole else dt.float32)
    n = max(0, math.ceil((end - begin) / step))
    work = dt.compute_dtype(wanted) if wanted.is_float or whole else dt.float32
    x = Tensor(_count(n, work))
    if step != 1:
        x = x * step
    if begin != 0:
        x = x + begin
    return placed(x.cast(wanted)._value, device)


def linspace(
    start: float, stop: float, num: int, dtype: Any = None, device: Any = None,
    endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """`num` numbers evenly spaced from start to stop, float32 by default; stop is the last of them,
    or with endpoint=False the one that would follow."""
    if num < 0:
        raise ShapeError(f"linspace: {num} numbers; give 0 or more")
    wanted = wanted_dtype("linspace", dtype)
    work = dt.compute_dtype(wanted)
    step = (stop - start) / max(num - bool(endpoint), 1)
    i = Tensor(_count(num, work))
    x = i * step + start
    if num > 1 and endpoint:  # the last is exactly stop, whatever the rounding of the step
        x = (i == num - 1).where(float(stop), x)
    return placed(x.cast(wanted)._value, device)


def eye(n: int, m: int | None = None, dtype: Any = None, device: Any = None, k: int = 0) -> Tensor:
    """Ones on diagonal k (above the main one if positive) of an n x m (by default n x n) matrix,
    zeros elsewhere; float32 by default."""
    wanted = wanted_dtype("eye", dtype)
    shape = (n, n if m is None else m)
    distance = ops.sub(ops.iota(shape, 1, dt.int32), ops.iota(shape, 0, dt.int32))
    return placed(Tensor(ops.equal(distance, k)).cast(wanted)._value, device)


def tril(x: Tensor, k: int = 0) -> Tensor:
    """x with everything above diagonal k of its last two axes zeroed."""
    return _triangle(x, k, lower=True)


def triu(x: Tensor, k: int = 0) -> Tensor:
    """x with everything below diagonal k of its last two axes zeroed."""
    return _triangle(x, k, lower=False)


def _triangle(x: Tensor, k: int, lower: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"tril, triu: expected at least two axes, got {list(x.shape)}")
    row = ops.iota(x.shape, x.ndim - 2, dt.int32)
    column = ops.iota(x.shape, x.ndim - 1, dt.int32)
    distance = ops.sub(column, row)
    keep = (
        ops.less_equal(distance, k)
        if lower
        else ops.less_equal(ops.full_like(distance, k), distance)
    )
    return placed(keep, place(x)).where(x, False if x.dtype == dt.bool_ else 0)
