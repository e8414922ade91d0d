"""The decoder: one function for every family, on arrays (the NumPy oracle) or graph Nodes alike.

Rows are flattened: row n is one token, `ids[n]`, at position `pos[n]` of sequence slot `slot[n]`.
A prefill passes many rows of one slot, a decode step one row per slot; both run this code. New
keys and values are written into the caches, then each row attends to what its slot holds up to
its own position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, bfloat16, float32, int32
from weft.graph.ir import Graph, Node
from weft.models.config import Activation, DecoderConfig

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]


@dataclass(frozen=True)
class Rows:
    """Which tokens a step computes. All int32.

    ids, slot, pos: [N]. at: [N * G], the cache row (slot * G + g) * L + pos that row n's key and
    value of head g go to; negative where row n is padding. last: [R], the rows whose logits are
    wanted, or None for all.
    """

    ids: Value
    slot: Value
    pos: Value
    at: Value
    last: Value | None = None


def forward(
    c: DecoderConfig,
    w: Weights,
    rows: Rows,
    keys: Sequence[Value],
    values: Sequence[Value],
) -> tuple[Value, list[Value], list[Value]]:
    """Logits float32 [N or R, vocab] and the new caches, one per layer ([S, G, L, D])."""
    x = _embed(c, w, rows)
    tables = [
        (ops.gather(w[f"rope.{i}.cos"], rows.pos), ops.gather(w[f"rope.{i}.sin"], rows.pos))
        for i in range(len(c.ropes))
    ]
    new_keys, new_values = [], []
    for i in range(c.layers):
        table = tables[c.rope(i)] if tables else None
        h = _norm(c, w, f"{i}.attn_norm", x)
        h, kc, vc = _attention(c, w, i, h, rows, table, keys[i], values[i])
        new_keys.append(kc)
        new_values.append(vc)
        x = ops.add(x, _norm(c, w, f"{i}.attn_post", h) if c.post_norms else h)
        h = _mlp(c, w, i, _norm(c, w, f"{i}.mlp_norm", x))
        x = ops.add(x, _norm(c, w, f"{i}.mlp_post", h) if c.post_norms else h)
    if rows.last is not None:
        x = ops.gather(x, rows.last)
    logits = linear(c, _norm(c, w, "norm", x), w["embed" if c.tied else "head"])
    if c.logit_softcap:
        logits = ops.mul(ops.tanh(ops.mul(logits, 1.0 / c.logit_softcap)), c.logit_softcap)
    return logits, new_keys, new_values


def _embed(c: DecoderConfig, w: Weights, rows: Rows) -> Value:
    """Token (and learned position) embeddings of the rows, float32 [N, hidden]."""
    x = ops.cast(ops.gather(w["embed"], rows.ids), float32)
    if c.embed_scale != 1.0:  # rounded to the weights' dtype, as the reference does
        scale = np.float32(c.embed_scale).astype(ops.aval(w["embed"]).dtype.numpy)
        x = ops.mul(x, float(scale))
    if not c.ropes:
        x = ops.add(x, ops.cast(ops.gather(w["pos"], rows.pos), float32))
    return x


def linear(c: DecoderConfig, x: Value, w: Value, b: Value | None = None) -> Value:
    """x[N, K] . w -> float32 [N, M] (+ b[M]); w is [M, K], or [K, M] in GPT-2's layers (which all
    have a bias, unlike its head).

    Weights stay in their own dtype in memory. bfloat16 weights may meet bfloat16 inputs
    (`act_dtype`); otherwise both sides are float32 in registers.
    """
    wide = float32
    if c.act_dtype is bfloat16 and ops.aval(w).dtype is bfloat16:
        wide = bfloat16
    k_first = b is not None and c.transposed
    matrix = w if k_first else ops.transpose(w)
    out = ops.dot(ops.cast(x, wide), ops.cast(matrix, wide), float32)
    return out if b is None else ops.add(out, _row(b, out))


def _row(v: Value, like: Value) -> Value:
    """A vector repeated for every row of `like`, in its dtype."""
    known = ops.aval(like)
    return ops.broadcast(ops.cast(v, known.dtype), known.shape)


def _norm(c: DecoderConfig, w: Weights, role: str, x: Value) -> Value:
    """Layer or RMS norm over the last axis."""
    if c.norm == "layer":
        return ops.call("layer_norm", x, w[f"{role}.w"], w[f"{role}.b"], eps=c.norm_eps)
    return ops.call("rms_norm", x, w[f"{role}.w"], eps=c.norm_eps, offset=c.norm_offset)


def _qkv(c: DecoderConfig, w: Weights, i: int, h: Value) -> tuple[Value, Value, Value]:
    """Queries [N, H, D], keys and values [N, G, D] of layer i."""
    n = ops.aval(h).shape[0]
    if c.fused_qkv:
        fused = linear(c, h, w[f"{i}.qkv.w"], w[f"{i}.qkv.b"])
        parts = [ops.slice_(fused, (0, j * c.hidden), (n, (j + 1) * c.hidden)) for j in range(3)]
    else:
        parts = [linear(c, h, w[f"{i}.{r}.w"], w.get(f"{i}.{r}.b")) for r in "qkv"]
    heads = (c.heads, c.kv_heads, c.kv_heads)
    q, k, v = (ops.reshape(p, (n, g, c.head_dim)) for p, g in zip(parts, heads))
    if c.qk_norm:
        q = _norm(c, w, f"{i}.q_norm", q)
        k = _norm(c, w, f"{i}.k_norm", k)
    return q, k, v


def _attention(
    c: DecoderConfig,
    w: Weights,
    i: int,
    h: Value,
    rows: Rows,
    table: tuple[Value, Value] | None,
    keys: Value,
    values: Value,
) -> tuple[Value, Value, Value]:
    """Attention of layer i on h[N, hidden]; also the layer's caches with the new rows in place."""
    q, k, v = _qkv(c, w, i, h)
    if table is not None:
        q, k = ops.call("rope", q, *table), ops.call("rope", k, *table)
    keys = _store(c, keys, rows.at, k)
    values = _store(c, values, rows.at, v)
    length = ops.aval(keys).shape[2]
    window = c.window(i) if c.window(i) < length else 0
    out = ops.call(
        "cached_attention",
        ops.cast(q, c.kv_dtype),
        keys,
        values,
        rows.slot,
        rows.pos,
        scale=c.scale,
        window=window,
        softcap=c.attn_softcap,
    )
    n = ops.aval(h).shape[0]
    out = ops.reshape(ops.cast(out, float32), (n, c.heads * c.head_dim))
    return linear(c, out, w[f"{i}.o.w"], w.get(f"{i}.o.b")), keys, values


def _store(c: DecoderConfig, cache: Value, at: Value, new: Value) -> Value:
    """The cache [S, G, L, D] with rows `at` of its [S*G*L, D] view replaced by new[N, G, D]."""
    shape = ops.aval(cache).shape
    flat = ops.reshape(cache, (-1, c.head_dim))
    fresh = ops.reshape(ops.cast(new, c.kv_dtype), (-1, c.head_dim))
    return ops.reshape(ops.update(flat, at, fresh), shape)


def activate(act: Activation, x: Value) -> Value:
    """The activation function, element by element."""
    if act == "silu":
        return ops.call("silu", x)
    if act == "relu":
        return ops.maximum(x, 0.0)
    return ops.call("gelu", x, approximate="tanh" if act == "gelu_tanh" else "none")


def _mlp(c: DecoderConfig, w: Weights, i: int, h: Value) -> Value:
    up = linear(c, h, w[f"{i}.up.w"], w.get(f"{i}.up.b"))
    if c.gated:
        gate = linear(c, h, w[f"{i}.gate.w"], w.get(f"{i}.gate.b"))
        hidden = ops.mul(activate(c.act, gate), up)
    else:
        hidden = activate(c.act, up)
    return linear(c, hidden, w[f"{i}.down.w"], w.get(f"{i}.down.b"))


# -- the graph -------------------------------------------------------------------------------------


def decoder_graph(
    c: DecoderConfig,
    weights: Mapping[str, tuple[tuple[int, ...], DType]],
    rows: int,
    slots: int,
    context: int,
    last: bool,
    name: str,
) -> Graph:
    """The Graph of one step of at most `rows` rows (the scalar "n" says how many) over `slots`
    caches of `context` positions. With `last` it gives the logits of one row, given at run time
    by the input "last" [1]; else of all rows. `weights` gives each role's shape and dtype."""

    def given(label: str, size: int, bound: str | None = "n") -> Node:
        return ops.input_node(label, (size,), int32, "input", rows=bound)

    with ops.building():
        ins = [given(label, rows) for label in ("ids", "slot", "pos")]
        ins.append(given("at", rows * c.kv_heads, None))
        if last:
            ins.append(given("last", 1, None))
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        shape = (slots, c.kv_heads, context, c.head_dim)
        caches = [
            [ops.input_node(f"{kind}.{i}", shape, c.kv_dtype, "state") for i in range(c.layers)]
            for kind in ("keys", "values")
        ]
        logits, keys, values = forward(c, bound, Rows(*ins), *caches)
    assigns = tuple(zip(caches[0] + caches[1], keys + values))
    inputs = (*ins, *bound.values(), *caches[0], *caches[1])
    return Graph(inputs, (logits,), assigns, name)
