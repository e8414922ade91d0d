"""Arguments for each operator of the ATen table, drawn: tests/importers/test_aten.py runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Draw:
    """Random operands of a drawn shape."""

    def __init__(self, shape: tuple[int, ...], seed: int):
        self.shape, self.rng = shape, np.random.default_rng(seed)
        self.dim = int(self.rng.integers(-len(shape), len(shape)))
        self.n = shape[self.dim]

    def f(self, *shape: int, low: float = -3, high: float = 3) -> torch.Tensor:
        return torch.from_numpy(self.rng.uniform(low, high, shape or self.shape).astype("f"))

    def far(self) -> torch.Tensor:
        """Floats no two of which are equal, or near a half."""
        n = int(np.prod(self.shape))
        return torch.from_numpy((self.rng.permutation(n) * 0.37 - n * 0.2).astype("f")).reshape(
            self.shape
        )

    def i(self, *shape: int, low: int = -9, high: int = 9) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(low, high, shape or self.shape))

    def b(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(0, 2, shape or self.shape).astype(bool))

    def part(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def scalar(self) -> torch.Tensor:
        return torch.tensor(float(self.rng.uniform(-2, 2)))

    def any(self) -> torch.Tensor:
        return self.part(self.f(), self.i(), self.b())

    def image(self, axes: int = 2, channels: int = 4) -> torch.Tensor:
        return self.f(2, channels, *[int(self.rng.integers(5, 9)) for _ in range(axes)])


Case = Callable[[Draw], tuple[Any, ...]]
CASES: dict[str, Case] = {}


def case(names: str, *makers: Case) -> None:
    """Arguments for overloads: a tuple, whose last element may be a dict of keywords."""
    for name in names.split():
        full = (
            name
            if name.startswith(("_op", "math"))
            else "aten." + (name if "." in name else f"{name}.default")
        )
        CASES[full] = lambda d, m=makers: m[int(d.rng.integers(len(m)))](d)


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

# -- movement
case("view reshape _unsafe_view _reshape_copy view_copy", lambda d: (d.f(), [-1]),
     lambda d: (d.f(), [d.shape[0], -1]))
case("view_as reshape_as", lambda d: (d.f(), d.f(int(np.prod(d.shape)))))
case("permute permute_copy", lambda d: (d.f(), list(d.rng.permutation(len(d.shape)))))
case("transpose.int swapaxes swapdims", lambda d: (d.f(), d.dim, 0))
case("t", lambda d: (d.f(3, d.n),))
case("numpy_T", lambda d: (d.f(3, d.n),))
case("mT", lambda d: (d.f(2, 3, d.n),))
case("movedim.int moveaxis.int", lambda d: (d.f(), d.dim, 0))
case("movedim.intlist moveaxis.intlist", lambda d: (d.f(2, 3, 4), [0, 1], [1, 2]))
case(
    "expand broadcast_to expand_copy",
    lambda d: (d.f(), [3, *d.shape]),
    lambda d: (d.f(1, 4), [5, -1]),
)
case("expand_as", lambda d: (d.f(d.shape[-1]), d.f()))
case("broadcast_tensors", lambda d: ([d.f(), d.f(d.shape[-1])],))
case("unsqueeze", lambda d: (d.f(), d.dim))
case("squeeze", lambda d: (d.f(1, *d.shape, 1),))
case("squeeze.dim", lambda d: (d.f(1, *d.shape), d.part(0, 1)))
case("squeeze.dims", lambda d: (d.f(1, *d.shape, 1), [0, -1]))
case("flatten.using_ints", lambda d: (d.f(2, 3, 4), 0, 1), lambda d: (d.f(),))
case("unflatten.int", lambda d: (d.f(*d.shape, 6), -1, [2, 3]))
case("slice.Tensor slice_copy.Tensor", lambda d: (d.f(), d.dim, 1, 2**63 - 1),
     lambda d: (d.f(), d.dim, 0, -1), lambda d: (d.f(), d.dim, 0, 9, 2), lambda d: (d.f(),),
     lambda d: (d.f(), d.dim, -2, None))
case("narrow", lambda d: (d.f(), d.dim, 0, d.n))
case("select.int select_copy.int", lambda d: (d.f(), d.dim, d.part(0, -1)))
case("split.Tensor split_copy.Tensor", lambda d: (d.f(), 2, d.dim))
case("split.sizes split_with_sizes split_with_sizes_copy", lambda d: (d.f(*d.shape, 5), [2, 3], -1))
case("chunk", lambda d: (d.f(), 2, d.dim))
case("unbind.int unbind_copy.int", lambda d: (d.f(), d.dim))
case("cat concat concatenate", lambda d: ([d.f(), d.f()], d.dim), lambda d: ([d.f(), d.i()], 0),
     lambda d: ([d.f(0), d.f(), d.f()], d.dim))
case("stack", lambda d: ([d.f(), d.f()], d.dim))
case("repeat tile", lambda d: (d.f(), [2, *[1] * (len(d.shape) - 1), 3]))
case("repeat_interleave.self_int", lambda d: (d.f(), 2, d.part(None, d.dim)))
case("flip", lambda d: (d.f(), [d.dim]))
case("roll", lambda d: (d.f(), [1], [d.dim]), lambda d: (d.f(), [2]))
case(
    "diagonal diagonal_copy",
    lambda d: (d.f(4, 3), d.part(0, 1, -2)),
    lambda d: (d.f(2, 3, 5), 1, -2, -1),
)
case("meshgrid", lambda d: ([d.f(3), d.f(d.n)],))
case("meshgrid.indexing", lambda d: ([d.f(3), d.f(d.n)], {"indexing": d.part("ij", "xy")}))
case("tril triu", lambda d: (d.f(*d.shape, 3, 4), d.part(0, 1, -1)))
case(
    "clone contiguous alias alias_copy lift_fresh_copy lift_fresh detach detach_copy",
    lambda d: (d.any(),),
)
case("_to_copy", lambda d: (d.any(), {"dtype": d.part(torch.float32, torch.int64, torch.bool)}))
case("to.dtype", lambda d: (d.any(), d.part(torch.float32, torch.int32, torch.bool)))
case("to.dtype_layout", lambda d: (d.any(), {"dtype": torch.float32}))
case("to.device", lambda d: (d.any(), torch.device("cpu"), torch.float32))
case("to.other type_as", lambda d: (d.any(), d.f()))
case("copy", lambda d: (d.f(), d.i()), lambda d: (d.f(), d.f(d.shape[-1])))
case("constant_pad_nd", lambda d: (d.f(), [1, 2], 0.5), lambda d: (d.f(3, 4), [1, -1, -1, 2]))
case("reflection_pad1d", lambda d: (d.f(2, 3, 5), [2, 1]))
case("reflection_pad2d", lambda d: (d.image(), [2, 1, 0, 3]))
case("reflection_pad3d", lambda d: (d.image(3), [2, 1, 0, 3, 1, 1]))
case("replication_pad1d", lambda d: (d.f(2, 3, 4), [2, 5]))
case("replication_pad2d", lambda d: (d.image(), [2, 1, 0, 3]))
case("replication_pad3d", lambda d: (d.image(3), [2, 1, 0, 3, 1, 1]))
case(
    "pad", lambda d: (d.f(2, 3, 5), [2, 1], d.part("constant", "reflect", "replicate", "circular"))
)
case("slice_scatter", lambda d: (d.f(6, 3), d.f(3, 3), 0, d.part(0, 1), 6, 2),
     lambda d: (d.f(6, 3), d.f(2, 3), 0, 2, 4), lambda d: (d.f(6, 3), d.f(6, 3)))
case("select_scatter", lambda d: (d.f(6, 3), d.f(6), 1, d.part(0, -1)))
case("pixel_shuffle", lambda d: (d.f(2, 8, 3, 4), 2))
case("pixel_unshuffle", lambda d: (d.f(2, 3, 4, 6), 2))
case("channel_shuffle", lambda d: (d.f(2, 6, 4, 4), 3))
case("one_hot", lambda d: (d.i(low=0, high=5), 6))

# -- making
for _name in ("zeros", "ones", "empty.memory_format"):
    case(_name, lambda d: (list(d.shape), {"dtype": d.part(torch.float32, torch.int64)}))
case("full", lambda d: (list(d.shape), d.part(2, 1.5, True)))
case("scalar_tensor", lambda d: (d.part(2.0, 3.5),), lambda d: (2, {"dtype": torch.int64}))
case("full_like", lambda d: (d.any(), 1), lambda d: (d.f(), 2, {"dtype": torch.int64}))
case("zeros_like ones_like zero empty_like", lambda d: (d.any(),))
case("fill.Scalar", lambda d: (d.any(), 1))
case("fill.Tensor", lambda d: (d.f(), d.scalar()))
case("new_full", lambda d: (d.any(), [2, 3], 1))
case("new_zeros new_ones new_empty", lambda d: (d.any(), [2, 3]))
case("empty_strided", lambda d: ([2, 3], [3, 1]))
case("arange", lambda d: (d.part(5, 4.5),))
case("arange.start", lambda d: (d.part(2, 1.5), 7))
case("arange.start_step", lambda d: (1, 9, d.part(2, 3, 0.5)), lambda d: (9, 1, -2))
case("linspace", lambda d: (-1, 2, d.n + 1))
case("eye", lambda d: (d.n,))
case("randint.low", lambda d: (3, 7, [2, 3]))
case("randint", lambda d: (7, [2, 3]))
case("randperm", lambda d: (5,))
case("tril_indices triu_indices", lambda d: (4, d.n, d.part(0, 1, -1)))
case("eye.m", lambda d: (d.n, 3))

# -- indexing
case("index.Tensor", lambda d: (d.f(), [d.i(4, low=-d.shape[0], high=d.shape[0])]),
     lambda d: (d.f(3, 4, 5), [None, d.i(2, 2, low=0, high=4), d.i(2, low=0, high=5)]),
     lambda d: (d.f(3, 4, 5), [d.i(2, low=0, high=3), None, d.i(2, low=0, high=5)]),
     lambda d: (d.f(3, 4), [d.b(3, 4)]))
case("index_select", lambda d: (d.f(), d.dim, d.i(4, low=0, high=d.n)))
case("embedding", lambda d: (d.f(7, 3), d.i(low=0, high=7)))
case("gather", lambda d: (d.f(), d.dim, d.i(low=0, high=d.n)),
     lambda d: (d.f(4, 5), 1, d.i(3, 2, low=0, high=5)))
case("take_along_dim", lambda d: (d.f(), d.i(low=0, high=d.n), d.dim))


def _unique(d: Draw, count: int, n: int) -> torch.Tensor:
    return torch.from_numpy(d.rng.permutation(n)[:count].astype(np.int64))


case("index_copy", lambda d: (d.f(6, 3), 0, _unique(d, 2, 6), d.f(2, 3)),
     lambda d: (d.f(2, 6, 3), 1, _unique(d, 4, 6), d.f(2, 4, 3)))
case("index_add", lambda d: (d.f(2, 6), 1, d.i(4, low=0, high=6), d.f(2, 4), {"alpha": 2}))
case("index_fill.int_Scalar", lambda d: (d.f(2, 6), 1, d.i(3, low=0, high=6), 1.5))
case("index_put _unsafe_index_put",
     lambda d: (d.f(6, 3), [_unique(d, 2, 6)], d.f(2, 3)),
     lambda d: (d.f(2, 6, 3), [None, _unique(d, 2, 6)], d.f(2, 2, 3)),
     lambda d: (d.f(6, 3), [d.i(4, low=0, high=6)], d.f(4, 3), True),
     lambda d: (d.f(6, 3), [_unique(d, 2, 6), _unique(d, 2, 3)], d.f(2)),
     lambda d: (d.f(6, 3), [d.b(6, 3)], d.scalar()),
     lambda d: (d.f(6, 3), [d.b(6)], d.scalar()))
case("scatter.src", lambda d: (d.f(5, 4), 1, _unique(d, 3, 4).expand(2, 3), d.f(3, 4)))
case("scatter.value", lambda d: (d.f(5, 4), 1, d.i(5, 2, low=0, high=4), 2.5))
case("scatter_add", lambda d: (d.f(5, 4), 0, d.i(3, 4, low=0, high=5), d.f(3, 4)))
case("masked_scatter", lambda d: (d.f(), d.b(), d.f()))
case("scatter_reduce.two",
     lambda d: (d.part(d.f(5, 4), d.i(5, 4)), d.part(0, 1), d.i(3, 4, low=0, high=4), d.f(4, 4),
                d.part("sum", "amax", "amin"), {"include_self": bool(d.part(0, 1))}),
     lambda d: (d.f(7), 0, d.i(9, low=0, high=7), d.f(9), d.part("mean", "sum", "amax")))
case("index_reduce", lambda d: (d.f(2, 6), 1, d.i(4, low=0, high=6), d.f(2, 4),
                                d.part("mean", "amax", "amin"),
                                {"include_self": bool(d.part(0, 1))}))
case("_embedding_bag",
     lambda d: (d.f(7, 3), d.i(6, low=0, high=7), torch.tensor([0, 2, 2]), False, d.part(0, 1, 2)),
     lambda d: (d.f(7, 3), d.i(6, low=0, high=7), torch.tensor([0, 4]), False, 0, False, d.f(6)))
case("unfold", lambda d: (d.f(*d.shape, 7), -1, d.part(1, 3), d.part(1, 2)),
     lambda d: (d.f(6, 4), 0, 2, 2))

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

# -- counting
case("histc", lambda d: (d.f(), d.part(1, 5), -2, 2), lambda d: (d.far(), 4),
     lambda d: (d.i(low=0, high=6).float(), 6, 0, 5))
case("searchsorted.Tensor", lambda d: (d.f(2, 7).sort(-1)[0], d.f(2, 3)),
     lambda d: (d.i(6).sort()[0], d.i(2, 3), {"right": bool(d.part(0, 1))}))
case("bucketize.Tensor", lambda d: (d.f(), d.f(5).sort()[0], {"right": bool(d.part(0, 1))}))
case("median.dim", lambda d: (d.far(), d.dim, bool(d.part(0, 1))))
case("median", lambda d: (d.far(),))
case("kthvalue", lambda d: (d.far(), d.part(1, d.n), d.dim, bool(d.part(0, 1))))

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
