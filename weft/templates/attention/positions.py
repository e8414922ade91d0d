"""The keys that a row of attention sees, and the rows that see a key, for both attention
composites. Slots, positions and lengths read from a cache are kept within bounds."""

from __future__ import annotations

from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.expr import const, maximum, minimum
from weft.kernel.ir import Expr
from weft.ops.attention import PAGE, cache_shape
from weft.templates.affine import Affine
from weft.templates.emit import Emitter


def slot_of(em: Emitter, node: Node, row: Affine) -> Expr:
    """The cache slot of a row of `cached_attention`, one that exists (bound)."""
    slots, _, _ = cache_shape(node.inputs[1], node.inputs[5:])
    slot = em.value(node.inputs[3], (row,))
    return em.b.let(minimum(maximum(slot, 0), slots - 1), "slot")


def position_of(em: Emitter, node: Node, row: Affine) -> Expr:
    """The position of a row of `cached_attention`, before the cache's end (bound)."""
    _, _, length = cache_shape(node.inputs[1], node.inputs[5:])
    return em.b.let(minimum(em.value(node.inputs[4], (row,)), length - 1), "pos")


def page_of(em: Emitter, node: Node, table: Node, slot: Affine, key: Expr) -> Affine:
    """The page that holds the position `key` (bound) of a slot of `cached_attention`, one that
    exists."""
    b, pages = em.b, node.inputs[1].shape[1]
    found = em.value(table, (slot, em.axis(key // PAGE, table.shape[1])))
    return em.axis(b.let(minimum(maximum(found, 0), pages - 1), "page"), pages)


def keys_until(pos: Expr, window: int) -> tuple[Expr, Expr]:
    """The first key that a row at `pos` (bound) of a cache sees and the one after the last."""
    low = maximum(pos - (window - 1), 0) if window else const(0)
    return low, maximum(pos + 1, 0)


def length_of(em: Emitter, node: Node, index: int, entry: Affine) -> Expr:
    """Returns the number of keys of a batch entry of `attention` (bound): the content of input
    `index`, if it exists, else all."""
    s = node.inputs[1].shape[2]
    if len(node.inputs) <= index:
        return const(s)
    given = em.value(node.inputs[index], (entry,))
    return em.b.let(maximum(minimum(given, s), 0), "length")


def visible_keys(
    b: Builder, query: Expr, t: int, s: int, length: Expr, causal: bool, window: int
) -> tuple[Expr, Expr]:
    """The first key that query row `query` sees and the one after the last."""
    at = b.let(query + (s - t), "at")
    low: Expr = const(0)
    high = length
    if causal:
        high = minimum(high, at + 1)
    elif window:
        high = minimum(high, at + window)
    if window:
        low = maximum(at - (window - 1), 0)
    return low, maximum(high, 0)


def seeing_rows(
    b: Builder, key: Expr, keys: int, ahead: Expr, rows: Expr, causal: bool, window: int
) -> tuple[Expr, Expr]:
    """Returns the first of `rows` query rows that sees one of the keys key .. key + keys, and the
    row after the last (ignoring lengths). Row r is at key r + ahead."""
    first: Expr = const(0)
    stop = rows
    if causal:
        first = maximum(key - ahead, 0)
    elif window:
        first = maximum(key - ahead - (window - 1), 0)
    if window:
        stop = minimum(key - ahead + (keys - 1 + window), rows)
    return b.let(first, "first_row"), b.let(stop, "stop_row")
