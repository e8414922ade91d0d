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
    """Grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions."""
    c = p.c
    q, k, v = _qkv(p, i, h)
    q, k = p.rope(i, q), p.rope(i, k)
    if c.query_growth:
        by = ops.reshape(p.tables["query_growth"], (-1, 1, 1))
        q = ops.mul(q, ops.broadcast(by, ops.aval(q).shape))
    sinks = p.w[f"{i}.sinks"] if c.sinks else None
    out = ops.cast(p.past.attend(i, q, k, v, sinks), float32)
    return p.project(f"{i}.o", ops.reshape(out, (-1, c.heads * c.head_dim)))


def _qkv(p: Pass, i: int, h: Value) -> tuple[Value, Value, Value]:
    """Queries [N, H, D], keys and values [N, G, D] of layer i."""
    c = p.c
    heads = (c.heads, c.kv_heads, c.kv_heads)
    if c.fused_qkv:
        q, k, v = columns(p.project(f"{i}.qkv", h), [g * c.head_dim for g in heads])
    else:
        q, k, v = (p.project(f"{i}.{r}", h) for r in "qkv")
    if c.qk_norm == "whole":
        q, k = p.norm(f"{i}.q_norm", q), p.norm(f"{i}.k_norm", k)
    q, k, v = (ops.reshape(x, (-1, g, c.head_dim)) for x, g in zip((q, k, v), heads))
    if c.qk_norm == "head":
        q, k = p.norm(f"{i}.q_norm", q), p.norm(f"{i}.k_norm", k)
    return q, k, v


def short_conv(p: Pass, i: int, h: Value) -> Value:
    """LFM2's gated short convolution: each channel of b * x over the last few rows, times c, where
    b, c and x are projections of h."""
    c = p.c
    b, gate, x = columns(p.project(f"{i}.conv_in", h), [c.hidden] * 3)
    z = ops.mul(b, x)
    taps = ops.cast(ops.reshape(p.w[f"{i}.conv.w"], (c.hidden, c.conv_taps)), float32)
    shape = ops.aval(z).shape
    out = None
    for k, row in enumerate(p.past.recent(i, z, c.conv_taps)):  # the oldest first
        tap = ops.reshape(ops.slice_(taps, (0, k), (c.hidden, k + 1)), (c.hidden,))
        part = ops.mul(row, ops.broadcast(tap, shape))
        out = part if out is None else ops.add(out, part)
    if c.conv_bias:
        out = ops.add(out, ops.broadcast(ops.cast(p.w[f"{i}.conv.b"], float32), shape))
    return p.project(f"{i}.conv_out", ops.mul(gate, out))


MIXERS: Mapping[str, Mixer] = {"attention": attention, "conv": short_conv}
