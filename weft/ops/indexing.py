"""Data-dependent movement: gather scatter_add update sort.

Indices are int32 and count from the front. gather gives NaN, 0 or False (`missing`) at an index
outside its axis; scatter_add and update drop rows whose index is outside axis 0. scatter_add adds
in the order of its rows; update's indices must otherwise be unique. sort is stable and puts NaN
last (first when descending).
"""

from __future__ import annotations

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops.primitive import Aval, Primitive, register
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
    """What gather gives where an index is outside: NaN of floats, 0 of integers, False of bools."""
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
    return _rows_abstract("scatter_add", x, idx, upd)


def _update_abstract(x: Aval, idx: Aval, value: Aval) -> Aval:
    return _rows_abstract("update", x, idx, value)


def _scatter_add_numpy(x: np.ndarray, idx: np.ndarray, upd: np.ndarray) -> np.ndarray:
    inside = (idx >= 0) & (idx < x.shape[0])
    out = np.array(wide(x))
    np.add.at(out, idx[inside], wide(upd)[inside])
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


register(Primitive("gather", "gather", _gather_abstract, _gather_numpy))
register(Primitive("scatter_add", "scatter", _scatter_add_abstract, _scatter_add_numpy))
register(Primitive("update", "scatter", _update_abstract, _update_numpy))
register(Primitive("sort", "sort", _sort_abstract, _sort_numpy))
