"""The loss of a classifier: cross_entropy(logits [N, V], targets [N]) -> one loss per row, and its
derivative with respect to the logits, each a composite that a template may compute as one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute, keep_last, shifted
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import countable, want


def _check(name: str, logits: Aval, targets: Aval) -> None:
    want(name, logits, "float")
    if len(logits.shape) != 2 or targets.shape != logits.shape[:1]:
        raise ShapeError(
            f"{name}: logits {list(logits.shape)}, targets {list(targets.shape)}; expected [N, V] "
            "and [N]"
        )
    if targets.dtype != dt.int32:
        raise DTypeError(
            f"{name}: targets are {targets.dtype.name}, expected int32; cast the targets"
        )
    if not logits.shape[1]:
        raise ShapeError(f"{name}: logits {list(logits.shape)} have 0 classes")
    countable(name, logits.shape[0] * logits.shape[1])


def _abstract(logits: Aval, targets: Aval, *, ignore_index: int, label_smoothing: float) -> Aval:
    _check("cross_entropy", logits, targets)
    return Aval(targets.shape, dt.compute_dtype(logits.dtype))


def _grad_abstract(
    logits: Aval, targets: Aval, g: Aval, *, ignore_index: int, label_smoothing: float
) -> Aval:
    _check("cross_entropy_grad", logits, targets)
    if g.shape != targets.shape or g.dtype != dt.compute_dtype(logits.dtype):
        raise ShapeError(f"cross_entropy_grad: g is {g!r} for logits {logits!r}")
    return logits


def _settled(x: Value, logits: Value, targets: Value, ignore_index: int) -> Value:
    """Returns x [N, ...] with 0 in rows whose target is ignored and NaN where it is not a class."""
    ignored = f.equal(targets, ignore_index)
    known = f.bitwise_and(f.less_equal(0, targets), f.less(targets, aval(logits).shape[1]))
    rows = [m if len(aval(x).shape) == 1 else keep_last(m, x) for m in (ignored, known)]
    return f.where(rows[0], 0, f.where(rows[1], x, math.nan))


def _cross_entropy(
    logits: Value, targets: Value, *, ignore_index: int, label_smoothing: float
) -> Value:
    """Computes -sum(q log softmax(logits)) over the classes.

    q is 1 - label_smoothing at the target plus label_smoothing / V everywhere (Szegedy et al.
    2016). The loss is 0 where a target is ignore_index, and NaN where a target is not a class.
    """
    s = shifted(compute(logits))
    n, v = aval(s).shape
    start = f.mul(f.iota((n,), 0, dt.int32), v)
    picked = f.gather(f.reshape(s, (n * v,)), f.add(start, targets))
    loss = f.sub(f.log(f.sum_(f.exp(s), -1)), f.mul(picked, 1.0 - label_smoothing))
    if label_smoothing:
        loss = f.sub(loss, f.mul(f.sum_(s, -1), label_smoothing / v))
    return _settled(loss, logits, targets, ignore_index)


def _cross_entropy_grad(
    logits: Value, targets: Value, g: Value, *, ignore_index: int, label_smoothing: float
) -> Value:
    """Computes (softmax(logits) - q) * g, with q as in cross_entropy, in the dtype of the logits.
    Ignored rows give zeros; rows whose target is not a class give NaN."""
    e = f.exp(shifted(compute(logits)))
    n, v = aval(e).shape
    low = label_smoothing / v
    at = f.equal(f.iota((n, v), 1, dt.int32), keep_last(targets, e))
    q = f.where(at, f.full_like(e, 1.0 - label_smoothing + low), low)
    d = f.mul(f.sub(f.div(e, keep_last(f.sum_(e, -1), e)), q), keep_last(g, e))
    return f.cast(_settled(d, logits, targets, ignore_index), aval(logits).dtype)


def _vjp(g: Value, out: Value, logits: Value, targets: Value, **params: Any) -> Sequence[Any]:
    return f.call("cross_entropy_grad", logits, targets, g, **params), None


_DEFAULTS = {"ignore_index": -100, "label_smoothing": 0.0}

register_composite(Composite("cross_entropy", _abstract, _cross_entropy, _DEFAULTS, vjp=_vjp))
register_composite(Composite("cross_entropy_grad", _grad_abstract, _cross_entropy_grad, _DEFAULTS))
