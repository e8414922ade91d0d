"""Losses with a margin: what is far enough on its side counts for nothing. PyTorch's formulas.

Operands broadcast where PyTorch's do. Narrow floats are computed as float32, and the loss is
float32. `reduction` is "mean", "sum" or "none". Each raises ShapeError for shapes that do not agree
and UsageError for an unknown option.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor.activations import logsigmoid, softplus
from weft.tensor.core import Tensor
from weft.tensor.create import zeros_like
from weft.tensor.distances import pairwise_distance
from weft.tensor.keys import as_index
from weft.tensor.losses import class_rows, class_weights, inside_classes, pair, reduced, together


def _above(x: Tensor) -> Tensor:
    """max(x, 0); 0 has the whole gradient, NaN none, as PyTorch's clamp has it."""
    return x.clip(0.0)


def hinge_embedding_loss(
    x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1 (Hadsell et al. 2006).

    >>> F.hinge_embedding_loss(weft.tensor([0.5, 0.25]), weft.tensor([1.0, -1.0]), 1.0, "sum")
    Tensor(1.25)
    """
    x, y = together(x, target)
    loss = (y == -1).where(0.0, x) + (y == 1).where(0.0, _above(margin - x))
    return reduced(loss, reduction)


def margin_ranking_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, margin - target (x1 - x2)), with a target of 1 where x1 should be the larger and -1
    where x2 should.

    >>> F.margin_ranking_loss(weft.tensor([1.0]), weft.tensor([3.0]), weft.tensor([1.0])).item()
    2.0
    """
    a, b, y = together(x1, x2, target)
    return reduced(_above(-y * (a - b) + margin), reduction)


def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target x)) for targets of 1 and -1, without overflow.

    >>> F.soft_margin_loss(weft.tensor([0.0, 1000.0]), weft.tensor([1.0, -1.0]), "none").tolist()
    [0.6931471824645996, 1000.0]
    """
    x, y = pair("soft_margin_loss", x, target)
    return reduced(softplus(-y * x), reduction)


def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross entropy of logits, averaged over the classes of x[..., C]. An element is -(y log
    s + (1 - y) log(1 - s)) with s = sigmoid(x) and y the target in 0..1, times `weight` [C] if
    given.

    >>> F.multilabel_soft_margin_loss(weft.zeros((1, 2)), weft.ones((1, 2))).item()
    0.6931471824645996
    """
    x, y = pair("multilabel_soft_margin_loss", x, target)
    loss = -(y * logsigmoid(x) + (1.0 - y) * logsigmoid(-x))
    loss = loss if weight is None else loss * weight.cast(x.dtype)
    return reduced(loss.mean(-1), reduction)


def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Cosine embedding loss: 1 - cos where the target is 1, max(0, cos - margin) where it is -1.
    Here cos is the cosine of the angle between rows of x1 and x2[N, D] (or vectors [D], with a
    target []).

    >>> ones = weft.ones((1, 2))
    >>> F.cosine_embedding_loss(ones, ones, weft.tensor([-1.0]), margin=0.5).item()
    0.5
    """
    a, b = together(x1, x2)
    squares = ((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12)
    cos, y = together((a * b).sum(-1) * squares.rsqrt(), target)
    loss = (y == 1).where(1.0 - cos, 0.0) + (y == -1).where(_above(cos - margin), 0.0)
    return reduced(loss, reduction)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Triplet loss of rows [N, D]: max(0, margin + d(anchor, positive) - d(anchor, negative)). d is
    the distance by the p-norm. With `swap` the nearer of anchor and positive counts (Balntas et al.
    2016).

    >>> near, far = weft.zeros((1, 2)), weft.ones((1, 2))
    >>> round(F.triplet_margin_loss(near, far, near, p=1.0).item(), 4)
    3.0
    """

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=apart, margin=margin, swap=swap,
        reduction=reduction,
    )  # fmt: skip


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """triplet_margin_loss with a distance of one's own, by default pairwise_distance.

    >>> near, far = weft.zeros((1, 2)), weft.ones((1, 2))
    >>> apart = lambda a, b: (a - b).abs().max(-1)
    >>> F.triplet_margin_with_distance_loss(near, far, near, distance_function=apart).item()
    2.0
    """
    between = distance_function or pairwise_distance
    a, b, c = together(anchor, positive, negative)
    here, there = between(a, b), between(a, c)
    there = there.minimum(between(b, c)) if swap else there
    return reduced(_above(here - there + margin), reduction)


def multi_margin_loss(
    x: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Margin loss of x[N, C] and integer targets [N] (or [C] and []): w[t] / C times the sum of
    max(0, margin - x[t] + x[i])^p over the classes i other than the target t. Here p is 1 or 2, and
    w is `weight` [C].

    >>> F.multi_margin_loss(weft.tensor([[0.0, 0.5]]), weft.tensor([1])).item()
    0.25
    """
    if p not in (1, 2):
        raise UsageError(f"multi_margin_loss: p is {p}; expected 1 or 2")
    if x.ndim > 2:
        raise ShapeError(f"multi_margin_loss: {x._known()}; expected [N, C] or [C]")
    rows, at = class_rows("multi_margin_loss", x, target, -100)
    rows = rows.cast(dt.compute_dtype(rows.dtype))
    inside = inside_classes(at, rows.shape[1]).unsqueeze(1)
    own = rows.take_along_axis(inside, 1)
    far = _above(margin - own + rows)
    far = far if p == 1 else far.square()
    if weight is not None:
        w = class_weights("multi_margin_loss", weight, rows.shape[1], rows.dtype)
        far = far * w.take(inside.reshape(-1), 0).unsqueeze(1)
    others = as_index(inside) != _numbers(rows)
    loss = others.where(far, 0.0).sum(1) * (1.0 / rows.shape[1])
    loss = (at == inside.squeeze(1)).where(loss, float("nan"))
    return reduced(loss.reshape(target.shape), reduction)


def _numbers(rows: Tensor) -> Tensor:
    """The number of each class, as broad as rows[N, C]."""
    return (zeros_like(rows, dtype=dt.int32) + 1).cumsum(1) - 1


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """1 / C sum of max(0, 1 - (x[j] - x[i])) over the targets j and the classes i that are none,
    for x[N, C] and integer targets [N, C] (or [C] and [C]). Targets end at the first -1.

    >>> F.multilabel_margin_loss(weft.tensor([0.1, 0.9]), weft.tensor([1, -1])).item()
    0.10000002384185791
    """
    if x.shape != target.shape or x.ndim not in (1, 2):
        raise ShapeError(
            f"multilabel_margin_loss: {x._known()} with target {target._known()}; expected [N, C] "
            "twice, or [C]"
        )
    rows = x.reshape(-1, x.shape[-1]).cast(dt.compute_dtype(x.dtype))
    at = as_index(target).reshape(rows.shape)
    real = (at >= 0).cast(dt.int32).cumprod(1) > 0
    named = real.unsqueeze(2) & (at.unsqueeze(2) == _numbers(rows).unsqueeze(1))  # [N, place, C]
    own = rows.take_along_axis(real.where(at, 0), 1).unsqueeze(2)
    other = real.unsqueeze(2) & ~named.any(1, keepdims=True)
    far = other.where(_above(1.0 - (own - rows.unsqueeze(1))), 0.0)
    loss = far.sum((1, 2)) * (1.0 / rows.shape[1])
    return reduced(loss.reshape(x.shape[:-1]), reduction)
