"""Arguments of products, layers, losses and operators of images, and of their derivatives."""

from __future__ import annotations

from typing import Any

import torch
from aten_draw import Draw, case

# fmt: off
# -- products
case("mm", lambda d: (d.f(3, d.n), d.f(d.n, 4)))
case("bmm", lambda d: (d.f(2, 3, d.n), d.f(2, d.n, 4)))
case(
    "matmul linalg_matmul",
    lambda d: (d.f(2, 3, d.n), d.f(d.n, 4)),
    lambda d: (d.f(d.n), d.f(d.n, 2)),
)
case("mv", lambda d: (d.f(3, d.n), d.f(d.n)))
case("dot", lambda d: (d.f(d.n), d.f(d.n)))
case("linear", lambda d: (d.f(), d.f(5, d.shape[-1]), d.part(None, d.f(5))))
case("addmm", lambda d: (d.f(4), d.f(3, d.n), d.f(d.n, 4)),
     lambda d: (d.f(4), d.f(3, d.n), d.f(d.n, 4), {"beta": 0.5, "alpha": 2}))
case("addmv", lambda d: (d.f(3), d.f(3, d.n), d.f(d.n)))
case("baddbmm", lambda d: (d.f(2, 3, 4), d.f(2, 3, d.n), d.f(2, d.n, 4), {"beta": d.part(0, 1)}))
case("outer", lambda d: (d.f(3), d.f(d.n)))
case("einsum", lambda d: ("bij,bjk->bik", [d.f(2, 3, d.n), d.f(2, d.n, 4)]))
case("scaled_dot_product_attention",
     lambda d: (d.f(2, 4, 5, 8), d.f(2, 4, 6, 8), d.f(2, 4, 6, 8)),
     lambda d: (d.f(2, 4, 5, 8), d.f(2, 4, 5, 8), d.f(2, 4, 5, 8), None, 0.0, True),
     lambda d: (d.f(2, 4, 5, 8), d.f(2, 2, 6, 8), d.f(2, 2, 6, 8), d.f(5, 6),
                {"enable_gqa": True, "scale": 0.3}))
case("_scaled_dot_product_flash_attention_for_cpu",
     lambda d: (d.f(2, 4, 5, 8), d.f(2, 4, 5, 8), d.f(2, 4, 5, 8), 0.0, bool(d.part(0, 1))))
case("cosine_similarity", lambda d: (d.f(3, 5), d.f(3, 5), d.part(0, 1)))

case("_grouped_mm", lambda d: (d.f(6, 8).bfloat16(), d.f(3, 8, 16).bfloat16(),
                               torch.tensor([2, 2, 6], dtype=torch.int32)))
case("_trilinear", lambda d: (d.f(2, 3), d.f(5, 3, 4), d.f(2, 4), [1, 3], [0], [1, 2], [2, 3]))
case("_cdist_forward", lambda d: (d.f(2, 3, d.n), d.f(2, 4, d.n), d.part(2.0, 1.0, 3.0), None))
case("cdist", lambda d: (d.f(3, d.n), d.f(4, d.n), d.part(2.0, 1.0, float("inf"))))
case("_pdist_forward pdist", lambda d: (d.f(4, d.n), d.part(2.0, 1.0, 3.0)))

# -- layers
case("layer_norm", lambda d: (d.f(), [d.shape[-1]], d.f(d.shape[-1]), d.f(d.shape[-1])),
     lambda d: (d.f(2, 3, 4), [3, 4], None, None, 1e-3))
case("native_layer_norm", lambda d: (d.f(2, 3, 4), [4], d.f(4), None, 1e-5))
case(
    "rms_norm",
    lambda d: (d.f(), [d.shape[-1]], d.f(d.shape[-1])),
    lambda d: (d.f(3, 4), [4], None, 1e-3),
)
case("_fused_rms_norm", lambda d: (d.f(3, 4), [4], d.f(4), 1e-4))
case(
    "group_norm",
    lambda d: (d.image(), 2, d.f(4), d.f(4)),
    lambda d: (d.image(1), 4, None, None, 1e-3),
)
case("native_group_norm", lambda d: (d.f(2, 4, 3, 5), d.f(4), d.f(4), 2, 4, 15, 2, 1e-5))
case("instance_norm", lambda d: (d.image(), d.f(4), d.f(4), None, None, True, 0.1, 1e-5, False))
case("batch_norm",
     lambda d: (d.image(), d.f(4), d.f(4), d.f(4), d.f(4, low=0.5), False, 0.1, 1e-5, False),
     lambda d: (d.image(), None, None, d.f(4), d.f(4, low=0.5), True, 0.1, 1e-5, False))
case("_native_batch_norm_legit_no_training",
     lambda d: (d.image(), d.f(4), d.f(4), d.f(4), d.f(4, low=0.5), 0.1, 1e-5))
case("_native_batch_norm_legit_functional",
     lambda d: (d.image(), d.f(4), d.f(4), d.f(4), d.f(4, low=0.5), True, 0.1, 1e-5),
     lambda d: (d.image(), None, None, d.f(4), d.f(4, low=0.5), False, 0.1, 1e-5))
case("_native_batch_norm_legit.no_stats", lambda d: (d.image(), d.f(4), None, True, 0.1, 1e-5))
case("cross_entropy_loss", lambda d: (d.f(5, 7), d.i(5, low=0, high=7), None, d.part(0, 1, 2)))
case("ctc_loss.IntList", lambda d: (
    d.f(5, 2, 4).log_softmax(-1), d.i(2, 2, low=1, high=4), [5, 4], [2, 1], 0, d.part(0, 1, 2),
    d.part(True, False)))
case("ctc_loss.Tensor", lambda d: (
    d.f(5, 2, 4).log_softmax(-1), d.i(3, low=1, high=4), torch.tensor([5, 4]),
    torch.tensor([2, 1]), 0, d.part(0, 1, 2), d.part(True, False)))
case("mse_loss l1_loss soft_margin_loss", lambda d: (d.f(), d.f(), d.part(0, 1, 2)))
case("smooth_l1_loss huber_loss", lambda d: (d.f(), d.f(), d.part(0, 1, 2), d.part(1.0, 1.5)))
case("binary_cross_entropy", lambda d: (d.f(low=0, high=1), d.f(low=0, high=1), d.part(
    None, d.f(low=0)), d.part(0, 1, 2)))
case("kl_div", lambda d: (d.f(), d.f(low=0, high=1), d.part(0, 1, 2)),
     lambda d: (d.f(), d.f(), 1, {"log_target": True}))
case("poisson_nll_loss", lambda d: (d.f(low=0, high=2), d.f(low=0, high=9), d.part(True, False),
                                    d.part(True, False), 1e-8, d.part(0, 1, 2)))
case("hinge_embedding_loss", lambda d: (d.f(), d.f().sign(), 0.7, d.part(0, 1, 2)))
case("margin_ranking_loss", lambda d: (d.f(), d.f(), d.f().sign(), 0.7, d.part(0, 1, 2)))
case("cosine_embedding_loss", lambda d: (d.f(5, 3), d.f(5, 3), d.f(5).sign(), 0.2,
                                         d.part(0, 1, 2)))
case("triplet_margin_loss", lambda d: (d.f(5, 3), d.f(5, 3), d.f(5, 3), 0.7, d.part(1.0, 2.0, 3.0),
                                       1e-6, d.part(True, False), d.part(0, 1, 2)))
case("multi_margin_loss", lambda d: (d.f(5, 4), d.i(5, low=0, high=4), d.part(1, 2), 0.7,
                                     d.part(None, d.f(4, low=0)), d.part(0, 1, 2)))
case("multilabel_margin_loss", lambda d: (d.f(3, 4), torch.tensor(
    [[2, 0, -1, 1], [-1, 1, 2, 3], [0, 3, 1, 2]]), d.part(0, 1, 2)))
case("nll_loss nll_loss_nd", lambda d: (d.f(5, 7), d.i(5, low=0, high=7), d.part(
    None, d.f(7, low=0.1)), d.part(0, 1, 2), d.part(-100, 3)))
case("nll_loss2d", lambda d: (d.f(2, 7, 3, 2), d.i(2, 3, 2, low=0, high=7), None, d.part(0, 1, 2)))
case("pairwise_distance", lambda d: (d.f(4, 3), d.f(4, 3), d.part(1.0, 2.0, 3.0)))
case("rrelu", lambda d: (d.f(), 0.1, 0.3))


def _recurrent(d: Draw, gates: int, states: int) -> tuple[Any, ...]:
    """The arguments of a recurrent operator: two layers, in one direction or two."""
    ways, bias = d.part(1, 2), d.part(True, False)
    weights = []
    for at in range(2 * ways):
        inputs = 3 if at < ways else 4 * ways
        shapes = [(4 * gates, inputs), (4 * gates, 4), (4 * gates,), (4 * gates,)]
        weights += [d.f(*s, low=-0.5, high=0.5) for s in shapes[: 4 if bias else 2]]
    first = [d.f(2 * ways, 2, 4) for _ in range(states)]
    return (d.f(2, 5, 3), first if states == 2 else first[0], weights, bias, 2, 0.0, False,
            ways == 2, True)


def _cell(d: Draw, gates: int, states: int) -> tuple[Any, ...]:
    first = [d.f(2, 4) for _ in range(states)]
    shapes = [(4 * gates, 3), (4 * gates, 4), (4 * gates,), (4 * gates,)]
    weights = [d.f(*s, low=-0.5, high=0.5) for s in shapes]
    return (d.f(2, 3), first if states == 2 else first[0], *weights)


case("lstm.input", lambda d: _recurrent(d, 4, 2))
case("gru.input", lambda d: _recurrent(d, 3, 1))
case("rnn_tanh.input rnn_relu.input", lambda d: _recurrent(d, 1, 1))
case("lstm_cell", lambda d: _cell(d, 4, 2))
case("gru_cell", lambda d: _cell(d, 3, 1))
case("rnn_tanh_cell rnn_relu_cell", lambda d: _cell(d, 1, 1))
case(
    "binary_cross_entropy_with_logits",
    lambda d: (d.f(), d.f(low=0, high=1), None, None, d.part(0, 1, 2)),
)

# -- images
for _rank in (1, 2, 3):
    case(f"conv{_rank}d",
         lambda d, r=_rank: (d.image(r), d.f(6, 2, *[3] * r), d.f(6), [2] * r, [1] * r, [1] * r, 2))
    case(f"conv{_rank}d.padding",
         lambda d, r=_rank: (d.image(r), d.f(6, 4, *[3] * r), None, [1] * r,
     d.part("same", "valid")))
    _input = "" if _rank == 1 else ".input"
    case(f"conv_transpose{_rank}d{_input}",
         lambda d, r=_rank: (d.image(r), d.f(4, 3, *[3] * r), d.f(6), [2] * r, [1] * r, [1] * r, 2))
    case(f"max_pool{_rank}d max_pool{_rank}d_with_indices",
         lambda d, r=_rank: (d.image(r), [3] * r, [2] * r, [1] * r, [1] * r, bool(d.part(0, 1))))
    case(f"avg_pool{_rank}d", lambda d, r=_rank: (d.image(r), [3] * r, [2] * r, [1] * r, False,
                                                 bool(d.part(0, 1))))
    case(f"adaptive_avg_pool{_rank}d" + (f" _adaptive_avg_pool{_rank}d" if _rank > 1 else ""),
         lambda d, r=_rank: (d.image(r), [d.part(1, 2, 3)] * r))
    case(f"upsample_nearest{_rank}d _upsample_nearest_exact{_rank}d",
         lambda d, r=_rank: (d.image(r), [d.part(7, 10)] * r))
    case(f"upsample_nearest{_rank}d.vec _upsample_nearest_exact{_rank}d.vec",
         lambda d, r=_rank: (d.image(r), None, [d.part(2.0, 1.5)] * r),
         lambda d, r=_rank: (d.image(r), [11] * r, None))
for _rank, _mode in ((1, "linear"), (2, "bilinear"), (2, "bicubic"), (3, "trilinear")):
    case(f"upsample_{_mode}{_rank}d", lambda d, r=_rank: (d.image(r), [10] * r, bool(d.part(0, 1))))
    case(f"upsample_{_mode}{_rank}d.vec",
         lambda d, r=_rank: (d.image(r), None, bool(d.part(0, 1)), [1.7] * r),
         lambda d, r=_rank: (d.image(r), [11] * r, bool(d.part(0, 1)), None))
case("convolution",
     lambda d: (d.image(), d.f(6, 4, 3, 3), d.f(6), [1, 2], [1, 0], [1, 1], False, [0, 0], 1),
     lambda d: (d.image(), d.f(4, 3, 3, 3), None, [2, 2], [1, 0], [1, 1], True, [1, 1], 1))
case("_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
     lambda d: (d.image(), [d.part(3, 9), d.part(2, 8)], bool(d.part(0, 1))))
case("_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec",
     lambda d: (d.image(), None, False, [0.6, 1.7]), lambda d: (d.image(), [3, 4], True, None))
case("grid_sampler grid_sampler_2d",
     lambda d: (d.image(), d.f(2, 3, 5, 2, low=-1.3, high=1.3), d.part(0, 1, 2), d.part(0, 1, 2),
                bool(d.part(0, 1))))
case("grid_sampler_3d",
     lambda d: (d.image(3), d.f(2, 3, 2, 4, 3, low=-1.3, high=1.3), d.part(0, 1), d.part(0, 1, 2),
                bool(d.part(0, 1))))
case("im2col", lambda d: (d.image(), [2, 3], [1, 2], [1, 0], [2, 1]))
case("col2im", lambda d: (d.f(2, 12, 6), [6, 4], [2, 2], [1, 1], [0, 1], [3, 2]),
     lambda d: (d.f(2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]))
for _rank in (1, 2, 3):
    case(f"adaptive_max_pool{_rank}d", lambda d, r=_rank: (d.image(r), [d.part(1, 2, 3)] * r))

# -- derivatives


def _backward(d: Draw, out: torch.Tensor) -> torch.Tensor:
    return d.f(*out.shape)


def _conv_back(d: Draw) -> tuple[Any, ...]:
    x, turned = d.image(), bool(d.part(0, 1))
    w = d.f(4, 2, 3, 3) if turned else d.f(6, 2, 3, 3)
    at = ([2, 1], [1, 0], [1, 1], turned, [1, 0] if turned else [0, 0], 2)
    out = torch.ops.aten.convolution(x, w, None, *at)
    return (_backward(d, out), x, w, [out.shape[1]], *at, [bool(d.part(0, 1)), True, True])


def _pool_back(d: Draw) -> tuple[Any, ...]:
    x, at = d.image(), ([3, 2], [2, 2], [1, 0], [1, 1], False)
    out, places = torch.ops.aten.max_pool2d_with_indices(x, *at)
    return (_backward(d, out), x, *at, places)


def _mean_back(d: Draw) -> tuple[Any, ...]:
    x, at = d.image(), ([3, 2], [2, 2], [1, 0], False, bool(d.part(0, 1)), None)
    return (_backward(d, torch.ops.aten.avg_pool2d(x, *at)), x, *at)


def _layer_back(d: Draw) -> tuple[Any, ...]:
    x, w, b = d.f(2, 3, 8), d.part(None, d.f(8)), d.f(8)
    out, mean, rstd = torch.ops.aten.native_layer_norm(x, [8], w, b, 1e-5)
    return _backward(d, out), x, [8], mean, rstd, w, b, [True, w is not None, True]


def _group_back(d: Draw) -> tuple[Any, ...]:
    x, w, at = d.f(2, 4, 3, 5), d.f(4), (2, 4, 15, 2)
    out, mean, rstd = torch.ops.aten.native_group_norm(x, w, None, *at, 1e-5)
    return (_backward(d, out), x, mean, rstd, w, *at, [True, True, True])


case("convolution_backward", _conv_back)
case("max_pool2d_with_indices_backward", _pool_back)
case("avg_pool2d_backward", _mean_back)
case("_adaptive_avg_pool2d_backward", lambda d: (d.f(2, 4, 3, 2), d.f(2, 4, 7, 5)))
case("native_layer_norm_backward", _layer_back)
case("native_group_norm_backward", _group_back)
case("embedding_dense_backward",
     lambda d: (d.f(5, 3, 4), d.i(5, 3, low=0, high=6), 7, d.part(-1, 2), False))
# fmt: on
