"""Losses as modules; the formulas are in weft.functional."""

from __future__ import annotations

from weft.nn.module import Module
from weft.tensor import functional as F
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
