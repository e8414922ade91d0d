"""Mixers of tokens in layers: one function per kind, named by `DecoderConfig.mixers`.

Each takes the pass, the layer's number and h[N, hidden], and returns float32 [N, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from weft import ops
from weft.core.dtypes import float32
from weft.models.arch.layers import KeysValues, Pass, Value, activate, columns, weighted

Mixer = Callable[[Pass, int, Value], Value]


def attention(p: Pass, i: int, h: Value) -> Value:
    """Applies grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions."""
    c = p.c
    q, kv, gate = _qkv(p, i, h)
    if c.query_growth:
        by = ops.reshape(p.tables["query_growth"], (-1, 1, 1))
        q = ops.mul(q, ops.broadcast(by, ops.aval(q).shape))
    sinks = p.w[f"{i}.sinks"] if c.sinks else None
    out = ops.cast(p.past.attend(i, q, kv, sinks), float32)
    if gate is not None:
        out = ops.mul(out, ops.call("sigmoid", gate))
    return p.project(f"{i}.o", ops.reshape(out, (-1, c.heads * c.layer(i).head_dim)))


def _qkv(p: Pass, i: int, h: Value) -> tuple[Value, KeysValues | None, Value | None]:
    """Returns layer i's queries [N, H, D]; its keys and values [N, G, D], or None if it has none of
    its own; and the input of the output gate [N, H, D], or None."""
    c, layer, gate = p.c, p.c.layer(i), None
    heads = {"q": c.heads, "k": layer.kv_heads, "v": layer.kv_heads}
    if c.fused_qkv:
        joined = p.project(f"{i}.qkv", h)
        if c.fused_by_head:
            parts = by_head(joined, c.heads, (layer.head_dim,) * 3)
            parts = [ops.reshape(x, (-1, c.heads * layer.head_dim)) for x in parts]
        else:
            parts = columns(joined, [g * layer.head_dim for g in heads.values()])
        found = dict(zip(heads, parts))
    else:
        found = {r: p.project(f"{i}.{r}", h) for r in layer.projects}
    if c.output_gate:
        found["q"], gate = by_head(found["q"], c.heads, (layer.head_dim, layer.head_dim))
    if layer.projects == "qk":
        found["v"] = found["k"]
    if c.qk_norm == "whole":
        found |= {r: p.norm(f"{i}.{r}_norm", found[r]) for r in "qk"}
    if c.qkv_clip:
        limit = c.qkv_clip
        found = {r: ops.maximum(ops.minimum(x, limit), -limit) for r, x in found.items()}
    found = {r: ops.reshape(x, (-1, heads[r], layer.head_dim)) for r, x in found.items()}

    def turn(r: str) -> Value:
        if c.qk_norm_late:
            return _normed_head(p, i, r, p.rope(i, found[r]))
        return p.rope(i, _normed_head(p, i, r, found[r]))

    q = turn("q")
    if "k" not in found:
        return q, None, gate
    v = p.unit(found["v"]) if c.value_norm else found["v"]
    return q, (turn("k"), v), gate


def _normed_head(p: Pass, i: int, r: str, x: Value) -> Value:
    """Returns the queries or keys (`r`) x[N, H, D], each head's divided by its norm if the family
    does so."""
    role = f"{i}.{r}_norm"
    if p.c.qk_norm == "head":
        return p.norm(role, x)
    if p.c.qk_norm != "heads":
        return x
    one = ops.aval(p.w[f"{role}.w"]).shape
    w = ops.reshape(ops.cast(p.w[f"{role}.w"], float32), (1, *one))
    return ops.mul(p.unit(x), ops.broadcast(w, ops.aval(x).shape))


def latent(p: Pass, i: int, h: Value) -> Value:
    """Applies latent attention (DeepSeek-V2, arXiv:2405.04434): queries, and keys with values, come
    from narrow projections of h; all heads share the part of the keys that turns. The cache holds
    whole keys and values, the narrower ones with zeros behind."""
    c, d = p.c, p.c.latent
    assert d is not None
    n = ops.aval(h).shape[0]
    if d.query_rank:
        q = p.project(f"{i}.q_b", _squeezed(p, f"{i}.q_a_norm", p.project(f"{i}.q_a", h)))
    else:
        q = p.project(f"{i}.q", h)
    low, turned = columns(p.project(f"{i}.kv_a", h), (d.rank, d.turned))
    kv = p.project(f"{i}.kv_b", _squeezed(p, f"{i}.kv_a_norm", low))
    (q, q_turned), (k, v) = (
        by_head(q, c.heads, (d.plain, d.turned)), by_head(kv, c.heads, (d.plain, d.value)),
    )  # fmt: skip
    turned = p.rope(i, ops.reshape(turned, (n, 1, d.turned)))
    turned = ops.broadcast(turned, (n, c.heads, d.turned))
    q, k = ops.concat([q, p.rope(i, q_turned)], 2), ops.concat([k, turned], 2)
    q, k, v = (_widened(x, c.head_dim) for x in (q, k, v))
    out = ops.cast(p.past.attend(i, q, (k, v)), float32)
    out = ops.slice_(out, (0, 0, 0), (n, c.heads, d.value))
    return p.project(f"{i}.o", ops.reshape(out, (n, c.heads * d.value)))


def _squeezed(p: Pass, role: str, x: Value) -> Value:
    """Returns the RMS norm of a narrow projection, whose epsilon is always the same."""
    return ops.call("rms_norm", x, p.w[f"{role}.w"], eps=_LENGTH_EPS, offset=0.0)


def _widened(x: Value, size: int) -> Value:
    """Returns x[N, H, D] with zeros behind each head, [N, H, size]."""
    return ops.pad(x, (0, 0, 0), (0, 0, size - ops.aval(x).shape[2]))


def by_head(x: Value, heads: int, sizes: Sequence[int]) -> list[Value]:
    """Splits x[N, heads * sum of sizes], with each head's parts adjacent, into parts [N, heads,
    size]."""
    n, whole = ops.aval(x).shape[0], ops.reshape(x, (-1, heads, sum(sizes)))
    ends = np.cumsum([0, *sizes]).tolist()
    return [ops.slice_(whole, (0, 0, a), (n, heads, b)) for a, b in pairwise(ends)]


def short_conv(p: Pass, i: int, h: Value) -> Value:
    """Applies LFM2's gated short convolution: each channel of b * x over the last few rows, times
    c, where b, c and x are projections of h."""
    c = p.c
    b, gate, x = columns(p.project(f"{i}.conv_in", h), [c.hidden] * 3)
    return p.project(f"{i}.conv_out", ops.mul(gate, _convolved(p, i, ops.mul(b, x))))


def _convolved(p: Pass, i: int, z: Value) -> Value:
    """Convolves each channel of z[N, C] over the last few rows of its sequence."""
    c, shape = p.c, ops.aval(z).shape
    wide = shape[1]
    taps = ops.cast(ops.reshape(p.w[f"{i}.conv.w"], (wide, c.conv_taps)), float32)
    out = weighted(p.past.recent(i, z, c.conv_taps), taps)
    if c.conv_bias:
        out = ops.add(out, ops.broadcast(ops.cast(p.w[f"{i}.conv.b"], float32), shape))
    return out


def delta(p: Pass, i: int, h: Value) -> Value:
    """Applies Gated DeltaNet (Yang, Kautz and Hatamizadeh, arXiv:2412.06464): a short convolution
    of queries, keys and values, the gated delta rule, a norm of each head's result and a gate."""
    c, d = p.c, p.c.delta
    assert d is not None
    n = ops.aval(h).shape[0]
    mixed, z, b, a = _delta_parts(p, i, h)
    mixed = activate(c.act, _convolved(p, i, mixed))
    qk, v = columns(mixed, (2 * d.keys, d.values))
    # A vector of length 1 has mean square 1 after division by the root of its size.
    even = ops.const(np.full(d.key_dim, d.key_dim**-0.5, np.float32))
    qk = ops.reshape(qk, (n, 2 * d.key_heads, d.key_dim))
    qk = ops.call("rms_norm", qk, even, eps=_LENGTH_EPS / d.key_dim, offset=0.0)
    q, k = columns(ops.reshape(qk, (n, 2 * d.keys)), (d.keys, d.keys))
    step = ops.softplus(ops.add(a, ops.broadcast(_vector(p, f"{i}.decay_bias"), ops.aval(a).shape)))
    speed = ops.broadcast(ops.exp(_vector(p, f"{i}.decay")), ops.aval(a).shape)
    gates = ops.concat([ops.exp(ops.neg(ops.mul(speed, step))), ops.call("sigmoid", b)], 1)
    q, k = (ops.reshape(x, (n, d.key_heads, d.key_dim)) for x in (q, k))
    v = ops.reshape(v, (n, d.value_heads, d.value_dim))
    gates = columns(gates, (d.value_heads, d.value_heads))
    scale = d.key_dim**-0.5
    out = p.past.recur(i, q, k, v, *gates, tiled=d.tiled, scale=scale)
    out = ops.call("rms_norm", out, p.w[f"{i}.delta_norm.w"], eps=c.norm_eps, offset=0.0)
    gate = activate("silu", ops.reshape(z, ops.aval(out).shape))
    return p.project(f"{i}.delta_out", ops.reshape(ops.mul(out, gate), (n, d.values)))


_LENGTH_EPS = 1e-6  # added to squared lengths of queries and keys, and to squares of latent ones


def _delta_parts(p: Pass, i: int, h: Value) -> tuple[Value, Value, Value, Value]:
    """Returns queries, keys and values side by side [N, C], the gate's input [N, H * V], and the
    inputs of each head's learning and forgetting rates [N, H] each."""
    d = p.c.delta
    assert d is not None
    n, share = ops.aval(h).shape[0], d.value_heads // d.key_heads
    if d.fused_qkvz:
        sizes = (d.key_dim, d.key_dim, share * d.value_dim, share * d.value_dim)
        parts = by_head(p.project(f"{i}.delta_qkvz", h), d.key_heads, sizes)
        *mixed, z = (ops.reshape(x, (n, -1)) for x in parts)
        qkv = ops.concat(mixed, 1)
    else:
        qkv, z = (p.project(f"{i}.delta_{part}", h) for part in ("qkv", "z"))
    if d.fused_ba:
        parts = by_head(p.project(f"{i}.delta_ba", h), d.key_heads, (share, share))
        b, a = (ops.reshape(x, (n, d.value_heads)) for x in parts)
    else:
        b, a = (p.project(f"{i}.delta_{part}", h) for part in "ba")
    return qkv, z, b, a


def _vector(p: Pass, role: str) -> Value:
    return ops.reshape(ops.cast(p.w[role], float32), (1, -1))


MIXERS: Mapping[str, Mixer] = {
    "attention": attention,
    "conv": short_conv,
    "delta": delta,
    "latent": latent,
}
