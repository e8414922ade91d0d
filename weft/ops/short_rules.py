"""NumPy rules of primitives for arrays of known shapes and dtypes, without their questions.

A recorded call meets the same shapes and dtypes each time. So what a rule asks of them is asked
once, when the call is recorded. Bits and shapes are those of the primitive's own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from weft.ops.movement import slice_index
from weft.ops.primitive import PRIMITIVES
from weft.ops.rules import is_narrow
from weft.ops.ufuncs import UFUNCS

Rule = Callable[..., Any]


def short_rule(op: str, arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> Rule | None:
    """The rule of `op` with these attributes for arrays like these; None where there is no shorter
    one than the primitive's own."""
    if not attrs:
        return UFUNCS[op].get(arrays[0].dtype)
    maker = _MAKERS.get(op)
    return None if maker is None else maker(arrays, **attrs)


def _sum(arrays: Sequence[np.ndarray], axes: tuple[int, ...]) -> Rule | None:
    (x,) = arrays
    if is_narrow(x.dtype):
        return None
    axis = axes[0] if len(axes) == 1 else axes
    if x.dtype.kind == "f":
        return partial(np.add.reduce, axis=axis)
    return partial(np.add.reduce, axis=axis, dtype=x.dtype)


def _max(arrays: Sequence[np.ndarray], axes: tuple[int, ...]) -> Rule | None:
    (x,) = arrays
    return None if is_narrow(x.dtype) or not x.size else partial(np.maximum.reduce, axis=axes)


def _argmax(arrays: Sequence[np.ndarray], axis: int) -> Rule | None:
    (x,) = arrays
    if is_narrow(x.dtype) or not x.size:
        return None
    if x.ndim == 1:
        return lambda x: np.array(x.argmax(), np.int32)
    return lambda x: x.argmax(axis).astype(np.int32)


def _dot(arrays: Sequence[np.ndarray], out_dtype: Any) -> Rule | None:
    a, b = arrays
    same = a.dtype == b.dtype == out_dtype.numpy
    return None if not same or is_narrow(a.dtype) or a.dtype.itemsize == 1 else np.matmul


def _slice(arrays: Sequence[np.ndarray], **attrs: Any) -> Rule:
    return itemgetter(slice_index(**attrs))


def _cast(arrays: Sequence[np.ndarray], dtype: Any) -> Rule | None:
    (x,), target = arrays, dtype.numpy
    if x.dtype == target or is_narrow(x.dtype) or is_narrow(target):
        return None
    if dtype.kind == "bool":
        return partial(np.not_equal, 0)
    if not (dtype.is_int and x.dtype.kind == "f"):
        return methodcaller("astype", target)
    if not x.size:
        return None
    least, most, own = float(np.iinfo(target).min), float(np.iinfo(target).max), _own("cast")

    def whole(x: np.ndarray) -> np.ndarray:
        low, high = np.minimum.reduce(x, axis=None), np.maximum.reduce(x, axis=None)
        usual = least <= float(low) and float(high) < most
        made: np.ndarray = x.astype(target) if usual else own(x, dtype=dtype)
        return made

    return whole


def _own(op: str) -> Rule:
    rule = PRIMITIVES[op].numpy
    assert rule is not None
    return rule


_MAKERS: Mapping[str, Callable[..., Rule | None]] = {
    "sum": _sum,
    "max": _max,
    "argmax": _argmax,
    "dot": _dot,
    "slice": _slice,
    "reshape": lambda arrays, shape: methodcaller("reshape", shape),
    "transpose": lambda arrays, perm: methodcaller("transpose", perm),
    "cast": _cast,
}
