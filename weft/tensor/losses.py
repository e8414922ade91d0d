"""Losses, with PyTorch's formulas; narrow operands are taken as float32."""

from __future__ import annotations

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.tensor.core import Tensor


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
    """x[N, C, ...] or [C] as [rows, C], and integer targets [N, ...] as int32 [rows]; targets whose
    values are at hand are checked."""
    if not targets.dtype.is_int:
        raise DTypeError(f"{name}: targets are {targets.dtype.name}, expected class numbers: ints")
    batch = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if not x.ndim or targets.shape != batch:
        raise ShapeError(
            f"{name}: {x._known()} with targets {list(targets.shape)}; expected [N, C, ...] and "
            "[N, ...]"
        )
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    known = targets._value
    if isinstance(known, np.ndarray) and known.size:
        wrong = known[(known != ignore_index) & ((known < 0) | (known >= classes))]
        if wrong.size:
            raise ShapeError(f"{name}: target {int(wrong.flat[0])} of {classes} classes")
    if x.ndim > 2:
        x = x.permute(0, *range(2, x.ndim), 1)
    return x.reshape(-1, classes), targets.cast(dt.int32).reshape(-1)


def cross_entropy(
    logits: Tensor, targets: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-log softmax(logits)[target], for logits [N, C] (or [N, C, ...], [C]) and integer targets
    [N] ([N, ...], []): float32.

    A target of `ignore_index` counts for nothing, nor in the mean. With `label_smoothing` s the
    wanted distribution is 1 - s at the target plus s / C everywhere. Raises ShapeError for a target
    outside the classes where its value is at hand (on devices it is clamped)."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise UsageError(f"cross_entropy: label_smoothing {label_smoothing} is not within 0..1")
    flat, at = _rows("cross_entropy", logits, targets, ignore_index)
    options = {"ignore_index": int(ignore_index), "label_smoothing": float(label_smoothing)}
    loss = flat._call("cross_entropy", at, **options)
    count = (at != ignore_index).cast(loss.dtype).sum()
    return _reduced(loss.reshape(targets.shape), reduction, count)


def nll_loss(
    log_probs: Tensor, targets: Tensor, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-log_probs at the target: what cross_entropy does after log_softmax; the same shapes."""
    flat, at = _rows("nll_loss", log_probs, targets, ignore_index)
    flat = flat.cast(dt.compute_dtype(flat.dtype))
    counted = at != ignore_index
    inside = counted.where(at, 0).reshape(-1, 1)
    loss = counted.where(-flat.take_along_axis(inside, 1).reshape(-1), 0.0)
    return _reduced(loss.reshape(targets.shape), reduction, counted.cast(loss.dtype).sum())


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
    x: Tensor, target: Tensor, pos_weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(w y log s + (1 - y) log(1 - s)) with s = sigmoid(x), y the target in 0..1 and w the
    `pos_weight` (broadcast; 1 by default), without overflow."""
    x, y = _pair("binary_cross_entropy_with_logits", x, target)
    soft = ((-x.abs()).exp() + 1.0).log() + (-x).maximum(0.0)
    if pos_weight is not None:
        soft = soft * ((pos_weight - 1.0) * y + 1.0)
    return _reduced((1.0 - y) * x + soft, reduction)
