"""Norms, losses and recurrent layers, kept whole so that they meet weft's own composites."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.importers.aten.table import aten, rows
from weft.tensor import functional as F
from weft.tensor.core import Tensor

RECURRENT = "input hx params has_biases num_layers dropout train bidirectional batch_first"
PAIR = "self target reduction:reduction"
rows(__name__, {
    "layer_norm": (F.layer_norm, "input normalized_shape>axes:count weight bias eps -cudnn_enable"),
    "group_norm": (F.group_norm, "input num_groups weight bias eps -cudnn_enabled"),
    "batch_norm": (F.batch_norm, "input weight bias running_mean running_var training momentum eps "
                   "-cudnn_enabled"),
    "lstm.input": (F.lstm, RECURRENT),
    "gru.input": (F.gru, RECURRENT),
    "rnn_tanh.input": (F.rnn, RECURRENT),
    "rnn_relu.input": (functools.partial(F.rnn, nonlinearity="relu"), RECURRENT),
    "gru_cell": (F.gru_cell, "input hx w_ih w_hh b_ih b_hh"),
    "lstm_cell": (F.lstm_cell, "input hx w_ih w_hh b_ih b_hh"),
    "rnn_tanh_cell": (F.rnn_cell, "input hx w_ih w_hh b_ih b_hh"),
    "rnn_relu_cell": (functools.partial(F.rnn_cell, nonlinearity="relu"),
                      "input hx w_ih w_hh b_ih b_hh"),
    "mse_loss": (F.mse_loss, PAIR),
    "l1_loss": (F.l1_loss, PAIR),
    "smooth_l1_loss": (F.smooth_l1_loss, f"{PAIR} beta"),
    "huber_loss": (F.huber_loss, f"{PAIR} delta"),
    "kl_div": (F.kl_div, f"{PAIR} log_target"),
    "soft_margin_loss": (F.soft_margin_loss, PAIR),
    "multilabel_margin_loss": (F.multilabel_margin_loss, PAIR),
    "hinge_embedding_loss": (F.hinge_embedding_loss, "self target margin reduction:reduction"),
    "poisson_nll_loss": (F.poisson_nll_loss,
                         "input target log_input full eps reduction:reduction"),
    "multi_margin_loss": (F.multi_margin_loss, "self target p margin weight reduction:reduction"),
    "margin_ranking_loss": (F.margin_ranking_loss,
                            "input1 input2 target margin reduction:reduction"),
    "cosine_embedding_loss": (F.cosine_embedding_loss,
                              "input1 input2 target margin reduction:reduction"),
    "triplet_margin_loss": (F.triplet_margin_loss,
                            "anchor positive negative margin p eps swap reduction:reduction"),
    "binary_cross_entropy": (F.binary_cross_entropy, "self target weight reduction:reduction"),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits,
                                         "self target weight pos_weight reduction:reduction"),
    "nll_loss nll_loss_nd nll_loss2d": (F.nll_loss,
                                        "self target weight reduction:reduction ignore_index"),
    "ctc_loss.IntList ctc_loss.Tensor": (
        F.ctc_loss,
        "log_probs targets input_lengths target_lengths blank reduction:reduction zero_infinity"),
    "cross_entropy_loss": (F.cross_entropy,
                           "self target weight reduction:reduction ignore_index label_smoothing"),
})  # fmt: skip


@aten("native_layer_norm")
def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm, the means and 1 / the deviations."""
    over = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    wide = input.cast(dt.compute_dtype(input.dtype))
    deviation = (wide.var(over, keepdims=True) + eps).rsqrt()
    out = F.layer_norm(input, weight, bias, eps, len(normalized_shape))
    return out, wide.mean(over, keepdims=True), deviation


@aten("rms_norm")
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:  # fmt: skip
    return F.rms_norm(input, weight, eps, axes=len(normalized_shape))


@aten("_fused_rms_norm")
def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """The norm, and 1 / the root of the mean square."""
    over = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    wide = input.cast(dt.compute_dtype(input.dtype))
    root = ((wide * wide).mean(over, keepdims=True) + (2.0**-23 if eps is None else eps)).rsqrt()
    return rms_norm(input, normalized_shape, weight, eps), root


@aten("native_group_norm")
def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int,
    group: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm, and the means and 1 / the deviations [N, group]."""
    rows = input.cast(dt.compute_dtype(input.dtype)).reshape(N, group, C // group * HxW)
    out = F.group_norm(input, group, weight, bias, eps)
    return out, rows.mean(-1), (rows.var(-1) + eps).rsqrt()


def _moving(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    *rest: Any,
) -> str:  # fmt: skip
    moves = use_input_stats and running_mean is not None
    return "with running statistics that move" if moves else ""


@aten("instance_norm", refuses=_moving)
def instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float,
    cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, eps)


@aten("_native_batch_norm_legit_no_training", results=1)
def batch_norm_eval(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, None, None]:  # fmt: skip
    out = F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return out, None, None


@aten("_native_batch_norm_legit_functional")
def batch_norm_functional(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The norm, the batch's means and 1 / deviations, and the statistics after it."""
    if not training:
        out = F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        nothing = running_mean[:0]
        return out, nothing, nothing, running_mean, running_var
    out, mean, deviation = batch_norm_stats(input, weight, bias, True, momentum, eps)
    over = (0, *range(2, input.ndim))
    rest = input.size // input.shape[1]
    spread = input.cast(mean.dtype).var(over) * (rest / max(rest - 1, 1))
    moved = (
        (old * (1 - momentum) + new * momentum).cast(old.dtype)
        for old, new in ((running_mean, mean), (running_var, spread))
    )
    return out, mean, deviation, *moved


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_stats(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm by the batch's own statistics, their means and 1 / deviations."""
    wide = input.cast(dt.compute_dtype(input.dtype))
    over = (0, *range(2, input.ndim))
    out = F.batch_norm(input, None, None, weight, bias, True, momentum, eps)
    return out, wide.mean(over), (wide.var(over) + eps).rsqrt()
