"""logcumsumexp(x) = log(cumsum(exp(x))) along an axis, with nothing of exp(x) out of range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import canonical_axis, want
from weft.ops.scan import scan, shifted


def _abstract(x: Aval, *, axis: int) -> Aval:
    want("logcumsumexp", x, "float")
    canonical_axis("logcumsumexp", axis, len(x.shape))
    return x


def _numpy(x: np.ndarray, *, axis: int) -> np.ndarray:
    if not x.size:
        return x
    return np.logaddexp.accumulate(x.astype(np.float64), axis=axis).astype(x.dtype)


def _body(x: Value, *, axis: int) -> Value:
    """Computes the largest element so far plus the log of a sum, which is rescaled whenever the
    largest grows."""
    wide = f.cast(x, dt.compute_dtype(aval(x).dtype))
    top = scan(wide, "max", axis)
    shrink = _ratio(shifted(top, axis, 1, -math.inf), top)
    total = scan(_ratio(wide, top), "linear", axis, factor=shrink)
    return f.cast(f.add(top, f.log(total)), aval(x).dtype)


def _ratio(x: Value, y: Value) -> Value:
    """exp(x - y), where x and y may be the same infinity."""
    same = f.bitwise_and(f.equal(x, y), f.equal(f.abs_(x), math.inf))
    return f.exp(f.where(same, 0, f.sub(x, y)))


def _vjp(g: Value, out: Value, x: Value, *, axis: int) -> Sequence[Any]:
    """Returns the gradient by x[i]: exp(x[i] - y[i]) times the sum of g[j] exp(y[i] - y[j]) over j
    >= i. No factor is above 1, since y grows."""
    narrow = aval(x).dtype
    g, out, x = (f.cast(v, dt.compute_dtype(narrow)) for v in (g, out, x))
    factor = _ratio(out, shifted(out, axis, 1, math.inf, True))
    back = scan(g, "linear", axis, False, True, factor)
    return (f.cast(f.mul(back, _ratio(x, out)), narrow),)


register_composite(Composite("logcumsumexp", _abstract, _body, {"axis": None}, _numpy, _vjp))
