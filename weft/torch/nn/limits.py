"""Values that PyTorch's losses and embeddings refuse, where they are known already."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from weft.core.errors import AxisError, UsageError
from weft.ops.rules import axis_of
from weft.tensor.core import Tensor
from weft.tensor.unpooling import unpooled_size
from weft.torch.expected import want, want_floats, want_rank
from weft.torch.picking import inside, known, look_at

Given = Mapping[str, Any]  # arguments by name
Check = Callable[[Given], None]


def check_labels(name: str, input: Tensor, target: Tensor, ignored: int) -> None:
    """Raises AxisError for an integer target that is no class of input[N, C, ...] or input[C],
    `ignored` aside."""
    if target.dtype.is_float or not input.ndim:
        return
    classes = input.shape[0 if input.ndim == 1 else 1]

    def look(at: np.ndarray) -> None:
        if np.minimum.reduce(at, None) >= 0 and np.maximum.reduce(at, None) < classes:
            return
        wrong = at[((at < 0) | (at >= classes)) & (at != ignored)]
        if wrong.size:
            raise AxisError(f"{name}: target {int(wrong.flat[0])} is none of {classes} classes")

    look_at(target, look)


def _labels(name: str) -> Check:
    def check(given: Given) -> None:
        check_labels(name, given["input"], given["target"], given.get("ignore_index", -100))

    return check


def _probabilities(given: Given) -> None:
    def look(what: str, held: np.ndarray) -> None:
        if not bool(np.all((held >= 0) & (held <= 1))):
            raise UsageError(f"binary_cross_entropy: {what} has values outside 0..1")

    for what in ("input", "target"):
        look_at(given[what], partial(look, what))


def _variances(given: Given) -> None:
    def look(held: np.ndarray) -> None:
        below = bool((held < 0).any())
        want(not below, "gaussian_nll_loss", "var has values below 0", "variances of 0 or more")

    look_at(given["var"], look)


def _same_rank(given: Given) -> None:
    a, b, y = (given[k] for k in ("input1", "input2", "target"))
    shapes = f"{a._known()}, {b._known()}, {y._known()}"
    want(a.ndim == b.ndim == y.ndim, "margin_ranking_loss", shapes, "one number of axes")


def _lengths(given: Given) -> None:
    steps, lengths = given["log_probs"].shape[0], given["input_lengths"]
    held = known(lengths) if isinstance(lengths, Tensor) else np.asarray(lengths)
    most = 0 if held is None else int(held.max(initial=0))
    want(most <= steps, "ctc_loss", f"input_lengths up to {most}", f"{steps} or less")


def check_spread(input: Tensor) -> None:
    """Raises UsageError for images of one element, whose variance is 0."""
    one = input.ndim > 1 and math.prod(input.shape[2:]) == 1
    want(not one, "instance_norm", f"{input._known()}", "more than one element per channel")


def _spread(given: Given) -> None:
    if given.get("use_input_stats", True):
        check_spread(given["input"])


def _unpool(rank: int) -> Check:
    name, axes = f"max_unpool{rank}d", -rank

    def check(given: Given) -> None:
        options = (given.get(k) for k in ("stride", "padding", "output_size"))
        x, at = given["input"], given["indices"]
        size = unpooled_size(name, x.shape[axes:], given["kernel_size"], *options)
        inside(name, at, math.prod(size))

    return check


def _dropped(name: str) -> Check:
    """A dropout of integers has no result: they are scaled."""
    training = name != "alpha_dropout"

    def check(given: Given) -> None:
        if given.get("training", training) and 0 < given.get("p", 0.5) < 1:
            want_floats(name, given["input"], "call .float() on it first")

    return check


def _mean(name: str) -> Check:
    """A mean of integers has no result."""

    def check(given: Given) -> None:
        if given.get("reduction", "mean") == "mean":
            want_floats(name, given["input"], "call .float() on it first")

    return check


# by function: what is asked of its arguments
CHECKS: Mapping[str, Check] = {
    "cross_entropy": _labels("cross_entropy"),
    "nll_loss": _labels("nll_loss"),
    "binary_cross_entropy": _probabilities,
    "gaussian_nll_loss": _variances,
    "margin_ranking_loss": _same_rank,
    "ctc_loss": _lengths,
    "instance_norm": _spread,
    **{n: _dropped(n) for n in ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d")},
    **{n: _mean(n) for n in ("l1_loss", "hinge_embedding_loss")},
    "unfold": lambda given: want_floats("unfold", given["input"], "call .float() on it first"),
    "pdist": lambda given: want_rank("pdist", given["input"], 2),
    **{f"max_unpool{rank}d": _unpool(rank) for rank in (1, 2, 3)},
}


def _loss(name: str) -> Callable[..., None]:
    def check(module: Any, input: Tensor, target: Tensor) -> None:
        ignored = getattr(module, "ignore_index", -100)
        CHECKS[name]({"input": input, "target": target, "ignore_index": ignored})

    return check


def _ids(name: str) -> Callable[..., None]:
    def check(module: Any, ids: Tensor, *more: Any, **options: Any) -> None:
        inside(name, ids, module.num_embeddings)

    return check


def _classes(module: Any, input: Tensor, target: Tensor) -> None:
    inside("AdaptiveLogSoftmaxWithLoss: target", target, module.n_classes)


def _unpooled(rank: int) -> Callable[..., None]:
    check = _unpool(rank)

    def of_module(module: Any, input: Tensor, indices: Tensor, output_size: Any = None) -> None:
        given = {k: getattr(module, k) for k in ("kernel_size", "stride", "padding")}
        check({**given, "input": input, "indices": indices, "output_size": output_size})

    return of_module


def _of_dropped(name: str) -> Callable[..., None]:
    def of_module(module: Any, input: Tensor) -> None:
        if module.training and 0 < module.p < 1:
            want_floats(name, input, "call .float() on it first")

    return of_module


def _flattened(module: Any, input: Tensor) -> None:
    for place in (module.start_dim, module.end_dim):
        axis_of("Flatten", place, max(input.ndim, 1))


# by module: what is asked of the arguments of its forward pass
MODULES: Mapping[str, Callable[..., None]] = {
    "CrossEntropyLoss": _loss("cross_entropy"),
    "NLLLoss": _loss("nll_loss"),
    "BCELoss": _loss("binary_cross_entropy"),
    "Embedding": _ids("embedding"),
    "EmbeddingBag": _ids("embedding_bag"),
    **{f"InstanceNorm{n}d": lambda module, input: check_spread(input) for n in (1, 2, 3)},
    **{f"MaxUnpool{n}d": _unpooled(n) for n in (1, 2, 3)},
    "GaussianNLLLoss": lambda module, input, target, var: _variances({"var": var}),
    "AdaptiveLogSoftmaxWithLoss": _classes,
    **{
        f"{n}": _of_dropped(n)
        for n in (
            "Dropout",
            "AlphaDropout",
            "FeatureAlphaDropout",
            "Dropout1d",
            "Dropout2d",
            "Dropout3d",
        )
    },
    "Flatten": _flattened,
    "MultiMarginLoss": lambda module, input, target: check_labels(
        "multi_margin_loss", input, target, -1
    ),
    "MultiLabelMarginLoss": lambda module, input, target: check_labels(
        "multilabel_margin_loss", input, target, -1
    ),
}
