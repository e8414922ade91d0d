"""The rows of a step in serving, and their past: caches in pages, and states by slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft import ops
from weft.core.dtypes import int32
from weft.core.records import dataclass
from weft.models.arch import kv_cache
from weft.models.arch.config import DecoderConfig
from weft.models.arch.hooks import INFERENCE, TrainingHooks
from weft.models.arch.inputs import planes, slides
from weft.models.arch.layers import KeysValues, Value
from weft.models.arch.picture_rows import PictureRows
from weft.models.arch.places import WEIGHTS, place_of


@dataclass(frozen=True)
class StepRows:
    """The tokens of a step. All arrays are int32 except `x`.

    `ids`, `slot`, `pos`: [N]. `table`: [S, columns], the page that holds the positions PAGE *
    column .. of a slot. `at`: for each number G of key/value heads an array [N * G]. It has the
    cache row of row n's key and value of head g, (g * pages + page) * PAGE + pos % PAGE, and is
    negative for padding rows. `last`: [R], the rows whose logits are wanted, or None for all.
    `window_table` and `window_at` are the same for layers that keep only their window
    (`inputs.slides`), whose pages are others; the table has any page for what no row sees.

    `x`: if another machine computed the earlier layers, the residual stream float32 [N, hidden];
    then `ids` is None. `adapter`: [N], or [1] for all rows, the adapter number of each row,
    c.adapters for none; None if the model lacks adapters.
    """

    ids: Value
    slot: Value
    pos: Value
    at: Mapping[int, Value]
    table: Value
    last: Value | None = None
    x: Value | None = None
    adapter: Value | None = None
    window_at: Mapping[int, Value] = field(default_factory=dict)
    window_table: Value | None = None
    pictures: PictureRows | None = None
    turns: Value | None = None  # [N, 3], rotary positions, where they are not `pos`

    def cached(self, c: DecoderConfig, i: int) -> tuple[Value, Value]:
        """Returns the cache rows and the table of layer i."""
        i = c.kv_of(i)
        heads = c.layer(i).kv_heads
        if slides(c, i):
            return self.window_at[heads], self.window_table
        return self.at[heads], self.table


@dataclass(frozen=True)
class CachedPast:
    """The past of rows in serving: state by name (`inputs.states`), and its new values."""

    c: DecoderConfig
    rows: StepRows
    state: Mapping[str, Value]
    hooks: TrainingHooks = INFERENCE
    new: dict[str, Value] = field(default_factory=dict)

    def attend(self, i: int, q: Value, kv: KeysValues | None, sinks: Value | None = None) -> Value:
        c, rows = self.c, self.rows
        names = [f"{kind}.{c.kv_of(i)}" for kind in planes(c, i)]
        at, table = rows.cached(c, i)
        if kv is not None:
            old = tuple(self.state[name] for name in names)
            self.new.update(zip(names, kv_cache.store(c, old, at, *kv)))
        cache = tuple(self.new[name] for name in names)
        if i in self.hooks.mapped:
            seen = kv_cache.weights(c, cache, q, rows.pos, table, c.window(i), sinks)
            self.hooks.place(place_of(f"{i}.{WEIGHTS}"), seen)
        seen = rows.pictures
        if seen is not None and seen.span is not None:
            return seen.attend(c, cache, q, rows.slot, rows.pos, table, c.window(i))
        return kv_cache.attend(c, cache, q, rows.slot, rows.pos, table, c.window(i), sinks)

    def recent(self, i: int, z: Value, count: int) -> list[Value]:
        """Returns the row itself and its `count` - 1 predecessors. Predecessors in this step are
        adjacent rows of the slot; earlier ones come from a ring of the slot's last rows, where
        position t is row t % R."""
        rows, name = self.rows, f"conv.{i}"
        slots, ring, wide = ops.aval(self.state[name]).shape
        flat = ops.reshape(self.state[name], (slots * ring, wide))
        shape, out = ops.aval(z).shape, []
        start, number = ops.mul(rows.slot, ring), ops.iota(shape[:1], 0, int32)

        def column(mask: Value) -> Value:
            return ops.broadcast(ops.reshape(mask, (-1, 1)), shape)

        for back in range(count - 1, 0, -1):
            pos, row = ops.sub(rows.pos, back), ops.sub(number, back)
            near = ops.maximum(row, 0)
            beside = ops.equal(ops.gather(rows.slot, near), rows.slot)
            beside = ops.bitwise_and(beside, ops.less_equal(0, row))
            kept = ops.gather(flat, ops.add(start, ops.remainder(ops.add(pos, ring), ring)))
            found = ops.where(column(beside), ops.gather(z, near), kept)
            out.append(ops.where(column(ops.less_equal(0, pos)), found, 0.0))
        at = ops.add(start, ops.remainder(rows.pos, ring))
        if ring < shape[0]:  # a later row of the slot may use the same place
            row = ops.add(number, ring)
            far = ops.minimum(row, shape[0] - 1)
            heads, places = next(iter(rows.at.items()))
            real = ops.less_equal(0, ops.gather(places, ops.mul(far, heads)))
            same = ops.equal(ops.gather(rows.slot, far), rows.slot)
            later = ops.bitwise_and(ops.bitwise_and(real, same), ops.less(row, shape[0]))
            at = ops.where(later, -1, at)
        self.new[name] = ops.reshape(ops.update(flat, at, z), (slots, ring, wide))
        return [*out, z]

    def recur(self, i: int, *values: Value, **params: Any) -> Value:
        rows, name = self.rows, f"memory.{i}"
        begins = ops.less_equal(rows.pos, 0)
        slot = ops.where(begins, ops.sub(-1, rows.slot), rows.slot)
        out, self.new[name] = ops.call("recurrence", *values, slot, self.state[name], **params)
        return out
