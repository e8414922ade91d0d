"""torch.nn.functional: weft.functional's formulas with PyTorch's signatures and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.host.boundary import check_options
from weft.importers.aten import layers, products
from weft.importers.aten.table import renamed
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.torch_names import written
from weft.torch import arithmetic, reductions
from weft.torch.expected import want, want_dtype, want_floats, want_rank
from weft.torch.nn import limits
from weft.torch.nn.attention import multi_head_attention_forward as multi_head_attention_forward
from weft.torch.nn.batches import batched, in_dtype
from weft.torch.nn.embeddings import by_frequency, shortened
from weft.torch.nn.images import (
    adaptive_max_pool1d as adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices as adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d as adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices as adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d as adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices as adaptive_max_pool3d_with_indices,
    affine_grid as affine_grid,
    fractional_max_pool2d as fractional_max_pool2d,
    fractional_max_pool2d_with_indices as fractional_max_pool2d_with_indices,
    fractional_max_pool3d as fractional_max_pool3d,
    fractional_max_pool3d_with_indices as fractional_max_pool3d_with_indices,
    interpolate as interpolate,
    local_response_norm as local_response_norm,
    max_pool1d as max_pool1d,
    max_pool1d_with_indices as max_pool1d_with_indices,
    max_pool2d as max_pool2d,
    max_pool2d_with_indices as max_pool2d_with_indices,
    max_pool3d as max_pool3d,
    max_pool3d_with_indices as max_pool3d_with_indices,
    upsample as upsample,
    upsample_bilinear as upsample_bilinear,
    upsample_nearest as upsample_nearest,
)
from weft.torch.nn.rows import ROWS
from weft.torch.picking import inside
from weft.torch.tensor import floats, functions, public, together, whole

# what PyTorch also has as functions of torch itself
_SHARED = """adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d batch_norm
bilinear celu channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d cosine_embedding_loss cosine_similarity dropout embedding embedding_bag
feature_alpha_dropout group_norm hardshrink hinge_embedding_loss instance_norm kl_div layer_norm
margin_ranking_loss max_pool1d max_pool2d max_pool3d pairwise_distance pdist pixel_shuffle
pixel_unshuffle poisson_nll_loss prelu relu rms_norm rrelu selu threshold triplet_margin_loss"""
SHARED = _SHARED.split()


def reduction(size_average: bool | None, reduce: bool | None) -> str:
    """The reduction that PyTorch's deprecated flags mean."""
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def _row(name: str) -> Callable[..., Any]:
    function, signature = ROWS[name]
    writes = "inplace" in signature
    call = renamed(__name__, function, signature.replace(" inplace", "").split())
    names = [part.lstrip("-") for part in signature.split()]

    def run(*args: Any, **kwargs: Any) -> Any:
        check_options(name, kwargs, names)
        given = dict(zip(names, args)) | kwargs
        inplace = writes and given.pop("inplace", False)
        old = (given.pop("size_average", None), given.pop("reduce", None))
        if old != (None, None):
            given["reduction"] = reduction(*old)
        kept = {k: v for k, v in given.items() if v is not None}
        made = in_dtype(name, batched(name, call, kept), kept)
        if name in limits.CHECKS:  # afterwards, as all arguments are there and fit
            limits.CHECKS[name](given)
        return written(given["input"], made, name, name) if inplace else made

    run.__name__ = run.__qualname__ = name
    run.__doc__ = (function.__doc__ or "").partition("\n\n")[0]
    shown = list(inspect.signature(call).parameters.values())
    if writes:
        flag = inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
        shown.append(flag)
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return public(run)


globals().update({name: _row(name) for name in ROWS})


def _in_place(name: str) -> Callable[..., Any]:
    def run(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        made = globals()[name](input, *args, **kwargs)
        return written(input, made, f"{name}_", name)

    run.__name__ = run.__qualname__ = f"{name}_"
    run.__doc__ = f"Takes the result of `{name}`, which views of this tensor show too."
    return public(run)


# with the functions that are in place: torch has those of IN_PLACE too
_IN_PLACE = "alpha_dropout celu dropout feature_alpha_dropout relu rrelu selu threshold"
IN_PLACE = _IN_PLACE.split()
_OURS_ALONE = [f"{name}_" for name in IN_PLACE if "dropout" in name]
globals().update(
    {f"{name}_": _in_place(name) for name in (*IN_PLACE, "elu", "hardtanh", "leaky_relu")}
)


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    return functions(globals(), " ".join(["index_add index_fill", *_OURS_ALONE]))


@public
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """exp(input) / sum(exp(input)) along an axis."""
    return reductions.softmax(input, dim, dtype)


@public
def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """log(softmax(input)) along an axis."""
    return reductions.log_softmax(input, dim, dtype)


@public
def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """softmax(-input) along an axis."""
    return reductions.softmax(-input, dim, dtype)


@public
def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    """input divided by its p-norm along an axis, which is at least eps."""
    if not input.ndim:
        return input / abs(input).maximum(eps)
    return F.normalize(input, dim, eps, p)


@public
def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalised over the last axes, whose sizes are normalized_shape."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    _fits("layer_norm", input, shape)
    return F.layer_norm(input, weight, bias, eps, len(shape))


def _fits(name: str, input: Tensor, shape: tuple[int, ...]) -> None:
    if input.shape[input.ndim - len(shape) :] != shape:
        raise UsageError(f"{name}: normalized_shape {list(shape)} for {input._known()}")


@public
def rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divided by the root of the mean square over the last axes."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    _fits("rms_norm", input, shape)
    return layers.rms_norm(input, shape, weight, eps)


@public
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalised per channel, by the batch's statistics in training."""
    if input.ndim < 2 and not input.size:
        return input.clone()
    want(training or (running_mean is not None and running_var is not None), "batch_norm",
         "no running_mean or running_var", "both, or training=True")  # fmt: skip
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@public
def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Rows of a table at integer ids."""
    want_rank("embedding", weight, 2)
    ids = inside("embedding", input, weight.shape[0])
    if max_norm is not None:
        want_floats("embedding", weight, "max_norm shortens rows of floats")
        shortened(weight, ids, max_norm, norm_type)
    table = by_frequency(weight, ids) if scale_grad_by_freq else weight
    return F.embedding(ids, table, padding_idx)


@public
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Sums, means or maxima of rows of a table."""
    want_floats("embedding_bag", weight, "call .float() on it first")
    inside("embedding_bag", input, weight.shape[0])
    if per_sample_weights is not None:
        want_dtype("embedding_bag", weight, per_sample_weights)
    if max_norm is not None:
        shortened(weight, input, max_norm, norm_type)
    table = by_frequency(weight, input) if scale_grad_by_freq else weight
    how = (mode, per_sample_weights, include_last_offset, padding_idx)
    return F.embedding_bag(input, table, offsets, *how)


@public
def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """1 at each id and 0 elsewhere, along a new last axis, in int64."""
    want(input.dtype in (dt.int32, dt.int64), "one_hot", f"{input._known()}", "int64: call .long()")
    want(num_classes >= -1, "one_hot", f"num_classes {num_classes}", "0 or more, or -1")
    n = num_classes if num_classes >= 0 else int(input.numpy().max(initial=-1)) + 1
    return F.one_hot(inside("one_hot", input, n), n, whole(input))


@public
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""
    apart = arithmetic.sub(x1, x2)
    return F.vector_norm(arithmetic.add(apart, eps), p, -1, keepdim)


@public
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 along an axis."""
    a, b = floats(x1, x2)
    a, b = (x.expand(np.broadcast_shapes(a.shape, b.shape)) for x in (a, b))
    if not a.ndim:
        return F.cosine_similarity(a.reshape(1), b.reshape(1), 0, eps)
    return F.cosine_similarity(a, b, dim, eps)


def _at_rank(input: Tensor, rank: int) -> Tensor:
    return input.reshape([1] * (rank - input.ndim) + list(input.shape))


@public
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: Any = None, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over classes of max(0, margin - x[target] + x[class]) ** p."""
    x, at = _at_rank(input, 2), _at_rank(target, 1)
    inside("multi_margin_loss", at, x.shape[1])
    made = F.multi_margin_loss(x, at, p, margin, weight, reduction).cast(input.dtype)
    return made.reshape(target.shape) if reduction == "none" else made


@public
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The margin loss of several labels, which end at the first -1."""
    limits.check_labels("multilabel_margin_loss", input, target, -1)
    x, at = _at_rank(input, 1), _at_rank(target, 1)
    made = F.multilabel_margin_loss(x, at, reduction).cast(input.dtype)
    return made if input.ndim else made.reshape(())


@public
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, |anchor - positive| - |anchor - negative| + margin)."""
    three = together(anchor, positive, negative)
    distance = partial(pairwise_distance, p=p, eps=eps)
    how: dict[str, Any] = {"margin": margin, "swap": swap, "reduction": reduction}
    made = F.triplet_margin_with_distance_loss(*three, distance_function=distance, **how)
    return made.cast(three[0].dtype) if three[0].dtype.is_float else made


@public
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Drops whole channels in the way of `alpha_dropout`."""
    if not training:
        return input.clone()
    limits.CHECKS["dropout"]({"input": input, "p": p})
    return F.feature_alpha_dropout(input, p, training)


@public
def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """The last axes made longer, the last one first."""
    want(mode == "constant" or value is None, "pad", f"value {value} with mode {mode!r}",
         "a value in mode constant alone")  # fmt: skip
    bools = input.dtype == dt.bool_ and mode in ("reflect", "replicate")
    want(not bools, "pad", f"bools with mode {mode!r}", "numbers: call .int() on them first")
    return F.pad(input, list(pad), mode, value or 0)


@public
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query key^T scale + mask) value."""
    return products.attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
