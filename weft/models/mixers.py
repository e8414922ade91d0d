"""How a layer mixes tokens: one function per kind, named by `DecoderConfig.mixers`.

Each takes the pass, the layer's number and h[N, hidden], and gives float32 [N, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft import ops
from weft.core.dtypes import float32
from weft.models.layers import Pass, Value, columns

Mixer = Callable[[Pass, int, Value], Value]


def attention(p: Pass, i: int, h: Value) -> Value:
    """Grouped-query attention (Ainslie et al., arXiv:2305.13245), rotary where the layer has a
    rope."""
    c = p.c
    n = ops.aval(h).shape[0]
    q, k, v = _qkv(p, i, h)
    rope = c.rope(i)
    if rope is not None:
        table = p.tables[rope]
        q, k = ops.call("rope", q, *table), ops.call("rope", k, *table)
    out = p.past.attend(i, q, k, v)
    out = ops.reshape(ops.cast(out, float32), (n, c.heads * c.head_dim))
    return p.project(f"{i}.o", out)


def _qkv(p: Pass, i: int, h: Value) -> tuple[Value, Value, Value]:
    """Queries [N, H, D], keys and values [N, G, D] of layer i."""
    c = p.c
    n = ops.aval(h).shape[0]
    heads = (c.heads, c.kv_heads, c.kv_heads)
    if c.fused_qkv:
        parts = columns(p.project(f"{i}.qkv", h), [g * c.head_dim for g in heads])
    else:
        parts = [p.project(f"{i}.{r}", h) for r in "qkv"]
    q, k, v = (ops.reshape(x, (n, g, c.head_dim)) for x, g in zip(parts, heads))
    if c.qk_norm:
        q = p.norm(f"{i}.q_norm", q)
        k = p.norm(f"{i}.k_norm", k)
    return q, k, v


MIXERS: Mapping[str, Mixer] = {"attention": attention}
