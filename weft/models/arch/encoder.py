"""The encoder: BERT, RoBERTa and DistilBERT as one function, on arrays or graph Nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.graph.ir import Graph
from weft.models.arch import token_vectors
from weft.models.arch.config import DecoderConfig, EncoderConfig, VectorConfig
from weft.models.arch.layers import activate, linear
from weft.models.arch.matrices import matrices

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]


def forward(c: VectorConfig, w: Weights, ids: Value, lengths: Value) -> Value:
    """Returns token vectors float32 [B, T, hidden] of ids int32 [B, T]. Row b has lengths[b]
    tokens; later positions are not read, and their results are undefined."""
    if isinstance(c, DecoderConfig):
        return token_vectors.forward(c, w, ids, lengths)
    w = matrices(c.forms, w)
    batch, length = ops.aval(ids).shape
    x = _embed(c, w, ids, batch, length)
    for i in range(c.layers):
        h = _attention(c, w, i, x, lengths, batch, length)
        x = _norm(c, w, f"{i}.attn_norm", ops.add(x, h))
        h = activate(c.act, _linear(c, x, w, f"{i}.up"))
        x = _norm(c, w, f"{i}.mlp_norm", ops.add(x, _linear(c, h, w, f"{i}.down")))
    return ops.reshape(x, (batch, length, c.hidden))


def _embed(c: EncoderConfig, w: Weights, ids: Value, batch: int, length: int) -> Value:
    """Returns token + position + type embeddings, normalised: [B * T, hidden]. Every text is type
    0."""
    x = ops.cast(ops.gather(w["embed"], ops.reshape(ids, (batch * length,))), float32)
    table = _positions(c, w, ids, batch, length)
    if c.token_types:
        kind = ops.cast(ops.slice_(w["type"], (0, 0), (1, c.hidden)), float32)
        table = ops.add(table, ops.broadcast(kind, ops.aval(table).shape))
    if not c.position_offset:
        table = ops.broadcast(table, (batch, length, c.hidden))
    x = ops.add(x, ops.reshape(table, (batch * length, c.hidden)))
    return _norm(c, w, "norm", x)


def _positions(c: EncoderConfig, w: Weights, ids: Value, batch: int, length: int) -> Value:
    """Returns rows of the position table, float32 [T, hidden] for all texts. In RoBERTa it is [B *
    T, hidden]: padding tokens anywhere are not counted, and have the row of their own id."""
    if not c.position_offset:
        return ops.cast(ops.slice_(w["pos"], (0, 0), (length, c.hidden)), float32)
    pad = ops.equal(ids, c.pad_id)
    real = ops.sub(1, ops.cast(pad, int32))
    rows = ops.add(ops.mul(ops.scan(real, "sum", 1), real), c.pad_id)
    return ops.cast(ops.gather(w["pos"], ops.reshape(rows, (batch * length,))), float32)


def _linear(c: EncoderConfig, x: Value, w: Weights, role: str) -> Value:
    """Returns x[R, K] . w[M, K]^T + b[M], float32 for weights of any dtype."""
    return linear(c.act_dtype, x, w[f"{role}.w"], w[f"{role}.b"])


def _norm(c: EncoderConfig, w: Weights, role: str, x: Value) -> Value:
    return ops.call("layer_norm", x, w[f"{role}.w"], w[f"{role}.b"], eps=c.norm_eps)


def _attention(
    c: EncoderConfig, w: Weights, i: int, x: Value, lengths: Value, batch: int, length: int
) -> Value:
    """Returns self attention over each row's own tokens: [B * T, hidden]."""
    heads = []
    for role in "qkv":
        h = _linear(c, x, w, f"{i}.{role}")
        h = ops.reshape(h, (batch, length, c.heads, c.head_dim))
        heads.append(ops.transpose(h, (0, 2, 1, 3)))
    out = ops.call("attention", *heads, lengths, causal=False, scale=c.head_dim**-0.5)
    out = ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (batch * length, c.hidden))
    return _linear(c, out, w, f"{i}.o")


def encoder_graph(
    c: VectorConfig,
    weights: Mapping[str, tuple[tuple[int, ...], DType]],
    batch: int,
    length: int,
) -> Graph:
    """Returns the Graph of `forward` for [batch, length] ids, with inputs "ids" and "lengths"."""
    with ops.building():
        ids = ops.input_node("ids", (batch, length), int32)
        lengths = ops.input_node("lengths", (batch,), int32)
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        out = forward(c, bound, ids, lengths)
    name = f"{c.family}.{batch}x{length}"
    inputs = (ids, lengths, *bound.values())
    return Graph(inputs, (out,), name=name, meta={"frozen": True})
