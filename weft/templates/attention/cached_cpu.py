"""Many query rows over a KV cache on a CPU (prefill): blocks of rows, K packed once per block.

Neighbouring rows of one cache slot form a run and share the packed keys. Rows need not be in
order: each has its own limits, and a block that holds several slots takes its runs in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import Builder, Expr, const, load, maximum, minimum, ne, select
from weft.kernel.ir import I32, Kernel
from weft.templates import affine
from weft.templates.attention.flash import Operand
from weft.templates.attention.flash_amx import flash_for
from weft.templates.attention.whole_cpu import blocks_of
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import operand


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `cached_attention` call (see the composite for its meaning)."""
    return _Prefill(group, node, caps, config).kernel()


class _Prefill:
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        self.group, self.node = group, node
        self.b = b = Builder(group.name or "cached_attention")
        self.em = em = Emitter(b, group, caps)
        self.window = node.attrs["params"]["window"]
        self.q, self.k, self.v = (operand(group, x) for x in node.inputs[:3])
        self.n, self.heads, self.depth = node.shape
        self.slots, self.groups, self.length, _ = node.inputs[1].shape
        self.rows, self.keys = blocks_of(caps, config, self.heads, self.n, self.length)
        self.slot = b.array("slot", node.inputs[3].dtype, self.rows)
        self.pos = b.array("pos", node.inputs[4].dtype, self.rows)
        head = b.let(b.group(1), "head")
        kv_head = b.let(head // (self.heads // self.groups), "kv_head")
        self.h = em.axis(head, self.heads)
        self.kv = em.axis(kv_head, self.groups)
        params = node.attrs["params"]
        operands = (
            Operand(em.buffers[id(self.q.node)], self.q.strides[0], self.q.strides[2]),
            Operand(em.buffers[id(self.k.node)], self.k.strides[2], self.k.strides[3]),
            Operand(em.buffers[id(self.v.node)], self.v.strides[2], self.v.strides[3]),
        )
        self.flash = flash_for(
            b, caps, operands, self.depth, self.rows, self.keys,
            params["scale"], params["softcap"],
        )  # fmt: skip

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
            slot = em.value(self.node.inputs[3], (row,))
            pos = em.value(self.node.inputs[4], (row,))
            b.store(self.slot, r, minimum(maximum(slot, 0), self.slots - 1))
            b.store(self.pos, r, minimum(pos, self.length - 1))

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
        flash, k, v = self.flash, self.k, self.v
        place = em.axis(slot, self.slots)
        bases = [
            b.let(em.expr(affine.flatten((place, self.kv), x.strides[:2], x.offset)), "base")
            for x in (k, v)
        ]
        q_base = em.expr(affine.flatten((self.h,), self.q.strides[1:2], self.q.offset))
        start = b.let(q_base + (self.n0 + first) * self.q.strides[0], "q0")
        flash.start(start, b.let(end - first, "rows"))
        begin = b.let(low, "begin")
        with b.loop(high, begin - begin % self.keys, step=self.keys, name="k0") as k0, em.scope():
            seen = b.let(minimum(high - k0, self.keys), "seen")
            k_base = b.let(bases[0] + k0 * k.strides[2], "k")
            v_base = b.let(bases[1] + k0 * v.strides[2], "v")
            flash.take_keys(k_base, v_base, seen)
            flash.sweep(k0, seen, lambda row: self._limits(b.let(first + row, "at")))
        flash.finish(lambda *args: self._write(first, *args))

    def _limits(self, row: Expr) -> tuple[Expr, Expr]:
        pos = self.b.let(load(self.pos, row), "pos")
        low: Expr = const(0)
        if self.window:
            low = maximum(pos - (self.window - 1), 0)
        return low, maximum(pos + 1, 0)

    def _write(self, first: Expr, row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
        em = self.em
        with em.scope():
            n = em.axis(self.n0 + first + row, self.n)
            lane = em.lane(value.type.lanes)
            store_all(em, self.node, (n, self.h, lane + column), value, mask)
