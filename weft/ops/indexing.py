"""Data-dependent movement: gather scatter_add update sort.

Indices are int32 and count from the front.
Gather gives NaN, 0 or False (`missing`) at an index outside its axis. Scatter_add and update drop
rows whose index is outside axis 0. Scatter_add adds in the order of its rows; the indices of update
must otherwise be unique. Sort is stable and puts NaN last (first when descending).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.functions import Value
from weft.ops.primitive import Aval, Primitive, aval, register
from weft.ops.rules import canonical_axis, countable, want, wide


def _want_int32(op: str, idx: Aval) -> None:
    if idx.dtype != dt.int32:
        raise DTypeError(f"{op}: indices are {idx.dtype.name}, expected int32; cast with astype")


def _gather_abstract(x: Aval, idx: Aval, *, axis: int) -> Aval:
    _want_int32("gather", idx)
    canonical_axis("gather", axis, len(x.shape))
    out = (*x.shape[:axis], *idx.shape, *x.shape[axis + 1 :])
    if x.shape[axis] == 0 and 0 not in idx.shape:
        raise ShapeError(f"gather: axis {axis} of {list(x.shape)} is empty: nothing to take")
    return Aval(out, x.dtype)


def missing(dtype: dt.DType) -> float | int | bool:
    """Returns the value that gather gives for an index outside its axis: NaN for floats, 0 for
    integers, False for bools."""
    return float("nan") if dtype.is_float else False if dtype == dt.bool_ else 0


def _gather_numpy(x: np.ndarray, idx: np.ndarray, *, axis: int) -> np.ndarray:
    n = x.shape[axis]
    if n == 0:
        return np.zeros((*x.shape[:axis], *idx.shape, *x.shape[axis + 1 :]), x.dtype)
    outside = (idx < 0) | (idx >= n)
    if not outside.any():
        return np.take(x, idx, axis=axis)
    out = np.array(np.take(x, np.where(outside, 0, idx), axis=axis))
    out[(slice(None),) * axis + (outside,)] = missing(dt.as_dtype(x.dtype))
    return out


def _rows_abstract(op: str, x: Aval, idx: Aval, rows: Aval) -> Aval:
    _want_int32(op, idx)
    if not x.shape or len(idx.shape) != 1:
        raise ShapeError(
            f"{op}: expected a value with rows and a 1-d index, got {list(x.shape)} and "
            f"{list(idx.shape)}"
        )
    if rows.dtype != x.dtype:
        raise DTypeError(f"{op}: rows are {rows.dtype.name}, the value {x.dtype.name}; cast one")
    if rows.shape != (*idx.shape, *x.shape[1:]):
        raise ShapeError(
            f"{op}: rows are {list(rows.shape)}, expected {[*idx.shape, *x.shape[1:]]} (one row "
            "per index)"
        )
    return x


def _scatter_add_abstract(x: Aval, idx: Aval, upd: Aval) -> Aval:
    want("scatter_add", x, "numeric")
    if len(idx.shape) == 1:
        return _rows_abstract("scatter_add", x, idx, upd)
    if not x.shape or idx.shape != upd.shape or idx.shape[1:] != x.shape[1:]:
        raise ShapeError(
            f"scatter_add: an index {list(idx.shape)} and rows {list(upd.shape)} for a value "
            f"{list(x.shape)}; expected an index per row, or one per element of rows as wide"
        )
    line = Aval(idx.shape[:1], idx.dtype)
    return _rows_abstract("scatter_add", x, line, upd)


def _update_abstract(x: Aval, idx: Aval, value: Aval) -> Aval:
    return _rows_abstract("update", x, idx, value)


def _scatter_add_numpy(x: np.ndarray, idx: np.ndarray, upd: np.ndarray) -> np.ndarray:
    inside = (idx >= 0) & (idx < x.shape[0])
    out = np.array(wide(x), order="C")
    if idx.ndim == 1:
        np.add.at(out, idx[inside], wide(upd)[inside])
    else:  # one flat index: NumPy is several times slower by several
        line = np.arange(math.prod(x.shape[1:])).reshape(x.shape[1:])
        at = idx.astype(np.int64) * line.size + line
        np.add.at(out.reshape(-1), at[inside], wide(upd)[inside])
    return out.astype(x.dtype)


def _update_numpy(x: np.ndarray, idx: np.ndarray, value: np.ndarray) -> np.ndarray:
    inside = (idx >= 0) & (idx < x.shape[0])
    out = x.copy()
    out[idx[inside]] = value[inside]
    return out


def _sort_abstract(x: Aval, *, axis: int, descending: bool, indices: bool) -> Aval:
    want("sort", x, "numeric")
    canonical_axis("sort", axis, len(x.shape))
    if not isinstance(descending, bool) or not isinstance(indices, bool):
        raise DTypeError("sort: descending and indices are True or False")
    if indices:
        countable("argsort", x.shape[axis])
    return Aval(x.shape, dt.int32 if indices else x.dtype)


def _sort_numpy(x: np.ndarray, *, axis: int, descending: bool, indices: bool) -> np.ndarray:
    key = wide(x)
    if descending:  # stable: sort the reversed row, then read it backwards
        back = np.argsort(np.flip(key, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(back, axis)
    else:
        order = np.argsort(key, axis=axis, kind="stable")
    return order.astype(np.int32) if indices else np.take_along_axis(x, order, axis)


# -- derivatives (see VjpRule) -------------------------------------------------------------------


def _gather_vjp(g: Value, out: Value, x: Value, idx: Value, *, axis: int) -> Sequence[Any]:
    """Rows are added up where they were taken from, in their order; those from outside drop."""
    shape, taken = aval(x).shape, aval(idx).shape
    if shape[axis] == 0:
        return f.full_like(x, 0), None
    count = math.prod(taken)
    at = f.reshape(idx, (count,))
    flat = f.reshape(g, (*shape[:axis], count, *shape[axis + 1 :]))
    order = (axis, *(i for i in range(len(shape)) if i != axis))
    rows = f.transpose(flat, order)
    zeros = f.full_like(f.transpose(x, order), 0)
    back = sorted(range(len(order)), key=lambda i: order[i])
    return f.transpose(f.scatter_add(zeros, at, rows), back), None


def _rows_of(g: Value, idx: Value) -> Value:
    """Rows idx of g; zeros for those outside."""
    (n, *rest), (count, *own) = aval(g).shape, aval(idx).shape
    if n == 0:
        return f.pad(g, [0] * (1 + len(rest)), [count, *[0] * len(rest)])
    inside = f.bitwise_and(f.less_equal(f.full_like(idx, 0), idx), f.less(idx, n))
    if own:  # elements by their own index
        wide = math.prod(own)
        countable("scatter_add", n * wide)
        line = f.reshape(f.iota((wide,), 0, dt.int32), (1, *own))
        at = f.add(f.mul(idx, wide), f.broadcast(line, (count, *own)))
        return f.where(inside, f.gather(f.reshape(g, (n * wide,)), at), 0)
    keep = f.reshape(inside, (count, *(1 for _ in rest)))
    return f.where(f.broadcast(keep, (count, *rest)), f.gather(g, idx), 0)


def _scatter_add_vjp(g: Value, out: Value, x: Value, idx: Value, upd: Value) -> Sequence[Any]:
    return g, None, lambda: _rows_of(g, idx)


def _update_vjp(g: Value, out: Value, x: Value, idx: Value, value: Value) -> Sequence[Any]:
    return (lambda: f.update(g, idx, f.full_like(value, 0))), None, lambda: _rows_of(g, idx)


def _sort_vjp(
    g: Value, out: Value, x: Value, *, axis: int, descending: bool, indices: bool
) -> Sequence[Any]:
    """Each element of the gradient goes back along the inverse permutation."""
    order = f.sort(x, axis, descending, indices=True)
    inverse = f.sort(order, axis, indices=True)
    shape = aval(x).shape
    n, rank = shape[axis], len(shape)
    perm = (*(i for i in range(rank) if i != axis), axis)
    moved = tuple(shape[p] for p in perm)
    rows = math.prod(moved[:-1])
    if not rows * n:
        return (g,)
    countable("sort", rows * n)
    start = f.mul(f.iota((rows, n), 0, dt.int32), n)
    at = f.add(f.reshape(f.transpose(inverse, perm), (rows, n)), start)
    flat = f.reshape(f.transpose(g, perm), (rows * n,))
    back = sorted(range(rank), key=lambda i: perm[i])
    return (f.transpose(f.reshape(f.gather(flat, at), moved), back),)


register(Primitive("gather", "gather", _gather_abstract, _gather_numpy, vjp=_gather_vjp, cost=2))
register(
    Primitive("scatter_add", "scatter", _scatter_add_abstract, _scatter_add_numpy,
              vjp=_scatter_add_vjp)
)  # fmt: skip
register(Primitive("update", "scatter", _update_abstract, _update_numpy, vjp=_update_vjp))
register(Primitive("sort", "sort", _sort_abstract, _sort_numpy, vjp=_sort_vjp))
