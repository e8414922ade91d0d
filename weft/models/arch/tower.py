"""A vision tower and its projector: one function for every family, on arrays or graph Nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.core.records import dataclass
from weft.graph.ir import Graph, Node
from weft.models.arch.layers import activate, linear
from weft.models.arch.projectors import project
from weft.models.arch.tower_config import TowerActivation, TowerConfig

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]


@dataclass(frozen=True)
class Patches:
    """The patches of B pictures of T patches each, in rows: `rows` float32 [B * T, row], of which
    the first lengths[b] of picture b count. By row: `places`, float32 [T, hidden], are the rows of
    the table of positions; `cos` and `sin` [B * (leads + T), head_dim / 2] those of a rope.

    `into` int32 [W * S] has the rows of W windows with S places each, of which windows[w] count;
    `back` int32 [B * T] where each row is in them. `grid` int32 [B * T] has the row of each patch,
    picture by picture and line by line, where rows come in another order.
    """

    rows: Value
    lengths: Value
    places: Value | None = None
    cos: Value | None = None
    sin: Value | None = None
    into: Value | None = None
    windows: Value | None = None
    back: Value | None = None
    grid: Value | None = None


def forward(c: TowerConfig, w: Weights, given: Patches) -> Value:
    """Returns the vectors of the pictures' tokens, float32 [N, width * (1 + deep)]; see
    `project`."""
    run = TowerPass(c, w, given)
    x, taken = run.embed(), []
    wanted = {*c.taken, *(k + 1 for k in c.projector.deep)}
    found = {0: x} if 0 in wanted else {}
    for i in range(c.depth):
        x = run.layer(i, x)
        if i + 1 in wanted:
            found[i + 1] = x
    if c.last_norm:
        x = run.norm("last", x)
    taken = [found[k] for k in c.taken] if c.taken else [x]
    x = taken[0] if len(taken) == 1 else ops.concat(taken, 1)
    x = x if given.grid is None else ops.gather(x, given.grid)
    return project(run, x, [found[k + 1] for k in c.projector.deep])


@dataclass(frozen=True)
class TowerPass:
    """One pass: the sizes and the weights, and what its layers share. Values are [B * T, ...]."""

    c: TowerConfig
    w: Weights
    given: Patches

    @property
    def batch(self) -> int:
        """The number of pictures."""
        return int(ops.aval(self.given.lengths).shape[0])

    @property
    def length(self) -> int:
        """The rows of a picture, those before its patches included."""
        return int(ops.aval(self.given.rows).shape[0]) // self.batch + self.c.leads

    def embed(self) -> Value:
        """Returns the vectors before the layers."""
        c = self.c
        x = self.given.rows
        x = self.norm("patch_before", x) if c.patch_norms else x
        x = x if c.text else self.linear("patch", x)
        x = self.norm("patch_after", x) if c.patch_norms else x
        if self.given.places is not None:
            x = self._placed(x)
        if c.leads:
            shape = (self.batch, self.length - c.leads, c.hidden)
            leads = ops.reshape(ops.cast(self.w["leads"], float32), (1, c.leads, c.hidden))
            leads = ops.broadcast(leads, (self.batch, c.leads, c.hidden))
            x = ops.concat([leads, ops.reshape(x, shape)], 1)
            x = ops.reshape(x, (self.batch * self.length, c.hidden))
        return self.norm("first", x) if c.first_norm else x

    def _placed(self, x: Value) -> Value:
        rows, wide = ops.aval(x).shape
        shape = (self.batch, rows // self.batch, wide)
        places = ops.reshape(ops.cast(self.given.places, float32), (1, *shape[1:]))
        x = ops.add(ops.reshape(x, shape), ops.broadcast(places, shape))
        return ops.reshape(x, (rows, wide))

    def layer(self, i: int, x: Value) -> Value:
        """Returns layer i of x[B * T, hidden]."""
        for part, made in (("attn", self.attention), ("mlp", self.feed_forward)):
            h = made(i, self.norm(f"{i}.{part}_norm", x))
            h = self.norm(f"{i}.{part}_post", h) if self.c.post_norms else h
            if self.c.layer_scale:
                scale = ops.cast(ops.reshape(self.w[f"{i}.{part}_scale"], (1, -1)), float32)
                h = ops.mul(h, ops.broadcast(scale, ops.aval(h).shape))
            x = ops.add(x, h)
        return x

    def feed_forward(self, i: int, x: Value) -> Value:
        """Returns the feed-forward of layer i."""
        c = self.c
        if not c.gated:
            return self.linear(f"{i}.down", acted(c.act, self.linear(f"{i}.up", x)))
        gate = acted(c.act, self.linear(f"{i}.gate", x))
        return self.linear(f"{i}.down", ops.mul(gate, self.linear(f"{i}.up", x)))

    def attention(self, i: int, x: Value) -> Value:
        """Returns attention of layer i, over the picture or over windows of it."""
        c, given = self.c, self.given
        q, k, v = self._projected(i, x)
        windowed = given.into is not None and i not in c.full
        batch, lengths = self.batch, ops.add(given.lengths, c.leads)
        if windowed:
            batch, lengths = int(ops.aval(given.windows).shape[0]), given.windows
            q, k, v = (ops.gather(rows, given.into) for rows in (q, k, v))
        q, k, v = (self._heads(rows, batch) for rows in (q, k, v))
        more: dict[str, Any] = {
            "causal": c.causal,
            "scale": c.scale or c.head_dim**-0.5,
            "window": 0,
        }
        out = ops.transpose(ops.call("attention", q, k, v, lengths, **more), (0, 2, 1, 3))
        out = ops.reshape(out, (-1, c.hidden))
        return self.linear(f"{i}.o", ops.gather(out, given.back) if windowed else out)

    def _projected(self, i: int, x: Value) -> list[Value]:
        """Returns queries, keys and values, [B * T, H, D]."""
        c, rows = self.c, ops.aval(x).shape[0]
        if c.fused_qkv:
            whole = self.linear(f"{i}.qkv", x)
            cuts = [(k * c.hidden, (k + 1) * c.hidden) for k in range(3)]
            parts = [ops.slice_(whole, (0, a), (rows, b)) for a, b in cuts]
        else:
            parts = [self.linear(f"{i}.{role}", x) for role in "qkv"]
        if c.qk_norm == "whole":
            parts[:2] = [self.norm(f"{i}.{r}_norm", p) for r, p in zip("qk", parts)]
        parts = [ops.reshape(part, (rows, c.heads, c.head_dim)) for part in parts]
        if c.qk_norm == "head":
            parts[:2] = [self.norm(f"{i}.{r}_norm", p) for r, p in zip("qk", parts)]
        if c.v_norm:
            parts[2] = self.bare_norm(parts[2])
        if self.given.cos is not None:
            turned = [ops.call("rope", p, self.given.cos, self.given.sin) for p in parts[:2]]
            parts = [*turned, parts[2]]
        return parts

    def _heads(self, x: Value, batch: int) -> Value:
        c = self.c
        return ops.transpose(ops.reshape(x, (batch, -1, c.heads, c.head_dim)), (0, 2, 1, 3))

    def linear(self, role: str, x: Value) -> Value:
        """Returns x[R, K] . w[M, K]^T + b[M], float32 for weights of any dtype."""
        w = self.w
        if f"{role}.clip" not in w:
            return linear(self.c.act_dtype, x, w[f"{role}.w"], w.get(f"{role}.b"))
        x = _clipped(x, w[f"{role}.clip"], 0)
        return _clipped(linear(self.c.act_dtype, x, w[f"{role}.w"]), w[f"{role}.clip"], 2)

    def norm(self, role: str, x: Value, eps: float = 0.0, rms: bool | None = None) -> Value:
        """Returns a norm over the last axis."""
        c, w = self.c, self.w[f"{role}.w"]
        if c.norm == "rms" if rms is None else rms:
            return ops.call("rms_norm", x, w, eps=eps or c.eps)
        zeros = ops.const(np.zeros(ops.aval(w).shape[0], np.float32))
        return ops.call("layer_norm", x, w, self.w.get(f"{role}.b", zeros), eps=eps or c.eps)

    def bare_norm(self, x: Value, eps: float = 0.0) -> Value:
        """Returns an RMS norm without weights over the last axis."""
        ones = ops.const(np.ones(ops.aval(x).shape[-1], np.float32))
        return ops.call("rms_norm", x, ones, eps=eps or self.c.eps)


def _clipped(x: Value, limits: Value, at: int) -> Value:
    """Returns x[R, M] between limits[at] and limits[at + 1]."""
    shape = ops.aval(x).shape
    ends = (ops.slice_(ops.cast(limits, float32), (at + k,), (at + k + 1,)) for k in range(2))
    least, most = (ops.broadcast(ops.reshape(end, (1, 1)), shape) for end in ends)
    return ops.minimum(ops.maximum(x, least), most)


def acted(act: TowerActivation, x: Value) -> Value:
    """Applies an activation function to each element."""
    return ops.swish(x, 1.702) if act == "quick_gelu" else activate(act, x)


def tower_graph(
    c: TowerConfig,
    weights: Mapping[str, tuple[tuple[int, ...], DType]],
    batch: int,
    length: int,
    windows: tuple[int, int] | None = None,
) -> Graph:
    """Returns the Graph of `forward` for `batch` pictures of `length` patches, with the fields of
    `Patches` as inputs, and `windows` (their number, the places of each)."""
    rows, half = batch * length, c.head_dim // 2
    shapes: dict[str, tuple[tuple[int, ...], DType]] = {
        "rows": ((rows, c.row), float32), "lengths": ((batch,), int32),
    }  # fmt: skip
    if c.placed:
        shapes["places"] = ((length, c.hidden), float32)
    if c.masked:
        shapes["grid"] = ((rows,), int32)
    if c.ropes:
        turned = rows + batch * c.leads
        shapes |= {"cos": ((turned, half), float32), "sin": ((turned, half), float32)}
    if windows is not None:
        count, places = windows
        shapes |= {"into": ((count * places,), int32), "windows": ((count,), int32)}
        shapes["back"] = ((rows,), int32)
    with ops.building():
        given: dict[str, Node] = {k: ops.input_node(k, s, d) for k, (s, d) in shapes.items()}
        bound = {k: ops.input_node(k, s, d, "weight") for k, (s, d) in weights.items()}
        out = forward(c, bound, Patches(**given))
    inputs = (*given.values(), *bound.values())
    return Graph(inputs, (out,), name=f"{c.family}.tower.{batch}x{length}", meta={"frozen": True})
