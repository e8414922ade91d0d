"""Functions of tensors, for models: the composites with broadcasting and defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import ShapeError, UsageError
from weft.tensor.autocast import autocast_dtype, narrowed, widened
from weft.tensor.base import values
from weft.tensor.core import Tensor
from weft.tensor.create import full, tril
from weft.tensor.losses import (  # noqa: F401  (all of them are functions of this module)
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
)
from weft.tensor.random import rand
from weft.tensor.spatial import (  # noqa: F401
    adaptive_avg_pool2d,
    avg_pool2d,
    batch_norm,
    conv1d,
    conv2d,
    max_pool2d,
)

_HIDDEN = -1e30  # the score of a key that a query does not see: finite, so that no NaN arises


def _ones_or_zeros(like: Tensor, number: int) -> Tensor:
    """A row of one number for the last axis of `like`, where `like` is."""
    on = None if like.is_traced or like.device == "cpu" else like.device
    return full(like.shape[-1:], number, like.dtype, on)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum along an axis."""
    return widened(x).softmax(axis)  # type: ignore[no-any-return]


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis, without overflow."""
    return widened(x).log_softmax(axis)  # type: ignore[no-any-return]


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
    rows = x.reshape(*x.shape[:-axes], -1)
    return rows, [None if w is None else w.reshape(-1) for w in weights]


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x): exact by erf, or approximate="tanh"."""
    return x.gelu(approximate)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x.silu()


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return x.relu()


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.sigmoid()


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: DType | None = None
) -> Tensor:
    """x[..., K] @ weight[N, K]^T + bias[N], weight as in checkpoints (never repacked)."""
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: x {list(x.shape)}, weight {list(weight.shape)}; expected [..., K] and [N, K]"
        )
    narrow = autocast_dtype()
    (weight,) = narrowed(weight)  # as it is stored: a transposed copy would cost more
    if narrow is None or out_dtype is not None or bias is None:
        out = x.matmul(weight.T, out_dtype)
        return out if bias is None else out + bias
    return (x.matmul(weight.T, dt.float32) + bias).cast(narrow)  # rounded once, after the bias


def embedding(ids: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight[V, D] at integer ids[...] -> [..., D]; an id outside is clamped on devices and
    refused on the CPU. Row `padding_idx` gets no gradient."""
    out = weight.take(ids, 0)
    if padding_idx is None:
        return out
    padded = (ids == padding_idx % weight.shape[0]).unsqueeze(-1)
    return padded.where(out.detach(), out)


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x[N, H, D] turned by angles given as cos, sin [N, D/2]: pairs (i, i + D/2) as in Hugging Face
    checkpoints, or (2i, 2i + 1) when interleaved."""
    return x._call("rope", cos, sin, interleaved=bool(interleaved))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """softmax(q k^T scale) v for q[B, H, T, D], k and v [B, G, S, D] with H a multiple of G.

    causal: query t sees keys up to t + S - T. lengths[B]: only the first keys count. window > 0:
    the last `window` keys (without causal: less than `window` away on either side). softcap > 0:
    scores are softcap tanh(s / softcap). A query that sees no key gives zeros. scale defaults to
    1 / sqrt(D).
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = narrowed(q, k, v)
    extra = () if lengths is None else (lengths.cast(dt.int32),)
    return q._call(
        "attention", k, v, *extra,
        causal=bool(causal), scale=float(scale), window=int(window), softcap=float(softcap),
    )  # fmt: skip


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's attention: softmax(query key^T scale + mask) value for query [..., H, T, D], key
    [..., G, S, D], value [..., G, S, E]; G is H unless `enable_gqa`, which repeats each of G heads.

    attn_mask broadcasts to [..., H, T, S]: bool (False hides) or a float that is added. is_causal
    hides keys after the query's own number, counted from the first of both. Without a mask and
    dropout no T x S matrix is stored. Raises ShapeError, UsageError.
    """
    if is_causal and attn_mask is not None:
        raise UsageError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    heads, groups = query.shape[-3], key.shape[-3]
    if heads != groups and not enable_gqa:
        raise ShapeError(
            f"scaled_dot_product_attention: {heads} heads of query, {groups} of key; "
            "enable_gqa=True repeats those of key"
        )
    t, s, d = query.shape[-2], key.shape[-2], query.shape[-1]
    square = not is_causal or t == s
    if attn_mask is None and not dropout_p and square and value.shape[-1] == d:
        q, k, v = (x.reshape((-1, *x.shape[-3:])) for x in (query, key, value))
        return attention(q, k, v, causal=is_causal, scale=scale).reshape(query.shape)
    if heads != groups:
        key = key.repeat_interleave(heads // groups, -3)
        value = value.repeat_interleave(heads // groups, -3)
    scores = query @ key.mT * (1.0 / math.sqrt(d) if scale is None else scale)
    scores = scores.cast(dt.compute_dtype(scores.dtype))
    if is_causal:
        on = None if query.is_traced or query.device == "cpu" else query.device
        attn_mask = tril(full((t, s), True, device=on))
    if attn_mask is None:
        weights = scores.softmax()
    elif attn_mask.dtype == dt.bool_:  # a query that sees no key gives zeros
        weights = where(attn_mask, where(attn_mask, scores, _HIDDEN).softmax(), 0.0)
    else:
        weights = (scores + attn_mask).softmax()
    return dropout(weights.cast(value.dtype), dropout_p) @ value


def cached_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot: Tensor,
    pos: Tensor,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """q[N, H, D] against caches [S, G, L, D]: row n sees keys 0..pos[n] of cache slot[n] (the last
    `window` of them if window > 0) -> [N, H, D]. slot and pos are int32 [N]."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return q._call(
        "cached_attention", k_cache, v_cache, slot, pos,
        scale=float(scale), window=int(window), softcap=float(softcap),
    )  # fmt: skip


def dropout(x: Tensor, p: float = 0.5, training: bool = True, key: Any = None) -> Tensor:
    """x with each element zeroed with probability p and the others divided by 1 - p; x itself
    unless training. Which ones depends on the key (an int or uint32[2]) and their place alone, so
    every device drops the same; without a key each call takes the next one of the global stream."""
    if not 0.0 <= p <= 1.0:
        raise UsageError(f"dropout: {p} is not a probability")
    if not training or p == 0.0:
        return x
    if p == 1.0:
        return x * 0.0
    on = None if x.is_traced or x.device == "cpu" else x.device
    drawn = rand(x.shape, key=key, device=on)
    return (drawn < p).where(0.0, x * (1.0 / (1.0 - p)))


def where(cond: Tensor, a: Any, b: Any) -> Tensor:
    """a where cond holds, else b."""
    return cond.where(a, b)


def update(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with row index[r] (int32) of axis 0 replaced by rows[r]; a row outside x is dropped."""
    return Tensor(ops.update(*values("update", (x, index, rows))))


def scatter_add(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with rows[r] added to row index[r] (int32) of axis 0; a row outside x is dropped."""
    return Tensor(ops.scatter_add(*values("scatter_add", (x, index, rows))))


def one_hot(ids: Tensor, classes: int, dtype: DType = dt.float32) -> Tensor:
    """1 at each id and 0 elsewhere, along a new last axis."""
    shape = (*ids.shape, classes)
    line = ids.unsqueeze(-1).expand(shape)
    count = Tensor(ops.iota(shape, len(shape) - 1, dt.int32))
    if not ids.is_traced and ids.device != "cpu":
        count = count.to(ids.device)
    return (line.cast(dt.int32) == count).cast(dtype)


def mean_pool(x: Tensor, lengths: Tensor) -> Tensor:
    """The average of the first lengths[b] rows of x[B, T, D] -> [B, D]."""
    b, t, _ = x.shape
    count = Tensor(ops.iota((b, t), 1, dt.int32))
    if not x.is_traced and x.device != "cpu":
        count = count.to(x.device)
    keep = (count < lengths.cast(dt.int32).reshape(b, 1)).cast(x.dtype).reshape(b, t, 1)
    total = lengths.cast(x.dtype).maximum(1).reshape(b, 1)
    return (x * keep).sum(1) / total


def normalize(x: Tensor, axis: int | Sequence[int] = -1, eps: float = 1e-12) -> Tensor:
    """x divided by its Euclidean length along an axis (at least eps)."""
    length = (x * x).sum(axis, keepdims=True).sqrt()
    return x / length.maximum(eps)
