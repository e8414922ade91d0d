"""Values that PyTorch's losses and embeddings refuse, where they are known already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core.errors import AxisError, UsageError
from weft.tensor.core import Tensor
from weft.torch.picking import inside, known


def check_labels(name: str, input: Tensor, target: Tensor, ignored: int) -> None:
    """Raises AxisError for an integer target that is no class of input[N, C, ...] or input[C],
    `ignored` aside."""
    at = None if target.dtype.is_float else known(target)
    if at is None or not input.ndim:
        return
    classes = input.shape[0 if input.ndim == 1 else 1]
    wrong = at[((at < 0) | (at >= classes)) & (at != ignored)]
    if wrong.size:
        raise AxisError(f"{name}: target {int(wrong.flat[0])} is none of {classes} classes")


def _labels(name: str) -> Callable[..., None]:
    def check(input: Tensor, target: Tensor, ignore_index: int = -100) -> None:
        check_labels(name, input, target, ignore_index)

    return check


def _probabilities(input: Tensor, target: Tensor, ignore_index: int = -100) -> None:
    for what, x in (("input", input), ("target", target)):
        held = known(x)
        if held is not None and not bool(np.all((held >= 0) & (held <= 1))):
            raise UsageError(f"binary_cross_entropy: {what} has values outside 0..1")


READ = ("input", "target", "ignore_index")
# by function: what is asked of its arguments of these names
CHECKS: Mapping[str, Callable[..., None]] = {
    "cross_entropy": _labels("cross_entropy"),
    "nll_loss": _labels("nll_loss"),
    "binary_cross_entropy": _probabilities,
}


def _loss(name: str) -> Callable[..., None]:
    def check(module: Any, input: Tensor, target: Tensor) -> None:
        CHECKS[name](input, target, getattr(module, "ignore_index", -100))

    return check


def _ids(name: str) -> Callable[..., None]:
    def check(module: Any, ids: Tensor, *more: Any, **options: Any) -> None:
        inside(name, ids, module.num_embeddings)

    return check


# by module: what is asked of the arguments of its forward pass
MODULES: Mapping[str, Callable[..., None]] = {
    "CrossEntropyLoss": _loss("cross_entropy"),
    "NLLLoss": _loss("nll_loss"),
    "BCELoss": _loss("binary_cross_entropy"),
    "Embedding": _ids("embedding"),
    "EmbeddingBag": _ids("embedding_bag"),
    "MultiMarginLoss": lambda module, input, target: check_labels(
        "multi_margin_loss", input, target, -1
    ),
    "MultiLabelMarginLoss": lambda module, input, target: check_labels(
        "multilabel_margin_loss", input, target, -1
    ),
}
