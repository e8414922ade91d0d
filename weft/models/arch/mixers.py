"""Mixers of tokens in layers: one function per kind, named by `DecoderConfig.mixers`.

Each takes the pass, the layer's number and h[N, hidden], and returns float32 [N, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft import ops
from weft.core.dtypes import float32
from weft.models.arch.latent import latent
from weft.models.arch.layers import KeysValues, Pass, Value, by_head, columns, scaled
from weft.models.arch.recurrent import delta, mamba, mamba2, short_conv

Mixer = Callable[[Pass, int, Value], Value]


def attention(p: Pass, i: int, h: Value) -> Value:
    """Applies grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions."""
    c = p.c
    q, kv, gate = _qkv(p, i, h)
    if c.query_growth and not (c.growth_still and c.rope(i) is not None):
        by = ops.reshape(p.tables["query_growth"], (-1, 1, 1))
        q = ops.mul(q, ops.broadcast(by, ops.aval(q).shape))
    q = p.at(f"{i}.attn.q", q)
    if kv is not None:
        kv = p.at(f"{i}.attn.k", kv[0]), p.at(f"{i}.attn.v", kv[1])
    sinks = p.w[f"{i}.sinks"] if c.sinks else None
    out = ops.cast(p.past.attend(i, q, kv, sinks), float32)
    if gate is not None:
        out = ops.mul(out, ops.call("sigmoid", gate))
    out = p.at(f"{i}.attn.heads", out)
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
    if p.c.qk_norm == "turned":
        return x if p.c.rope(i) is None else p.unit(x)
    if p.c.qk_norm != "heads":
        return x
    one = ops.aval(p.w[f"{role}.w"]).shape
    w = ops.reshape(ops.cast(p.w[f"{role}.w"], float32), (1, *one))
    return ops.mul(p.unit(x), ops.broadcast(w, ops.aval(x).shape))


def attention_and_states(p: Pass, i: int, h: Value) -> Value:
    """Applies Falcon-H1's attention and state space in parallel."""
    s = p.c.space
    assert s is not None
    one = scaled(attention(p, i, scaled(h, s.beside_in)), s.beside_out)
    return ops.add(one, scaled(mamba2(p, i, h), s.scale_out))


MIXERS: Mapping[str, Mixer | None] = {
    "attention": attention,
    "attention and mamba2": attention_and_states,
    "conv": short_conv,
    "delta": delta,
    "latent": latent,
    "mamba": mamba,
    "mamba2": mamba2,
    "none": None,
}
