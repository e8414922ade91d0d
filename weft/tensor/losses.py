"""Losses between a result and its target, element by element or by class, with PyTorch's formulas.

Narrow floats are computed as float32, and the loss is float32. `reduction` is "mean", "sum" or
"none". Losses with a margin are in margins.py. Each raises ShapeError for shapes that do not agree
and UsageError for an unknown option.
"""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.tensor.activations import curve
from weft.tensor.core import Tensor
from weft.tensor.create import full_like
from weft.tensor.elementwise import derivative, log1p, logaddexp
from weft.tensor.keys import as_index
from weft.tensor.shapes import broadcast_tensors


def reduced(loss: Tensor, reduction: str, count: Tensor | None = None) -> Tensor:
    """The loss of each element reduced; a mean divides by `count`, or by the number of elements."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction != "mean":
        raise UsageError(f'loss: reduction is "mean", "sum" or "none", not {reduction!r}')
    return loss.mean() if count is None else loss.sum() / count


def class_rows(name: str, x: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
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


def inside_classes(at: Tensor, classes: int) -> Tensor:
    """Class numbers; 0 for numbers that are not classes."""
    return ((at >= 0) & (at < classes)).where(at, 0)


def class_weights(name: str, weight: Tensor, classes: int, dtype: dt.DType) -> Tensor:
    """A weight for each class in `dtype`. Raises ShapeError for another number of them."""
    if weight.shape != (classes,) or not weight.dtype.is_float:
        raise ShapeError(
            f"{name}: weight {weight._known()}; expected a float for each of {classes} classes"
        )
    return weight.cast(dtype)


def cross_entropy(
    logits: Tensor, targets: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Cross entropy, float32: -w[target] log softmax(logits)[target]. `logits` are [N, C] with
    integer targets [N] (or [N, C, ...] with [N, ...], or [C] with []). w is `weight` [C], 1 by
    default. A mean is divided by the sum of the targets' weights.

    A target of `ignore_index` counts for nothing, nor in the mean; any other that is not in 0..C-1
    gives NaN (and NaN gradients), on every device. With `label_smoothing` s the wanted distribution
    is 1 - s at the target plus s / C everywhere. Float targets, shaped as the logits, are wanted
    distributions themselves. Raises ShapeError, DTypeError, UsageError.

    >>> F.cross_entropy(weft.zeros((1, 2)), weft.tensor([1])).item()
    0.6931471824645996
    """
    s = float(label_smoothing)
    if not 0.0 <= s <= 1.0:
        raise UsageError(f"cross_entropy: label_smoothing {s} is not within 0..1")
    if targets.dtype.is_float:
        return _soft_cross_entropy(logits, targets, weight, reduction, s)
    flat, at = class_rows("cross_entropy", logits, targets, ignore_index)
    alike = s if weight is None else 0.0  # with weights, smoothing differs between classes
    loss = flat._call("cross_entropy", at, ignore_index=int(ignore_index), label_smoothing=alike)
    counted = at != ignore_index
    if weight is None:
        each = counted.cast(loss.dtype)
    else:
        w = class_weights("cross_entropy", weight, flat.shape[1], loss.dtype)
        each = counted.where(w.take(inside_classes(at, flat.shape[1]), 0), 0.0)
        loss = loss * each * (1.0 - s)
        if s:
            spread = (flat.cast(loss.dtype).log_softmax(-1) * (w * (-s / flat.shape[1]))).sum(-1)
            loss = loss + counted.where(spread, 0.0)
    return reduced(loss.reshape(targets.shape), reduction, each.sum())


def _soft_cross_entropy(
    logits: Tensor, targets: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """-sum(w q log softmax(logits)) over the classes, for wanted distributions q."""
    logits, q = pair("cross_entropy", logits, targets)
    axis = 1 if logits.ndim > 1 else 0
    classes = logits.shape[axis]
    q = q * (1.0 - smoothing) + smoothing / classes if smoothing else q
    if weight is not None:
        w = class_weights("cross_entropy", weight, classes, q.dtype)
        q = q * w.reshape(-1, *([1] * (logits.ndim - 1 - axis)))
    loss = -(q * logits.log_softmax(axis)).sum(axis)
    return reduced(loss, reduction)


def nll_loss(
    log_probs: Tensor, targets: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-w[target] log_probs[target]: what cross_entropy does after log_softmax; the same shapes and
    the same targets.

    >>> F.nll_loss(weft.tensor([[-1.0, -2.0]]), weft.tensor([1])).item()
    2.0
    """
    flat, at = class_rows("nll_loss", log_probs, targets, ignore_index)
    flat = flat.cast(dt.compute_dtype(flat.dtype))
    counted = at != ignore_index
    inside = inside_classes(at, flat.shape[1])
    each = counted.cast(flat.dtype)
    if weight is not None:
        each = each * class_weights("nll_loss", weight, flat.shape[1], flat.dtype).take(inside, 0)
    picked = flat.take_along_axis(inside.reshape(-1, 1), 1).reshape(-1)
    loss = counted.where((at == inside).where(-picked * each, math.nan), 0.0)
    return reduced(loss.reshape(targets.shape), reduction, each.sum())


def pair(name: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape, in the dtype in which x is computed."""
    if x.shape != target.shape:
        raise ShapeError(f"{name}: {x._known()} with target {target._known()}; shapes must agree")
    return x.cast(dt.compute_dtype(x.dtype)), target.cast(dt.compute_dtype(x.dtype))


def together(*operands: Tensor) -> list[Tensor]:
    """Tensors broadcast to one shape, in the dtype in which the first is computed."""
    dtype = dt.compute_dtype(operands[0].dtype)
    return list(broadcast_tensors(*(x.cast(dtype) for x in operands)))


def _positive(name: str, option: str, number: float, zero: bool = False) -> None:
    if not (number > 0 or (zero and number == 0)):
        raise UsageError(f"{name}: {option} is {number}; give a positive number")


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(x - target)^2.

    >>> F.mse_loss(weft.tensor([1.0, 3.0]), weft.tensor([1.0, 1.0])).item()
    2.0
    """
    x, target = pair("mse_loss", x, target)
    return reduced((x - target).square(), reduction)


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|x - target|.

    >>> F.l1_loss(weft.tensor([1.0, 4.0]), weft.tensor([1.0, 1.0])).item()
    1.5
    """
    x, target = pair("l1_loss", x, target)
    return reduced((x - target).abs(), reduction)


def _bowl(x: Tensor, edge: float, steep: float) -> Tensor:
    """steep x^2 / (2 edge) within the edges, and the straight lines of slope `steep` beyond."""
    return curve(
        x,
        lambda x: (x.abs() < edge).where(
            x.square() * (0.5 * steep / edge), (x.abs() - 0.5 * edge) * steep
        ),
        lambda g, x: g * ((x * (1.0 / edge)).maximum(-1.0).minimum(1.0) * steep),
    )


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """With d = x - target: d^2 / (2 beta) where |d| < beta, elsewhere |d| - beta / 2 (Girshick,
    arXiv:1504.08083). A beta of 0 gives l1_loss.

    >>> F.smooth_l1_loss(weft.tensor([0.5, 3.0]), weft.zeros((2,)), "none").tolist()
    [0.125, 2.5]
    """
    _positive("smooth_l1_loss", "beta", beta, zero=True)
    if not beta:
        return l1_loss(x, target, reduction)
    x, target = pair("smooth_l1_loss", x, target)
    return reduced(_bowl(x - target, beta, 1.0), reduction)


def huber_loss(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """With d = x - target: d^2 / 2 where |d| <= delta, elsewhere delta (|d| - delta / 2) (Huber
    1964).

    >>> F.huber_loss(weft.tensor([1.0, 3.0]), weft.zeros((2,)), "none", delta=2.0).tolist()
    [0.5, 4.0]
    """
    _positive("huber_loss", "delta", delta)
    x, target = pair("huber_loss", x, target)
    return reduced(_bowl(x - target, delta, delta), reduction)


@derivative(
    lambda g, out, x, y: g * ((x - y) / (x * (1.0 - x)).maximum(1e-12)),
    lambda g, out, x, y: g * (_log_least(1.0 - x) - _log_least(x)),
)
def _bernoulli(x: Tensor, y: Tensor) -> Tensor:
    low = log1p(-x).maximum(-100.0)
    return (y - 1.0) * low - y * _log_least(x)


def _log_least(x: Tensor) -> Tensor:
    return x.log().maximum(-100.0)


def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)) times `weight` (which broadcasts), for probabilities x and
    targets y in 0..1. Each logarithm is at least -100, as in PyTorch; an x beyond 0..1 gives NaN.

    >>> F.binary_cross_entropy(weft.tensor([0.5, 1.0]), weft.tensor([1.0, 0.0]), None, "none")
    Tensor([  0.6931472, 100.       ])
    """
    x, y = pair("binary_cross_entropy", x, target)
    loss = _bernoulli(x, y)
    return reduced(loss if weight is None else loss * weight.cast(x.dtype), reduction)


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Binary cross entropy of logits x, float32: -(p y log s + (1 - y) log(1 - s)) times `weight`.
    Here s = sigmoid(x), y is the target in 0..1 and p is `pos_weight`. `weight` and p broadcast and
    are 1 by default. Large logits do not overflow.

    >>> F.binary_cross_entropy_with_logits(weft.zeros((2,)), weft.ones((2,)))
    Tensor(0.6931472)
    """
    x, y = pair("binary_cross_entropy_with_logits", x, target)
    wrong = y * logaddexp(-x, 0.0)  # both terms are positive: nothing cancels where one is small
    if pos_weight is not None:
        wrong = wrong * pos_weight.cast(x.dtype)
    loss = (1.0 - y) * logaddexp(x, 0.0) + wrong
    return reduced(loss if weight is None else loss * weight.cast(x.dtype), reduction)


def _entropy(x: Tensor) -> Tensor:
    """x log x, and 0 at 0."""
    return curve(x, lambda x: (x == 0).where(0.0, x * x.log()), lambda g, x: g * (x.log() + 1.0))


def kl_div(x: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """q (log q - x) for log-probabilities x and a target of probabilities q, or of log q with
    `log_target` (Kullback and Leibler 1951). Besides the usual reductions there is "batchmean": the
    sum divided by the size of axis 0.

    >>> F.kl_div(weft.tensor([[0.5, 0.5]]).log(), weft.tensor([[0.5, 0.5]]), "batchmean").item()
    0.0
    """
    x, q = pair("kl_div", x, target)
    loss = q.exp() * (q - x) if log_target else _entropy(q) - q * x
    if reduction == "batchmean":
        return loss.sum() / (loss.shape[0] if loss.ndim else 1)
    return reduced(loss, reduction)


def poisson_nll_loss(
    x: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """exp(x) - target x for the logarithm x of a Poisson rate, or x - target log(x + eps) for the
    rate itself (log_input=False); x and target broadcast. With `full`, Stirling's approximation of
    log(target!) is added for targets above 1.

    >>> F.poisson_nll_loss(weft.tensor([0.0]), weft.tensor([2.0])).item()
    1.0
    """
    x, y = together(x, target)
    loss = x.exp() - y * x if log_input else x - y * (x + eps).log()
    if full:
        many = (y > 1).where(y, 1.0)
        more = many * many.log() - many + (many * (2.0 * math.pi)).log() * 0.5
        loss = loss + (y > 1).where(more, 0.0)
    return reduced(loss, reduction)


def gaussian_nll_loss(
    x: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Gaussian negative log likelihood: (log v + (x - target)^2 / v) / 2, with v the larger of
    `var` and eps. `full` adds log(2 pi) / 2 (Nix and Weigend 1994). `var` is a number, or has x's
    shape, or lacks its last axis, or has 1 there. The gradient of var does not see eps, as in
    PyTorch.

    >>> F.gaussian_nll_loss(weft.tensor([3.0]), weft.tensor([1.0]), weft.tensor([1.0])).item()
    2.0
    """
    _positive("gaussian_nll_loss", "eps", eps)
    if not isinstance(var, Tensor):
        var = full_like(x, var)
    elif var.shape == x.shape[:-1] and var.shape != x.shape:
        var = var.unsqueeze(-1)
    elif var.shape not in (x.shape, (*x.shape[:-1], 1)):
        raise ShapeError(f"gaussian_nll_loss: x {x._known()} with var {var._known()}")
    x, y, v = together(x, target, var)
    v = curve(v, lambda v: v.maximum(eps), lambda g, v: g)
    loss = (v.log() + (x - y).square() / v) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)
