"""Operators that fold axes, run along them, or normalise over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.importers.onnx.table import NodeCall, Value, ints, is_host, lib, op, scalar
from weft.importers.onnx.values import numpy_dtype, widened
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.special import logsumexp

_AXES_AN_OPERAND = {"ReduceSum": 13}  # since this opset; 18 for the others


def _reduction(name: str, fn: Callable[[Any, Value, tuple[int, ...], bool], Value]) -> None:
    def run(call: NodeCall, x: Value, axes: Any = None) -> Value:
        if call.version < _AXES_AN_OPERAND.get(call.op, 18):
            axes = call.get("axes")
        chosen = () if axes is None else ints(axes)
        places = tuple(a % max(x.ndim, 1) for a in chosen) if chosen else tuple(range(x.ndim))
        keep = bool(call.get("keepdims", 1))
        if not chosen and call.get("noop_with_empty_axes", 0):
            if name in _SAME:
                return x
            places, keep = (), True
        wide = x if name in _EXACT else widened(x)
        made = fn(lib(wide), wide, places, keep)
        return made if is_host(made) and not is_host(x) else made.astype(x.dtype)

    op(name, host=(1,), either=True)(run)


_EXACT = {"ReduceMax", "ReduceMin"}
_SAME = {"ReduceSum", "ReduceMean", "ReduceProd", *_EXACT}


def _max(xp: Any, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if any(x.shape[a] == 0 for a in axes):
        return _empty(x, axes, keep, lowest=True)
    return xp.max(x, axis=axes, keepdims=keep)


def _min(xp: Any, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if any(x.shape[a] == 0 for a in axes):
        return _empty(x, axes, keep, lowest=False)
    return xp.min(x, axis=axes, keepdims=keep)


def _empty(x: Value, axes: tuple[int, ...], keep: bool, lowest: bool) -> np.ndarray:
    """The extreme of no elements: the least value of its type, or the greatest."""
    dtype = numpy_dtype(x)
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
    bound: float
    if dtype.kind in "iu":
        bound = np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    else:
        bound = not lowest if dtype == np.bool_ else -math.inf if lowest else math.inf
    return np.full(shape, bound, dtype)


def _length(xp: Any, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    total = xp.sum(x * x, axis=axes, keepdims=keep)
    return total._length() if isinstance(total, Tensor) and total.dtype.is_float else xp.sqrt(total)


def _log_sum_exp(xp: Any, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if is_host(x):
        made: Value = np.logaddexp.reduce(x, axis=axes, keepdims=keep)  # type: ignore[call-overload]
        return made
    return logsumexp(x, axes, keep)


_reduction("ReduceSum", lambda xp, x, axes, keep: xp.sum(x, axis=axes, keepdims=keep))
_reduction("ReduceMean", lambda xp, x, axes, keep: xp.mean(x, axis=axes, keepdims=keep))
_reduction("ReduceProd", lambda xp, x, axes, keep: xp.prod(x, axis=axes, keepdims=keep))
_reduction("ReduceMax", _max)
_reduction("ReduceMin", _min)
_reduction("ReduceL1", lambda xp, x, axes, keep: xp.sum(abs(x), axis=axes, keepdims=keep))
_reduction("ReduceSumSquare", lambda xp, x, axes, keep: xp.sum(x * x, axis=axes, keepdims=keep))
_reduction("ReduceL2", _length)
_reduction("ReduceLogSum", lambda xp, x, axes, keep: xp.log(xp.sum(x, axis=axes, keepdims=keep)))
_reduction("ReduceLogSumExp", _log_sum_exp)


def _arg(name: str) -> None:
    def run(call: NodeCall, x: Tensor) -> Tensor:
        axis = call.get("axis", 0) % x.ndim
        last = call.get("select_last_index", 0)
        seen = x.flip(axis) if last else x
        found: Tensor = getattr(seen, name)(axis, keepdims=bool(call.get("keepdims", 1)))
        return (x.shape[axis] - 1) - found if last else found

    op("ArgMax" if name == "argmax" else "ArgMin")(run)


_arg("argmax")
_arg("argmin")


def _running(name: str) -> None:
    def run(call: NodeCall, x: Tensor, axis: np.ndarray) -> Tensor:
        a = int(scalar(axis)) % x.ndim
        turned = x.flip(a) if call.get("reverse", 0) else x
        made: Tensor = getattr(turned, name)(a)
        if call.get("exclusive", 0):
            first = weft.full_like(made.narrow(a, 0, 1), int(name == "cumprod"))
            made = weft.concat([first, made.narrow(a, 0, x.shape[a] - 1)], axis=a)
        return (made.flip(a) if call.get("reverse", 0) else made).cast(x.dtype)

    op("CumSum" if name == "cumsum" else "CumProd", host=(1,))(run)


_running("cumsum")
_running("cumprod")


# -- normalising over an axis ---------------------------------------------------------------------


def _over_axis(name: str, fn: Callable[[Tensor, int], Tensor]) -> None:
    """Softmax and similar functions: over one axis since opset 13, over all axes from it on
    before."""

    def run(call: NodeCall, x: Tensor) -> Tensor:
        if call.version >= 13:
            return fn(x, call.get("axis", -1))
        axis = call.get("axis", 1) % max(x.ndim, 1)
        return fn(x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), 1).reshape(
            x.shape
        )

    op(name)(run)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    axis %= x.ndim
    first = x.argmax(axis, keepdims=True)
    line = weft.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return (line == first).cast(x.dtype)


_over_axis("Softmax", lambda x, axis: x.softmax(axis))
_over_axis("LogSoftmax", lambda x, axis: x.log_softmax(axis))
_over_axis("Hardmax", _hardmax)


@op("LpNormalization")
def lp_normalization(call: NodeCall, x: Tensor) -> Tensor:
    """Divided by the norm along an axis; where that is 0, zero."""
    return F.normalize(x, call.get("axis", -1), 2.0**-126, call.get("p", 2))


def from_axis(x: Tensor, axis: int) -> tuple[int, tuple[int, ...]]:
    """The number of axes from `axis` on, and the sizes of the axes before it, followed by ones."""
    axis %= x.ndim
    return x.ndim - axis, (*x.shape[:axis], *([1] * (x.ndim - axis)))


@op("LayerNormalization")
def layer_normalization(
    call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Any:
    count, kept = from_axis(x, call.get("axis", -1))
    eps = call.get("epsilon", 1e-5)
    last = x.shape[-count:]
    weights = (
        (scale, bias) if scale.shape == last and (bias is None or bias.shape == last) else None
    )
    if weights is not None and not call.wants(1) and not call.wants(2):
        return F.layer_norm(x, scale, bias, eps, count)
    wide = x.cast(dt.compute_dtype(x.dtype)).flatten(x.ndim - count)
    mean = wide.mean(-1, keepdims=True)
    centred = wide - mean
    inverse = ((centred * centred).mean(-1, keepdims=True) + eps).rsqrt()
    out = (centred * inverse).reshape(x.shape).cast(x.dtype) * scale
    out = out if bias is None else out + bias
    return out, mean.reshape(kept), inverse.reshape(kept)


@op("RMSNormalization", "SimplifiedLayerNormalization")
@op("SimplifiedLayerNormalization", domain="com.microsoft")
def rms_normalization(call: NodeCall, x: Tensor, scale: Tensor) -> Tensor:
    count, _ = from_axis(x, call.get("axis", -1))
    eps = call.get("epsilon", 1e-5)
    if scale.shape == x.shape[-count:]:
        return F.rms_norm(x, scale, eps, axes=count)
    rows = F.rms_norm(x.flatten(x.ndim - count), None, eps)
    return rows.reshape(x.shape) * scale


# -- losses ---------------------------------------------------------------------------------------


def _loss(
    call: NodeCall, function: Any, x: Tensor, target: Tensor, weight: Tensor | None
) -> Tensor:
    found: Tensor = function(
        x, target, weight, call.get("ignore_index", -100), call.get("reduction", "mean")
    )
    return found.cast(x.dtype)


@op("NegativeLogLikelihoodLoss")
def nll_loss(call: NodeCall, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return _loss(call, F.nll_loss, x, target, weight)


@op("SoftmaxCrossEntropyLoss")
def cross_entropy(call: NodeCall, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Any:
    made = _loss(call, F.cross_entropy, x, target, weight)
    return (made, x.log_softmax(1)) if call.wants(1) else made
