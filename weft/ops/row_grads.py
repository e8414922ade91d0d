"""Derivatives of row-wise composites, as composites that a template may compute in one kernel.

By the rows: softmax_grad, log_softmax_grad, layer_norm_grad, rms_norm_grad. By the weights of a
norm: norm_weight_grads. The statistics that both need: moments and rms_scale.
"""

from __future__ import annotations

import math
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import (
    as_rows,
    compute,
    floats,
    keep_last,
    mean_last,
    no_columns,
    offset_rows,
    row_abstract,
    rsqrt,
)
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import same


def _row_sum(x: Value) -> Value:
    return keep_last(f.sum_(x, -1), x)


def _softmax_grad(y: Value, g: Value) -> Value:
    """y (g - sum(y g)), for y = softmax(x)."""
    if no_columns(y):
        return y
    c, d = compute(y), compute(g)
    return f.cast(f.mul(c, f.sub(d, _row_sum(f.mul(c, d)))), aval(y).dtype)


def _log_softmax_grad(y: Value, g: Value) -> Value:
    """g - exp(y) sum(g), for y = log_softmax(x)."""
    if no_columns(y):
        return y
    c, d = compute(y), compute(g)
    return f.cast(f.sub(d, f.mul(f.exp(c), _row_sum(d))), aval(y).dtype)


def _centred(x: Value, eps: float) -> tuple[Value, Value]:
    """(x - mean, 1 / sqrt(var + eps) per row)."""
    c = compute(x)
    d = f.sub(c, keep_last(mean_last(c), c))
    return d, rsqrt(f.add(mean_last(f.mul(d, d)), eps))


def _layer_norm_grad(x: Value, w: Value, g: Value, *, eps: float) -> Value:
    """Computes r (v - mean(v) - h mean(v h)) (Ba et al. 2016, differentiated).

    Here h = (x - mean) r is the standardised row, r = 1 / sqrt(var + eps) and v = g w.
    """
    d, r = _centred(x, eps)
    h = f.mul(d, keep_last(r, d))
    v = f.mul(compute(g), as_rows(w, d))
    inner = f.sub(
        f.sub(v, keep_last(mean_last(v), v)), f.mul(h, keep_last(mean_last(f.mul(v, h)), v))
    )
    return f.cast(f.mul(inner, keep_last(r, d)), aval(x).dtype)


def _rms_norm_grad(x: Value, w: Value, g: Value, *, eps: float, offset: float) -> Value:
    """r (v - h mean(v h)), where h = x r, r = 1 / sqrt(mean(x^2) + eps) and v = g (offset + w)."""
    c = compute(x)
    r = keep_last(_rms_scale(x, eps=eps), c)
    h = f.mul(c, r)
    v = f.mul(compute(g), offset_rows(w, c, offset))
    inner = f.sub(v, f.mul(h, keep_last(mean_last(f.mul(v, h)), v)))
    return f.cast(f.mul(inner, r), aval(x).dtype)


def _moments(x: Value, *, eps: float) -> tuple[Value, Value]:
    """The mean and 1 / sqrt(var + eps) of each row: [...], in x's compute dtype."""
    return mean_last(compute(x)), _centred(x, eps)[1]


def _rms_scale(x: Value, *, eps: float) -> Value:
    """1 / sqrt(mean(x^2) + eps) of each row: [...], in x's compute dtype."""
    c = compute(x)
    return rsqrt(f.add(mean_last(f.mul(c, c)), eps))


def _norm_weight_grads(x: Value, g: Value, *, eps: float, centred: bool, chunks: int) -> Any:
    """Sums over rows of g h and, with `centred`, of g, for each of `chunks` equal runs of rows:
    [chunks, D]. h is as in layer_norm_grad or (not centred) in rms_norm_grad."""
    c, v = compute(x), compute(g)
    if centred:
        mean, r = (keep_last(y, c) for y in f.call("moments", x, eps=eps))
        parts = [f.mul(v, f.mul(f.sub(c, mean), r)), v]
    else:
        parts = [f.mul(v, f.mul(c, keep_last(f.call("rms_scale", x, eps=eps), c)))]
    n = aval(x).shape[-1]
    rows = math.prod(aval(x).shape[:-1]) // chunks
    sums = tuple(f.sum_(f.reshape(p, (chunks, rows, n)), 1) for p in parts)
    return sums if centred else sums[0]


# -- the table ------------------------------------------------------------------------------------


def _of_rows(name: str):  # type: ignore[no-untyped-def]
    """The shape rule of x[..., D], perhaps a weight [D], and g like x."""
    rule = row_abstract(name)

    def abstract(x: Aval, *others: Aval, **params: Any) -> Aval:
        *weights, g = others
        same(name, x, g)
        return rule(x, *weights)

    return abstract


def _statistic(x: Aval, *, eps: float) -> Aval:
    floats("a statistic of rows", x)
    return Aval(x.shape[:-1], dt.compute_dtype(x.dtype))


def _of_weights(x: Aval, g: Aval, *, eps: float, centred: bool, chunks: int) -> Any:
    floats("norm_weight_grads", x)
    same("norm_weight_grads", x, g)
    if chunks < 1 or math.prod(x.shape[:-1]) % chunks:
        raise ShapeError(
            f"norm_weight_grads: {list(x.shape)} does not divide into {chunks} equal runs of rows"
        )
    sums = Aval((chunks, x.shape[-1]), dt.compute_dtype(x.dtype))
    return (sums, sums) if centred else sums


def _add(name: str, abstract: Any, body: Any, **defaults: Any) -> None:
    register_composite(Composite(name, abstract, body, defaults))


_add("softmax_grad", _of_rows("softmax_grad"), _softmax_grad)
_add("log_softmax_grad", _of_rows("log_softmax_grad"), _log_softmax_grad)
_add("layer_norm_grad", _of_rows("layer_norm_grad"), _layer_norm_grad, eps=1e-5)
_add("rms_norm_grad", _of_rows("rms_norm_grad"), _rms_norm_grad, eps=1e-6, offset=0.0)
_add("norm_weight_grads", _of_weights, _norm_weight_grads, eps=1e-5, centred=True, chunks=None)
_add("moments", lambda x, eps: (_statistic(x, eps=eps),) * 2, _moments, eps=1e-5)
_add("rms_scale", _statistic, _rms_scale, eps=1e-6)
