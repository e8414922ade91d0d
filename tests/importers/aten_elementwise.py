"""Arguments of operators of one element, reductions, and counts."""

from __future__ import annotations

from typing import Any

import torch
from aten_draw import Case, Draw, case

# fmt: off
case("abs neg sign", lambda d: (d.part(d.f(), d.i()),))
case("ceil floor trunc isinf isfinite isnan round square", lambda d: (d.far(),))
case(
    "cos erf exp expm1 sin tanh sigmoid sinh cosh tan atan asinh erfc exp2 signbit",
    lambda d: (d.f(),),
)
case("log log10 log2 sqrt rsqrt reciprocal", lambda d: (d.f(low=0.1, high=5),))
case("log1p acosh", lambda d: (d.f(low=1.1, high=5),))
case("acos asin atanh logit", lambda d: (d.f(low=0.05, high=0.95),))
case("bitwise_not logical_not", lambda d: (d.part(d.i(), d.b()),))
_pairs: list[Case] = [
    lambda d: (d.f(), d.f()), lambda d: (d.i(), d.f()), lambda d: (d.i(), d.i()),
    lambda d: (d.f(), d.scalar()), lambda d: (d.i(), d.scalar()), lambda d: (d.b(), d.i()),
    lambda d: (d.f(), d.f(d.shape[-1])), lambda d: (d.f().bfloat16(), d.scalar()),
    lambda d: (d.b(), d.b()),
]
_scalars: list[Case] = [
    lambda d: (d.f(), 2),
    lambda d: (d.i(), 2),
    lambda d: (d.i(), 1.5),
    lambda d: (d.f(), -0.5),
]
case("add.Tensor mul.Tensor multiply.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor "
     "ge.Tensor", *_pairs)
case("add.Tensor", lambda d: (d.f(), d.f(), {"alpha": 2}), *_pairs)
case("maximum minimum max.other min.other where.self", *_pairs[:-1])
case("add.Scalar sub.Scalar subtract.Scalar rsub.Scalar mul.Scalar multiply.Scalar div.Scalar "
     "divide.Scalar true_divide.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar "
     "ge.Scalar remainder.Scalar", *_scalars)
case("sub.Tensor subtract.Tensor rsub.Tensor", *_pairs[:5])
case("div.Tensor divide.Tensor true_divide.Tensor", lambda d: (d.f(), d.f(low=0.5)),
     lambda d: (d.i(), d.i(low=1)))
for _mode in ("floor", "trunc", None):
    case("div.Tensor_mode", lambda d: (d.part(d.f(), d.i()), d.i(low=1),
                                       {"rounding_mode": d.part("floor", "trunc", None)}))
    case("div.Scalar_mode", lambda d: (d.part(d.f(), d.i()), d.part(3, -2, 0.75),
                                       {"rounding_mode": d.part("floor", "trunc")}))
case("floor_divide", lambda d: (d.i(), d.i(low=1)), lambda d: (d.f(), d.i(low=1)))
case("floor_divide.Scalar", lambda d: (d.part(d.i(), d.f()), 3))
case("remainder.Tensor fmod.Tensor", lambda d: (d.f(), d.f(low=0.5)), lambda d: (d.i(), d.i(low=1)))
case("fmod.Scalar", lambda d: (d.part(d.f(), d.i()), 2))
case("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor __and__.Tensor __or__.Tensor "
     "__xor__.Tensor", lambda d: (d.i(), d.i()), lambda d: (d.b(), d.b()))
case("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __and__.Scalar __or__.Scalar "
     "__xor__.Scalar", lambda d: (d.i(), 5))
case("bitwise_left_shift.Tensor bitwise_right_shift.Tensor __lshift__.Tensor __rshift__.Tensor",
     lambda d: (d.i(low=0), d.i(low=0, high=5)))
case("bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar __lshift__.Scalar "
     "__rshift__.Scalar", lambda d: (d.i(low=0), 2))
case("logical_and logical_or logical_xor", lambda d: (d.any(), d.any()))
case("atan2 logaddexp", lambda d: (d.f(), d.f()))
case("pow.Tensor_Scalar", lambda d: (d.f(), d.part(2, 3, 2.0)), lambda d: (d.i(), 2),
     lambda d: (d.f(low=0.1), d.part(0.5, -1.5, -2)))
case(
    "pow.Tensor_Tensor",
    lambda d: (d.f(low=0.1), d.f()),
    lambda d: (d.f(low=0.1), d.i(high=3, low=-2)),
)
case("pow.Scalar", lambda d: (d.part(2.0, 0.5), d.f()))
case("hypot copysign.Tensor", lambda d: (d.f(), d.f()))
case("ldexp.Tensor", lambda d: (d.f(), d.i()))
case("fmax fmin", lambda d: (torch.where(d.b(), d.f(), torch.tensor(float("nan"))), d.f()))
case("round.decimals", lambda d: (d.far(), {"decimals": 1}))
case("clamp clip", lambda d: (d.f(), -1, 1), lambda d: (d.i(), None, 2), lambda d: (d.f(), -0.5),
     lambda d: (d.i(), -1.5, 2))
case("clamp.Tensor clip.Tensor", lambda d: (d.f(), d.f(high=0), d.f(low=0)))
case("clamp_min clamp_max", lambda d: (d.part(d.f(), d.i()), 1))
case("clamp_min.Tensor clamp_max.Tensor", lambda d: (d.f(), d.f()))
case("where.self", lambda d: (d.b(), d.f(), d.part(d.f(), d.scalar(), d.i())))
case("where.ScalarSelf", lambda d: (d.b(), 1.5, d.f()))
case("where.ScalarOther", lambda d: (d.b(), d.f(), -2))
case("where.Scalar", lambda d: (d.b(), 1.0, 2.0), lambda d: (d.b(), 1, 2))
case("masked_fill.Scalar", lambda d: (d.f(), d.b(), float("-inf")), lambda d: (d.i(), d.b(), 3),
     lambda d: (d.f(), d.b(d.shape[-1]), 1))
case("masked_fill.Tensor", lambda d: (d.f(), d.b(), d.scalar()))
case("addcmul addcdiv", lambda d: (d.f(), d.f(), d.f(low=0.5), {"value": 0.5}))
case("lerp.Scalar", lambda d: (d.f(), d.f(), 0.3))
case("lerp.Tensor", lambda d: (d.f(), d.f(), d.f()))
case("nan_to_num", lambda d: (torch.where(d.b(), d.f(), d.part(1.0, -1.0) / torch.zeros(())),),
     lambda d: (torch.where(d.b(), d.f(), torch.tensor(float("nan"))), 2.0))

# -- activations
case("relu relu6 silu mish hardtanh hardsigmoid hardswish elu celu selu softplus log_sigmoid "
     "softshrink hardshrink gelu leaky_relu", lambda d: (d.f(low=-8, high=8),))
case("gelu", lambda d: (d.f(), {"approximate": d.part("none", "tanh")}))
case("prelu _prelu_kernel", lambda d: (d.image(), d.f(1)), lambda d: (d.image(channels=3), d.f(3)))
case("_prelu_kernel", lambda d: (d.f(), d.f(*[1] * len(d.shape))))
case("rrelu_with_noise_functional", lambda d: (d.f(), d.f(), 0.1, 0.3, False))
case("threshold", lambda d: (d.f(), 0.5, -1.0))
case("glu", lambda d: (d.f(*d.shape, 4), -1))
case("dropout", lambda d: (d.f(), 0.5, False))
case("native_dropout", lambda d: (d.f(), 0.5, False))

# -- reductions


def _over(d: Draw) -> tuple[Any, ...]:
    return d.part(d.f(), d.i()), d.part([d.dim], None), bool(d.part(0, 1))


case("prod", lambda d: (d.part(d.f(), d.i(low=1, high=2)),))
case("sum any all max min", lambda d: (d.part(d.f(), d.i(low=1, high=3)),))
case("sum.dim_IntList", _over, lambda d: (d.b(), [d.dim]))
case("mean", lambda d: (d.f(),))
case(
    "mean.dim",
    lambda d: (d.f(), [d.dim], True),
    lambda d: (d.i(), [d.dim], {"dtype": torch.float32}),
)
case("amax amin", lambda d: (d.part(d.f(), d.i()), [d.dim], bool(d.part(0, 1))), lambda d: (d.f(),))
case("max.dim min.dim", lambda d: (d.far(), d.dim, bool(d.part(0, 1))))
case("argmax argmin", lambda d: (d.far(), d.part(None, d.dim), bool(d.part(0, 1))))
case("any.dim all.dim", lambda d: (d.any(), d.dim, bool(d.part(0, 1))))
case("any.dims all.dims", lambda d: (d.any(), [d.dim]))
case("prod.dim_int", lambda d: (d.f(), d.dim))
case("count_nonzero", lambda d: (d.i(low=0, high=2),))
case("count_nonzero.dim_IntList", lambda d: (d.i(low=0, high=2), [d.dim]))
case("var.correction std.correction var_mean.correction",
     lambda d: (d.f(*d.shape, 4), [-1], {"correction": d.part(0, 1)}))
case("var.dim std.dim", lambda d: (d.f(*d.shape, 4), [-1], bool(d.part(0, 1))))
case("var std", lambda d: (d.f(*d.shape, 4),))
case("logsumexp", lambda d: (d.f(), [d.dim], bool(d.part(0, 1))))
case("linalg_vector_norm", lambda d: (d.f(), d.part(2, 1, 3, float("inf"), 0), [d.dim]))
case("norm.ScalarOpt_dim", lambda d: (d.f(), d.part(None, 2, 1), [d.dim], True))
case("norm.Scalar", lambda d: (d.f(), 2))
case("norm.ScalarOpt_dim_dtype", lambda d: (d.f(), 2, [d.dim], True, {"dtype": torch.float32}))
case("cumsum cumprod", lambda d: (d.part(d.f(), d.i(low=1, high=3)), d.dim))
case("cummax cummin", lambda d: (d.far(), d.dim))
case("logcumsumexp", lambda d: (d.f(), d.dim))
case("diff", lambda d: (d.part(d.f(), d.i(), d.b()), 1, d.dim),
     lambda d: (d.f(), 1, d.dim, d.f()), lambda d: (d.i(4, 5), 2))
case("sort", lambda d: (d.far(), d.dim, bool(d.part(0, 1))))
case("sort.stable", lambda d: (d.i(), {"stable": True, "dim": d.dim}))
case("argsort", lambda d: (d.far(), d.dim))
case("argsort.stable", lambda d: (d.i(), {"stable": True, "dim": d.dim}))
case("topk", lambda d: (d.far(), d.n, d.dim, bool(d.part(0, 1))))
case(
    "softmax.int log_softmax.int", lambda d: (d.f(), d.dim), lambda d: (d.i(), d.dim, torch.float32)
)
case("_softmax _log_softmax", lambda d: (d.f(), d.dim, False))
case("_safe_softmax", lambda d: (torch.where(d.b(), d.f(), torch.tensor(float("-inf"))), d.dim))

# -- counting
case("histc", lambda d: (d.f(), d.part(1, 5), -2, 2), lambda d: (d.far(), 4),
     lambda d: (d.i(low=0, high=6).float(), 6, 0, 5))
case("searchsorted.Tensor", lambda d: (d.f(2, 7).sort(-1)[0], d.f(2, 3)),
     lambda d: (d.i(6).sort()[0], d.i(2, 3), {"right": bool(d.part(0, 1))}))
case("bucketize.Tensor", lambda d: (d.f(), d.f(5).sort()[0], {"right": bool(d.part(0, 1))}))
case("median.dim", lambda d: (d.far(), d.dim, bool(d.part(0, 1))))
case("median", lambda d: (d.far(),))
case("kthvalue", lambda d: (d.far(), d.part(1, d.n), d.dim, bool(d.part(0, 1))))
# fmt: on
