"""The softmax over many classes that spends less on rare ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.core.errors import ShapeError, UsageError
from weft.nn.containers import ModuleList, Sequential
from weft.nn.layers import Linear
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.shapes import cat


class Adapted(NamedTuple):
    """The result of AdaptiveLogSoftmaxWithLoss: one number per example, and the mean loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """log softmax of x[N, in] at target[N] over n_classes, sorted by frequency (Grave et al.,
    arXiv:1609.04309): `output` [N], and `loss`, the mean of -output.

    The classes below cutoffs[0] have rows of the head. Each further range of cutoffs shares one row
    of it, and has a tail of two maps through in / div_value ** (i + 1) features. A target out of
    range gives NaN. Raises UsageError for cutoffs that do not rise within 1..n_classes - 1.

    >>> net = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10])
    >>> net.log_prob(weft.ones((3, 8))).shape
    (3, 20)
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False,
    ):  # fmt: skip
        ends = [int(c) for c in cutoffs]
        if not ends or ends != sorted({*ends}) or ends[0] < 1 or ends[-1] > n_classes - 1:
            raise UsageError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs {list(cutoffs)}; expected rising numbers "
                f"within 1..{n_classes - 1}"
            )
        self.in_features, self.n_classes, self.div_value = in_features, n_classes, div_value
        self.cutoffs, self.head_bias = [*ends, n_classes], head_bias
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias)
        self.tail = ModuleList()
        for i, (low, high) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            inner = int(in_features // div_value ** (i + 1))
            maps = Linear(in_features, inner, False), Linear(inner, high - low, False)
            self.tail.append(Sequential(*maps))

    def reset_parameters(self) -> None:
        """New initial values."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters()

    def forward(self, x: Tensor, target: Tensor) -> Adapted:
        rows = x.reshape(1, -1) if x.ndim == 1 else x
        at = target.reshape(-1)
        if rows.ndim != 2 or target.ndim != x.ndim - 1 or len(at) != len(rows):
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: x {list(x.shape)} and target {list(target.shape)}; "
                f"expected [N, {self.in_features}] and [N]"
            )
        head = F.log_softmax(self.head(rows))
        out = _at(head[:, : self.shortlist_size], at)
        for i, (low, tail) in enumerate(zip(self.cutoffs, self.tail)):
            within = _at(F.log_softmax(tail(rows)), at - low)
            out = (at >= low).where(within + head[:, self.shortlist_size + i], out)
        return Adapted(out.reshape(target.shape), -out.mean())

    def log_prob(self, x: Tensor) -> Tensor:
        """log softmax over all classes, [N, n_classes]."""
        head = F.log_softmax(self.head(x))
        parts: list[Tensor] = [head[:, : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            column = head[:, self.shortlist_size + i].unsqueeze(-1)
            parts.append(F.log_softmax(tail(x)) + column)
        return cat(parts, -1)

    def predict(self, x: Tensor) -> Tensor:
        """The likeliest class of each example, [N]."""
        return self.log_prob(x).argmax(-1)


def _at(rows: Tensor, at: Tensor) -> Tensor:
    """rows[n, at[n]]; NaN where that is not a column."""
    inside = ((at >= 0) & (at < rows.shape[1])).where(at, rows.shape[1])
    return rows.take_along_axis(inside.unsqueeze(-1), 1).squeeze(-1)
