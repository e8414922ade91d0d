"""The parts of attention's derivative on a CPU, for keys too many to stay in scratch or heads too
few to fill the cores: row statistics, dq by blocks of query rows, dk and dv by blocks of keys.
Each meets one block of the other side at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import math
from weft.kernel.builder import Expr, const, extract, iota, load, maximum, minimum, select, splat
from weft.kernel.ir import Array, Kernel, Type
from weft.ops.attention_grad import UNSEEN
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.backward_rows import Rows
from weft.templates.attention.backward_tiles import MR, sizes_of
from weft.templates.attention.places import seeing_rows
from weft.templates.attention.softmax import FLOOR
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.pack import fold_lanes

ROWS = 64  # query rows per block


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention_lse`, `attention_dq` or `attention_dkv` call."""
    return _Part(group, node, caps, config).kernel()


class _Part(Rows):
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        self.name = node.attrs["name"]
        t, s = node.inputs[0].shape[2], node.inputs[1].shape[2]
        size = sizes_of(caps, config, t, s, ROWS)
        lse = self.name == "attention_lse"
        super().__init__(group, node, caps, size, 2 if lse else 4, 2 if lse else 6)
        b, x = self.b, self.tiles
        self.q, self.k = x.rows_array("q", size.rows), x.rows_array("k", size.keys)
        self.kt, self.p = x.rows_array("kt", size.keys), x.scores_array("p")
        if not lse or x.softcap:
            self.ds = x.scores_array("ds")
            self.slope = self.ds if x.softcap else None  # until ds takes its place
        self.top = b.array("top", dt.float32, size.rows)  # the maximum so far, or lse
        if not lse:
            self.g, self.vt = x.rows_array("g", size.rows), x.rows_array("vt", size.keys)
            self.delta = b.array("delta", dt.float32, size.rows)

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        self.batch_entry(b.group(2))
        at = b.let(b.group(1), "head")
        if self.name == "attention_dkv":
            blocks, heads, products = -(-self.s // self.size.keys), self.groups, 4
            self._dkv(at)
        else:
            blocks, heads = -(-self.t // self.size.rows), self.heads
            self.take(b.let((blocks - 1 - b.group(0)) * self.size.rows, "t0"))
            head = em.axis(at, self.heads)
            kv = em.axis(b.let(at // self.share, "kv"), self.groups)
            self.take_rows(0, head, self.q)
            products = 1 if self.name == "attention_lse" else 3
            (self._lse if products == 1 else self._dq)(head, kv)
        flops = 2 * products * self.batch * self.heads * self.t * self.s * self.depth
        return b.kernel((blocks, heads, self.batch), (1,), flops, traffic(self.group))

    def _take_keys(self, kv: Affine, k0: Expr) -> None:
        """The block of keys (and values) from k0, zeros beyond the last."""
        b, x = self.b, self.tiles
        self.origin = k0
        count = b.let(minimum(self.s - k0, self.size.keys), "keys")
        turned = {1: self.kt} if self.name == "attention_lse" else {2: self.vt, 1: self.kt}
        for i, target in turned.items():
            source, base = self.operand_of(i, kv, k0)
            x.pack(source, base, self.k, count, self.size.keys)
            x.turn(self.k, const(0), target, const(0))

    def _take_sums(self, head: Affine) -> None:
        """lse and delta of the rows; rows that do not exist see nothing."""
        b, em = self.b, self.em
        with b.loop(self.padded, name="r") as r, em.scope():
            row = em.axis(minimum(self.t0 + r, self.t - 1), self.t)
            for node, target in zip(self.node.inputs[4:6], (self.top, self.delta)):
                b.store(target, r, em.value(node, (self.bi, head, row)))

    def _weights(self, k0: Expr, r: Expr, low: list[Expr], high: list[Expr]) -> None:
        """p and ds of a tile of rows against the block."""
        x = self.tiles
        self.scores(k0, r, low, high)
        tops = [self.b.let(load(self.top, r + i), "lse") for i in range(MR)]
        x.exponents(self.p, r, const(0), const(self.size.keys), tops)
        x.slopes(self.g, r, self.vt, const(0), const(0), self.p, self.ds, self.delta)

    # -- row statistics

    def _lse(self, head: Affine, kv: Affine) -> None:
        b, keys, lanes = self.b, self.size.keys, self.tiles.lanes
        total = b.array("total", dt.float32, self.size.rows * lanes)

        def clear(r: Expr) -> None:
            b.store(self.top, r, const(FLOOR, Type(dt.float32, MR)))
            for i in range(MR):
                b.store(total, (r + i) * lanes, const(0.0, Type(dt.float32, lanes)))

        self.each_tile(clear)
        with b.loop(self.stop, self.first - self.first % keys, step=keys, name="k0") as k0:
            self._take_keys(kv, k0)
            self.each_seen(k0, lambda *tile: self._follow(k0, total, *tile))
        self.each_tile(lambda r: self._finish(head, total, r))

    def _follow(self, k0: Expr, total: Array, r: Expr, low: list[Expr], high: list[Expr]) -> None:
        """The tile's maxima and sums move on by a block."""
        b, x, lanes = self.b, self.tiles, self.tiles.lanes
        self.scores(k0, r, low, high)
        stop = const(self.size.keys)
        old = b.let(load(self.top, r, MR), "old")
        new = b.let(maximum(old, x.row_tops(self.p, r, const(0), stop)), "new")
        b.store(self.top, r, new)
        fade = b.let(math.exp_below(b, b.let(old - new, "fall")), "fade")
        tops = [b.let(extract(new, i), "top") for i in range(MR)]
        for i, added in enumerate(x.exponents(self.p, r, const(0), stop, tops)):
            at = b.let((r + i) * lanes, "at")
            by = splat(extract(fade, i), lanes)
            b.store(total, at, load(total, at, lanes) * by + added)

    def _finish(self, head: Affine, total: Array, r: Expr) -> None:
        b, em, lanes = self.b, self.em, self.tiles.lanes
        sums = [b.let(load(total, (r + i) * lanes, lanes), "sum") for i in range(MR)]
        whole = b.let(fold_lanes(b, sums), "total")
        some = b.let(whole > 0.0, "some")
        log = math.log(b, b.let(select(some, whole, 1.0), "x"))
        lse = b.let(select(some, log + load(self.top, r, MR), UNSEEN), "lse")
        mask = b.let(iota(MR) < splat(self.count - r, MR), "mask")
        with em.scope():
            row = em.axis(self.t0 + r, self.t) + em.lane(MR)
            self.store((self.bi, head, row), lse, mask)

    # -- gradients

    def _dq(self, head: Affine, kv: Affine) -> None:
        b, x, keys = self.b, self.tiles, self.size.keys
        dq = x.rows_array("dq", self.size.rows)
        self.take_rows(3, head, self.g)
        self._take_sums(head)
        x.clear(dq, const(0), self.padded)
        with b.loop(self.stop, self.first - self.first % keys, step=keys, name="k0") as k0:
            self._take_keys(kv, k0)

            def add(r: Expr, low: list[Expr], high: list[Expr]) -> None:
                self._weights(k0, r, low, high)
                _, _, near, far = self.tile_limits(r)
                first = b.let(maximum(near - k0, 0), "first")
                stop = b.let(minimum(far - k0, keys), "stop")
                x.add_keys(self.ds, r, first, stop, self.k, dq, False)

            self.each_seen(k0, add)

        def write(row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
            at = self.em.axis(self.t0 + row, self.t)
            self.store((self.bi, head, at, self.em.lane(value.type.lanes) + column), value, mask)

        x.write(dq, const(0), self.count, x.scale, write)

    def _dkv(self, at: Expr) -> None:
        b, em, x, keys = self.b, self.em, self.tiles, self.size.keys
        dk, dv = x.rows_array("dk", keys), x.rows_array("dv", keys)
        kv = em.axis(at, self.groups)
        k0 = b.let(b.group(0) * keys, "k0")
        self._take_keys(kv, k0)
        for target in (dk, dv):
            x.clear(target, const(0), keys)
        ahead, rows = const(self.s - self.t), self.size.rows
        causal, window = self.params["causal"], self.params["window"]
        first, stop = seeing_rows(b, k0, keys, ahead, const(self.t), causal, window)
        stop = b.let(select(k0 < self.length, stop, 0), "stop")
        end = b.let(k0 + keys, "end")
        with b.loop(self.share, name="h") as h, em.scope():
            head = em.axis(at * self.share + h, self.heads)
            with b.loop(stop, first - first % rows, step=rows, name="t0") as t0, em.scope():
                self.take(t0)
                self.take_rows(0, head, self.q)
                self.take_rows(3, head, self.g)
                self._take_sums(head)
                self.each_seen(k0, lambda *tile: self._weights(k0, *tile))
                near = b.let(maximum(self.first - self.first % MR, k0), "near")
                self.add_rows(near, b.let(minimum(self.stop, end), "far"), dk, dv)
        count = b.let(minimum(self.s - k0, keys), "count")
        for part, target in enumerate((dk, dv)):

            def write(
                row: Expr, column: int, mask: Expr | None, value: Expr, part: int = part
            ) -> None:
                key = em.axis(k0 + row, self.s)
                lane = em.lane(value.type.lanes) + column
                self.store((affine.number(part), self.bi, kv, key, lane), value, mask)

            with em.scope():
                x.write(target, const(0), count, 1.0 if part else x.scale, write)
