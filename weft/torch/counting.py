"""PyTorch's counts, and places among sorted values."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.importers.aten import counting, indexing
from weft.tensor.core import Tensor
from weft.torch.expected import want, want_rank
from weft.torch.picking import gather
from weft.torch.tensor import (
    as_tensor,
    function_only,
    index_of,
    public,
    together,
    whole,
)


@function_only
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """The coordinates of places of a flattened tensor of a shape."""
    sizes = tuple([shape] if isinstance(shape, int) else shape)
    rest, found = index_of(indices), []
    for n in reversed(sizes):
        found.append(index_of(rest % n))
        rest = rest // n
    return tuple(reversed(found))


@public
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number (or the sum of weights) of each of 0..max(input); its length depends on values."""
    if input.dtype.is_float or input.ndim != 1:
        raise UsageError(f"bincount: {input._known()}; expected a vector of integers")
    want(minlength >= 0, "bincount", f"minlength {minlength}", "0 or more")
    held = input.numpy().astype(np.int64)
    if held.min(initial=0) < 0:
        raise UsageError(f"bincount: {held.min()} is below 0; give values from 0 on")
    n = max(int(held.max(initial=-1)) + 1, minlength)
    each = input.new_ones(input.shape, dtype=whole(input)) if weights is None else weights
    each = each if each.dtype.is_float else each.cast(whole(input))
    return indexing.index_add(each.new_zeros(n), 0, input, each)


@public
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal parts of min..max."""
    want(bins > 0, "histc", f"{bins} bins", "one or more")
    want(min <= max, "histc", f"min {min}, max {max}", "a max of min or more")
    return counting.histc(input, bins, min, max) if input.size else input.new_zeros(bins)


@function_only
def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of sorted boundaries below each value (`right`: or equal to it)."""
    want_rank("bucketize", boundaries, 1)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@function_only
def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The place of each value among those of a sorted row, before (`right`: after) equal ones."""
    agree = side in (None, "right") or (side == "left" and not right)
    want(agree, "searchsorted", f"side {side!r}, right {right}", "left or right, in agreement")
    fits = sorter is None or sorter.shape == sorted_sequence.shape
    want(fits, "searchsorted", f"a sorter {list(getattr(sorter, 'shape', ()))}",
         f"one of the sequence's shape {list(sorted_sequence.shape)}")  # fmt: skip
    line = sorted_sequence if sorter is None else gather(sorted_sequence, -1, sorter)
    values = as_tensor(input)
    line, values = together(line, values)
    found = counting.searchsorted(line, values, right=right, side=side)
    return found.cast(dt.int32) if out_int32 else index_of(found)


@function_only
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """True where an element is one of the test elements."""
    x, tests = together(as_tensor(elements), as_tensor(test_elements))
    found = (x.unsqueeze(-1) == tests.reshape(-1)).any(-1)
    return ~found if invert else found
