"""The dtypes that PyTorch's functions and modules refuse where weft's formulas would convert.

A mix of float32 and float64 is mostly a slip (`np.random.randn` gives float64), and a number of
another dtype than PyTorch's would be a silent difference. Under autocast PyTorch casts, and so does
weft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError
from weft.tensor.autocast import autocast_dtype
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.guards import attributes

# functions whose first tensor is of floats, unless a dtype is given
_OF_FLOATS = """softmax log_softmax softmin var std var_mean std_mean norm vector_norm matrix_norm
nanmean frac frexp hypot lerp histc glu elu celu selu leaky_relu logsigmoid hardshrink hardsigmoid
hardswish mish softplus softshrink rrelu prelu pdist normalize cosine_similarity renorm cdist
gaussian_nll_loss huber_loss multi_margin_loss multilabel_margin_loss nll_loss kl_div
soft_margin_loss grid_sample uniform_ normal_ cauchy_ exponential_ log_normal_ multinomial cholesky
cholesky_ex cholesky_inverse cholesky_solve det inv inv_ex qr svd svdvals pinv pinverse eigh
eigvalsh lstsq lu_factor lu_factor_ex lu triangular_solve cond"""
_FLOATS = set(_OF_FLOATS.split())
# functions that need one tensor of floats at least
_SOME = {"mse_loss", "smooth_l1_loss"}
# functions whose tensors (all, or those at these places) have one dtype
_OF_ONE_DTYPE = """matmul mm bmm mv dot vdot addmm addmv addbmm baddbmm einsum tensordot inner
multi_dot chain_matmul cross cdist linear bilinear conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d grid_sample prelu heaviside isclose allclose cholesky_solve
triangular_solve lstsq"""
_PLACES: dict[str, tuple[int, ...]] = {
    "scaled_dot_product_attention": (0, 1, 2), "binary_cross_entropy": (0, 1),
    "cross_entropy": (0, 2), "nll_loss": (0, 2), "index_copy": (0, -1), "index_put": (0, -1),
    "index_reduce": (0, -1), "put": (0, -1),
}  # fmt: skip
_ALIKE = dict.fromkeys(_OF_ONE_DTYPE.split(), ()) | _PLACES
# norms, whose parameters may also be float32 beside 16-bit floats
_NORMS = {"layer_norm", "group_norm", "batch_norm", "instance_norm"}
NAMES = _FLOATS | _SOME | _ALIKE.keys() | _NORMS
_NARROW = (dt.float16, dt.bfloat16)
# modules, and one of their parameters
_CELLS = {f"{kind}Cell": "weight_ih" for kind in ("RNN", "LSTM", "GRU")}
MODULES: dict[str, str] = _CELLS | {
    **{f"{kind}{n}d": "weight" for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
       for n in (1, 2, 3)},
    **dict.fromkeys(("Linear", "Bilinear", "PReLU", "LayerNorm", "GroupNorm"), "weight"),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), "weight_ih_l0"),
    "MultiheadAttention": "in_proj_weight",
}  # fmt: skip


def check(name: str, args: Iterable[Any], options: dict[str, Any]) -> None:
    """Raises DTypeError for tensors that PyTorch's function of this name refuses by their
    dtypes."""
    flat = _flat((*args, *options.values()))
    given = [x for x in flat if isinstance(x, Tensor)]
    if not given or (name in _FLOATS and any(isinstance(x, DType) for x in flat)):
        return
    if name in _FLOATS:
        _want_floats(name, given[0])
    if name in _SOME and not any(x.dtype.is_float for x in given):
        _want_floats(name, given[0])
    if name in _NORMS:
        _want_floats(name, given[0])
        _alike(name, given[0], given[1:], True)
    elif name in _ALIKE:
        at = [i for i in _ALIKE[name] if i < len(given)]
        chosen = [given[i] for i in at] if _ALIKE[name] else given
        _alike(name, chosen[0], chosen[1:], False)


def checked(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The pass of a module, which refuses an input of another dtype than its parameters'."""
    norm = "Norm" in name

    def run(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        weight = attributes(self).get(MODULES[name])
        if isinstance(input, Tensor) and isinstance(weight, Tensor):
            if norm:
                _want_floats(name, input)
            _alike(name, input, [weight], norm)
        return forward(self, input, *args, **kwargs)

    return run


def _flat(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for x in values:
        found.extend(x if isinstance(x, list | tuple) else (x,))
    return found


def _want_floats(name: str, x: Tensor) -> None:
    if not x.dtype.is_float:
        raise DTypeError(f"{name}: {x._known()} is not of floats; call .float() on it first")


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
