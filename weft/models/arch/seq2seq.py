"""A model with an encoder and a decoder: one function for each step and every family, on arrays or
graph Nodes.

The encoder runs once per input. It stores the keys and values that the decoder's cross attention
reads, in planes [slots, H, S, D]. The decoder's rows are tokens, as in `decoder`; its own keys and
values are in planes [slots, H, L, D].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.core.records import dataclass
from weft.models.arch.encoder import Run as EncoderRun, columns, normed
from weft.models.arch.kv_cache import narrowed, written
from weft.models.arch.layers import activate, linear, rotated
from weft.models.arch.matrices import matrices
from weft.models.arch.relative import causal_buckets
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.arch.sound import from_mels, from_samples

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]
State = dict[str, Value]


def states(c: Seq2SeqConfig, slots: int) -> dict[str, tuple[tuple[int, ...], DType]]:
    """Returns shape and dtype of what is kept for `slots` sequences between steps: own keys and
    values, and those of the input."""
    sizes = {"keys": c.max_positions, "values": c.max_positions, "cross_keys": c.source,
             "cross_values": c.source}  # fmt: skip
    return {
        f"{name}.{i}": ((slots, c.heads, length, c.head_size), c.kv_dtype)
        for i in range(c.layers)
        for name, length in sizes.items()
    }


class Under(Mapping[str, Any]):
    """The weights whose roles begin with a prefix, without it."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights, self._prefix = weights, prefix

    def __getitem__(self, role: str) -> Any:
        return self._weights[self._prefix + role]

    def __iter__(self) -> Iterator[str]:
        begins = self._prefix
        return (k.removeprefix(begins) for k in self._weights if k.startswith(begins))

    def __len__(self) -> int:
        return sum(1 for _ in self)


# -- the encoder ----------------------------------------------------------------------------------


def encode(
    c: Seq2SeqConfig, w: Weights, given: Value, length: Value, at: Value, state: State
) -> tuple[Value, State]:
    """Returns the encoder's vectors float32 [T, hidden] and the state with their keys and values.
    `given` is ids int32 [1, T] of which the first length [1] count. For sound it is features
    float32 [2 T, mels], or samples float32 [n, 1]; then length [2] has the positions that count and
    the results of the first convolution that do. `at` int32 [T * H] are the rows of a plane for
    them, position by position."""
    w = matrices(c.forms, w)
    count = c.positions(ops.aval(given).shape)
    run = EncoderRun(c.encoder, Under(w, "e."), 1, count, ops.slice_(length, (0,), (1,)))
    x = _heard(c, run.w, given, length) if c.hears else _read(c, w, run, given)
    for i in range(c.encoder.layers):
        x = run.layer(i, x)
    x = run.norm("last", x) if c.encoder.pre_norms else x
    new = {}
    for i in range(c.layers):
        for name, role in (("cross_keys", "k"), ("cross_values", "v")):
            rows = linear(c.act_dtype, x, w[f"{i}.cross_{role}.w"], w.get(f"{i}.cross_{role}.b"))
            rows = narrowed(ops.reshape(rows, (count * c.heads, c.head_size)), c.kv_dtype)
            new[f"{name}.{i}"] = written(state[f"{name}.{i}"], at, rows)
    return x, new


def _heard(c: Seq2SeqConfig, w: Weights, sound: Value, length: Value) -> Value:
    """Returns the input of the first layer for sound."""
    if c.mels:
        return from_mels(c.act_dtype, w, sound)
    return from_samples(c.act_dtype, w, sound, ops.slice_(length, (1,), (2,)))


def _read(c: Seq2SeqConfig, w: Weights, run: EncoderRun, ids: Value) -> Value:
    """Returns the input of the first layer for ids [1, T]."""
    count = ops.aval(ids).shape[1]
    x = _scaled(c, ops.gather(w["embed"], ops.reshape(ids, (count,))))
    table = w["sines"] if c.sinusoids else run.w.get("pos")
    if table is not None:
        first = c.encoder.position_offset
        rows = ops.slice_(table, (first, 0), (first + count, c.hidden))
        x = ops.add(x, ops.cast(rows, float32))
    return run.norm("norm", x) if c.encoder.embed_norm else x


def _scaled(c: Seq2SeqConfig, rows: Value) -> Value:
    x = ops.cast(rows, float32)
    return x if c.embed_scale == 1.0 else ops.mul(x, c.embed_scale)


# -- the decoder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """The tokens of a step, int32: `ids`, `slot`, `place` (position) [N]; `seen` [N], the last
    position of the input that a row sees; `at` [N * H], the rows of a plane for keys and values,
    negative for padding; `last` [R], the rows whose logits are wanted, or None for all."""

    ids: Value
    slot: Value
    place: Value
    seen: Value
    at: Value
    last: Value | None = None


def decode(
    c: Seq2SeqConfig,
    w: Weights,
    rows: Rows,
    state: Mapping[str, Value],
    heads: Sequence[tuple[int, int]] = (),
) -> tuple[Value, State, Value | None]:
    """Returns logits float32 [R or N, vocab], the new own keys and values, and for each (layer,
    head) of `heads` the weights of its cross attention, float32 [heads, N, S]. With `heads` all
    rows are of one slot."""
    run = _Step(c, matrices(c.forms, w), rows, state, heads)
    x = run.embed()
    for i in range(c.layers):
        x = run.layer(i, x)
    x = run.norm("last", x) if c.pre_norms else x
    x = x if rows.last is None else ops.gather(x, rows.last)
    x = x if c.logit_scale == 1.0 else ops.mul(x, c.logit_scale)
    bias = ops.reshape(run.w["head.b"], (-1,)) if c.logit_bias else None
    logits = linear(c.act_dtype, x, run.w["embed" if c.tied else "head"], bias)
    maps = [run.maps[each] for each in heads]
    return logits, run.new, ops.concat(maps, 0) if maps else None


@dataclass(frozen=True)
class _Step:
    """One step of the decoder: values are [N, ...]."""

    c: Seq2SeqConfig
    w: Weights
    rows: Rows
    state: Mapping[str, Value]
    heads: Sequence[tuple[int, int]]
    new: State = field(default_factory=dict)
    maps: dict[tuple[int, int], Value] = field(default_factory=dict)

    def embed(self) -> Value:
        c, w = self.c, self.w
        x = _scaled(c, ops.gather(w["embed"], self.rows.ids))
        if c.learned or c.sinusoids:
            table, at = w["sines" if c.sinusoids else "pos"], self.rows.place
            at = ops.add(at, c.position_offset) if c.position_offset else at
            x = ops.add(x, ops.cast(ops.gather(table, at), float32))
        return self.norm("norm", x) if c.embed_norm else x

    def layer(self, i: int, x: Value) -> Value:
        parts = (("attn_norm", self.own), ("cross_norm", self.cross), ("mlp_norm", self.feed))
        for norm, part in parts:
            if self.c.pre_norms:
                x = ops.add(x, part(i, self.norm(f"{i}.{norm}", x)))
            else:
                x = self.norm(f"{i}.{norm}", ops.add(x, part(i, x)))
        return x

    def own(self, i: int, x: Value) -> Value:
        """Returns attention over the tokens so far."""
        c, rows = self.c, self.rows
        q, k, v = (self.split(self.linear(f"{i}.{role}", x)) for role in "qkv")
        q, k = self.turned(q), self.turned(k)
        for name, fresh in ((f"keys.{i}", k), (f"values.{i}", v)):
            flat = ops.reshape(narrowed(fresh, c.kv_dtype), (-1, c.head_size))
            self.new[name] = written(self.state[name], rows.at, flat)
        cache = self.new[f"keys.{i}"], self.new[f"values.{i}"]
        if c.relative is not None:
            out = self.biased(q, *cache)
        else:
            out = self.attend(q, *cache, rows.place)
        return self.linear(f"{i}.o", ops.reshape(out, (-1, c.heads * c.head_size)))

    def cross(self, i: int, x: Value) -> Value:
        """Returns attention over the input."""
        c = self.c
        q = self.split(self.linear(f"{i}.cross_q", x))
        keys = self.state[f"cross_keys.{i}"]
        self._map(i, q, keys)
        out = self.attend(q, keys, self.state[f"cross_values.{i}"], self.rows.seen)
        return self.linear(f"{i}.cross_o", ops.reshape(out, (-1, c.heads * c.head_size)))

    def feed(self, i: int, x: Value) -> Value:
        up = self.linear(f"{i}.up", x)
        if not self.c.gated:
            return self.linear(f"{i}.down", activate(self.c.act, up))
        if self.c.joined:
            up, gate = columns(up, 2)
        else:
            gate = self.linear(f"{i}.gate", x)
        return self.linear(f"{i}.down", ops.mul(activate(self.c.act, gate), up))

    def turned(self, x: Value) -> Value:
        """Returns queries or keys [N, H, D], rotated if the family does."""
        if self.c.rope is None:
            return x
        cos, sin = (ops.gather(self.w[f"rope.0.{k}"], self.rows.place) for k in ("cos", "sin"))
        return rotated(x, cos, sin, self.c.encoder.rope_pairs)

    def attend(self, q: Value, keys: Value, values: Value, last: Value) -> Value:
        q = narrowed(q, self.c.kv_dtype)
        out = ops.call("cached_attention", q, keys, values, self.rows.slot, last,
                       scale=self.c.scale)  # fmt: skip
        return ops.cast(out, float32)

    def biased(self, q: Value, keys: Value, values: Value) -> Value:
        """Returns attention with a bias by distance, [N, H, D]."""
        c, rows = self.c, self.rows
        n, length = ops.aval(q).shape[0], c.max_positions
        k, v = (ops.cast(ops.gather(plane, rows.slot), float32) for plane in (keys, values))
        shape = (n, c.heads, 1, length)
        q = ops.reshape(ops.cast(q, float32), (n, c.heads, 1, c.head_size))
        scores = ops.mul(ops.dot(q, ops.transpose(k, (0, 1, 3, 2)), float32), c.scale)
        key = ops.iota((n, length), 1, int32)
        back = ops.sub(ops.broadcast(ops.reshape(rows.place, (n, 1)), (n, length)), key)
        near = ops.reshape(ops.maximum(back, 0), (-1,))
        bias = ops.reshape(ops.gather(self.biases, near), (n, length, c.heads))
        scores = ops.add(scores, ops.reshape(ops.transpose(bias, (0, 2, 1)), shape))
        hidden = ops.broadcast(ops.reshape(ops.less(back, 0), (n, 1, 1, length)), shape)
        weights = ops.call("softmax", ops.where(hidden, -1e30, scores))
        return ops.reshape(ops.dot(weights, v, float32), (n, c.heads, c.head_size))

    @cached_property
    def biases(self) -> Value:
        """The bias of each distance back, float32 [L, H]."""
        assert self.c.relative is not None
        buckets = ops.const(causal_buckets(self.c.relative, self.c.max_positions))
        return ops.cast(ops.gather(self.w["bias"], buckets), float32)

    def _map(self, i: int, q: Value, keys: Value) -> None:
        """Notes the weights that the wanted heads of layer i give to the input of the first row's
        slot."""
        c = self.c
        length = ops.aval(keys).shape[2]
        for layer, head in self.heads:
            if layer != i:
                continue
            n = ops.aval(q).shape[0]
            one = ops.slice_(ops.cast(q, float32), (0, head, 0), (n, head + 1, c.head_size))
            slots = ops.aval(keys).shape[0]
            k = ops.slice_(keys, (0, head, 0, 0), (slots, head + 1, length, c.head_size))
            k = ops.gather(k, ops.slice_(self.rows.slot, (0,), (1,)))
            k = ops.transpose(ops.reshape(ops.cast(k, float32), (length, c.head_size)))
            scores = ops.dot(ops.reshape(one, (n, c.head_size)), k, float32)
            made = ops.call("softmax", ops.mul(scores, c.scale))
            self.maps[layer, head] = ops.reshape(made, (1, n, length))

    def split(self, x: Value) -> Value:
        return ops.reshape(x, (-1, self.c.heads, self.c.head_size))

    def linear(self, role: str, x: Value) -> Value:
        return linear(self.c.act_dtype, x, self.w[f"{role}.w"], self.w.get(f"{role}.b"))

    def norm(self, role: str, x: Value) -> Value:
        return normed(self.c.encoder, self.w, role, x)


def sines(c: Seq2SeqConfig) -> np.ndarray:
    """Returns the table of positions by sines, float32 [positions, hidden]: sines in the first
    half of a row, cosines in the second (Vaswani et al., arXiv:1706.03762)."""
    positions = np.arange(max(c.max_positions, c.source))[:, None]
    power = 2 * (np.arange(c.hidden) // 2) / c.hidden
    angle = positions / 10000.0**power
    out = np.empty(angle.shape, np.float32)
    half = (c.hidden + 1) // 2
    out[:, :half], out[:, half:] = np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])
    return out
