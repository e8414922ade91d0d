"""PyTorch's running folds and orders, with its named results."""

from __future__ import annotations

import math
from typing import Any

from weft.core import dtypes as dt
from weft.importers.aten import reductions
from weft.ops.rules import axis_of
from weft.tensor.core import Tensor
from weft.torch import elementwise as ew
from weft.torch.reductions import Picked, at_index, summed
from weft.torch.tensor import index_of, public, real

# -- running


@public
def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Running sums along an axis."""
    x = summed(input, dtype)
    return Tensor.cumsum(x, dim, x.dtype) if x.ndim else x.clone()


@public
def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Running products along an axis."""
    x = summed(input, dtype)
    return Tensor.cumprod(x, dim, x.dtype) if x.ndim else x.clone()


def _running(name: str) -> Any:
    def function(input: Tensor, dim: int) -> Picked:
        if not input.ndim:
            return Picked(input.clone(), index_of(input.cast(dt.bool_).cast(dt.int32) * 0))
        values, index = getattr(Tensor, name)(input, dim)
        return Picked(values, index_of(index))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {name[3:]}imum so far along an axis, and its last index."
    return public(function)


cummax, cummin = _running("cummax"), _running("cummin")


@public
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(input))) along an axis."""
    return Tensor.logcumsumexp(input, dim) if input.ndim else real(input).clone()


@public
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The n-th differences of neighbours along an axis; those of bools are xor."""
    return reductions.diff(input, n, dim, prepend, append) if n else input.clone()


# -- order


@public
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Picked:
    """Sorted along an axis, with the indices that sort."""
    if not input.ndim:
        return Picked(input.clone(), index_of(input.cast(dt.int32) * 0))
    order = Tensor.argsort(input, dim, descending)
    return Picked(input._along(order, axis_of("sort", dim, input.ndim)), index_of(order))


@public
def msort(input: Tensor) -> Tensor:
    """Sorted along the first axis."""
    return sort(input, 0).values  # type: ignore[no-any-return]


@public
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort along an axis; equal elements keep their order."""
    return sort(input, dim, descending).indices  # type: ignore[no-any-return]


@public
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Picked:
    """The k largest (or smallest) along an axis, in order, and their indices."""
    if not input.ndim:
        return Picked(*(x.squeeze(0).narrow(0, 0, 1) if x.ndim > 1 else x.reshape(()) for x in
                        topk(input.reshape(1), k, 0)))  # fmt: skip
    values, index = Tensor.topk(input, k, dim, largest)
    return Picked(values, index_of(index))


@public
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Picked:
    """The k-th smallest along an axis, from 1 on, and its index."""
    x = input if input.ndim else input.reshape(1)
    return at_index(input, Tensor.argsort(x, dim).narrow(dim, k - 1, 1), dim, keepdim)


@public
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of two in the middle: of all, or along an axis with its index; NaN wins."""
    if dim is None:
        if not input.size and input.dtype.is_float:
            return input.new_full((), math.nan)
        return median(input.reshape(-1), 0).values
    x = input if input.ndim else input.reshape(1)
    n = x.shape[dim]
    order = Tensor.argsort(x, dim)
    middle = order.narrow(dim, (n - 1) // 2, 1)
    if x.dtype.is_float:
        spoiled = ew.isnan(x)
        first = Tensor.argmax(spoiled.cast(dt.int32), dim, True)
        middle = Tensor.any(spoiled, dim, True).where(first, middle)
    return at_index(input, middle, dim, keepdim)


@public
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of two in the middle of what is not NaN."""
    if dim is None and not input.size and input.dtype.is_float:
        return input.new_full((), math.nan)
    if dim is None:
        return nanmedian(input.reshape(-1), 0).values
    x = input if input.ndim else input.reshape(1)
    order = Tensor.argsort(x, dim)
    held = (~ew.isnan(x)).cast(dt.int32).sum(dim, True)
    middle = order._along(((held - 1).maximum(0) // 2), axis_of("dim", dim, x.ndim))
    return at_index(input, middle, dim, keepdim)
