"""weft.functional: every formula of models once, under PyTorch's names where it has them.

An axis is `axis` and kept axes are `keepdims`, as in the array API. Modules with PyTorch's
constructors over these functions are in weft.nn.
"""

from weft.host.boundary import guard_functions as _guard_functions
from weft.tensor.activations import (
    celu,
    elu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    ramp,
    relu6,
    rrelu,
    scaled_tanh,
    selu,
    shrink,
    softplus,
    softshrink,
    softsign,
    swish,
    tanhshrink,
    threshold,
)
from weft.tensor.alignment import ctc_loss
from weft.tensor.attention import attention, cached_attention, scaled_dot_product_attention
from weft.tensor.bags import bilinear, embedding_bag
from weft.tensor.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from weft.tensor.distances import (
    cdist,
    cosine_similarity,
    normalize,
    pairwise_distance,
    pdist,
    vector_norm,
)
from weft.tensor.dropouts import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from weft.tensor.elementwise import sigmoid, tanh
from weft.tensor.fractional import fractional_max_pool2d, fractional_max_pool3d
from weft.tensor.layers import (
    embedding,
    gelu,
    glu,
    layer_norm,
    linear,
    log_softmax,
    one_hot,
    relu,
    rms_norm,
    rope,
    scatter_add,
    silu,
    softmax,
    softmin,
    update,
    where,
)
from weft.tensor.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    gaussian_nll_loss,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    poisson_nll_loss,
    smooth_l1_loss,
)
from weft.tensor.margins import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from weft.tensor.padding import pad
from weft.tensor.played import play_functions as _play_functions
from weft.tensor.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from weft.tensor.random import gumbel_softmax
from weft.tensor.recurrent import gru, gru_cell, lstm, lstm_cell, rnn, rnn_cell
from weft.tensor.resize import interpolate
from weft.tensor.sampling import fold, grid_sample, unfold
from weft.tensor.spatial import (
    batch_norm,
    channel_shuffle,
    group_norm,
    instance_norm,
    local_response_norm,
    pixel_shuffle,
    pixel_unshuffle,
)
from weft.tensor.unpooling import max_unpool1d, max_unpool2d, max_unpool3d

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "alpha_dropout", "attention", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "batch_norm", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cached_attention", "cdist", "celu", "channel_shuffle",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "ctc_loss", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "elu", "embedding", "embedding_bag",
    "feature_alpha_dropout", "fold", "fractional_max_pool2d", "fractional_max_pool3d",
    "gaussian_nll_loss", "gelu", "glu", "grid_sample", "group_norm", "gru", "gru_cell",
    "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss",
    "huber_loss", "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm", "leaky_relu",
    "linear", "local_response_norm", "log_softmax", "logsigmoid", "lp_pool1d", "lp_pool2d",
    "lp_pool3d", "lstm", "lstm_cell", "margin_ranking_loss", "max_pool1d", "max_pool2d",
    "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d", "mish", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss",
    "normalize", "one_hot", "pad", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle",
    "poisson_nll_loss", "prelu", "ramp", "relu", "relu6", "rms_norm", "rnn", "rnn_cell", "rope",
    "rrelu", "scaled_dot_product_attention", "scaled_tanh", "scatter_add", "selu", "shrink",
    "sigmoid", "silu", "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus",
    "softshrink", "softsign", "swish", "tanh", "tanhshrink", "threshold", "triplet_margin_loss",
    "triplet_margin_with_distance_loss", "unfold", "update", "vector_norm", "where",
]  # fmt: skip

_guard_functions(globals(), __all__)
_play_functions(globals(), __all__)
