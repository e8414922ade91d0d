"""Functions of tensors, for models: the composites with broadcasting and defaults filled in."""

from __future__ import annotations

from collections.abc import Sequence

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import ShapeError, UsageError
from weft.host.boundary import guard_functions
from weft.tensor.activations import (  # noqa: F401  (functions of this module, as are those below)
    celu,
    elu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from weft.tensor.attention import (  # noqa: F401
    attention,
    cached_attention,
    scaled_dot_product_attention,
)
from weft.tensor.autocast import autocast_dtype, narrowed, widened
from weft.tensor.base import place as _place, values
from weft.tensor.convolution import (  # noqa: F401
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from weft.tensor.core import Tensor
from weft.tensor.create import full, placed as _placed
from weft.tensor.elementwise import method as _method
from weft.tensor.keys import as_index
from weft.tensor.losses import (  # noqa: F401  (all of them are functions of this module)
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
)
from weft.tensor.pooling import (  # noqa: F401
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
from weft.tensor.random import dropout  # noqa: F401
from weft.tensor.resize import interpolate  # noqa: F401
from weft.tensor.sampling import fold, grid_sample, unfold  # noqa: F401
from weft.tensor.spatial import (  # noqa: F401
    batch_norm,
    group_norm,
    instance_norm,
    pixel_shuffle,
    pixel_unshuffle,
)

gelu = _method(Tensor.gelu)
silu = _method(Tensor.silu)
relu = _method(Tensor.relu)
sigmoid = _method(Tensor.sigmoid)
where = _method(Tensor.where)


def _ones_or_zeros(like: Tensor, number: int) -> Tensor:
    """A row of one number for the last axis of `like`, where `like` is."""
    return full(like.shape[-1:], number, like.dtype, _place(like))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum along an axis."""
    return widened(x).softmax(axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis, without overflow."""
    return widened(x).log_softmax(axis)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    axes: int = 1,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, or the last `axes` of them;
    weight and bias have their shape."""
    rows, (w, b) = _joined("layer_norm", widened(x), axes, weight, bias)
    w = _ones_or_zeros(rows, 1) if w is None else w
    b = _ones_or_zeros(rows, 0) if b is None else b
    return rows._call("layer_norm", w, b, eps=float(eps)).reshape(x.shape)


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0, axes: int = 1
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis, or the last `axes` of them;
    weight has their shape."""
    rows, (w,) = _joined("rms_norm", widened(x), axes, weight)
    w = _ones_or_zeros(rows, 1) if w is None else w
    return rows._call("rms_norm", w, eps=float(eps), offset=float(offset)).reshape(x.shape)


def _joined(
    name: str, x: Tensor, axes: int, *weights: Tensor | None
) -> tuple[Tensor, list[Tensor | None]]:
    """x and weights with their last `axes` axes as one."""
    if any(w is not None and not isinstance(w, Tensor) for w in weights):
        raise UsageError(
            f"{name}: weight and bias are tensors; their shape is the normalized_shape of PyTorch"
        )
    if axes == 1:
        return x, list(weights)
    last = x.shape[-axes:]
    if not 1 <= axes <= x.ndim or any(w is not None and w.shape != last for w in weights):
        shapes = [list(w.shape) for w in weights if w is not None]
        raise ShapeError(f"{name}: x {list(x.shape)}, {axes} axes, weights {shapes}")
    rows = x.flatten(x.ndim - axes)
    return rows, [None if w is None else w.reshape(-1) for w in weights]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: DType | str | None = None
) -> Tensor:
    """x[..., K] @ weight[N, K]^T + bias[N], weight as in checkpoints (never repacked)."""
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: x {list(x.shape)}, weight {list(weight.shape)}; expected [..., K] and [N, K]"
        )
    narrow = autocast_dtype()
    # Cast the weight in its stored order: a transposed copy would cost more.
    (weight,) = narrowed(weight)
    if narrow is None or out_dtype is not None or bias is None:
        out = x.matmul(weight.T, out_dtype)
        return out if bias is None else out + bias
    return (x.matmul(weight.T, dt.float32) + bias).cast(narrow)  # rounded once, after the bias


def embedding(ids: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight[V, D] at integer ids[...] -> [..., D], as `weft.take` has them: -V..-1 count
    from the end, and an id beyond that gives a row of NaN. Row `padding_idx` gets no gradient."""
    out = weight.take(ids, 0)
    if padding_idx is None:
        return out
    count = weight.shape[0]
    if not -count <= padding_idx < count:
        raise UsageError(f"embedding: padding_idx {padding_idx} of {count} rows")
    row = padding_idx % count
    at = as_index(ids)
    padded = ((at == row) | (at == row - count)).unsqueeze(-1)
    return padded.where(out.detach(), out)


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x[N, H, D] turned by angles given as cos, sin [N, D/2]: pairs (i, i + D/2) as in Hugging Face
    checkpoints, or (2i, 2i + 1) when interleaved."""
    return x._call("rope", cos, sin, interleaved=bool(interleaved))


def update(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with row index[r] (int32) of axis 0 replaced by rows[r]; where index[r] is not in 0..n-1
    the row is dropped."""
    return Tensor(ops.update(*values("update", (x, index, rows))))


def scatter_add(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with rows[r] added to row index[r] (int32) of axis 0; where index[r] is not in 0..n-1 the
    row is dropped."""
    return Tensor(ops.scatter_add(*values("scatter_add", (x, index, rows))))


def one_hot(ids: Tensor, classes: int, dtype: DType | str | None = None) -> Tensor:
    """1 at each id (an integer) and 0 elsewhere (float32 by default), along a new last axis; an id
    that is not in 0..classes-1 gives zeros only."""
    shape = (*ids.shape, classes)
    line = as_index(ids).unsqueeze(-1).expand(shape)
    count = _placed(ops.iota(shape, len(shape) - 1, dt.int32), _place(ids))
    return (line == count).cast(dt.float32 if dtype is None else dtype)


def normalize(x: Tensor, axis: int | Sequence[int] = -1, eps: float = 1e-12) -> Tensor:
    """x divided by its Euclidean length along an axis (at least eps); narrow floats in float32."""
    wide = x.cast(dt.compute_dtype(x.dtype))
    length = (wide * wide).sum(axis, keepdims=True)._length()
    return (wide / length.maximum(eps)).cast(x.dtype)


guard_functions(globals(), [name for name in globals() if not name.startswith("_")])
