"""The dtypes that PyTorch's functions and modules refuse where weft's formulas would convert.

A mix of float32 and float64 is mostly a slip (`np.random.randn` gives float64), and a number of
another dtype than PyTorch's would be a silent difference. Under autocast PyTorch casts, and so does
weft. 16-bit floats are taken wherever floats are: PyTorch lacks some of their kernels on the CPU.
The names come from a comparison of all of PyTorch's operators with all dtypes;
tests/pytorch/test_operator_dtypes.py repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError
from weft.importers.aten import numbers
from weft.tensor.autocast import autocast_dtype
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.guards import attributes

# functions whose first tensor is of floats, unless a dtype is given
_OF_FLOATS = """softmax log_softmax softmin var std var_mean std_mean norm vector_norm matrix_norm
nanmean frac frexp hypot lerp histc glu elu celu selu leaky_relu logsigmoid hardshrink hardsigmoid
hardswish mish softplus softshrink rrelu prelu pdist normalize cosine_similarity renorm cdist
gaussian_nll_loss huber_loss multi_margin_loss multilabel_margin_loss nll_loss kl_div mse_loss
smooth_l1_loss soft_margin_loss grid_sample uniform_ normal_ cauchy_ exponential_ log_normal_
multinomial cholesky cholesky_ex cholesky_inverse cholesky_solve det inv inv_ex qr svd svdvals pinv
pinverse eigh eigvalsh lstsq lu_factor lu_factor_ex lu triangular_solve cond matrix_rank slogdet
logdet matrix_exp solve solve_ex solve_triangular lu_solve tensorsolve tensorinv vecdot histogram
logaddexp logaddexp2 logcumsumexp nextafter scaled_dot_product_attention adaptive_avg_pool1d
adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
fractional_max_pool2d fractional_max_pool3d max_unpool1d max_unpool2d max_unpool3d
multilabel_soft_margin_loss multi_head_attention_forward masked.mean masked.softmax
masked.log_softmax masked.softmin masked.norm masked.normalize masked.logaddexp"""
# functions whose first tensor is of floats or of integers
_OF_NUMBERS = """argmax argmin ceil floor trunc fix round kthvalue topk median nanmedian mvlgamma
positive relu relu6 softsign tanhshrink trace conv1d conv2d cov corrcoef masked.amax masked.amin
masked.logsumexp masked.std masked.var trapezoid trapz cumulative_trapezoid searchsorted cross"""
# those that refuse uint8 too
_OF_SIGNED = """avg_pool1d avg_pool2d avg_pool3d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d hardtanh threshold local_response_norm gradient"""
# functions all of whose tensors are of floats, or none of whose tensors is of bools
_ALL_FLOATS = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"}
_NO_BOOLS = {"l1_loss", "poisson_nll_loss", "hinge_embedding_loss", "triplet_margin_loss", "isin",
             "gaussian_nll_loss", "margin_ranking_loss",
             "triplet_margin_with_distance_loss"}  # fmt: skip
# norms, whose parameters may also be float32 beside 16-bit floats
_NORMS = {"layer_norm", "group_norm", "batch_norm", "instance_norm"}
_UNSIGNED, _BOOLS = frozenset(("bool", "uint")), frozenset(("bool",))
_INTEGERS = _UNSIGNED | {"int"}
_REFUSED: dict[str, tuple[frozenset[str], str]] = {
    **dict.fromkeys(_OF_FLOATS.split(), (_INTEGERS, "floats; call .float() on it first")),
    **dict.fromkeys(_OF_NUMBERS.split(), (_BOOLS, "numbers; call .int() on it first")),
    **dict.fromkeys(_OF_SIGNED.split(), (_UNSIGNED, "signed numbers; call .float() on it first")),
    **dict.fromkeys((*_ALL_FLOATS, *_NORMS), (_INTEGERS, "floats; call .float() on it first")),
    "unravel_index": (frozenset(("float", "bool")), "integers; call .long() on it first"),
}
# functions whose tensors are brought to their common dtype first
_COMMON = """mse_loss l1_loss smooth_l1_loss margin_ranking_loss cosine_embedding_loss
triplet_margin_with_distance_loss gaussian_nll_loss poisson_nll_loss kl_div hinge_embedding_loss
cosine_similarity hypot gcd lcm logaddexp logaddexp2 nextafter masked.logaddexp"""
_PROMOTED = set(_COMMON.split())
# functions whose tensors (all, or those at these places) have one dtype
_OF_ONE_DTYPE = """matmul mm bmm mv dot vdot addmm addmv addbmm baddbmm einsum tensordot
multi_dot chain_matmul cross cdist linear bilinear conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d grid_sample prelu heaviside isclose allclose cholesky_solve
triangular_solve lstsq solve solve_ex solve_triangular tensorsolve vecdot histogram
meshgrid cartesian_prod lerp"""
_PLACES: dict[str, tuple[int, ...]] = {
    "scaled_dot_product_attention": (0, 1, 2), "binary_cross_entropy": (0, 1),
    "cross_entropy": (0, 2), "nll_loss": (0, 2), "index_copy": (0, -1), "index_put": (0, -1),
    "index_reduce": (0, -1), "put": (0, -1), "masked_scatter": (0, -1),
    "multi_head_attention_forward": (0, 3),
}  # fmt: skip
_ALIKE = dict.fromkeys(_OF_ONE_DTYPE.split(), ()) | _PLACES
NAMES = _REFUSED.keys() | _NO_BOOLS | _PROMOTED | _ALIKE.keys() | _NORMS
_NARROW = (dt.float16, dt.bfloat16)
# modules, and one of their parameters
_CELLS = {f"{kind}Cell": "weight_ih" for kind in ("RNN", "LSTM", "GRU")}
_WEIGHTS: dict[str, str] = _CELLS | {
    **{f"{kind}{n}d": "weight" for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
       for n in (1, 2, 3)},
    **dict.fromkeys(("Linear", "Bilinear", "PReLU", "LayerNorm", "GroupNorm"), "weight"),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), "weight_ih_l0"),
    "MultiheadAttention": "in_proj_weight",
}  # fmt: skip
_FUNCTIONS = {
    "KLDivLoss": "kl_div", "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "LogSoftmax": "log_softmax", "LogSigmoid": "logsigmoid",
}  # fmt: skip


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function here; those of torch.masked mean something else than torch's."""
    masked = function.__module__ == "weft.torch.masked"
    return f"masked.{function.__name__}" if masked else function.__name__


def agreed(name: str, args: Sequence[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of PyTorch's function of this name, of which `options` may change in place: in
    one dtype where PyTorch promotes. Raises DTypeError for tensors that PyTorch refuses by their
    dtypes."""
    flat = _flat((*args, *options.values()))
    given = [x for x in flat if isinstance(x, Tensor)]
    floats = _REFUSED.get(name, ((), ""))[0] is _INTEGERS
    if not given or (floats and any(isinstance(x, DType) for x in flat)):
        return tuple(args)
    for x in given:
        if name in _ALL_FLOATS:
            _refuse(name, x)
        elif name in _NO_BOOLS and x.dtype == dt.bool_:
            raise _not_of(name, x, "numbers; call .float() on it first")
    if name in _PROMOTED and any(x.dtype != given[0].dtype for x in given):
        wanted = numbers.common(*given, whole=dt.int64)
        args = tuple(x.cast(wanted) if isinstance(x, Tensor) else x for x in args)
        options |= {k: x.cast(wanted) for k, x in options.items() if isinstance(x, Tensor)}
        given = [x for x in _flat((*args, *options.values())) if isinstance(x, Tensor)]
    _refuse(name, given[0])
    if name in _NORMS:
        _alike(name, given[0], given[1:], True)
    elif name in _ALIKE:
        at = [i for i in _ALIKE[name] if i < len(given)]
        chosen = [given[i] for i in at] if _ALIKE[name] else given
        _alike(name, chosen[0], chosen[1:], False)
    return tuple(args)


def checked(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The pass of a module, which refuses what its function refuses, and an input of another dtype
    than its parameters'."""
    norm, function, parameter = "Norm" in name, _function_of(name), _WEIGHTS.get(name, "")

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        weight = attributes(self).get(parameter)
        input = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(input, Tensor) and isinstance(weight, Tensor):
            if input._value.dtype is not weight._value.dtype:  # else there is nothing to refuse
                if norm and not input.dtype.is_float:
                    raise _not_of(name, input, "floats; call .float() on it first")
                _alike(name, input, [weight], norm)
        elif function:
            args = agreed(function, args, kwargs)
        return forward(self, *args, **kwargs)

    return run


def _function_of(module: str) -> str:
    """The function of torch.nn.functional that a module of this name computes; "" for none."""
    plain = {name.replace("_", ""): name for name in NAMES}
    return _FUNCTIONS.get(module, plain.get(module.lower(), ""))


def concerns(module: str) -> bool:
    """True if the passes of a module of this name are checked."""
    return module in _WEIGHTS or _function_of(module) != ""


def _flat(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for x in values:
        found.extend(x if isinstance(x, list | tuple) else (x,))
    return found


def _refuse(name: str, x: Tensor) -> None:
    kinds, wanted = _REFUSED.get(name, (frozenset(), ""))
    if x.dtype.kind in kinds:
        raise _not_of(name, x, wanted)


def _not_of(name: str, x: Tensor, wanted: str) -> DTypeError:
    return DTypeError(f"{name}: {x._known()} is not of {wanted}")


def _alike(name: str, x: Tensor, others: Iterable[Tensor], norm: bool) -> None:
    for y in others:
        a, b = x.dtype, y.dtype
        if a == b or (norm and a in _NARROW and b == dt.float32):
            continue
        if a.is_int and b.is_int and CURRENT.trace is not None:  # int64 may be int32 there
            continue
        if autocast_dtype() is None:
            raise DTypeError(
                f"{name}: {x._known()} with {y._known()}; cast one of them: .to({a.name})"
            )
