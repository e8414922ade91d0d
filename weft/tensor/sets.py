"""The array API's functions that search, and find different values (Python array API standard
2024.12), as `weft.searchsorted`, ... An operand is a Tensor or a NumPy array.

A result whose shape only the values know (`nonzero`, `unique_...`) is computed on the host, from
where it goes back to the operand's device; never inside weft.compile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor.core import Tensor
from weft.tensor.elementwise import as_tensor, as_tensors
from weft.tensor.keys import place_like

Operand = Any  # a Tensor or a NumPy array


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


def _values(like: Tensor, array: np.ndarray) -> Tensor:
    """Values found on the host, on the device of `like`."""
    return Tensor(place_like(like, array))


def _indices(like: Tensor, array: np.ndarray) -> Tensor:
    """Indices or counts found on the host (int32), on the device of `like`."""
    return _values(like, np.asarray(array).astype(np.int32))


def nonzero(x: Operand, /) -> tuple[Tensor, ...]:
    """The indices (int32) of elements that are not zero, one tensor per axis; computed on the
    host. Raises TraceError inside weft.compile, ShapeError for a 0-d tensor."""
    t = as_tensor(x)
    if not t.ndim:
        raise ShapeError("nonzero: a 0-d tensor has no indices; use x != 0, or reshape it to [1]")
    return tuple(_indices(t, i) for i in np.nonzero(t.numpy()))


def unique_all(x: Operand, /) -> UniqueAll:
    """The different values, sorted (each NaN is one), and three more results. For each value: the
    index of its first occurrence in the flattened tensor, and its count. For each element of x: the
    index of its value, in the shape of x. Indices and counts are int32. Computed on the host.
    Raises TraceError inside weft.compile.

    >>> weft.unique_all(weft.tensor([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    t = as_tensor(x)
    found = np.unique(t.numpy(), True, True, True, equal_nan=False)
    first, inverse, counts = (_indices(t, part) for part in found[1:])
    return UniqueAll(_values(t, found[0]), first, inverse.reshape(t.shape), counts)


def unique_counts(x: Operand, /) -> UniqueCounts:
    """The different values, sorted, and how often each occurs (int32); see `unique_all`.

    >>> weft.unique_counts(weft.tensor([3, 1, 3])).values.tolist()
    [1, 3]
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Operand, /) -> UniqueInverse:
    """The different values, sorted, and for each element of x the index of its value (int32); see
    `unique_all`.

    >>> weft.unique_inverse(weft.tensor([3, 1, 3])).inverse_indices.tolist()
    [1, 0, 1]
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Operand, /) -> Tensor:
    """The different values, sorted (each NaN is one); computed on the host. Raises TraceError
    inside weft.compile."""
    t = as_tensor(x)
    return _values(t, np.unique(t.numpy(), equal_nan=False))


def searchsorted(
    x1: Operand, x2: Operand, /, *, side: str = "left", sorter: Operand | None = None
) -> Tensor:
    """The position (int32) in the sorted 1-d tensor x1 at which each element of x2 keeps it sorted:
    before equal elements, or after them with side="right". NaN is the largest. `sorter` holds the
    indices that sort x1. A binary search by gathers, on every device. Raises ShapeError,
    UsageError.

    >>> weft.searchsorted(weft.tensor([1, 3, 5]), weft.tensor([3, 4])).tolist()
    [1, 2]
    """
    if side not in ("left", "right"):
        raise UsageError(f'searchsorted: side={side!r:.40}; use "left" or "right"')
    line, wanted = as_tensors(x1, x2)
    if line.ndim != 1:
        raise ShapeError(f"searchsorted: x1 {list(line.shape)}; expected one axis")
    line = line if sorter is None else line.take(sorter)
    dtype = dt.promote(line.dtype, wanted.dtype)
    line, wanted = line.cast(dtype)._as_number(), wanted.cast(dtype)._as_number()
    at = wanted.isnan().cast(dt.int32) * 0
    for bit in reversed(range(line.size.bit_length())):
        probe = at + (1 << bit)
        found = line.take((probe - 1).minimum(line.size - 1))
        below = _before(found, wanted) if side == "left" else ~_before(wanted, found)
        at = ((probe <= line.size) & below).where(probe, at)
    return at


def _before(a: Tensor, b: Tensor) -> Tensor:
    """True where a comes before b in a sorted tensor."""
    return (a < b) | (b.isnan() & ~a.isnan())


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    """True where an element of x1 equals one of x2 (bool, in the shape of x1), or none of them
    with `invert`. NaN equals nothing.

    >>> weft.isin(weft.tensor([1, 2, 3]), weft.tensor([3, 1])).tolist()
    [True, False, True]
    """
    x, pool = as_tensors(x1, x2)
    dtype = dt.promote(x.dtype, pool.dtype)
    x, line = x.cast(dtype)._as_number(), pool.cast(dtype)._as_number().reshape(pool.size).sort()
    if not pool.size:
        found = x != x if not x.dtype.is_float else x.isnan() & ~x.isnan()
    else:
        found = line.take(searchsorted(line, x).minimum(pool.size - 1)) == x
    return ~found if invert else found


def repeats_as_indices(t: Tensor, repeats: Operand, size: int) -> Tensor:
    """For `repeats` of [size] or [1], the indices (int32) that repeat each place so often; the
    counts are read on the host. Raises ShapeError."""
    counts = as_tensor(repeats).numpy()
    if counts.ndim > 1 or counts.size not in (1, size) or counts.dtype.kind not in "iu":
        raise ShapeError(f"repeat: {counts.dtype}{list(counts.shape)} repeats of {size} slices")
    if (counts < 0).any():
        raise ShapeError(f"repeat: {int(counts.min())} repeats; give 0 or more")
    return _indices(t, np.repeat(np.arange(size), counts))
