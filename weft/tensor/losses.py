"""Losses, with PyTorch's formulas; narrow operands are computed as float32."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.tensor.core import Tensor
from weft.tensor.elementwise import logaddexp
from weft.tensor.keys import as_index


def _reduced(loss: Tensor, reduction: str, count: Tensor | None = None) -> Tensor:
    """`count`: what a mean divides by, where that is not the number of elements."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction != "mean":
        raise UsageError(f'loss: reduction is "mean", "sum" or "none", not {reduction!r}')
    return loss.mean() if count is None else loss.sum() / count


def _rows(name: str, x: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """x[N, C, ...] or [C] as [rows, C], and integer targets [N, ...] as int32 [rows]."""
    if not targets.dtype.is_int:
        raise DTypeError(f"{name}: targets are {targets.dtype.name}, expected class numbers: ints")
    batch = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if not x.ndim or targets.shape != batch:
        raise ShapeError(
            f"{name}: {x._known()} with targets {list(targets.shape)}; expected [N, C, ...] and "
            "[N, ...]"
        )
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    if not -(1 << 31) <= ignore_index < 1 << 31:
        raise UsageError(f"{name}: an ignore_index of {ignore_index}; targets are int32")
    if x.ndim > 2:
        x = x.permute(0, *range(2, x.ndim), 1)
    return x.reshape(-1, classes), as_index(targets).reshape(-1)


def _inside(at: Tensor, classes: int) -> Tensor:
    """Class numbers; 0 for numbers that are not classes."""
    return ((at >= 0) & (at < classes)).where(at, 0)


def _class_weights(name: str, weight: Tensor, classes: int, dtype: dt.DType) -> Tensor:
    if weight.shape != (classes,) or not weight.dtype.is_float:
        raise ShapeError(
            f"{name}: weight {weight._known()}; expected a float for each of {classes} classes"
        )
    return weight.cast(dtype)


def cross_entropy(
    logits: Tensor, targets: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-w[target] log softmax(logits)[target], float32. logits are [N, C] (or [N, C, ...], [C]),
    integer targets [N] ([N, ...], []). w is `weight` [C], 1 by default; a mean is divided by the
    sum of the targets' weights.

    A target of `ignore_index` counts for nothing, nor in the mean; any other that is not in 0..C-1
    gives NaN (and NaN gradients), on every device. With `label_smoothing` s the wanted distribution
    is 1 - s at the target plus s / C everywhere. Float targets, shaped as the logits, are wanted
    distributions themselves. Raises ShapeError, DTypeError, UsageError.
    """
    s = float(label_smoothing)
    if not 0.0 <= s <= 1.0:
        raise UsageError(f"cross_entropy: label_smoothing {s} is not within 0..1")
    if targets.dtype.is_float:
        return _soft_cross_entropy(logits, targets, weight, reduction, s)
    flat, at = _rows("cross_entropy", logits, targets, ignore_index)
    alike = s if weight is None else 0.0  # with weights, smoothing differs between classes
    loss = flat._call("cross_entropy", at, ignore_index=int(ignore_index), label_smoothing=alike)
    counted = at != ignore_index
    if weight is None:
        each = counted.cast(loss.dtype)
    else:
        w = _class_weights("cross_entropy", weight, flat.shape[1], loss.dtype)
        each = counted.where(w.take(_inside(at, flat.shape[1]), 0), 0.0)
        loss = loss * each * (1.0 - s)
        if s:
            spread = (flat.cast(loss.dtype).log_softmax(-1) * (w * (-s / flat.shape[1]))).sum(-1)
            loss = loss + counted.where(spread, 0.0)
    return _reduced(loss.reshape(targets.shape), reduction, each.sum())


def _soft_cross_entropy(
    logits: Tensor, targets: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """-sum(w q log softmax(logits)) over the classes, for wanted distributions q."""
    logits, q = _pair("cross_entropy", logits, targets)
    axis = 1 if logits.ndim > 1 else 0
    classes = logits.shape[axis]
    q = q * (1.0 - smoothing) + smoothing / classes if smoothing else q
    if weight is not None:
        w = _class_weights("cross_entropy", weight, classes, q.dtype)
        q = q * w.reshape(-1, *([1] * (logits.ndim - 1 - axis)))
    loss = -(q * logits.log_softmax(axis)).sum(axis)
    return _reduced(loss, reduction)


def nll_loss(
    log_probs: Tensor, targets: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-w[target] log_probs[target]: what cross_entropy does after log_softmax; the same shapes and
    the same targets."""
    flat, at = _rows("nll_loss", log_probs, targets, ignore_index)
    flat = flat.cast(dt.compute_dtype(flat.dtype))
    counted = at != ignore_index
    inside = _inside(at, flat.shape[1])
    each = counted.cast(flat.dtype)
    if weight is not None:
        each = each * _class_weights("nll_loss", weight, flat.shape[1], flat.dtype).take(inside, 0)
    picked = flat.take_along_axis(inside.reshape(-1, 1), 1).reshape(-1)
    loss = counted.where((at == inside).where(-picked * each, math.nan), 0.0)
    return _reduced(loss.reshape(targets.shape), reduction, each.sum())


def _pair(name: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape != target.shape:
        raise ShapeError(f"{name}: {x._known()} with target {target._known()}; shapes must agree")
    return x.cast(dt.compute_dtype(x.dtype)), target.cast(dt.compute_dtype(x.dtype))


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(x - target)^2."""
    x, target = _pair("mse_loss", x, target)
    return _reduced((x - target).square(), reduction)


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|x - target|."""
    x, target = _pair("l1_loss", x, target)
    return _reduced((x - target).abs(), reduction)


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-(p y log s + (1 - y) log(1 - s)) times `weight`, with s = sigmoid(x), y the target in 0..1
    and p the `pos_weight` (both broadcast; 1 by default), without overflow."""
    x, y = _pair("binary_cross_entropy_with_logits", x, target)
    wrong = y * logaddexp(-x, 0.0)  # both terms are positive: nothing cancels where one is small
    if pos_weight is not None:
        wrong = wrong * pos_weight.cast(x.dtype)
    loss = (1.0 - y) * logaddexp(x, 0.0) + wrong
    return _reduced(loss if weight is None else loss * weight.cast(x.dtype), reduction)
