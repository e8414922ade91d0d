"""Losses and distances as modules; weft.functional has the formulas, and says what each takes. A
`reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from collections.abc import Callable

from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.alignment import Lengths
from weft.tensor.core import Tensor


class CrossEntropyLoss(Module):
    """-w[target] log softmax(logits)[target]; logits [N, C, ...], integer targets [N, ...] (or the
    wanted distributions [N, C, ...]); w is `weight` [C]."""

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):  # fmt: skip
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        options = (self.weight, self.ignore_index, self.reduction, self.label_smoothing)
        return F.cross_entropy(logits, targets, *options)


class NLLLoss(Module):
    """-w[target] log_probs[target]; log_probs [N, C, ...], integer targets [N, ...]; w is `weight`
    [C]."""

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ):
        self.ignore_index, self.reduction = ignore_index, reduction
        self.register_buffer("weight", weight)

    def forward(self, log_probs: Tensor, targets: Tensor) -> Tensor:
        return F.nll_loss(log_probs, targets, self.weight, self.ignore_index, self.reduction)


class CTCLoss(Module):
    """-log of the probability of all alignments of targets with log-probabilities [T, N, C]; see
    weft.functional.ctc_loss for the shapes of targets and lengths."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        self.blank, self.reduction, self.zero_infinity = blank, reduction, zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths
    ) -> Tensor:
        options = (self.blank, self.reduction, self.zero_infinity)
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, *options)


class MSELoss(Module):
    """(x - target)^2."""

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(x, target, self.reduction)


class L1Loss(Module):
    """|x - target|."""

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(x, target, self.reduction)


class BCEWithLogitsLoss(Module):
    """-(p y log s + (1 - y) log(1 - s)) times `weight`, s = sigmoid(x), y in 0..1; p is
    `pos_weight`."""

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ):  # fmt: skip
        self.reduction = reduction
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits
        return loss(x, target, self.weight, self.reduction, self.pos_weight)


class SmoothL1Loss(Module):
    """d^2 / (2 beta) where |d| < beta, elsewhere |d| - beta / 2, with d = x - target."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0):
        self.reduction, self.beta = reduction, beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(x, target, self.reduction, self.beta)


class HuberLoss(Module):
    """d^2 / 2 where |d| <= delta, elsewhere delta (|d| - delta / 2), with d = x - target."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        self.reduction, self.delta = reduction, delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(x, target, self.reduction, self.delta)


class BCELoss(Module):
    """-(y log x + (1 - y) log(1 - x)) times `weight`, for probabilities x and targets y in 0..1."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        self.reduction = reduction
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(x, target, self.weight, self.reduction)


class KLDivLoss(Module):
    """q (log q - x) for log-probabilities x and probabilities q (or their logarithms, with
    `log_target`). PyTorch recommends the reduction "batchmean"."""

    def __init__(self, reduction: str = "mean", log_target: bool = False):
        self.reduction, self.log_target = reduction, log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(x, target, self.reduction, self.log_target)


class PoissonNLLLoss(Module):
    """exp(x) - target x for the logarithm x of a Poisson rate, or for the rate itself."""

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str =
        "mean",
    ):  # fmt: skip
        self.log_input, self.full, self.eps, self.reduction = log_input, full, eps, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(x, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Module):
    """(log var + (x - target)^2 / var) / 2, with var at least eps."""

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        self.full, self.eps, self.reduction = full, eps, reduction

    def forward(self, x: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(x, target, var, self.full, self.eps, self.reduction)


class HingeEmbeddingLoss(Module):
    """x where the target is 1, max(0, margin - x) where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(x, target, self.margin, self.reduction)


class MarginRankingLoss(Module):
    """max(0, margin - target (x1 - x2)), for targets of 1 and -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(x1, x2, target, self.margin, self.reduction)


class SoftMarginLoss(Module):
    """log(1 + exp(-target x)), for targets of 1 and -1."""

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(x, target, self.reduction)


class MultiLabelSoftMarginLoss(Module):
    """Binary cross entropy of logits x[N, C], averaged over the classes."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        self.reduction = reduction
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(x, target, self.weight, self.reduction)


class CosineEmbeddingLoss(Module):
    """1 - cos(x1, x2) where the target is 1, max(0, cos(x1, x2) - margin) where it is -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(x1, x2, target, self.margin, self.reduction)


class TripletMarginLoss(Module):
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d by the p-norm."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
        reduction: str = "mean",
    ):  # fmt: skip
        self.margin, self.p, self.eps, self.swap, self.reduction = margin, p, eps, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        options = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return F.triplet_margin_loss(anchor, positive, negative, *options)


class TripletMarginWithDistanceLoss(Module):
    """TripletMarginLoss with a distance of one's own, by default pairwise_distance."""

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
    """The sum of max(0, margin - x[target] + x[i])^p over other classes i, divided by C."""

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
    """The sum of max(0, 1 - (x[j] - x[i])) over targets j and other classes i, divided by C."""

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, target, self.reduction)


class CosineSimilarity(Module):
    """The cosine of the angle between x1 and x2 along an axis."""

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        self.p, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)
