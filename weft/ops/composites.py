"""The composites of rows: softmax log_softmax layer_norm rms_norm, over the last axis. Each body
accumulates in f32 and returns x's dtype; the derivatives are composites of row_grads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want

MASKED = -1e30  # a large finite score: exp(MASKED - max) is 0, and no infinity meets another


def keep_last(x: Value, like: Value) -> Value:
    """A reduction of `like` over its last axis, repeated along that axis again."""
    shape = aval(like).shape
    return f.broadcast(f.reshape(x, (*shape[:-1], 1)), shape)


def floats(name: str, x: Aval) -> None:
    """Raises unless x is of floats and has a last axis."""
    want(name, x, "float")
    if not x.shape:
        raise ShapeError(f"{name}: expected at least one axis, got a 0-d value; reshape it to [1]")


# -- row statistics -----------------------------------------------------------------------------


def row_abstract(name: str) -> Callable[..., Aval]:
    """The shape rule of x[..., D] with weights [D]: the result is like x."""

    def abstract(x: Aval, *weights: Aval, **params: object) -> Aval:
        floats(name, x)
        for w in weights:
            want(name, w, "float")
            if w.shape != x.shape[-1:]:
                raise ShapeError(
                    f"{name}: weight {list(w.shape)} for rows of {x.shape[-1]} elements; expected "
                    f"{list(x.shape[-1:])}"
                )
        return x

    return abstract


def shifted(x: Value) -> Value:
    """x - max(x) over the last axis, in x's dtype."""
    return f.sub(x, keep_last(f.max_(x, -1), x))


def compute(x: Value) -> Value:
    """x in the dtype that arithmetic on it is done in."""
    return f.cast(x, dt.compute_dtype(aval(x).dtype))


def no_columns(x: Value) -> bool:
    """True if the rows of x are empty."""
    return aval(x).shape[-1] == 0


def _softmax(x: Value) -> Value:
    """exp(x - max) / sum, over the last axis."""
    if no_columns(x):
        return x
    e = f.exp(shifted(compute(x)))
    return f.cast(f.div(e, keep_last(f.sum_(e, -1), e)), aval(x).dtype)


def _log_softmax(x: Value) -> Value:
    """x - max - log(sum(exp(x - max))), over the last axis."""
    if no_columns(x):
        return x
    s = shifted(compute(x))
    return f.cast(f.sub(s, keep_last(f.log(f.sum_(f.exp(s), -1)), s)), aval(x).dtype)


def mean_last(x: Value) -> Value:
    """The mean over the last axis."""
    return f.mul(f.sum_(x, -1), 1.0 / max(aval(x).shape[-1], 1))


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    return f.div(1.0, f.sqrt(x))


def as_rows(w: Value, like: Value) -> Value:
    """A weight [D] repeated for every row of `like`, in its dtype."""
    known = aval(like)
    return f.broadcast(f.cast(w, known.dtype), known.shape)


def offset_rows(w: Value, like: Value, offset: float) -> Value:
    """offset + w for every row of `like`."""
    scale = as_rows(w, like)
    return scale if offset == 0.0 else f.add(scale, offset)


def _layer_norm(x: Value, w: Value, b: Value, *, eps: float) -> Value:
    """(x - mean) / sqrt(var + eps) * w + b over the last axis (Ba et al. 2016); var is the mean of
    squared deviations."""
    c = compute(x)
    d = f.sub(c, keep_last(mean_last(c), c))
    r = rsqrt(f.add(mean_last(f.mul(d, d)), eps))
    y = f.add(f.mul(f.mul(d, keep_last(r, d)), as_rows(w, d)), as_rows(b, d))
    return f.cast(y, aval(x).dtype)


def _rms_norm(x: Value, w: Value, *, eps: float, offset: float) -> Value:
    """Computes x / sqrt(mean(x^2) + eps) * (offset + w) over the last axis (Zhang & Sennrich 2019).
    `offset` serves Gemma, which stores w - 1."""
    c = compute(x)
    r = rsqrt(f.add(mean_last(f.mul(c, c)), eps))
    return f.cast(f.mul(f.mul(c, keep_last(r, c)), offset_rows(w, c, offset)), aval(x).dtype)


# -- derivatives ----------------------------------------------------------------------------------


def _softmax_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    return (f.call("softmax_grad", out, g),)


def _log_softmax_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    return (f.call("log_softmax_grad", out, g),)


def _chunks(rows: int) -> int:
    """Returns the number of equal parts of a sum over rows: a divisor of their number, up to 64."""
    return next(c for c in range(min(rows, 64), 0, -1) if rows % c == 0)


def _weight_grads(x: Value, g: Value, eps: float, *weights: Value) -> list[Value]:
    """sum(g h) over all axes but the last and, for a second weight, sum(g), as the weights are."""
    parts, centred = _chunks(max(1, math.prod(aval(x).shape[:-1]))), len(weights) > 1
    found = f.call("norm_weight_grads", x, g, eps=eps, centred=centred, chunks=parts)
    sums = found if centred else (found,)
    return [f.cast(f.sum_(s, 0), aval(w).dtype) for s, w in zip(sums, weights, strict=True)]


def _layer_norm_vjp(
    g: Value, out: Value, x: Value, w: Value, b: Value, *, eps: float
) -> Sequence[Any]:
    sums = functools.cache(lambda: _weight_grads(x, g, eps, w, b))
    return (
        lambda: f.call("layer_norm_grad", x, w, g, eps=eps),
        lambda: sums()[0],
        lambda: sums()[1],
    )


def _rms_norm_vjp(
    g: Value, out: Value, x: Value, w: Value, *, eps: float, offset: float
) -> Sequence[Any]:
    return (
        lambda: f.call("rms_norm_grad", x, w, g, eps=eps, offset=offset),
        lambda: _weight_grads(x, g, eps, w)[0],
    )


# -- the table ------------------------------------------------------------------------------------


def _add(name: str, body: Any, vjp: Any, **defaults: Any) -> None:
    register_composite(Composite(name, row_abstract(name), body, defaults, vjp=vjp))


_add("softmax", _softmax, _softmax_vjp)
_add("log_softmax", _log_softmax, _log_softmax_vjp)
_add("layer_norm", _layer_norm, _layer_norm_vjp, eps=1e-5)
_add("rms_norm", _rms_norm, _rms_norm_vjp, eps=1e-6, offset=0.0)
