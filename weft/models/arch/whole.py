"""The past of rows in training and of texts that are embedded: whole sequences side by side,
without caches."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import float32, int32
from weft.core.errors import ModelError
from weft.core.records import dataclass
from weft.models.arch.config import DecoderConfig
from weft.models.arch.layers import KeysValues, Value

_BITS = 16  # bits of a document's start: as many columns as kernels take at once
_FAR = 2.0**15  # how far a hidden key's score is below the others


@dataclass(frozen=True)
class TrainingPast:
    """The past of rows in training: `batch` sequences of `length` rows side by side. If sequences
    hold several documents, `start` int32 [B * length] has the start of each row's document in its
    sequence: a row sees only its own document. `lengths` int32 [B] are those of shorter sequences,
    for models that see later tokens. `span` int32 [B * length, 2] has the first and the last row of
    its sequence that a row sees at least, where tokens of a picture see each other."""

    c: DecoderConfig
    batch: int
    length: int
    start: Value | None = None
    lengths: Value | None = None
    span: Value | None = None
    kept: dict[int, KeysValues] = field(default_factory=dict)  # keyed by layer

    def attend(self, i: int, q: Value, kv: KeysValues | None, sinks: Value | None = None) -> Value:
        if sinks is not None:
            raise ModelError(
                f"{self.c.family} has attention sinks, which whole sequences lack: use a model "
                "without them to train or to embed"
            )
        c = self.c
        if self.span is not None and not (c.looks == "near" and not c.window(i)):
            return self._attend_spans(i, q, kv)
        start = self._start(i)
        side = self._marks(start)
        if kv is not None:
            k, v = kv[0], kv[0] if kv[1] is None else kv[1]
            self.kept[i] = self._heads(k, side[1]), self._heads(v, side[2])
        out = ops.call(
            "attention",
            self._heads(q, side[0]),
            *self.kept[c.kv_of(i)],
            *(() if c.causal or self.lengths is None else (self.lengths,)),
            causal=c.causal,
            scale=c.scale,
            window=c.window(i) if c.window(i) < self.length and not c.chunked else 0,
            softcap=c.attn_softcap,
        )
        if start is not None:
            shape = ops.aval(out).shape
            out = ops.slice_(out, (0, 0, 0, 0), (*shape[:3], ops.aval(q).shape[2]))
        out = ops.transpose(out, (0, 2, 1, 3))
        return ops.reshape(out, ops.aval(q).shape)

    def _attend_spans(self, i: int, q: Value, kv: KeysValues | None) -> Value:
        """Returns attention of rows that see their picture too, with its scores written out."""
        c, batch, length = self.c, self.batch, self.length
        if kv is not None:
            v = kv[0] if kv[1] is None else kv[1]
            self.kept[i] = self._heads(kv[0], None), self._heads(v, None)
        k, v = (ops.cast(x, float32) for x in self.kept[c.kv_of(i)])
        groups, depth = ops.aval(k).shape[1], ops.aval(k).shape[3]
        rows, heads, wide = ops.aval(q).shape
        q = ops.cast(self._heads(q, None), float32)
        q = ops.reshape(q, (batch * groups, heads // groups * length, depth))
        k, v = (ops.reshape(x, (batch * groups, length, -1)) for x in (k, v))
        scores = ops.mul(ops.dot(q, ops.transpose(k, (0, 2, 1)), float32), c.scale)
        if c.attn_softcap:
            scores = ops.mul(ops.tanh(ops.mul(scores, 1.0 / c.attn_softcap)), c.attn_softcap)
        shape = (batch, heads, length, length)
        seen = ops.broadcast(ops.reshape(self._seen(i), (batch, 1, length, length)), shape)
        scores = ops.where(seen, ops.reshape(scores, shape), -1e30)
        by = ops.call("softmax", scores)
        by = ops.reshape(by, (batch * groups, heads // groups * length, length))
        out = ops.reshape(ops.dot(by, v, float32), (batch, heads, length, wide))
        out = ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (rows, heads, wide))
        return ops.cast(out, c.kv_dtype)

    def _seen(self, i: int) -> Value:
        """Returns a mask [B * T, T] of the rows of its sequence that each row sees in layer i."""
        rows, shape = self.batch * self.length, (self.batch * self.length, self.length)
        begin, end = (
            ops.reshape(ops.slice_(self.span, (0, k), (rows, k + 1)), (rows,)) for k in range(2)
        )
        size, first = self.c.window(i), ops.const(np.zeros(rows, np.int32))
        if 0 < size < self.length:
            row = np.tile(np.arange(self.length, dtype=np.int32), self.batch)
            first = ops.const(row - np.int32(size - 1))
            first = first if self.c.looks == "near" else ops.minimum(begin, first)
        if self.start is not None:
            first = ops.maximum(first, self.start)
        number = ops.iota(shape, 1, int32)
        low, high = (ops.broadcast(ops.reshape(x, (rows, 1)), shape) for x in (first, end))
        return ops.bitwise_and(ops.less_equal(low, number), ops.less_equal(number, high))

    def _heads(self, x: Value, side: Value | None) -> Value:
        """Returns x[B * T, H, D], extended by columns [B * T, M] for every head, as [B, H, T, D +
        M]."""
        x = ops.cast(x, self.c.kv_dtype)
        if side is not None:
            rows, heads, _ = ops.aval(x).shape
            wide = ops.aval(side).shape[1]
            side = ops.broadcast(ops.reshape(side, (rows, 1, wide)), (rows, heads, wide))
            x = ops.concat([x, side], 2)
        shape = (self.batch, self.length, *ops.aval(x).shape[1:])
        return ops.transpose(ops.reshape(x, shape), (0, 2, 1, 3))

    def _start(self, i: int) -> Value | None:
        """Returns the first row of its sequence that each row sees in layer i, int32 [B * T], or
        None for its window: that of its document, or of its chunk there."""
        size = self.c.window(i)
        if not (self.c.chunked and 0 < size < self.length):
            return self.start
        row = ops.const(np.tile(np.arange(self.length, dtype=np.int32), self.batch))
        inside = row if self.start is None else ops.sub(row, self.start)
        return ops.sub(row, ops.remainder(inside, size))

    def _marks(self, start: Value | None) -> tuple[Value | None, Value | None, Value | None]:
        """Returns columns [B * T, M] of queries, keys and values that hide earlier documents.

        A query has the bits of its document's start. A key has the bits that its start lacks,
        negative. In one document their product is 0. An earlier start lacks a bit of a later one,
        which puts the score far below all others.
        """
        if start is None:
            return None, None, None
        bits = -(-self.length.bit_length() // _BITS) * _BITS
        shape = (ops.aval(start).shape[0], bits)
        column = ops.broadcast(ops.reshape(start, (-1, 1)), shape)
        powers = ops.const(np.left_shift(1, np.arange(bits, dtype=np.int32)).reshape(1, -1))
        unset = ops.equal(ops.bitwise_and(column, ops.broadcast(powers, shape)), 0)
        # a power of two, exact in every dtype, for queries and keys alike
        by = 2.0 ** np.ceil(np.log2(_FAR / self.c.scale) / 2)
        none = ops.broadcast(ops.const(np.zeros((), np.float32)), shape)
        marks = ops.where(unset, 0.0, ops.add(none, by)), ops.where(unset, -by, none), none
        q, k, v = (ops.cast(x, self.c.kv_dtype) for x in marks)
        return q, k, v

    def recent(self, i: int, z: Value, count: int) -> list[Value]:
        wide, length = ops.aval(z).shape[1], self.length
        x = ops.pad(ops.reshape(z, (self.batch, length, wide)), (0, count - 1, 0), (0, 0, 0))
        parts = (ops.slice_(x, (0, k, 0), (self.batch, k + length, wide)) for k in range(count))
        out = [ops.reshape(part, (self.batch * length, wide)) for part in parts]
        if self.start is None:
            return out
        row = ops.const(np.tile(np.arange(length, dtype=np.int32), self.batch))
        shape, pos = ops.aval(z).shape, ops.sub(row, self.start)
        for k, back in enumerate(range(count - 1, 0, -1)):
            inside = ops.broadcast(ops.reshape(ops.less_equal(back, pos), (-1, 1)), shape)
            out[k] = ops.where(inside, out[k], 0.0)
        return out

    def recur(self, i: int, *values: Value, **params: Any) -> Value:
        assert self.start is None, "layers with a recurrence are not trained"
        number = np.arange(self.batch * self.length, dtype=np.int32)
        slot, pos = np.divmod(number, np.int32(self.length))
        slot = ops.const(np.where(pos, slot, -1 - slot))
        depth, (_, heads, width) = ops.aval(values[0]).shape[2], ops.aval(values[2]).shape
        memory = ops.const(np.zeros((), np.float32))
        memory = ops.broadcast(memory, (self.batch, heads, depth, width))
        return ops.call("recurrence", *values, slot, memory, **params)[0]
