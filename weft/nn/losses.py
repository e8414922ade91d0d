"""Losses as modules; weft.functional has the formulas, and says what each takes. A `reduction` is
"mean", "sum" or "none"."""

from __future__ import annotations

from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.keys import Lengths


class CrossEntropyLoss(Module):
    """-w[target] log softmax(logits)[target]; logits [N, C, ...], integer targets [N, ...] (or the
    wanted distributions [N, C, ...]); w is `weight` [C]. See weft.functional.cross_entropy.

    >>> nn.CrossEntropyLoss()(weft.zeros((1, 2)), weft.tensor([1]))
    Tensor(0.6931472)
    """

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
    [C]. See weft.functional.nll_loss.

    >>> nn.NLLLoss()(weft.tensor([[-1.0, -2.0]]), weft.tensor([1])).item()
    2.0
    """

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
    weft.functional.ctc_loss for the shapes of targets and lengths.

    >>> nn.CTCLoss()(weft.zeros((3, 1, 2)), weft.tensor([[1]]), [3], [1])
    Tensor(-1.7917595)
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        self.blank, self.reduction, self.zero_infinity = blank, reduction, zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths
    ) -> Tensor:
        options = (self.blank, self.reduction, self.zero_infinity)
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, *options)


class MSELoss(Module):
    """(x - target)^2. See weft.functional.mse_loss.

    >>> nn.MSELoss()(weft.tensor([1.0, 3.0]), weft.tensor([1.0, 1.0])).item()
    2.0
    """

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(x, target, self.reduction)


class L1Loss(Module):
    """|x - target|. See weft.functional.l1_loss.

    >>> nn.L1Loss()(weft.tensor([1.0, 4.0]), weft.tensor([1.0, 1.0])).item()
    1.5
    """

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(x, target, self.reduction)


class BCEWithLogitsLoss(Module):
    """-(p y log s + (1 - y) log(1 - s)) times `weight`, s = sigmoid(x), y in 0..1; p is
    `pos_weight`. See weft.functional.binary_cross_entropy_with_logits.

    >>> nn.BCEWithLogitsLoss()(weft.zeros((2,)), weft.ones((2,)))
    Tensor(0.6931472)
    """

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
    """d^2 / (2 beta) where |d| < beta, elsewhere |d| - beta / 2, with d = x - target. See
    weft.functional.smooth_l1_loss.

    >>> nn.SmoothL1Loss("none")(weft.tensor([0.5, 3.0]), weft.zeros((2,))).tolist()
    [0.125, 2.5]
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0):
        self.reduction, self.beta = reduction, beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(x, target, self.reduction, self.beta)


class HuberLoss(Module):
    """d^2 / 2 where |d| <= delta, elsewhere delta (|d| - delta / 2), with d = x - target. See
    weft.functional.huber_loss.

    >>> nn.HuberLoss("none", 2.0)(weft.tensor([1.0, 3.0]), weft.zeros((2,))).tolist()
    [0.5, 4.0]
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        self.reduction, self.delta = reduction, delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(x, target, self.reduction, self.delta)


class BCELoss(Module):
    """-(y log x + (1 - y) log(1 - x)) times `weight`, for probabilities x and targets y in 0..1.
    See weft.functional.binary_cross_entropy.

    >>> nn.BCELoss()(weft.tensor([1.0]), weft.tensor([0.0])).item()
    100.0
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        self.reduction = reduction
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(x, target, self.weight, self.reduction)


class KLDivLoss(Module):
    """q (log q - x) for log-probabilities x and probabilities q (or their logarithms, with
    `log_target`). PyTorch recommends the reduction "batchmean". See weft.functional.kl_div.

    >>> even = weft.tensor([[0.5, 0.5]])
    >>> nn.KLDivLoss("batchmean")(even.log(), even).item()
    0.0
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False):
        self.reduction, self.log_target = reduction, log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(x, target, self.reduction, self.log_target)


class PoissonNLLLoss(Module):
    """exp(x) - target x for the logarithm x of a Poisson rate, or for the rate itself. See
    weft.functional.poisson_nll_loss.

    >>> nn.PoissonNLLLoss()(weft.tensor([0.0]), weft.tensor([2.0])).item()
    1.0
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str =
        "mean",
    ):  # fmt: skip
        self.log_input, self.full, self.eps, self.reduction = log_input, full, eps, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(x, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Module):
    """(log var + (x - target)^2 / var) / 2, with var at least eps. See
    weft.functional.gaussian_nll_loss.

    >>> nn.GaussianNLLLoss()(weft.tensor([3.0]), weft.tensor([1.0]), 1.0).item()
    2.0
    """

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        self.full, self.eps, self.reduction = full, eps, reduction

    def forward(self, x: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(x, target, var, self.full, self.eps, self.reduction)
