"""Query rows over a KV cache on a CPU, as blocks of `flash`: many rows (prefill) or, where matrix
registers work, the query heads of one (decode).

Neighbouring rows of one cache slot form a run and share the packed keys. Rows need not be in
order: each has its own limits, and a block that holds several slots takes its runs in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.order import STREAM_ROWS
from weft.graph.ir import Node
from weft.kernel.builder import Builder, Expr, const, load, maximum, minimum, ne, select
from weft.kernel.ir import I32, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention import decode_cpu
from weft.templates.attention.flash import Operand
from weft.templates.attention.flash_amx import flash_for, in_tiles
from weft.templates.attention.places import keys_until, position_of, slot_of
from weft.templates.attention.whole_cpu import rows_of
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import operand


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `cached_attention` call (see the composite for its meaning)."""
    if node.shape[0] > STREAM_ROWS:
        return _Prefill(group, node, caps, config).kernel()
    views = [operand(group, x) for x in node.inputs[:3]]
    if in_tiles(caps, [(x.dtype, x.strides[-1]) for x in views], node.shape[-1]):
        return _Heads(group, node, caps).kernel()
    return decode_cpu.build(group, node, caps)


class _Cached:
    """What both share: `rows` query rows of a block that lie along axis `along` of q."""

    def __init__(self, group: Group, node: Node, caps: Caps, rows: int, along: int) -> None:
        self.group, self.node = group, node
        self.b = b = Builder(group.name or "cached_attention")
        self.em = em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.q, self.k, self.v = (operand(group, x) for x in node.inputs[:3])
        self.n, self.heads, self.depth = node.shape
        self.slots, self.groups, self.length, _ = node.inputs[1].shape
        self.share, self.rows = self.heads // self.groups, rows
        axes = zip((self.q, self.k, self.v), (along, 2, 2))
        q, k, v = (
            Operand(em.buffers[id(x.node)], x.strides[axis], x.strides[-1]) for x, axis in axes
        )
        self.flash = flash_for(b, caps, (q, k, v), self.depth, rows, self.length, self.params)

    def _bases(self, slot: Expr) -> list[Expr]:
        """Where the keys and values of a slot start."""
        lead = (self.em.axis(slot, self.slots), self.kv)
        at = (affine.flatten(lead, x.strides[:2], x.offset) for x in (self.k, self.v))
        return [self.b.let(self.em.expr(x), "base") for x in at]

    kv: Affine

    def _write(
        self, index: tuple[Affine, Affine], column: int, mask: Expr | None, value: Expr
    ) -> None:
        lane = self.em.lane(value.type.lanes)
        store_all(self.em, self.node, (*index, lane + column), value, mask)


class _Heads(_Cached):
    """A group per row and key/value head: a block holds the query heads that share it."""

    def __init__(self, group: Group, node: Node, caps: Caps) -> None:
        super().__init__(group, node, caps, node.shape[1] // node.inputs[1].shape[1], 1)

    def kernel(self) -> Kernel:
        b, em, share = self.b, self.em, self.share
        row = em.axis(b.group(1), self.n)
        self.kv = em.axis(b.group(0), self.groups)
        first = affine.combine([(self.kv, share)])
        q = affine.flatten((row, first), self.q.strides[:2], self.q.offset)
        pos = position_of(em, self.node, row)
        low, high = (b.let(x, "limit") for x in keys_until(pos, self.params["window"]))
        self.flash.start(b.let(em.expr(q), "q"), const(share))
        bases = self._bases(slot_of(em, self.node, row))
        self.flash.walk(bases, low, high, lambda _: (low, high))

        def write(at: Expr, column: int, mask: Expr | None, value: Expr) -> None:
            with em.scope():
                head = affine.combine([(self.kv, share), (em.axis(at, share), 1)])
                self._write((row, head), column, mask, value)

        self.flash.finish(write)
        flops = 4 * self.n * self.heads * self.length * self.depth
        grid = (self.groups, row_limit(self.group, 1, self.n))
        return b.kernel(grid, (1,), flops, traffic(self.group))


class _Prefill(_Cached):
    """A group per block of rows and query head."""

    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        n, heads, _ = node.shape
        super().__init__(group, node, caps, rows_of(caps, config, heads, n), 0)
        b, em = self.b, self.em
        self.slot = b.array("slot", node.inputs[3].dtype, self.rows)
        self.pos = b.array("pos", node.inputs[4].dtype, self.rows)
        head = b.let(b.group(1), "head")
        self.h = em.axis(head, self.heads)
        self.kv = em.axis(b.let(head // self.share, "kv_head"), self.groups)

    def kernel(self) -> Kernel:
        b, group = self.b, self.group
        limit = b.let(row_limit(group, 1, self.n), "limit")
        blocks = -(-self.n // self.rows)
        self.n0 = b.let(((blocks - 1) - b.group(0)) * self.rows, "n0")
        with b.when(self.n0 < limit), self.em.scope():
            self.count = b.let(minimum(limit - self.n0, self.rows), "count")
            self._read_places()
            begins = self._starts_run
            with b.loop(self.count, name="run") as r, b.when(begins(r)), self.em.scope():
                self._run(r)
        flops = 2 * self.n * self.heads * self.length * self.depth
        return b.kernel((blocks, self.heads), (1,), flops, traffic(group))

    def _read_places(self) -> None:
        """Each row's slot and position, within the cache's bounds."""
        b, em = self.b, self.em
        with b.loop(self.count, name="r") as r, em.scope():
            row = em.axis(self.n0 + r, self.n)
            b.store(self.slot, r, slot_of(em, self.node, row))
            b.store(self.pos, r, position_of(em, self.node, row))

    def _starts_run(self, r: Expr) -> Expr:
        before = maximum(r - 1, 0)
        other = ne(load(self.slot, r), load(self.slot, before))
        return (r < 1) | other

    def _run(self, first: Expr) -> None:
        """Rows first .. end of one slot."""
        b, em = self.b, self.em
        slot = b.let(load(self.slot, first), "slot")
        end = b.var(self.count, "end", I32)
        low, high = b.var(self.length, "low", I32), b.var(0, "high", I32)
        with b.loop(self.count, first, name="r") as r:
            gone = ne(load(self.slot, r), slot)
            b.assign(end, select(gone, minimum(end, r), end))
            inside = b.let(r < end, "inside")
            first_key, stop_key = self._limits(r)
            b.assign(low, select(inside, minimum(low, first_key), low))
            b.assign(high, select(inside, maximum(high, stop_key), high))
        q_base = em.expr(affine.flatten((self.h,), self.q.strides[1:2], self.q.offset))
        start = b.let(q_base + (self.n0 + first) * self.q.strides[0], "q0")
        self.flash.start(start, b.let(end - first, "rows"))

        def limits(row: Expr) -> tuple[Expr, Expr]:
            return self._limits(b.let(first + row, "at"))

        self.flash.walk(self._bases(slot), b.let(low, "begin"), b.let(high, "stop"), limits)

        def write(row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
            with em.scope():
                n = em.axis(self.n0 + first + row, self.n)
                self._write((n, self.h), column, mask, value)

        self.flash.finish(write)

    def _limits(self, row: Expr) -> tuple[Expr, Expr]:
        return keys_until(self.b.let(load(self.pos, row), "pos"), self.params["window"])
