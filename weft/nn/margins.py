"""Losses with a margin, and distances, as modules; weft.functional has the formulas, and says what
each takes. A `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from collections.abc import Callable

from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.core import Tensor


class HingeEmbeddingLoss(Module):
    """x where the target is 1, max(0, margin - x) where it is -1. See
    weft.functional.hinge_embedding_loss.

    >>> x, target = weft.tensor([0.5, 0.25]), weft.tensor([1.0, -1.0])
    >>> nn.HingeEmbeddingLoss(reduction="sum")(x, target).item()
    1.25
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(x, target, self.margin, self.reduction)


class MarginRankingLoss(Module):
    """max(0, margin - target (x1 - x2)), for targets of 1 and -1. See
    weft.functional.margin_ranking_loss.

    >>> nn.MarginRankingLoss()(weft.tensor([1.0]), weft.tensor([3.0]), weft.tensor([1.0])).item()
    2.0
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(x1, x2, target, self.margin, self.reduction)


class SoftMarginLoss(Module):
    """log(1 + exp(-target x)), for targets of 1 and -1. See weft.functional.soft_margin_loss.

    >>> nn.SoftMarginLoss()(weft.tensor([1000.0]), weft.tensor([-1.0])).item()
    1000.0
    """

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(x, target, self.reduction)


class MultiLabelSoftMarginLoss(Module):
    """Binary cross entropy of logits x[N, C], averaged over the classes. See
    weft.functional.multilabel_soft_margin_loss.

    >>> nn.MultiLabelSoftMarginLoss()(weft.zeros((1, 2)), weft.ones((1, 2)))
    Tensor(0.6931472)
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        self.reduction = reduction
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(x, target, self.weight, self.reduction)


class CosineEmbeddingLoss(Module):
    """1 - cos(x1, x2) where the target is 1, max(0, cos(x1, x2) - margin) where it is -1. See
    weft.functional.cosine_embedding_loss.

    >>> nn.CosineEmbeddingLoss()(weft.ones((1, 2)), weft.ones((1, 2)), weft.tensor([1.0])).item()
    0.0
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(x1, x2, target, self.margin, self.reduction)


class TripletMarginLoss(Module):
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d by the p-norm. Each operand is
    [N, D] or [D]. See weft.functional.triplet_margin_loss.

    >>> x = weft.zeros((1, 2))
    >>> nn.TripletMarginLoss()(x, x, x).item()
    1.0
    """

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
        reduction: str = "mean",
    ):  # fmt: skip
        self.margin, self.p, self.eps, self.swap, self.reduction = margin, p, eps, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        options = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return F.triplet_margin_loss(anchor, positive, negative, *options)


class TripletMarginWithDistanceLoss(Module):
    """TripletMarginLoss with a distance of one's own, by default pairwise_distance. See
    weft.functional.triplet_margin_with_distance_loss.

    >>> x = weft.zeros((1, 2))
    >>> nn.TripletMarginWithDistanceLoss()(x, x, x).item()
    1.0
    """

    def __init__(
        self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0, swap: bool = False, reduction: str = "mean",
    ):  # fmt: skip
        self.distance_function, self.margin = distance_function, margin
        self.swap, self.reduction = swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function,
            margin=self.margin, swap=self.swap, reduction=self.reduction,
        )  # fmt: skip


class MultiMarginLoss(Module):
    """The sum of max(0, margin - x[target] + x[i])^p over other classes i, divided by C. See
    weft.functional.multi_margin_loss.

    >>> nn.MultiMarginLoss()(weft.tensor([[0.0, 0.5]]), weft.tensor([1])).item()
    0.25
    """

    weight: Tensor | None

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str =
        "mean",
    ):  # fmt: skip
        self.p, self.margin, self.reduction = p, margin, reduction
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.multi_margin_loss(x, target, self.p, self.margin, self.weight, self.reduction)


class MultiLabelMarginLoss(Module):
    """The sum of max(0, 1 - (x[j] - x[i])) over targets j and other classes i, divided by C. See
    weft.functional.multilabel_margin_loss.

    >>> nn.MultiLabelMarginLoss()(weft.tensor([[0.0, 0.5]]), weft.tensor([[1, -1]])).item()
    0.25
    """

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, target, self.reduction)


class CosineSimilarity(Module):
    """The cosine of the angle between x1 and x2 along an axis. See
    weft.functional.cosine_similarity.

    >>> nn.CosineSimilarity()(weft.tensor([[3.0, 4.0]]), weft.tensor([[3.0, 4.0]])).shape
    (1,)
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis. See weft.functional.pairwise_distance.

    >>> nn.PairwiseDistance(eps=0.0)(weft.tensor([3.0, 4.0]), weft.zeros((2,))).item()
    5.0
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        self.p, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)
