"""Attention of tensors: the composites, and PyTorch's function with masks and dropout."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.dtypes import promote
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.tensor.autocast import narrowed
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.tensor.create import full, tril
from weft.tensor.dropouts import dropout

_HIDDEN = -1e30  # the score of a key that a query does not see: finite, so that no NaN arises


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
    """Attention softmax(q k^T scale) v for q[B, H, T, D], k and v [B, G, S, D]; H is a multiple of
    G.

    `causal`: query t sees keys up to t + S - T. `lengths`[B]: only the first lengths[b] keys count.
    `window` > 0: only the last `window` keys count (without causal, the keys less than `window`
    away on either side). `softcap` > 0: scores are softcap tanh(s / softcap). A query that sees no
    key
    gives zeros. scale defaults to 1 / sqrt(D).

    >>> x = weft.ones((1, 2, 3, 4))
    >>> F.attention(x, x, x, causal=True).shape
    (1, 2, 3, 4)
    """
    q, k, v = narrowed(q, k, v)
    extra = () if lengths is None else (lengths.cast(dt.int32),)
    return q._call(
        "attention", k, v, *extra,
        causal=bool(causal), scale=_scale(scale, q), window=int(window), softcap=float(softcap),
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
    """PyTorch's attention: softmax(query key^T scale + mask) value. query is [..., H, T, D], key
    [..., G, S, D] and value [..., G, S, E]. G is H unless `enable_gqa`, which repeats each of the G
    heads.

    `attn_mask` broadcasts to [..., H, T, S]: bool (False hides) or a float that is added (-inf
    hides). A query that sees no key gives zeros. `is_causal` hides keys after the query's own
    number, counted from the first of both. Without a mask and dropout no T x S matrix is stored.
    Scores and
    weights are float32 for narrow operands. Raises ShapeError, DTypeError, UsageError.

    >>> q = k = v = weft.ones((1, 2, 3, 4))  # [N, heads, T, D]
    >>> F.scaled_dot_product_attention(q, k, v, is_causal=True).shape
    (1, 2, 3, 4)
    """
    if is_causal and attn_mask is not None:
        raise UsageError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        shapes = ", ".join(str(list(x.shape)) for x in (query, key, value))
        raise ShapeError(f"scaled_dot_product_attention: {shapes}; expected [..., H, T, D]")
    if query.ndim == key.ndim == value.ndim == 2:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        options = (attn_mask, dropout_p, is_causal, scale)
        return scaled_dot_product_attention(query, key, value, *options).squeeze(0)
    heads, groups = query.shape[-3], key.shape[-3]
    if heads != groups and not enable_gqa:
        raise ShapeError(
            f"scaled_dot_product_attention: {heads} heads of query, {groups} of key; "
            "enable_gqa=True repeats those of key"
        )
    t, s, d = query.shape[-2], key.shape[-2], query.shape[-1]
    square = not is_causal or t == s
    alike = key.shape == value.shape and query.shape[:-3] == key.shape[:-3] and d == key.shape[-1]
    if attn_mask is None and not dropout_p and square and alike:
        q, k, v = (x.reshape((math.prod(x.shape[:-3]), *x.shape[-3:])) for x in (query, key, value))
        return attention(q, k, v, causal=is_causal, scale=scale).reshape(query.shape)
    if heads != groups:
        key = key.repeat_interleave(heads // groups, -3)
        value = value.repeat_interleave(heads // groups, -3)
    scores = attention_scores(query, key, scale)
    if is_causal:
        attn_mask = tril(full((t, s), True, device=place(query)))
    weights = scores.softmax() if attn_mask is None else _masked_softmax(scores, attn_mask)
    return weighted_values(dropout(weights, dropout_p), value)


def attention_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """query[..., T, D] key[..., S, D]^T scale (1 / sqrt(D) by default), in the dtype that softmax
    computes in: rounding scores to 16 bits would cost a weight more than its own rounding."""
    query, key = narrowed(query, key)
    wide = dt.compute_dtype(promote(query.dtype, key.dtype))
    return query.matmul(key.mT, wide) * _scale(scale, query)


def weighted_values(weights: Tensor, value: Tensor) -> Tensor:
    """weights[..., T, S] value[..., S, E], summed in the dtype of the weights and rounded once."""
    (value,) = narrowed(value)
    return (weights @ value.cast(weights.dtype)).cast(value.dtype)


def _scale(scale: float | None, query: Tensor) -> float:
    return 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """softmax over the keys that are not hidden; zeros where all are."""
    if mask.dtype == dt.bool_:
        seen = mask
    elif mask.dtype.is_float:
        seen, scores = mask != -math.inf, scores + mask
    else:
        raise DTypeError(f"attn_mask is {mask.dtype.name}; expected bool or a float that is added")
    return seen.where(seen.where(scores, _HIDDEN).softmax(), 0.0)


def cached_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot: Tensor,
    pos: Tensor,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
    scales: Tensor | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """Attention of q[N, H, D] over caches [S, G, L, D]; the result is [N, H, D]. Row n sees keys
    0..pos[n] of cache slot[n], or the last `window` of them if window > 0. `slot` and `pos` are
    int32 [N].

    Caches of int8 hold codes: each row is multiplied by its scale in scales[S, G, L, 2], float32
    (one for keys, one for values); q is float32 then. With a table[S, C], int32, caches (and
    scales) are pages [P, G, 64, D]: position p of slot s is row p % 64 of page table[s, p // 64]
    (Kwon et al., arXiv:2309.06180).

    >>> cache, first = weft.ones((1, 2, 8, 4)), weft.tensor([0])
    >>> F.cached_attention(weft.ones((1, 2, 4)), cache, cache, first, first).shape
    (1, 2, 4)
    """
    more = tuple(x for x in (scales, table) if x is not None)
    return q._call(
        "cached_attention", k_cache, v_cache, slot, pos, *more,
        scale=_scale(scale, q), window=int(window), softcap=float(softcap),
    )  # fmt: skip
