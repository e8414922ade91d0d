"""The NumPy ufuncs that primitives are on arrays of one dtype, as their records give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import ALL, DType
from weft.core.errors import WeftError
from weft.ops import functions as f
from weft.ops.primitive import PRIMITIVES, RECORDED, Aval
from weft.ops.rules import is_narrow

# Of floats, these rules are a ufunc too.
_OF_FLOATS = {"div": np.divide, "floor": np.floor, "round": np.rint}


class _Ufuncs(dict[str, dict[np.dtype, np.ufunc]]):
    """The ufuncs of primitives by operand dtype, found in the primitives' records."""

    def __missing__(self, op: str) -> dict[np.dtype, np.ufunc]:
        found = self[op] = {d.numpy: u for d in ALL if (u := _ufunc(op, d)) is not None}
        return found


def _ufunc(op: str, dtype: DType) -> np.ufunc | None:
    rule = getattr(PRIMITIVES[op].numpy, "__wrapped__", None)
    if dtype.is_float:
        rule = _OF_FLOATS.get(op, rule)
    if not isinstance(rule, np.ufunc) or is_narrow(dtype.numpy):
        return None
    try:
        PRIMITIVES[op].abstract(*[Aval((), dtype)] * rule.nin)
    except WeftError:
        return None
    return rule


UFUNCS = _Ufuncs()


def total(a: Any, b: Any) -> Any:
    """The sum of two values of one shape and dtype; arrays need no more than NumPy's."""
    if type(a) is type(b) is np.ndarray and a.dtype is b.dtype and RECORDED.now is None:
        ufunc = UFUNCS["add"].get(a.dtype)
        if ufunc is not None and a.shape == b.shape:
            with np.errstate(all="ignore"):
                return np.asarray(ufunc(a, b))
    return f.add(a, b)
