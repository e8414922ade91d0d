"""The short way of elementwise operators: one call of NumPy for tensors that need nothing else.

Most of the time of an operator on small arrays is Python's. Two host tensors of one dtype without
history, outside of traces, need no promotion, capture or record, and NumPy broadcasts as weft
does. The functions here call the ufunc of the primitive's own NumPy rule, so the bits are those of
the long way. They return None for anything else, an error included: the long way names it.
"""

from __future__ import annotations

import contextvars
import threading
from functools import lru_cache, partial
from typing import Any

import numpy as np

from weft import ops
from weft.ops.primitive import RECORDED
from weft.ops.ufuncs import UFUNCS
from weft.tensor import views
from weft.tensor.base import CURRENT, TensorBase, tensor_of

_SMALL = range(128)  # the integers that fit every integer dtype


class Quiet(threading.local):
    """`run(ufunc, *arrays)` in this thread, without NumPy's warnings. `np.errstate` does the same
    in five times the time of a small ufunc."""

    def __init__(self) -> None:
        with np.errstate(all="ignore"):
            self.run = contextvars.copy_context().run


QUIET = Quiet()


_WRAP = TensorBase._wrap


def two(op: str, x: Any, other: Any, swap: bool = False) -> Any:
    """The result of a primitive of two operands as a tensor of x's class, or None."""
    a, kind = x._value, type(x)
    if type(a) is not np.ndarray or not _alone(x) or kind._wrap is not _WRAP:
        return None
    if type(other) is kind:
        b = other._value
        if type(b) is not np.ndarray or b.dtype is not a.dtype or not _alone(other):
            return None
    elif type(other) is int:
        if a.dtype.kind == "b" or (a.dtype.kind != "f" and other not in _SMALL):
            return None
        b = other
    elif type(other) is float and a.dtype.kind == "f":
        b = other
    else:
        return None
    ufunc = UFUNCS[op].get(a.dtype)
    if ufunc is None or CURRENT.trace is not None or RECORDED.now is not None:
        return None
    try:
        out = QUIET.run(ufunc, b, a) if swap else QUIET.run(ufunc, a, b)
    except (ValueError, TypeError, ArithmeticError, RuntimeError):
        return None
    return tensor_of(kind, out if type(out) is np.ndarray else np.asarray(out))


def unequal(x: Any, other: Any) -> Any:
    """x != other as a tensor of x's class, or None."""
    made = two("equal", x, other)
    if made is not None:
        np.logical_not(made._value, out=made._value)  # nobody else has the array yet
    return made


def one(op: str, x: Any) -> Any:
    """The result of a primitive of one operand as a tensor of x's class, or None."""
    a, kind = x._value, type(x)
    if type(a) is not np.ndarray or not _alone(x) or kind._wrap is not _WRAP:
        return None
    ufunc = UFUNCS[op].get(a.dtype)
    if ufunc is None or CURRENT.trace is not None or RECORDED.now is not None:
        return None
    try:
        out = QUIET.run(ufunc, a)
    except RuntimeError:  # the context is in use: this runs inside a ufunc, in a finalizer
        return None
    return tensor_of(kind, out if type(out) is np.ndarray else np.asarray(out))


def row(x: Any, i: Any) -> Any:
    """x[i] for an integer, as a view of x, or None."""
    a, kind = x._value, type(x)
    if type(i) is not int or type(a) is not np.ndarray or not a.ndim or kind._wrap is not _WRAP:
        return None
    shape = a.shape
    i = i + shape[0] if i < 0 else i
    if not 0 <= i < shape[0] or not _alone(x):
        return None
    out = tensor_of(kind, a[i] if len(shape) > 1 else a[i : i + 1].reshape(()))
    strides = x._view.strides[1:] if x._view is not None else _below(shape)
    return views.link(out, x, partial(_taken, i, shape), partial(_put, i), strides)


@lru_cache(4096)
def _below(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row."""
    return views.contiguous(shape)[1:]


def _taken(i: int, shape: tuple[int, ...], value: Any) -> Any:
    rest = [0] * (len(shape) - 1)
    cut = ops.slice_(value, [i, *rest], [i + 1, *shape[1:]], [1] * len(shape))
    return ops.reshape(cut, shape[1:])


def _put(i: int, base: Any, new: Any) -> Any:
    return base._replaced((i,), new)


def _alone(x: Any) -> bool:
    """True for a tensor without history that is neither a state nor a number in disguise."""
    return x._tape is None and not x._leaf and x._home is None and not x._weak
