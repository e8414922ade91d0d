"""Making tensors: zeros ones full arange linspace eye and their kin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import ShapeError, UsageError
from weft.ops.rules import dims
from weft.tensor.base import Number
from weft.tensor.core import Tensor

Shape = int | Sequence[int]


def _placed(value: Any, device: Any) -> Tensor:
    t = Tensor(value)
    return t if device is None or t.is_traced else t.to(device)


def _dims(shape: Shape) -> tuple[int, ...]:
    return dims("shape", shape if isinstance(shape, int) else tuple(shape))


def full(shape: Shape, value: Number, dtype: Any = None, device: Any = None) -> Tensor:
    """`value` everywhere; bool, int32 or float32 after the number unless dtype is given."""
    if dtype is None:
        kind = type(value)
        dtype = dt.bool_ if kind is bool else dt.int32 if kind is int else dt.float32
    scalar = ops.const(value, as_dtype(dtype))
    out = ops.broadcast(scalar, _dims(shape))
    return _placed(out if ops.tracing() else out.copy(), device)


def zeros(shape: Shape, dtype: Any = dt.float32, device: Any = None) -> Tensor:
    """Zeros."""
    return full(shape, 0, dtype, device)


def ones(shape: Shape, dtype: Any = dt.float32, device: Any = None) -> Tensor:
    """Ones."""
    return full(shape, 1, dtype, device)


def full_like(x: Tensor, value: Number) -> Tensor:
    """`value` in the shape, dtype and place of x."""
    return full(x.shape, value, x.dtype, None if x.is_traced else x.device)


def zeros_like(x: Tensor) -> Tensor:
    """Zeros in the shape, dtype and place of x."""
    return full_like(x, 0)


def ones_like(x: Tensor) -> Tensor:
    """Ones in the shape, dtype and place of x."""
    return full_like(x, 1)


def _count(n: int, dtype: DType) -> Any:
    return ops.iota((n,), 0, dtype)


def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: Any = None,
    device: Any = None,
) -> Tensor:  # fmt: skip
    """start, start + step, ... below (for a negative step: above) stop; int32 when all are
    integers, else float32."""
    begin, end = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise UsageError(
            "arange: a step of 0 never reaches the end; use a positive or negative one"
        )
    whole = all(isinstance(v, int) for v in (begin, end, step))
    wanted = as_dtype(dtype) if dtype is not None else dt.int32 if whole else dt.float32
    n = max(0, math.ceil((end - begin) / step))
    work = dt.compute_dtype(wanted) if wanted.is_float or whole else dt.float32
    x = Tensor(_count(n, work))
    if step != 1:
        x = x * step
    if begin != 0:
        x = x + begin
    return _placed(x.cast(wanted)._value, device)


def linspace(
    start: float, stop: float, num: int, dtype: Any = dt.float32, device: Any = None
) -> Tensor:
    """`num` numbers evenly spaced from start to stop, both included."""
    if num < 0:
        raise ShapeError(f"linspace: {num} numbers; give 0 or more")
    wanted = as_dtype(dtype)
    work = dt.compute_dtype(wanted)
    step = (stop - start) / max(num - 1, 1)
    i = Tensor(_count(num, work))
    x = i * step + start
    if num > 1:  # the last is exactly stop, whatever the rounding of the step
        x = (i == num - 1).where(float(stop), x)
    return _placed(x.cast(wanted)._value, device)


def eye(n: int, m: int | None = None, dtype: Any = dt.float32, device: Any = None) -> Tensor:
    """Ones on the diagonal of an n x m (by default n x n) matrix, zeros elsewhere."""
    shape = (n, n if m is None else m)
    same = Tensor(ops.equal(ops.iota(shape, 0, dt.int32), ops.iota(shape, 1, dt.int32)))
    return _placed(same.cast(as_dtype(dtype))._value, device)


def tril(x: Tensor, k: int = 0) -> Tensor:
    """x with everything above diagonal k of its last two axes zeroed."""
    return _triangle(x, k, lower=True)


def triu(x: Tensor, k: int = 0) -> Tensor:
    """x with everything below diagonal k of its last two axes zeroed."""
    return _triangle(x, k, lower=False)


def _triangle(x: Tensor, k: int, lower: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"tril, triu: {list(x.shape)} has no last two axes")
    row = ops.iota(x.shape, x.ndim - 2, dt.int32)
    column = ops.iota(x.shape, x.ndim - 1, dt.int32)
    distance = ops.sub(column, row)
    keep = (
        ops.less_equal(distance, k)
        if lower
        else ops.less_equal(ops.full_like(distance, k), distance)
    )
    mask = Tensor(keep)
    if not x.is_traced and x.device != "cpu":
        mask = mask.to(x.device)
    return mask.where(x, False if x.dtype == dt.bool_ else 0)
