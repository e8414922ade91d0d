"""The array API's functions that fold, order and multiply arrays (Python array API standard
2024.12), as `weft.sum`, ... An operand is a Tensor or a NumPy array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import torch_form
from weft.ops.rules import axes_of, axis_of
from weft.tensor import shapes
from weft.tensor.arrays import moveaxis
from weft.tensor.core import Tensor
from weft.tensor.elementwise import as_tensor, method

Operand = Any  # a Tensor or a NumPy array
Axes = int | Sequence[int] | None

prod = method(Tensor.prod)
mean = method(Tensor.mean)
max = method(Tensor.max)
min = method(Tensor.min)
all = method(Tensor.all)
any = method(Tensor.any)
argmax = method(Tensor.argmax)
argmin = method(Tensor.argmin)
topk = method(Tensor.topk)
take_along_axis = method(Tensor.take_along_axis)

# -- reductions


def sum(x: Operand, /, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over the axes (all by default); see Tensor.sum for what it accumulates in."""
    return as_tensor(x).sum(axis, keepdims, dtype)


@torch_form(lambda x, *a, **k: as_tensor(x).var(*a, **k))
def var(
    x: Operand, /, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The mean squared deviation over the axes, divided by n - correction."""
    return as_tensor(x).var(axis, keepdims, correction)


@torch_form(lambda x, *a, **k: as_tensor(x).std(*a, **k))
def std(
    x: Operand, /, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The square root of var."""
    return as_tensor(x).std(axis, keepdims, correction)


def count_nonzero(x: Operand, /, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The number of elements that are not zero (int32)."""
    ones = as_tensor(x).cast(dt.bool_).cast(dt.int32)
    return ones._reduce("sum", axis, keepdims, "count_nonzero")


def cumulative_sum(
    x: Operand, /, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running sums along an axis (optional for a 1-d tensor), after a 0 when `include_initial`; see
    Tensor.cumsum for the dtype of the sums."""
    return _cumulative("cumulative_sum", "sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Operand, /, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running products along an axis (optional for a 1-d tensor), after a 1 when `include_initial`;
    see Tensor.cumprod for the dtype of the products."""
    return _cumulative("cumulative_prod", "prod", x, axis, dtype, include_initial)


def _cumulative(
    name: str, op: str, x: Operand, axis: int | None, dtype: Any, initial: bool
) -> Tensor:
    t = as_tensor(x)
    if axis is None and t.ndim != 1:
        raise ShapeError(f"{name}: {list(t.shape)} has {t.ndim} axes; name one")
    a = axis_of(name, 0 if axis is None else axis, t.ndim)
    t = t._as(t._summed(dtype))
    if initial:
        t = t.pad([(0, int(i == a)) for i in range(t.ndim)])
    return t._running(name, op, a, exclusive=initial)


def diff(
    x: Operand, /, n: int = 1, axis: int = -1, prepend: Operand | None = None,
    append: Operand | None = None,
) -> Tensor:  # fmt: skip
    """The n-th differences of neighbours along an axis, of x between `prepend` and `append`."""
    t = as_tensor(x)
    a = axis_of("diff", axis, t.ndim)
    if n < 0:
        raise UsageError(f"diff: n is {n}; expected 0 or more")
    ends = [as_tensor(p) for p in (prepend, t, append) if p is not None]
    t = shapes.cat(ends, a) if len(ends) > 1 else t
    for _ in range(n if n < t.shape[a] else t.shape[a]):  # then nothing is left
        length = t.shape[a] - 1 if t.shape[a] else 0
        t = t.narrow(a, 1, length) - t.narrow(a, 0, length) if length else t.narrow(a, 0, 0)
    return t if n else t._fresh()


# -- order, choice, products


@torch_form(lambda x, *a, **k: as_tensor(x).sort(*a, **k))
def sort(x: Operand, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sorted along an axis; NaN counts as the largest. Equal elements keep their order, whatever
    `stable` says."""
    return as_tensor(x).sort(axis, descending)


def argsort(x: Operand, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices (int32) that sort along an axis; equal elements keep their order, whatever
    `stable` says."""
    return as_tensor(x).argsort(axis, descending)


def take(x: Operand, indices: Operand, /, axis: int = 0) -> Tensor:
    """Slices along an axis (of size n) at integer indices, of which -n..-1 count from the end.

    A tensor's values are data: where one is out of range the result is NaN, 0 of integers or False
    of bools, on every device, and no gradient flows. Those of a list or NumPy array are known
    beforehand: raises ShapeError.

    >>> weft.take(weft.tensor([10, 20, 30]), [2, 0, -2]).tolist()
    [30, 10, 20]
    """
    return as_tensor(x).take(indices, axis)


def matmul(x1: Operand, x2: Operand, /) -> Tensor:
    """The matrix product [..., m, k] @ [..., k, n] -> [..., m, n], with NumPy's rules for vectors
    and batches. Sums of float16 and bfloat16 are in float32. Raises ShapeError.

    >>> weft.matmul(weft.tensor([[1, 2]]), weft.tensor([[3], [4]])).tolist()
    [[11]]
    """
    return as_tensor(x1) @ as_tensor(x2)


def vecdot(x1: Operand, x2: Operand, /, axis: int = -1) -> Tensor:
    """The sum of products along one axis of both, the others broadcast."""
    a, b = as_tensor(x1), as_tensor(x2)
    a, b = moveaxis(a, axis, -1).unsqueeze(-2), moveaxis(b, axis, -1).unsqueeze(-1)
    return (a @ b).squeeze((-2, -1))


def tensordot(x1: Operand, x2: Operand, /, axes: Any = 2) -> Tensor:
    """Products summed over the last `axes` axes of x1 and the first of x2, or over the pairs of
    axes that two sequences name. Raises ShapeError."""
    a, b = as_tensor(x1), as_tensor(x2)
    whole = isinstance(axes, int | np.integer)
    pairs = (range(-axes, 0), range(axes)) if whole else axes
    left, right = axes_of("tensordot", pairs[0], a.ndim), axes_of("tensordot", pairs[1], b.ndim)
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ShapeError(f"tensordot: axes {axes} of {list(a.shape)} and {list(b.shape)} differ")
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [i for i in range(b.ndim) if i not in right]
    k = math.prod(a.shape[i] for i in left)
    x = a.permute([*rows, *left]).reshape((math.prod(a.shape[i] for i in rows), k))
    y = b.permute([*right, *columns]).reshape((k, math.prod(b.shape[i] for i in columns)))
    return (x @ y).reshape([a.shape[i] for i in rows] + [b.shape[i] for i in columns])
