"""A Fast Conformer with a CTC head: one function on arrays or graph Nodes (Rekesh et al.,
arXiv:2305.05084)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.core.records import dataclass
from weft.graph.ir import Graph
from weft.models.arch.conformer_config import STRIDE, ConformerConfig
from weft.models.arch.layers import activate, linear, weighted
from weft.models.arch.matrices import matrices
from weft.models.arch.relative import biased_attention, by_distance

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]
EPS = 1e-5


def recognise(c: ConformerConfig, w: Weights, features: Value, length: Value) -> Value:
    """Returns logits float32 [positions, vocab] of features [frames, mels], of which the first
    length [1] count; the results of others are undefined."""
    w = matrices(c.forms, w)
    x, length = _fewer(c, w, features, length)
    run = _Run(c, w, length, ops.aval(x).shape[0])
    for i in range(c.layers):
        x = run.layer(i, x)
    return run.linear("ctc", x)


def _fewer(c: ConformerConfig, w: Weights, x: Value, length: Value) -> tuple[Value, Value]:
    """Returns the positions' vectors [positions, hidden] and how many count. Positions beyond the
    sound stay 0 after each convolution."""
    x = ops.reshape(x, (1, 1, *ops.aval(x).shape))
    side = c.reach // 2
    for i in range(c.halvings):
        window = {"stride": (STRIDE,) * 2, "padding": ((side, side),) * 2, "dilation": (1, 1)}
        groups = c.channels if i else 1
        x = ops.call("conv", x, ops.cast(w[f"sub.{i}.w"], float32), groups=groups, **window)
        length = ops.add(ops.floor_divide(ops.add(length, 2 * side - c.reach), STRIDE), 1)
        x = _within(_shifted(x, w[f"sub.{i}.b"]), length)
        if i:
            window = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1)}
            x = ops.call("conv", x, ops.cast(w[f"mix.{i}.w"], float32), groups=1, **window)
            x = _within(_shifted(x, w[f"mix.{i}.b"]), length)
        x = ops.maximum(x, 0.0)
    _, channels, count, wide = ops.aval(x).shape
    rows = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (count, channels * wide))
    x = linear(c.act_dtype, rows, w["sub.linear.w"], w["sub.linear.b"])
    return x if c.input_scale == 1.0 else ops.mul(x, c.input_scale), length


def _shifted(x: Value, bias: Value) -> Value:
    """Returns x[1, C, T, F] plus a bias [C]."""
    row = ops.reshape(ops.cast(bias, float32), (1, -1, 1, 1))
    return ops.add(x, ops.broadcast(row, ops.aval(x).shape))


def _within(x: Value, length: Value) -> Value:
    """Returns x[1, C, T, F] with 0 from T = length [1] on."""
    shape = ops.aval(x).shape
    inside = ops.less(ops.iota(shape, 2, int32),
                      ops.broadcast(ops.reshape(length, (1, 1, 1, 1)), shape))  # fmt: skip
    return ops.where(inside, x, 0.0)


def distances(c: ConformerConfig, count: int) -> np.ndarray:
    """Returns the vectors of distances from count - 1 to 1 - count, float32 [2 count - 1, hidden]:
    sines and cosines in turn (Dai et al., arXiv:1901.02860)."""
    inverse = 1.0 / 10000.0 ** (np.arange(0, c.hidden, 2, dtype=np.float32) / c.hidden)
    distance = np.arange(count - 1, -count, -1, dtype=np.float32)
    angle = distance[:, None] * inverse.astype(np.float32)
    return np.stack((np.sin(angle), np.cos(angle)), 2).reshape(len(distance), c.hidden)


@dataclass(frozen=True)
class _Run:
    """One pass over `count` positions [count, ...], of which the first `length` [1] are sound."""

    c: ConformerConfig
    w: Weights
    length: Value
    count: int

    def layer(self, i: int, x: Value) -> Value:
        x = ops.add(x, ops.mul(self.feed(f"{i}.first", x), 0.5))
        x = ops.add(x, self.attention(i, self.norm(f"{i}.attn_norm", x)))
        x = ops.add(x, self.convolution(i, self.norm(f"{i}.conv_norm", x)))
        x = ops.add(x, ops.mul(self.feed(f"{i}.second", x), 0.5))
        return self.norm(f"{i}.last", x)

    def feed(self, role: str, x: Value) -> Value:
        up = self.linear(f"{role}.up", self.norm(f"{role}.norm", x))
        return self.linear(f"{role}.down", activate(self.c.act, up))

    def attention(self, i: int, x: Value) -> Value:
        """Returns attention whose scores also depend on the distance."""
        c = self.c
        q, k, v = (self.heads(self.linear(f"{i}.{role}", x)) for role in "qkv")
        far = self.heads(self.linear(f"{i}.far", self.distances))
        scale = c.head_dim**-0.5
        moved = ops.dot(self.leaning(i, "v", q), ops.transpose(far, (0, 1, 3, 2)), float32)
        bias = by_distance(ops.mul(moved, scale))
        out = biased_attention(self.leaning(i, "u", q), k, v, bias, self.length, scale)
        out = ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (self.count, c.hidden))
        return self.linear(f"{i}.o", out)

    def leaning(self, i: int, which: str, q: Value) -> Value:
        """Returns queries [1, H, T, D] plus a bias [H, D]."""
        row = ops.cast(self.w[f"{i}.lean.{which}"], float32)
        row = ops.reshape(row, (1, self.c.heads, 1, self.c.head_dim))
        return ops.add(q, ops.broadcast(row, ops.aval(q).shape))

    def heads(self, x: Value) -> Value:
        x = ops.reshape(x, (1, -1, self.c.heads, self.c.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    @cached_property
    def distances(self) -> Value:
        return ops.const(distances(self.c, self.count))

    def convolution(self, i: int, x: Value) -> Value:
        """Returns a gated product, a convolution of each channel, a norm, and a product."""
        c, shape = self.c, (self.count, self.c.hidden)
        both = self.linear(f"{i}.in", x)
        x = ops.slice_(both, (0, 0), shape)
        gate = ops.slice_(both, (0, c.hidden), (self.count, 2 * c.hidden))
        x = ops.mul(x, ops.call("sigmoid", gate))
        inside = ops.less(ops.iota(shape, 0, int32),
                          ops.broadcast(ops.reshape(self.length, (1, 1)), shape))  # fmt: skip
        x = self.by_channel(i, ops.where(inside, x, 0.0))
        spread = ops.sqrt(ops.add(ops.cast(self.w[f"{i}.batch.var"], float32), EPS))
        scale = ops.div(ops.cast(self.w[f"{i}.batch.w"], float32), spread)
        mean = ops.mul(ops.cast(self.w[f"{i}.batch.mean"], float32), scale)
        shift = ops.sub(ops.cast(self.w[f"{i}.batch.b"], float32), mean)
        x = ops.add(ops.mul(x, self.row(scale)), self.row(shift))
        return self.linear(f"{i}.out", activate(c.act, x))

    def by_channel(self, i: int, x: Value) -> Value:
        """Returns the sum of shifted rows, each channel with weights of its own."""
        c, side = self.c, self.c.kernel // 2
        x = ops.pad(x, (side, 0), (side, 0))
        taps = ops.reshape(ops.cast(self.w[f"{i}.taps.w"], float32), (c.hidden, c.kernel))
        shifts = range(c.kernel)
        total = weighted([ops.slice_(x, (k, 0), (k + self.count, c.hidden)) for k in shifts], taps)
        bias = self.w.get(f"{i}.taps.b")
        return total if bias is None else ops.add(total, self.row(ops.cast(bias, float32)))

    def row(self, v: Value) -> Value:
        return ops.broadcast(ops.reshape(v, (1, -1)), (self.count, self.c.hidden))

    def linear(self, role: str, x: Value) -> Value:
        w = self.w[f"{role}.w"]
        shape = ops.aval(w).shape
        w = ops.reshape(w, shape[:2]) if len(shape) == 3 else w  # convolutions of one position
        return linear(self.c.act_dtype, x, w, self.w.get(f"{role}.b"))

    def norm(self, role: str, x: Value) -> Value:
        return ops.call("layer_norm", x, self.w[f"{role}.w"], self.w[f"{role}.b"], eps=EPS)


def conformer_graph(
    c: ConformerConfig, weights: Mapping[str, tuple[tuple[int, ...], DType]], frames: int
) -> Graph:
    """Returns the Graph of `recognise` for `frames`, with inputs "features" and "length"."""
    with ops.building():
        features = ops.input_node("features", (frames, c.mels), float32)
        length = ops.input_node("length", (1,), int32)
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        out = recognise(c, bound, features, length)
    inputs = (features, length, *bound.values())
    return Graph(inputs, (out,), name=f"{c.family}.{frames}", meta={"frozen": True})
