"""Rows of a step that have vectors of a picture in place of their tokens' embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft import ops
from weft.core.dtypes import float32, int32
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.models.arch import kv_cache
from weft.models.arch.config import DecoderConfig
from weft.ops.attention import PAGE

Value = Any  # np.ndarray, graph Node or Tracked


@dataclass(frozen=True)
class PictureRows:
    """`vectors` float32 [N, hidden * (1 + deep)] has the embedding of each row where `here` int32
    [N] is 1, and after it what the first layers add; zeros elsewhere. `span` int32 [N, 2] has the
    first and the last position that a row sees at least, if tokens of a picture see each other."""

    vectors: Value
    here: Value
    span: Value | None = None

    def embedded(self, x: Value) -> Value:
        """Returns the rows' embeddings, x[N, hidden] where a row is a token."""
        return ops.where(_wide(self.here, x), self._part(0, x), x)

    def told(self, c: DecoderConfig, ids: Value) -> Value:
        """Returns the rows' ids for the inputs of layers: the same id for every vector."""
        return ops.where(ops.equal(self.here, 1), c.layer_pad, ids) if c.layer_input else ids

    def deepened(self, c: DecoderConfig, i: int, x: Value) -> Value:
        """Returns the residual stream after layer i, with what a picture adds there."""
        return ops.add(x, self._part(i + 1, x)) if i < c.deep else x

    def _part(self, k: int, x: Value) -> Value:
        rows, wide = ops.aval(x).shape
        return ops.slice_(self.vectors, (0, k * wide), (rows, (k + 1) * wide))

    def last(self) -> Value:
        """Returns the last position that each row sees, int32 [N]."""
        rows = ops.aval(self.here).shape[0]
        return ops.reshape(ops.slice_(self.span, (0, 1), (rows, 2)), (rows,))

    def attend(
        self, c: DecoderConfig, cache: kv_cache.Cache, q: Value, slot: Value, pos: Value,
        table: Value, window: int,
    ) -> Value:  # fmt: skip
        """Returns attention of q[N, H, D] with rows of slot[0] that see their picture too: as
        `kv_cache.attend` does, but a picture's rows are written out where a window cuts."""
        length = ops.aval(table).shape[1] * PAGE
        near = c.looks == "near"
        if near and not window:
            return kv_cache.attend(c, cache, q, slot, pos, table, 0)
        if not window or window >= length:
            return kv_cache.attend(c, cache, q, slot, self.last(), table, 0)
        out = kv_cache.attend(c, cache, q, slot, pos, table, window)
        rows = ops.aval(pos).shape[0]
        first = ops.sub(pos, window - 1)
        if not near:
            begin = ops.reshape(ops.slice_(self.span, (0, 0), (rows, 1)), (rows,))
            first = ops.minimum(begin, first)
        own = ops.gather(table, ops.slice_(slot, (0,), (1,)))
        seen = kv_cache.attended(c, cache, q, first, self.last(), own)
        return ops.where(_wide(self.here, out), seen, ops.cast(out, float32))


def _wide(here: Value, like: Value) -> Value:
    """Returns a mask of rows for a value of [N, ...]."""
    shape = ops.aval(like).shape
    return ops.broadcast(ops.reshape(ops.equal(here, 1), (-1, *[1] * (len(shape) - 1))), shape)


def nodes(c: DecoderConfig, rows: int) -> tuple[PictureRows, list[Node]]:
    """Returns the inputs of a step of at most `rows` rows, in a group and in their order."""
    wide = c.hidden * (1 + c.deep)
    vectors = ops.input_node("vectors", (rows, wide), float32, "input", rows="n")
    here = ops.input_node("here", (rows,), int32, "input", rows="n")
    made = PictureRows(vectors, here)
    if not c.looks:
        return made, [vectors, here]
    span = ops.input_node("span", (rows, 2), int32, "input", rows="n")
    return replace(made, span=span), [vectors, here, span]


def of_arrays(rows: Mapping[str, np.ndarray], n: int) -> PictureRows | None:
    """Returns the inputs of a step of n rows in a group; None without any."""
    if "vectors" not in rows:
        return None
    span = rows["span"][:n] if "span" in rows else None
    return PictureRows(rows["vectors"][:n], rows["here"][:n], span)


def turned_tables(
    c: DecoderConfig, w: Mapping[str, Value], pos: Value, turns: Value
) -> dict[str, Value]:
    """Returns the tables by position, [N, ...]: pairs of a rope turn by a row's position in time,
    height or width, `turns` int32 [N, 3], as `c.turns_by` says for each pair."""
    rows = ops.aval(pos).shape[0]
    at = [ops.reshape(ops.slice_(turns, (0, k), (rows, k + 1)), (rows,)) for k in range(3)]
    by = np.array(c.turns_by, np.int32)
    tables = {}
    for name in w:
        if name == "query_growth":
            tables[name] = ops.gather(w[name], pos)
        if not name.startswith("rope."):
            continue
        found = ops.gather(w[name], at[0])
        shape = ops.aval(found).shape
        for k in (1, 2):
            mask = ops.const(np.ascontiguousarray(np.broadcast_to(by == k, (1, *by.shape))))
            found = ops.where(ops.broadcast(mask, shape), ops.gather(w[name], at[k]), found)
        tables[name] = found
    return tables
