"""Multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.nn import init
from weft.nn.dropout import Dropout
from weft.nn.layers import Linear, empty
from weft.nn.module import Module, lacks
from weft.tensor import functional as F
from weft.tensor.attention import attention_scores, weighted_values
from weft.tensor.core import Tensor


class MultiheadAttention(Module):
    """Attention with `num_heads` heads of embed_dim / num_heads (Vaswani et al. 2017), with
    PyTorch's parameters: in_proj_weight [3 E, E], in_proj_bias [3 E], out_proj.

    query is [T, B, E] and key, value [S, B, E]. With batch_first they are [B, T, E] and [B, S, E].
    Without masks and dropout the T x S matrix of weights is never formed. Raises ShapeError for
    sizes that do not fit, UsageError for options that weft lacks.

    >>> x = weft.ones((5, 1, 8))
    >>> nn.MultiheadAttention(8, 2)(x, x, x)[0].shape
    (5, 1, 8)
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False,
    ):  # fmt: skip
        lacks(self, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn)
        lacks(self, **{k: v for k, v in (("kdim", kdim), ("vdim", vdim)) if v != embed_dim})
        if num_heads < 1 or embed_dim % num_heads:
            raise ShapeError(f"MultiheadAttention: {embed_dim} does not divide by {num_heads}")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.in_proj_weight = init.xavier_uniform_(empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = empty(3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        self.dropout = Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = False, attn_mask: Tensor | None = None, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Returns the result, shaped as query, and the weights averaged over heads [B, T, S], if
        needed.

        `key_padding_mask` [B, S]: True for keys to leave out. `attn_mask` [T, S] (or [B H, T, S]):
        True for pairs to leave out, or floats to add to the scores. `is_causal`: query t sees keys
        up to t
        + S - T, without a mask. A query that sees no key gives NaN with a mask, else zeros.
        """
        own = query is key and key is value
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if query.ndim != 3 or not query.shape[-1] == key.shape[-1] == self.embed_dim:
            raise ShapeError(
                f"MultiheadAttention: query {list(query.shape)}, key {list(key.shape)}; expected "
                f"three axes, the last of {self.embed_dim}"
            )
        q, k, v = map(self._heads, self._projected(query, key, value, own))
        drops = self.dropout.p > 0 and self.training
        if key_padding_mask is None and attn_mask is None and not drops and not need_weights:
            mixed, weights = F.attention(q, k, v, causal=is_causal), None
        else:
            if is_causal and attn_mask is None:
                raise UsageError(
                    "MultiheadAttention: give attn_mask too when dropout or weights are asked for"
                )
            weights = self._weights(q, k, key_padding_mask, attn_mask)
            mixed = weighted_values(self.dropout(weights), v)
            weights = weights.mean(1).cast(v.dtype) if need_weights else None
        b, _, t, _ = mixed.shape
        out = self.out_proj(mixed.transpose(1, 2).reshape(b, t, self.embed_dim))
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, own: bool) -> Sequence[Tensor]:
        """Queries, keys and values [B, T, E]; one product when they are of one tensor."""
        e = self.embed_dim
        if own:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).split(e, -1)
        weights = self.in_proj_weight.split(e)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(e)
        return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]

    def _heads(self, x: Tensor) -> Tensor:
        b, t, e = x.shape
        return x.reshape(b, t, self.num_heads, e // self.num_heads).transpose(1, 2)

    def _weights(self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor:
        """softmax of the masked scores [B, H, T, S]."""
        b, h, t, _ = q.shape
        scores = attention_scores(q, k)
        s = k.shape[2]
        fits = mask is None or mask.shape in ((t, s), (b * h, t, s))
        if not fits or (padding is not None and padding.shape != (b, s)):
            given = [list(m.shape) for m in (mask, padding) if m is not None]
            raise ShapeError(
                f"MultiheadAttention: masks {given}; expected attn_mask [{t}, {s}] or "
                f"[{b * h}, {t}, {s}], key_padding_mask [{b}, {s}]"
            )
        if mask is not None:
            mask = mask.reshape(b, h, t, s) if mask.ndim == 3 else mask
            hidden = mask.dtype == dt.bool_
            scores = mask.where(float("-inf"), scores) if hidden else scores + mask
        if padding is not None:
            scores = padding.reshape(b, 1, 1, -1).where(float("-inf"), scores)
        return scores.softmax()
