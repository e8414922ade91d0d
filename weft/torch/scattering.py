"""PyTorch's functions that write at indices; each gives a new tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import AxisError, ShapeError
from weft.importers.aten import indexing, movement
from weft.tensor.core import Tensor
from weft.torch.arithmetic import mul
from weft.torch.expected import fitted, want, want_dtype, want_one_of, want_rank
from weft.torch.picking import axis_at, inside, keys_inside, known, with_axis
from weft.torch.tensor import public


@public
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """A copy to which slices of `source` are added at these indices."""
    x = with_axis(input)
    a = axis_at("index_add", x, dim)
    want_dtype("index_add", input, source)
    at, rows = inside("index_add", index.reshape(-1), x.shape[a]), with_axis(source)
    rows = rows if alpha == 1 else mul(rows, alpha)
    return _counting(x, rows, lambda x, y: indexing.index_add(x, a, at, y)).reshape(input.shape)


def _counting(x: Tensor, new: Any, write: Callable[[Any, Any], Any]) -> Tensor:
    """The result of `write` on x and new values; bools are counted, and true from 1 on."""
    if x.dtype != dt.bool_:
        return write(x, new)  # type: ignore[no-any-return]
    made: Tensor = write(x.cast(dt.int32), new.cast(dt.int32)).cast(dt.bool_)
    return made


@public
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy in which the slices at these indices are those of `source`."""
    x = with_axis(input)
    a = axis_at("index_copy", x, dim)
    at = inside("index_copy", index.reshape(-1), x.shape[a])
    return indexing.index_copy(x, a, at, with_axis(source)).reshape(input.shape)


@public
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """A copy in which the slices at these indices hold one value."""
    x = with_axis(input)
    a = axis_at("index_fill", x, dim)
    at = inside("index_fill", index.reshape(-1), x.shape[a], below=True)
    if isinstance(value, Tensor):
        want_rank("index_fill", value, 0)
        hit = indexing.index_fill(Tensor(np.zeros(x.shape[a], bool)), 0, at, True)
        line = [-1 if i == a else 1 for i in range(x.ndim)]
        return hit.reshape(line).where(value.cast(x.dtype), x).reshape(input.shape)
    value = fitted("index_fill", value, input.dtype)
    return indexing.index_fill(x, a, at, value).reshape(input.shape)


@public
def index_put(
    input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy with `values` written (or added) at index tensors, one per axis."""
    keys_inside("index_put", input, indices)
    values = values.cast(input.dtype)
    put = partial(indexing.index_put, indices=indices, accumulate=accumulate)
    return _counting(input, values, lambda x, y: put(x, values=y))


@public
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    """A copy in which slices at these indices are joined with those of `source`."""
    _no_mean("index_reduce", input, reduce)
    x = with_axis(input)
    at = inside("index_reduce", index.reshape(-1), x.shape[axis_at("index_reduce", x, dim)])
    bools = x.dtype == dt.bool_ and reduce in ("amin", "amax")  # as numbers
    x, source = (t.cast(dt.uint8) if bools else t for t in (x, source))
    how = at, with_axis(source), reduce, include_self
    return indexing.index_reduce(x, dim, *how).reshape(input.shape).cast(input.dtype)


def _fit(input: Tensor, index: Tensor, src: Any, name: str, dim: int) -> tuple[Any, ...]:
    """A number's axis added; scatter's operands."""
    x, at = with_axis(input), with_axis(index)
    if isinstance(src, Tensor):
        want_dtype(name, input, src)
    a = axis_at(name, x, dim)
    return x, a, inside(name, at, x.shape[a]), with_axis(src) if isinstance(src, Tensor) else src


@public
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None,
    reduce: str | None = None,
) -> Tensor:  # fmt: skip
    """A copy in which element `index` of the axis is that of `src`, position by position; of equal
    indices the last wins. `reduce`: "add" or "multiply" instead of writing."""
    src = value if src is None else src
    if not index.size:
        return input.clone()
    x, a, at, new = _fit(input, index, src, "scatter", dim)
    if reduce is not None:
        how = {"add": "sum", "multiply": "prod"}[reduce]
        new = new if isinstance(new, Tensor) else Tensor.new_full(x, at.shape, new)
        made = _counting(x, new, lambda x, y: indexing.scatter_reduce(x, a, at, y, how))
        made = made.cast(x.dtype)
    elif isinstance(new, Tensor):
        made = indexing.scatter(x, a, at, new)
    else:
        made = indexing.scatter_value(x, a, at, new)
    return made.reshape(input.shape)


@public
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy to which `src` is added at `index` of the axis, position by position."""
    if not index.size:
        return input.clone()
    x, a, at, new = _fit(input, index, src, "scatter_add", dim)
    made = _counting(x, new, lambda x, y: indexing.scatter_add(x, a, at, y))
    return made.reshape(input.shape)


def _no_mean(name: str, input: Tensor, reduce: str) -> None:
    want(input.dtype != dt.bool_ or reduce != "mean", name, "a mean of bools",
         "numbers: call .float() on them first")  # fmt: skip


@public
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy in which the values that fall on one place are joined: "sum", "prod", "mean", "amax"
    or "amin"."""
    want_one_of("scatter_reduce", "reduce", reduce, ("sum", "prod", "mean", "amax", "amin"))
    if not index.size:
        return input.clone()
    _no_mean("scatter_reduce", input, reduce)
    x, a, at, new = _fit(input, index, src, "scatter_reduce", dim)
    how = (reduce, include_self)
    made = _counting(x, new, lambda x, y: indexing.scatter_reduce(x, a, at, y, *how))
    return made.reshape(input.shape).cast(input.dtype)


@public
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`value` where the mask holds, else the tensor."""
    number = not isinstance(value, Tensor)
    filled = fitted("masked_fill", value, input.dtype) if number else value.cast(input.dtype)
    return mask.where(filled, input).cast(input.dtype)


@public
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements where the mask holds take those of `source`, in order."""
    shape = np.broadcast_shapes(input.shape, mask.shape)
    held = known(mask)
    if held is not None and (wanted := int(np.broadcast_to(held, shape).sum())) > source.size:
        raise ShapeError(f"masked_scatter: the mask holds {wanted} times, source has "
                         f"{source.size} elements")  # fmt: skip
    return indexing.masked_scatter(input.expand(shape), mask, source)


@public
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with `source` written (or added) at places of the flattened tensor."""
    at = inside("put", index, input.size, below=True).reshape(-1)
    flat = input.reshape(-1)
    if not at.size:
        return input.clone()
    write = indexing.index_add if accumulate else indexing.index_copy
    return _counting(flat, source.reshape(-1), lambda x, y: write(x, 0, at, y)).reshape(input.shape)


@public
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    """A copy in which elements start..end-1 of an axis are those of `src`."""
    d = axis_at("slice_scatter", input, dim)
    n = len(range(input.shape[d])[start:end:step])
    if src.shape != (*input.shape[:d], n, *input.shape[d + 1 :]):
        raise ShapeError(f"slice_scatter: src {src._known()} for {n} of axis {d} of "
                         f"{input._known()}")  # fmt: skip
    return movement.slice_scatter(input, src, dim, start, end, step)


@public
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy in which the slice at `index` is `src`."""
    size = input.shape[axis_at("select_scatter", input, dim)]
    if not -size <= index < size:
        raise AxisError(f"select_scatter: index {index} is out of range for an axis of size {size}")
    return movement.select_scatter(input, src, dim, index)


@public
def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy in which a diagonal is `src`."""
    from weft.torch.creation import arange
    from weft.torch.diagonals import diagonal

    places = arange(math.prod(input.shape)).cast(dt.int32).reshape(input.shape)
    at = diagonal(places, offset, dim1, dim2).reshape(-1)
    return put(input, at, src.cast(input.dtype))
