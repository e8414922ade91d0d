"""Multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.nn import init, tree
from weft.nn.dropout import Dropout
from weft.nn.layers import Linear, empty
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.attention import attention_scores, weighted_values
from weft.tensor.core import Tensor
from weft.tensor.padding import pad
from weft.tensor.shapes import cat


class MultiheadAttention(Module):
    """Attention with `num_heads` heads of embed_dim / num_heads (Vaswani et al. 2017), with
    PyTorch's parameters: in_proj_weight [3 E, E], in_proj_bias [3 E], out_proj. Where `kdim` or
    `vdim` is not E, there are q_proj_weight, k_proj_weight and v_proj_weight instead.

    query is [T, B, E], key [S, B, kdim] and value [S, B, vdim]. With batch_first they are [B, T, E]
    and so on. `add_bias_kv` adds a learned key and value (bias_k, bias_v), `add_zero_attn` ones of
    zeros; every query sees them. Without masks and dropout the T x S matrix of weights is never
    formed. Raises ShapeError for sizes that do not fit.

    >>> x = weft.ones((5, 1, 8))
    >>> nn.MultiheadAttention(8, 2)(x, x, x)[0].shape
    (5, 1, 8)
    """

    in_proj_weight: Tensor
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False,
    ):  # fmt: skip
        if num_heads < 1 or embed_dim % num_heads:
            raise ShapeError(f"MultiheadAttention: {embed_dim} does not divide by {num_heads}")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.head_dim = embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.add_zero_attn = add_zero_attn
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = init.xavier_uniform_(empty(3 * embed_dim, embed_dim))
        else:
            for name, size in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
                weight = init.xavier_uniform_(empty(embed_dim, size))
                setattr(self, f"{name}_proj_weight", weight)
        self.in_proj_bias = empty(3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self.bias_k, self.bias_v = (
            init.xavier_normal_(empty(1, 1, embed_dim)) if add_bias_kv else None for _ in range(2)
        )
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        self.dropout = Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = False, attn_mask: Tensor | None = None, is_causal: bool = False,
        average_attn_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Returns the result, shaped as query, and the weights, if needed: averaged over heads
        [B, T, S], or of each [B, H, T, S].

        `key_padding_mask` [B, S]: True for keys to leave out. `attn_mask` [T, S] (or [B H, T, S]):
        True for pairs to leave out, or floats to add to the scores. `is_causal`: query t sees keys
        up to t
        + S - T, without a mask. A query that sees no key gives NaN with a mask, else zeros.
        """
        own = query is key and key is value
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        sizes = (self.embed_dim, self.kdim, self.vdim)
        given = (query, key, value)
        if any(x.ndim != 3 or x.shape[-1] != size for x, size in zip(given, sizes)):
            shapes = ", ".join(str(list(x.shape)) for x in given)
            raise ShapeError(
                f"MultiheadAttention: query, key and value {shapes}; expected three axes, the last "
                f"of {', '.join(map(str, sizes))}"
            )
        q, k, v = map(self._heads, self._projected(query, key, value, own))
        k, v, more = self._with_own_keys(k, v)
        attn_mask, key_padding_mask = (
            m if m is None or not more else _longer(m, more) for m in (attn_mask, key_padding_mask)
        )
        plain = attn_mask is None and key_padding_mask is None and not (more and is_causal)
        if plain and not need_weights and not (self.dropout.p > 0 and self.training):
            mixed, weights = F.attention(q, k, v, causal=is_causal), None
        else:
            if is_causal and attn_mask is None:
                raise UsageError(
                    "MultiheadAttention: is_causal alone allows no other mask, dropout, weights or "
                    "added keys; give attn_mask too"
                )
            weights = self._weights(q, k, key_padding_mask, attn_mask)
            mixed = weighted_values(self.dropout(weights), v)
            shown = weights.mean(1) if average_attn_weights else weights
            weights = shown.cast(v.dtype) if need_weights else None
        b, _, t, _ = mixed.shape
        out = self.out_proj(mixed.transpose(1, 2).reshape(b, t, self.embed_dim))
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def extra_repr(self) -> str:
        inner = {"kdim": self.kdim, "vdim": self.vdim}
        sizes = [f"{name}={size}" for name, size in inner.items() if size != self.embed_dim]
        return ", ".join([tree.options(self, tuple(inner)), *sizes])

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, own: bool) -> Sequence[Tensor]:
        """Queries, keys and values [B, T, E]; one product when they are of one tensor."""
        e = self.embed_dim
        if own and self.kdim == self.vdim == e:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).split(e, -1)
        if self.kdim == self.vdim == e:
            weights = self.in_proj_weight.split(e)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(e)
        return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]

    def _with_own_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values [B, H, S, D] with those of the module, and how many those are."""
        more = 0
        if self.bias_k is not None and self.bias_v is not None:
            rows = (
                self._heads(x).expand(*k.shape[:2], 1, k.shape[3])
                for x in (self.bias_k, self.bias_v)
            )
            k, v = (cat([x, row.cast(x.dtype)], 2) for x, row in zip((k, v), rows))
            more += 1
        if self.add_zero_attn:
            k, v = (x.pad([(0, 0), (0, 0), (0, 1), (0, 0)]) for x in (k, v))
            more += 1
        return k, v, more

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


def _longer(mask: Tensor, more: int) -> Tensor:
    """A mask for `more` further keys, which every query sees."""
    return pad(mask, (0, more))
