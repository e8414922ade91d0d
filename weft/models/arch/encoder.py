"""The encoder: one function for every family, on arrays or graph Nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.core.records import dataclass
from weft.graph.ir import Graph
from weft.models.arch import token_vectors
from weft.models.arch.config import DecoderConfig
from weft.models.arch.encoder_config import EncoderConfig, VectorConfig
from weft.models.arch.layers import activate, by_head, linear, rotated
from weft.models.arch.matrices import matrices
from weft.models.arch.relative import (
    biased_attention,
    bucket_bias,
    disentangled,
    falling_bias,
)

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]


def forward(
    c: VectorConfig, w: Weights, ids: Value, lengths: Value, types: Value | None = None
) -> Value:
    """Returns token vectors float32 [B, T, hidden] of ids int32 [B, T]. Row b has lengths[b]
    tokens; later positions are not read, and their results are undefined. `types` int32 [B, T] are
    the parts of a text that the tokens are in; None: 0."""
    if isinstance(c, DecoderConfig):
        return token_vectors.forward(c, w, ids, lengths)
    batch, length = ops.aval(ids).shape
    run = Run(c, matrices(c.forms, w), batch, length, lengths)
    x = run.embed(ids, types)
    for i in range(c.layers):
        x = run.layer(i, x)
    x = run.norm("last", x) if c.pre_norms else x
    return ops.reshape(x, (batch, length, c.hidden))


@dataclass(frozen=True)
class Run:
    """One pass: the sizes and the weights, and what its layers share. Values are [B * T, ...]."""

    c: EncoderConfig
    w: Weights
    batch: int
    length: int
    lengths: Value

    def embed(self, ids: Value, types: Value | None) -> Value:
        """Returns token + position + type embeddings, normalised: [B * T, hidden]."""
        c, w, rows = self.c, self.w, (self.batch * self.length,)
        x = ops.cast(ops.gather(w["embed"], ops.reshape(ids, rows)), float32)
        width = c.embed_size or c.hidden
        if c.learned or c.token_types:
            table = self._positions(ids) if c.learned else None
            if c.token_types:
                kind = self._types(types, width)
                if table is None or types is not None:
                    table = kind if table is None else ops.add(self._spread(table), kind)
                else:
                    table = ops.add(table, ops.broadcast(kind, ops.aval(table).shape))
            x = ops.add(x, self._spread(table))
        x = self.norm("norm", x) if c.embed_norm else x
        return self.linear("project", x) if c.embed_size else x

    def _spread(self, table: Value) -> Value:
        """Returns rows [1, T or B * T, width] for all tokens, [B * T, width]."""
        width = ops.aval(table).shape[1]
        if ops.aval(table).shape[0] != self.batch * self.length:
            table = ops.broadcast(table, (self.batch, self.length, width))
        return ops.reshape(table, (self.batch * self.length, width))

    def _types(self, types: Value | None, width: int) -> Value:
        """Returns rows of the table of types: [1, width], or [B * T, width]."""
        if types is None:
            return ops.cast(ops.slice_(self.w["type"], (0, 0), (1, width)), float32)
        flat = ops.reshape(types, (self.batch * self.length,))
        return ops.cast(ops.gather(self.w["type"], flat), float32)

    def _positions(self, ids: Value) -> Value:
        """Returns rows of the position table, float32 [T, hidden] for all texts. In RoBERTa it is
        [B * T, hidden]: padding tokens anywhere are not counted, and have the row of their own
        id."""
        c, w = self.c, self.w
        if not c.counted:
            first = c.position_offset
            end = (first + self.length, c.embed_size or c.hidden)
            return ops.cast(ops.slice_(w["pos"], (first, 0), end), float32)
        pad = ops.equal(ids, c.pad_id)
        real = ops.sub(1, ops.cast(pad, int32))
        rows = ops.add(ops.mul(ops.scan(real, "sum", 1), real), c.pad_id)
        flat = ops.reshape(rows, (self.batch * self.length,))
        return ops.cast(ops.gather(w["pos"], flat), float32)

    def layer(self, i: int, x: Value) -> Value:
        """Returns layer i of x[B * T, hidden]."""
        c, at = self.c, self.c.stored(i)
        if c.pre_norms:
            h = x if not i and not c.first_norm else self.norm(f"{at}.attn_norm", x)
            x = ops.add(x, self.attention(i, h))
            return ops.add(x, self.feed_forward(at, self.norm(f"{at}.mlp_norm", x)))
        x = self.norm(f"{at}.attn_norm", ops.add(x, self.attention(i, x)))
        return self.norm(f"{at}.mlp_norm", ops.add(x, self.feed_forward(at, x)))

    def feed_forward(self, at: int, x: Value) -> Value:
        c = self.c
        if not c.gated:
            return self.linear(f"{at}.down", activate(c.act, self.linear(f"{at}.up", x)))
        if c.fused_gate:
            both = self.linear(f"{at}.up", x)
            gate, up = columns(both, 2)
            gate, up = (gate, up) if c.fused_gate == "gate first" else (up, gate)
        else:
            gate, up = self.linear(f"{at}.gate", x), self.linear(f"{at}.up", x)
        return self.linear(f"{at}.down", ops.mul(activate(c.act, gate), up))

    def attention(self, i: int, x: Value) -> Value:
        """Returns self attention over each row's own tokens: [B * T, hidden]."""
        c, at = self.c, self.c.stored(i)
        if c.by_head:
            rows = self._by_head(at, x)
        elif c.fused_qkv:
            rows = columns(self.linear(f"{at}.qkv", x), 3)
        else:
            rows = [self.linear(f"{at}.{role}", x) for role in "qkv"]
        q, k, v = (self._heads(self._turned(i, n, h)) for n, h in enumerate(rows))
        scale = c.head_dim**-0.5 if c.scaled else 1.0
        if c.relative is None:
            window = c.windows[i] if c.windows else 0
            window = window if window < self.length else 0
            more = {"causal": False, "scale": scale, "window": window}
            out = ops.call("attention", q, k, v, self.lengths, **more)
        else:
            scale, bias = self._bias(i, q, k, scale)
            out = biased_attention(q, k, v, bias, self.lengths, scale)
        width = c.heads * c.head_dim
        out = ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (self.batch * self.length, width))
        return self.linear(f"{at}.o", out)

    def _by_head(self, at: int, x: Value) -> list[Value]:
        """Returns q, k and v [B * T, H * D] of a product that has them head by head."""
        c, out = self.c, []
        joined = self.linear(f"{at}.qkv", x)
        for role, part in zip("qkv", by_head(joined, c.heads, (c.head_dim,) * 3)):
            rows = ops.reshape(part, (self.batch * self.length, c.heads * c.head_dim))
            bias = self.w.get(f"{at}.{role}.b")
            if bias is not None:
                bias = ops.cast(ops.reshape(bias, (1, -1)), float32)
                rows = ops.add(rows, ops.broadcast(bias, ops.aval(rows).shape))
            out.append(rows)
        return out

    def _turned(self, i: int, which: int, x: Value) -> Value:
        """Returns q, k or v (`which` 0 to 2) [B * T, H, D], the first two turned by a rope."""
        c = self.c
        x = ops.reshape(x, (self.batch * self.length, c.heads, c.head_dim))
        if not c.ropes or which == 2:
            return x
        at = c.layer_rope[i] if c.layer_rope else 0
        cos, sin = self._tables[f"rope.{at}.cos"], self._tables[f"rope.{at}.sin"]
        return rotated(x, cos, sin, c.rope_pairs)

    def _heads(self, x: Value) -> Value:
        c = self.c
        x = ops.reshape(x, (self.batch, self.length, c.heads, c.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def _bias(self, i: int, q: Value, k: Value, scale: float) -> tuple[float, Value]:
        """Returns the factor on q . k and what is added to it, by the tokens' distances."""
        c, at = self.c, self.c.stored(i)
        how = c.relative
        assert how is not None
        if how.form == "alibi":
            return scale, self._falling
        if how.form == "bias":
            return scale, self._shared_bias if not how.each else bucket_bias(
                self.w[f"{at}.bias"], how, self.length
            )
        scale = (c.head_dim * (1 + len(how.kinds))) ** -0.5

        def project(role: str, rows: Value) -> Value:
            stem = f"{at}.{role}" if how.shared else f"{at}.pos_{role}"
            out = self.linear(stem, rows)
            return ops.reshape(out, (-1, c.heads, c.head_dim))

        return scale, disentangled(how, self._distances, q, k, scale, self.length, project)

    @cached_property
    def _shared_bias(self) -> Value:
        assert self.c.relative is not None
        return bucket_bias(self.w["bias"], self.c.relative, self.length)

    @cached_property
    def _falling(self) -> Value:
        return falling_bias(self.c.heads, self.length)

    @cached_property
    def _distances(self) -> Value:
        """The vectors of distances, float32 [2 span, hidden]."""
        assert self.c.relative is not None
        table = ops.cast(self.w["distance"], float32)
        return self.norm("distance_norm", table) if self.c.relative.normed else table

    @cached_property
    def _tables(self) -> dict[str, Value]:
        """The ropes' tables for each row, [B * T, R / 2]."""
        rows = ops.const(np.tile(np.arange(self.length, dtype=np.int32), self.batch))
        return {k: ops.gather(v, rows) for k, v in self.w.items() if k.startswith("rope.")}

    def linear(self, role: str, x: Value) -> Value:
        """Returns x[R, K] . w[M, K]^T + b[M], float32 for weights of any dtype."""
        return linear(self.c.act_dtype, x, self.w[f"{role}.w"], self.w.get(f"{role}.b"))

    def norm(self, role: str, x: Value) -> Value:
        return normed(self.c, self.w, role, x)


def normed(c: EncoderConfig, weights: Weights, role: str, x: Value) -> Value:
    """Returns the layer or RMS norm over the last axis, with the weights of `role`."""
    w = weights[f"{role}.w"]
    if c.norm == "rms":
        return ops.call("rms_norm", x, w, eps=c.norm_eps)
    zeros = ops.const(np.zeros(ops.aval(w).shape[0], np.float32))
    return ops.call("layer_norm", x, w, weights.get(f"{role}.b", zeros), eps=c.norm_eps)


def columns(x: Value, count: int) -> list[Value]:
    """Returns the `count` equal parts of x[R, M] side by side."""
    rows, wide = ops.aval(x).shape
    n = wide // count
    return [ops.slice_(x, (0, k * n), (rows, k * n + n)) for k in range(count)]


def encoder_graph(
    c: VectorConfig,
    weights: Mapping[str, tuple[tuple[int, ...], DType]],
    batch: int,
    length: int,
    typed: bool = False,
) -> Graph:
    """Returns the Graph of `forward` for [batch, length] ids, with inputs "ids" and "lengths", and
    if `typed` "types"."""
    with ops.building():
        ids = ops.input_node("ids", (batch, length), int32)
        lengths = ops.input_node("lengths", (batch,), int32)
        types = ops.input_node("types", (batch, length), int32) if typed else None
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        out = forward(c, bound, ids, lengths, types)
    name = f"{c.family}.{batch}x{length}"
    inputs = (ids, lengths, *(() if types is None else (types,)), *bound.values())
    return Graph(inputs, (out,), name=name, meta={"frozen": True})
