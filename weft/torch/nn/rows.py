"""Functions of torch.nn.functional that differ from weft.functional's in names alone."""

from collections.abc import Callable
from typing import Any

from weft.tensor import functional as F
from weft.tensor.core import Tensor


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """Dropout that keeps the mean and the variance of selu's results."""
    return F.alpha_dropout(x, p, training)


_OLD = "-size_average -reduce"  # PyTorch's deprecated ways to say `reduction`
_POOL = "input kernel_size stride padding"
# name -> (weft's function, PyTorch's parameters, as in importers.aten.table)
ROWS: dict[str, tuple[Callable[..., Any], str]] = {
    "celu": (F.celu, "input alpha inplace"),
    "elu": (F.elu, "input alpha inplace"),
    "selu": (F.selu, "input inplace"),
    "gelu": (F.gelu, "input approximate"),
    "glu": (F.glu, "input dim"),
    "hardshrink": (F.hardshrink, "input lambd"),
    "hardsigmoid": (F.hardsigmoid, "input inplace"),
    "hardswish": (F.hardswish, "input inplace"),
    "hardtanh": (F.hardtanh, "input min_val max_val inplace"),
    "leaky_relu": (F.leaky_relu, "input negative_slope inplace"),
    "logsigmoid": (F.logsigmoid, "input"),
    "mish": (F.mish, "input inplace"),
    "prelu": (F.prelu, "input weight"),
    "relu": (F.relu, "input inplace"),
    "relu6": (F.relu6, "input inplace"),
    "rrelu": (F.rrelu, "input lower upper training inplace"),
    "silu": (F.silu, "input inplace"),
    "softplus": (F.softplus, "input beta threshold"),
    "softshrink": (F.softshrink, "input lambd"),
    "softsign": (F.softsign, "input"),
    "tanhshrink": (F.tanhshrink, "input"),
    "threshold": (F.threshold, "input threshold value inplace"),
    "sigmoid": (F.sigmoid, "input"),
    "tanh": (F.tanh, "input"),
    "dropout": (F.dropout, "input p training inplace"),
    "alpha_dropout": (alpha_dropout, "input p training inplace"),
    "dropout1d": (F.dropout1d, "input p training inplace"),
    "dropout2d": (F.dropout2d, "input p training inplace"),
    "dropout3d": (F.dropout3d, "input p training inplace"),
    "linear": (F.linear, "input weight bias"),
    "bilinear": (F.bilinear, "input1 input2 weight bias"),
    "conv1d": (F.conv1d, "input weight bias stride padding dilation groups"),
    "conv2d": (F.conv2d, "input weight bias stride padding dilation groups"),
    "conv3d": (F.conv3d, "input weight bias stride padding dilation groups"),
    "conv_transpose1d": (F.conv_transpose1d,
                         "input weight bias stride padding output_padding groups dilation"),
    "conv_transpose2d": (F.conv_transpose2d,
                         "input weight bias stride padding output_padding groups dilation"),
    "conv_transpose3d": (F.conv_transpose3d,
                         "input weight bias stride padding output_padding groups dilation"),
    "avg_pool1d": (F.avg_pool1d, f"{_POOL} ceil_mode count_include_pad"),
    "avg_pool2d": (F.avg_pool2d, f"{_POOL} ceil_mode count_include_pad divisor_override"),
    "avg_pool3d": (F.avg_pool3d, f"{_POOL} ceil_mode count_include_pad divisor_override"),
    "lp_pool1d": (F.lp_pool1d, "input norm_type kernel_size stride ceil_mode"),
    "lp_pool2d": (F.lp_pool2d, "input norm_type kernel_size stride ceil_mode"),
    "lp_pool3d": (F.lp_pool3d, "input norm_type kernel_size stride ceil_mode"),
    "adaptive_avg_pool1d": (F.adaptive_avg_pool1d, "input output_size"),
    "adaptive_avg_pool2d": (F.adaptive_avg_pool2d, "input output_size"),
    "adaptive_avg_pool3d": (F.adaptive_avg_pool3d, "input output_size"),
    "max_unpool1d": (F.max_unpool1d, "input indices kernel_size stride padding output_size"),
    "max_unpool2d": (F.max_unpool2d, "input indices kernel_size stride padding output_size"),
    "max_unpool3d": (F.max_unpool3d, "input indices kernel_size stride padding output_size"),
    "unfold": (F.unfold, "input kernel_size dilation padding stride"),
    "fold": (F.fold, "input output_size kernel_size dilation padding stride"),
    "pixel_shuffle": (F.pixel_shuffle, "input upscale_factor"),
    "pixel_unshuffle": (F.pixel_unshuffle, "input downscale_factor"),
    "channel_shuffle": (F.channel_shuffle, "input groups"),
    "group_norm": (F.group_norm, "input num_groups weight bias eps"),
    "instance_norm": (F.instance_norm,
                      "input running_mean running_var weight bias use_input_stats -momentum eps"),
    "pdist": (F.pdist, "input p"),
    "cross_entropy": (F.cross_entropy, "input target weight -size_average ignore_index -reduce "
                      "reduction label_smoothing"),
    "nll_loss": (F.nll_loss,
                 "input target weight -size_average ignore_index -reduce reduction"),
    "mse_loss": (F.mse_loss, f"input target {_OLD} reduction"),
    "l1_loss": (F.l1_loss, f"input target {_OLD} reduction"),
    "smooth_l1_loss": (F.smooth_l1_loss, f"input target {_OLD} reduction beta"),
    "huber_loss": (F.huber_loss, "input target reduction delta"),
    "kl_div": (F.kl_div, f"input target {_OLD} reduction log_target"),
    "binary_cross_entropy": (F.binary_cross_entropy, f"input target weight {_OLD} reduction"),
    "binary_cross_entropy_with_logits": (
        F.binary_cross_entropy_with_logits, f"input target weight {_OLD} reduction pos_weight"),
    "gaussian_nll_loss": (F.gaussian_nll_loss, "input target var full eps reduction"),
    "poisson_nll_loss": (F.poisson_nll_loss,
                         "input target log_input full -size_average eps -reduce reduction"),
    "hinge_embedding_loss": (F.hinge_embedding_loss, f"input target margin {_OLD} reduction"),
    "margin_ranking_loss": (F.margin_ranking_loss,
                            f"input1 input2 target margin {_OLD} reduction"),
    "cosine_embedding_loss": (F.cosine_embedding_loss,
                              f"input1 input2 target margin {_OLD} reduction"),
    "soft_margin_loss": (F.soft_margin_loss, f"input target {_OLD} reduction"),
    "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss,
                                    f"input target weight {_OLD} reduction"),
    "triplet_margin_with_distance_loss": (
        F.triplet_margin_with_distance_loss,
        "anchor positive negative distance_function margin swap reduction"),
    "ctc_loss": (F.ctc_loss,
                 "log_probs targets input_lengths target_lengths blank reduction zero_infinity"),
    "gumbel_softmax": (F.gumbel_softmax, "logits tau hard -eps dim"),
    "grid_sample": (F.grid_sample, "input grid mode padding_mode align_corners"),
}  # fmt: skip
