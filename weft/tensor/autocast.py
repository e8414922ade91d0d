"""Mixed precision: while `autocast` is on, products run in a narrow dtype, the rest in float32."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar
from weakref import ref

from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError
from weft.tensor.arith import Arithmetic
from weft.tensor.base import CURRENT

T = TypeVar("T")


class _State(threading.local):
    def __init__(self) -> None:
        self.entered: list[tuple[DType | None, Any]] = []  # dtype, and the trace it began in
        self.noted: Callable[[], Any] = lambda: None  # the trace that holds a guard already


_STATE = _State()


class autocast(ContextDecorator):
    """A context, and a decorator, for mixed precision. matmul, linear, attention and convolutions
    cast float32, float16 and bfloat16 operands to `dtype` and return it (accumulated in float32).
    Softmax, normalisation and losses compute narrow operands in float32. Parameters keep their
    dtype, and gradients arrive in it. The context may surround a compiled call or be inside the
    function. float16 gradients need a LossScaler. Raises DTypeError for other dtypes.

    >>> x = weft.ones((2, 2))
    >>> with weft.autocast("bfloat16"):
    ...     print((x @ x).dtype.name)
    bfloat16
    """

    def __init__(self, dtype: DType | str = "bfloat16", enabled: bool = True):
        self.dtype = as_dtype(dtype) if enabled else None
        if self.dtype not in (None, dt.float16, dt.bfloat16):
            raise DTypeError(f"autocast: {as_dtype(dtype).name}; use bfloat16 or float16")

    def __repr__(self) -> str:
        return f"autocast({self.dtype.name if self.dtype else 'off'})"

    def __enter__(self) -> autocast:
        _STATE.entered.append((self.dtype, CURRENT.trace))
        CURRENT.casts += 1
        return self

    def __exit__(self, *error: Any) -> None:
        _STATE.entered.pop()
        CURRENT.casts -= 1


def autocast_dtype() -> DType | None:
    """The dtype of products, or None while autocast is off."""
    dtype, trace = _STATE.entered[-1] if _STATE.entered else (None, None)
    tracing = CURRENT.trace
    around = trace is not tracing  # True if autocast was switched before the trace began.
    if tracing is not None and around and _STATE.noted() is not tracing:
        _STATE.noted = ref(tracing)
        tracing.guard(lambda: _now() is dtype)
    return dtype


def _now() -> DType | None:
    return _STATE.entered[-1][0] if _STATE.entered else None


def narrowed(*tensors: Any) -> Any:
    """The operands of a product, cast where autocast is on; other values (None) as they are."""
    dtype = autocast_dtype()
    return tuple(t if dtype is None else _cast(t, dtype) for t in tensors)


def widened(x: T) -> T:
    """The operand, cast to float32 while autocast is on."""
    return x if autocast_dtype() is None else _cast(x, dt.float32)


def _cast(t: T, dtype: DType) -> T:
    floats = (dt.float32, dt.float16, dt.bfloat16)
    return t._as(dtype) if isinstance(t, Arithmetic) and t.dtype in floats else t
