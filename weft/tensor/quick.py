"""The short way of elementwise operators: one call of NumPy for tensors that need nothing else.

Most of the time of an operator on small arrays is Python's. Two host tensors of one dtype without
history, outside of traces, need no promotion, capture or record, and NumPy broadcasts as weft
does. The functions here call the ufunc of the primitive's own NumPy rule, so the bits are those of
the long way. They return None for anything else, an error included: the long way names it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from weft import ops
from weft.host.boundary import QUICK
from weft.ops.primitive import RECORDED
from weft.ops.ufuncs import UFUNCS
from weft.tensor import views
from weft.tensor.base import CURRENT, TensorBase, tensor_of

_ARRAY = np.ndarray
_NOTHING = object()
_SMALL = range(128)  # the integers that fit every integer dtype


class Quiet(threading.local):
    """`run(ufunc, *arrays)` in this thread, without NumPy's warnings. `np.errstate` does the same
    in five times the time of a small ufunc."""

    def __init__(self) -> None:
        with np.errstate(all="ignore"):
            self.run = contextvars.copy_context().run


QUIET = Quiet()


_WRAP = TensorBase._wrap


def operator(op: str, slow: Callable[..., Any], swap: bool = False) -> Callable[[Any, Any], Any]:
    """A primitive of two operands as an operator of tensors, which is `slow` where it needs more
    than one call of NumPy. Its checks stand in one function, as each call costs as much as two."""

    def function(self: Any, other: Any = _NOTHING, *more: Any, **named: Any) -> Any:
        a, kind = self._value, type(self)
        if more or named or other is _NOTHING:  # no operator's call: the long way says so
            return slow(self, *(() if other is _NOTHING else (other,)), *more, **named)
        if (
            type(a) is _ARRAY
            and self._tape is None
            and not self._leaf
            and self._home is None
            and not self._weak
            and kind._wrap is _WRAP
        ):
            d = a.dtype
            if type(other) is kind:
                b = other._value
                fits = (
                    type(b) is _ARRAY
                    and b.dtype is d
                    and other._tape is None
                    and not other._leaf
                    and other._home is None
                    and not other._weak
                )
            else:
                b, fits = other, _plain_number(other, d.kind)
            if fits and CURRENT.trace is None and RECORDED.now is None:
                ufunc = UFUNCS[op].get(d)
                try:
                    if ufunc is not None:
                        out = QUIET.run(ufunc, b, a) if swap else QUIET.run(ufunc, a, b)
                        return tensor_of(kind, out if type(out) is _ARRAY else np.asarray(out))
                except (ValueError, TypeError, ArithmeticError, RuntimeError):
                    pass  # the long way names it
        return slow(self, other)

    setattr(function, QUICK, (partial(operator, op, swap=swap), slow))
    return function


def _plain_number(x: Any, kind: str) -> bool:
    """True for a number that an array of this kind of dtype takes as it is."""
    if type(x) is int:
        return kind == "f" or (kind != "b" and x in _SMALL)
    return type(x) is float and kind == "f"


_equal = operator("equal", lambda x, other: None)


def unequal(x: Any, other: Any) -> Any:
    """x != other as a tensor of x's class, or None."""
    made = _equal(x, other)
    if made is not None:
        np.logical_not(made._value, out=made._value)  # nobody else has the array yet
    return made


def one(op: str, x: Any) -> Any:
    """The result of a primitive of one operand as a tensor of x's class, or None."""
    return None if CURRENT.trace is not None or RECORDED.now is not None else at_once(op, x)


def at_once(op: str, x: Any) -> Any:
    """The same outside of traces and recordings."""
    a, kind = x._value, type(x)
    if type(a) is not _ARRAY or not _alone(x) or kind._wrap is not _WRAP:
        return None
    ufunc = UFUNCS[op].get(a.dtype)
    if ufunc is None:
        return None
    try:
        out = QUIET.run(ufunc, a)
    except RuntimeError:  # the context is in use: this runs inside a ufunc, in a finalizer
        return None
    return tensor_of(kind, out if type(out) is _ARRAY else np.asarray(out))


def row(x: Any, i: Any) -> Any:
    """x[i] for an integer, as a view of x, or None."""
    a, kind = x._value, type(x)
    if type(i) is not int or type(a) is not _ARRAY or not a.ndim or kind._wrap is not _WRAP:
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
