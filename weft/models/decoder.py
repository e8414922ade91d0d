"""The decoder: one function for every family, on arrays (the NumPy oracle), graph Nodes or values
on a tape alike.

Rows are flattened: row n is one token. Serving (`forward`), it is `ids[n]` at position `pos[n]` of
sequence slot `slot[n]`: a prefill passes many rows of one slot, a decode step one row per slot. New
keys and values are written into the caches, then each row attends to what its slot holds up to its
own position. Training (`train_forward`), the rows are whole sequences side by side, and attention
needs no cache. Everything else is the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.graph.ir import Graph, Node
from weft.models.config import Activation, DecoderConfig
from weft.models.matrices import matrices

Value = Any  # np.ndarray, graph Node or Tracked
Weights = Mapping[str, Value]
Attend = Callable[[int, Value, Value, Value], Value]  # layer, q[N,H,D], k and v[N,G,D] -> [N,H,D]


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
    new_keys, new_values = [], []

    def attend(i: int, q: Value, k: Value, v: Value) -> Value:
        new_keys.append(_store(c, keys[i], rows.at, k))
        new_values.append(_store(c, values[i], rows.at, v))
        length = ops.aval(new_keys[i]).shape[2]
        return ops.call(
            "cached_attention",
            ops.cast(q, c.kv_dtype),
            new_keys[i],
            new_values[i],
            rows.slot,
            rows.pos,
            scale=c.scale,
            window=c.window(i) if c.window(i) < length else 0,
            softcap=c.attn_softcap,
        )

    logits = _body(c, w, rows.ids, rows.pos, attend, INFERENCE, rows.last)
    return logits, new_keys, new_values


@dataclass(frozen=True)
class Training:
    """What training does between the steps of the model; the defaults do nothing.

    layer(i, fn, x) calls fn(x), layer i; it may recompute it backward, or look at the result. drop
    is the dropout of embeddings and residual branches, adapter_drop that of adapters' inputs.
    """

    layer: Callable[[int, Callable[[Value], Value], Value], Value] = lambda i, fn, x: fn(x)
    drop: Callable[[Value], Value] | None = None
    adapter_drop: Callable[[Value], Value] | None = None


INFERENCE = Training()


def train_forward(
    c: DecoderConfig, w: Weights, ids: Value, training: Training = INFERENCE
) -> Value:
    """Logits float32 [B * T, vocab] of whole sequences ids int32 [B, T], each from position 0."""
    batch, length = ops.aval(ids).shape

    def attend(i: int, q: Value, k: Value, v: Value) -> Value:
        heads = []
        for x in (q, k, v):
            count = ops.aval(x).shape[1]
            x = ops.reshape(ops.cast(x, c.kv_dtype), (batch, length, count, c.head_dim))
            heads.append(ops.transpose(x, (0, 2, 1, 3)))
        out = ops.call(
            "attention",
            *heads,
            causal=True,
            scale=c.scale,
            window=c.window(i) if c.window(i) < length else 0,
            softcap=c.attn_softcap,
        )
        out = ops.transpose(out, (0, 2, 1, 3))
        return ops.reshape(out, (batch * length, c.heads, c.head_dim))

    pos = ops.const(np.tile(np.arange(length, dtype=np.int32), batch))
    return _body(c, w, ops.reshape(ids, (batch * length,)), pos, attend, training)


def _body(
    c: DecoderConfig, w: Weights, ids: Value, pos: Value, attend: Attend, training: Training,
    last: Value | None = None,
) -> Value:  # fmt: skip
    """Logits of the rows (of rows `last` where given) at positions `pos`."""
    w = matrices(c.forms, w)
    drop = training.drop or _keep
    x = drop(_embed(c, w, ids, pos))
    tables = [
        (ops.gather(w[f"rope.{i}.cos"], pos), ops.gather(w[f"rope.{i}.sin"], pos))
        for i in range(len(c.ropes))
    ]
    for i in range(c.layers):
        table = tables[c.rope(i)] if tables else None

        def layer(x: Value, i: int = i, table: tuple[Value, Value] | None = table) -> Value:
            h = _norm(c, w, f"{i}.attn_norm", x)
            h = _attention(c, w, i, h, table, attend, training)
            x = ops.add(x, drop(_norm(c, w, f"{i}.attn_post", h) if c.post_norms else h))
            h = _mlp(c, w, i, _norm(c, w, f"{i}.mlp_norm", x), training)
            return ops.add(x, drop(_norm(c, w, f"{i}.mlp_post", h) if c.post_norms else h))

        x = training.layer(i, layer, x)
    if last is not None:
        x = ops.gather(x, last)
    logits = linear(c.act_dtype, _norm(c, w, "norm", x), w["head"] if "head" in w else w["embed"])
    if c.logit_softcap:
        logits = ops.mul(ops.tanh(ops.mul(logits, 1.0 / c.logit_softcap)), c.logit_softcap)
    return logits


def _keep(x: Value) -> Value:
    return x


def _embed(c: DecoderConfig, w: Weights, ids: Value, pos: Value) -> Value:
    """Token (and learned position) embeddings of the rows, float32 [N, hidden]."""
    x = ops.cast(ops.gather(w["embed"], ids), float32)
    if c.embed_scale != 1.0:  # rounded to the weights' dtype, as the reference does
        scale = np.float32(c.embed_scale).astype(ops.aval(w["embed"]).dtype.numpy)
        x = ops.mul(x, float(scale))
    if not c.ropes:
        x = ops.add(x, ops.cast(ops.gather(w["pos"], pos), float32))
    return x


def linear(
    act_dtype: DType, x: Value, w: Value, b: Value | None = None, k_first: bool = False
) -> Value:
    """x[N, K] . w -> float32 [N, M] (+ b[M]); w is [M, K], or [K, M] with `k_first`.

    Weights stay in their own dtype in memory. Weights of dtype `act_dtype` meet inputs of it;
    otherwise both sides are float32 in registers.
    """
    wide = act_dtype if ops.aval(w).dtype is act_dtype else float32
    matrix = w if k_first else ops.transpose(w)
    out = ops.dot(ops.cast(x, wide), ops.cast(matrix, wide), float32)
    return out if b is None else ops.add(out, _row(b, out))


def _project(c: DecoderConfig, w: Weights, role: str, x: Value, training: Training) -> Value:
    """The linear layer `role`, with its low-rank adapter where the weights hold one: x . w + b +
    scale (x A^T) B^T, A [r, K], B [M, r] (Hu et al., arXiv:2106.09685)."""
    bias = w.get(f"{role}.b")
    k_first = c.transposed and bias is not None  # GPT-2's layers, which all have one; not its head
    out = linear(c.act_dtype, x, w[f"{role}.w"], bias, k_first)
    if f"{role}.lora_a" not in w:
        return out
    x = (training.adapter_drop or _keep)(x)
    low = linear(c.act_dtype, x, w[f"{role}.lora_a"])
    return ops.add(out, ops.mul(linear(c.act_dtype, low, w[f"{role}.lora_b"]), c.adapter_scale))


def _row(v: Value, like: Value) -> Value:
    """A vector repeated for every row of `like`, in its dtype."""
    known = ops.aval(like)
    return ops.broadcast(ops.cast(v, known.dtype), known.shape)


def _norm(c: DecoderConfig, w: Weights, role: str, x: Value) -> Value:
    """Layer or RMS norm over the last axis."""
    if c.norm == "layer":
        return ops.call("layer_norm", x, w[f"{role}.w"], w[f"{role}.b"], eps=c.norm_eps)
    return ops.call("rms_norm", x, w[f"{role}.w"], eps=c.norm_eps, offset=c.norm_offset)


def _qkv(
    c: DecoderConfig, w: Weights, i: int, h: Value, training: Training
) -> tuple[Value, Value, Value]:
    """Queries [N, H, D], keys and values [N, G, D] of layer i."""
    n = ops.aval(h).shape[0]
    if c.fused_qkv:
        fused = _project(c, w, f"{i}.qkv", h, training)
        parts = [ops.slice_(fused, (0, j * c.hidden), (n, (j + 1) * c.hidden)) for j in range(3)]
    else:
        parts = [_project(c, w, f"{i}.{r}", h, training) for r in "qkv"]
    heads = (c.heads, c.kv_heads, c.kv_heads)
    q, k, v = (ops.reshape(p, (n, g, c.head_dim)) for p, g in zip(parts, heads))
    if c.qk_norm:
        q = _norm(c, w, f"{i}.q_norm", q)
        k = _norm(c, w, f"{i}.k_norm", k)
    return q, k, v


def _attention(
    c: DecoderConfig, w: Weights, i: int, h: Value, table: tuple[Value, Value] | None,
    attend: Attend, training: Training,
) -> Value:  # fmt: skip
    """Attention of layer i on h[N, hidden]."""
    q, k, v = _qkv(c, w, i, h, training)
    if table is not None:
        q, k = ops.call("rope", q, *table), ops.call("rope", k, *table)
    out = attend(i, q, k, v)
    n = ops.aval(h).shape[0]
    out = ops.reshape(ops.cast(out, float32), (n, c.heads * c.head_dim))
    return _project(c, w, f"{i}.o", out, training)


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
        return ops.call("relu", x)
    return ops.call("gelu", x, approximate="tanh" if act == "gelu_tanh" else "none")


def _mlp(c: DecoderConfig, w: Weights, i: int, h: Value, training: Training) -> Value:
    up = _project(c, w, f"{i}.up", h, training)
    if c.gated:
        gate = _project(c, w, f"{i}.gate", h, training)
        hidden = ops.mul(activate(c.act, gate), up)
    else:
        hidden = activate(c.act, up)
    return _project(c, w, f"{i}.down", hidden, training)


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
        ins = [given(label, rows) for label in ("ids", "slot", "place")]
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
    return Graph(inputs, (logits,), assigns, name, {"frozen": True})
