"""`attention_grad` on a CPU: one group per (kv head, batch entry), all three gradients at once.

The group keeps its keys, values and their gradients in scratch and takes the query rows of its
heads in blocks. A block's weights against all keys fit in scratch too, so each score is computed
once: five matrix products, the least there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import Expr, const, extract, load, maximum, select
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.backward_rows import Rows
from weft.templates.attention.backward_tiles import MR, Sizes, Write, sizes_of
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.pack import fold_lanes

SCORES = 1 << 15  # weights that a block of query rows holds: what the second cache takes easily


def fits(node: Node, caps: Caps) -> bool:
    """Whether one group can hold its keys in scratch, and there are groups enough for all cores."""
    q, k = node.inputs[:2]
    size = _sizes(caps, {}, q.shape[2], k.shape[2])
    return _bytes(size, k.shape[3]) <= caps.scratch_bytes and k.shape[0] * k.shape[1] >= caps.cores


def _sizes(caps: Caps, config: Mapping[str, Any], t: int, s: int) -> Sizes:
    rows = min(64, max(16, SCORES // s // MR * MR))
    return sizes_of(caps, config, t, s, rows).spanning(s)


def _bytes(size: Sizes, depth: int) -> int:
    """Scratch that the arrays of a kernel take, with something to spare."""
    wide = -(-depth // size.lanes) * size.lanes
    kept = 5 * size.span * wide + (3 * wide + 3 * size.ld + 8) * size.rows
    return 4 * kept + 4096


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention_grad` call (see the composite for its meaning)."""
    return _Fused(group, node, caps, config).kernel()


class _Fused(Rows):
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        t, s = node.inputs[0].shape[2], node.inputs[1].shape[2]
        super().__init__(group, node, caps, _sizes(caps, config, t, s), 4, 4)
        x, size = self.tiles, self.size
        self.q, self.g = x.rows_array("q", size.rows), x.rows_array("g", size.rows)
        self.dq = x.rows_array("dq", size.rows)
        self.k = x.rows_array("k", size.span)
        self.kt, self.vt = x.rows_array("kt", size.span), x.rows_array("vt", size.span)
        self.dk, self.dv = x.rows_array("dk", size.span), x.rows_array("dv", size.span)
        self.p, self.ds = x.scores_array("p"), x.scores_array("ds")
        self.slope = x.scores_array("slope") if x.softcap else None
        self.inverse = self.b.array("inverse", dt.float32, size.rows)  # of the sums of p

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        self.batch_entry(b.group(1))
        at = b.let(b.group(0), "kv")
        kv = em.axis(at, self.groups)
        self._take_keys(kv)
        with b.loop(self.share, name="h") as i, em.scope():
            head = em.axis(at * self.share + i, self.heads)
            with b.loop(self.t, step=self.size.rows, name="t0") as t0, em.scope():
                self._block(head, t0)
        start, one = (math.prod(x.shape) for x in self.node.inputs[:2])
        scale = self.params["scale"]
        for x, offset, factor in ((self.dk, start, scale), (self.dv, start + one, 1.0)):
            with em.scope():
                write = self._writer(kv, const(0), self.s, self.groups, offset)
                self.tiles.write(x, const(0), const(self.s), factor, write)
        pairs = self.t * self.s // (2 if self.params["causal"] else 1)
        flops = 10 * self.batch * self.heads * pairs * self.depth
        return b.kernel((self.groups, self.batch), (1,), flops, traffic(self.group))

    def _writer(self, head: Affine, first: Expr, rows: int, heads: int, offset: int) -> Write:
        """Writes rows from `first` of a [B, rows, heads, D] array that starts at `offset`."""
        em = self.em
        strides = affine.contiguous((self.batch, rows, heads, self.depth))

        def write(row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
            at = em.axis(first + row, rows)
            lane = em.lane(value.type.lanes) + column
            flat = affine.flatten((self.bi, at, head, lane), strides, offset)
            self.store((flat,), value, mask)

        return write

    def _take_keys(self, kv: Affine) -> None:
        b, x, size = self.b, self.tiles, self.size
        for i, turned in ((2, self.vt), (1, self.kt)):
            source, base = self.operand_of(i, kv, const(0))
            x.pack(source, base, self.k, const(self.s), size.span)
            with b.loop(size.span, step=size.keys, name="k0") as k0:
                x.turn(self.k, k0, turned, k0 * x.wide)
        for target in (self.dk, self.dv):
            x.clear(target, const(0), size.span)

    def _block(self, head: Affine, t0: Expr) -> None:
        b, x, keys = self.b, self.tiles, self.size.keys
        self.take(t0)
        self.take_rows(0, head, self.q)
        self.take_rows(3, head, self.g)
        first = b.let(self.first - self.first % keys, "first")
        with b.loop(self.stop, first, step=keys, name="k0") as k0:
            self.each_seen(k0, lambda *tile: self.scores(k0, *tile))
        self.each_tile(self._weigh)
        with b.loop(self.stop, first, step=keys, name="k0") as k0:
            self.each_seen(k0, lambda r, low, high: self._products(k0, r))
        self.each_tile(self._dq)
        write = self._writer(head, t0, self.t, self.heads, 0)
        x.write(self.dq, const(0), self.count, x.scale, write)
        start = b.let(self.first - self.first % MR, "start")
        self.add_rows(start, self.stop, self.dk, self.dv)

    def _blocks(self, r: Expr) -> tuple[Expr, Expr]:
        """The key blocks that a tile of rows has scores for."""
        b, keys = self.b, self.size.keys
        _, _, near, far = self.tile_limits(r)
        first = b.let(near - near % keys, "first")
        return first, b.let((far + (keys - 1)) // keys * keys, "stop")

    def _weigh(self, r: Expr) -> None:
        """Scores become weights without their common factor, which the rows of g take."""
        b, x = self.b, self.tiles
        first, stop = self._blocks(r)
        tops = x.row_tops(self.p, r, first, stop)
        sums = x.exponents(self.p, r, first, stop, [extract(tops, i) for i in range(MR)])
        totals = b.let(fold_lanes(b, sums), "totals")
        some = b.let(totals > 0.0, "some")
        inverse = b.let(select(some, 1.0 / select(some, totals, 1.0), 0.0), "inverse")
        b.store(self.inverse, r, inverse)
        x.scale_rows(self.g, r, inverse)

    def _products(self, k0: Expr, r: Expr) -> None:
        """ds = g v^T for a tile of rows against a key block."""
        b, x = self.b, self.tiles
        block = b.let(k0 * x.wide, "block")
        x.against_keys(
            self.g, r, self.vt, block, k0, lambda i, at, value: b.store(self.ds, at, value)
        )

    def _dq(self, r: Expr) -> None:
        b, x = self.b, self.tiles
        x.settle(self.p, self.ds, self.slope, load(self.inverse, r, MR), r, *self._blocks(r))
        _, _, near, far = self.tile_limits(r)
        x.add_keys(self.ds, r, near, b.let(maximum(far, near), "stop"), self.k, self.dq, True)
