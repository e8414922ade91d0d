"""`attention_grad` on a CPU: one group per (kv head, batch entry), all three gradients at once.

The group keeps its keys, values and their gradients in scratch and takes the query rows of its
heads in blocks. A block's weights against all keys fit in scratch too, so each score is computed
once: five matrix products, the least there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import (
    Builder,
    Expr,
    const,
    extract,
    load,
    maximum,
    minimum,
    select,
)
from weft.kernel.ir import F32, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention_cpu import seeing_rows, visible_keys
from weft.templates.attention_flash import Operand
from weft.templates.attention_grad_tiles import MR, Sizes, Tiles, sizes_of
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.matmul_pack import fold_lanes
from weft.templates.matmul_tail import store_all
from weft.templates.matmul_view import View, operand

SCORES = 1 << 14  # weights that a block of query rows holds: what the second cache takes easily


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
    kept = 5 * size.span * wide + (4 * wide + 2 * size.span + 8) * size.rows
    return 4 * (kept + size.keys * wide) + 4096


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention_grad` call (see the composite for its meaning)."""
    return _Fused(group, node, caps, config).kernel()


class _Fused:
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        self.group, self.node = group, node
        self.b = b = Builder(group.name or "attention_grad")
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.views = [operand(group, x) for x in node.inputs[:5]]  # q, k, v, out, g
        self.batch, self.heads, self.t, self.depth = node.inputs[0].shape
        self.groups, self.s = node.inputs[1].shape[1:3]
        self.size = size = _sizes(caps, config, self.t, self.s)
        scale, softcap = self.params["scale"], self.params["softcap"]
        self.tiles = x = Tiles(b, size, self.depth, scale, softcap)
        self.q, self.g = x.rows_array("q", size.rows), x.rows_array("g", size.rows)
        self.rows = x.rows_array("rows", size.rows)  # out, later dq
        self.k = x.rows_array("k", size.span)
        self.kt, self.vt = x.rows_array("kt", size.span), x.rows_array("vt", size.span)
        self.dk, self.dv = x.rows_array("dk", size.span), x.rows_array("dv", size.span)
        self.p, self.ds = x.scores_array("p"), x.scores_array("ds")
        self.low, self.high = (b.array(n, dt.int32, size.rows) for n in ("low", "high"))
        self.delta = b.array("delta", dt.float32, size.rows)

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        self.bi = em.axis(b.group(1), self.batch)
        kv = b.let(b.group(0), "kv")
        self.kv = em.axis(kv, self.groups)
        self.length: Expr = const(self.s)
        if len(self.node.inputs) == 6:
            given = em.value(self.node.inputs[5], (self.bi,))
            self.length = b.let(maximum(minimum(given, self.s), 0), "length")
        self._take_keys()
        share = self.heads // self.groups
        with b.loop(share, name="h") as i, em.scope():
            head = em.axis(kv * share + i, self.heads)  # type: ignore[operator]
            with b.loop(self.t, step=self.size.rows, name="t0") as t0, em.scope():
                self._block(head, t0)
        start = math.prod(self.node.inputs[0].shape)
        one = math.prod(self.node.inputs[1].shape)
        for x, at in ((self.dk, start), (self.dv, start + one)):
            with em.scope():
                place = self._writer(self.kv, const(0), self.s, self.groups, at)
                self.tiles.write(x, const(0), const(self.s), 1.0, place)
        pairs = self.t * self.s // (2 if self.params["causal"] else 1)
        flops = 10 * self.batch * self.heads * pairs * self.depth
        return b.kernel((self.groups, self.batch), (1,), flops, traffic(self.group))

    # -- memory

    def _operand(self, i: int, head: Affine, row: Expr) -> tuple[Operand, Expr]:
        """Operand i of one head, and where its row `row` starts."""
        view: View = self.views[i]
        base = self.em.expr(affine.flatten((self.bi, head), view.strides[:2], view.offset))
        source = Operand(self.em.buffers[id(view.node)], view.strides[2], view.strides[3])
        return source, base + row * view.strides[2]  # type: ignore[operator]

    def _writer(self, head: Affine, first: Expr, rows: int, heads: int, offset: int):  # type: ignore[no-untyped-def]
        """Writes rows from `first` of a [B, rows, heads, D] array that starts at `offset`."""
        em, node = self.em, self.node
        strides = affine.contiguous((self.batch, rows, heads, self.depth))

        def write(row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
            with em.scope():
                at = em.axis(first + row, rows)  # type: ignore[operator]
                lane = em.lane(value.type.lanes) + column
                flat = affine.flatten((self.bi, at, head, lane), strides, offset)
                store_all(em, node, (flat,), value, mask)

        return write

    def _take_keys(self) -> None:
        b, x, size = self.b, self.tiles, self.size
        for i, turned in ((2, self.vt), (1, self.kt)):
            source, base = self._operand(i, self.kv, const(0))
            x.pack(source, base, self.k, const(self.s), size.span)
            with b.loop(size.span, step=size.keys, name="k0") as k0:
                x.turn(self.k, k0, turned, k0 * x.wide)  # type: ignore[operator]
        for target in (self.dk, self.dv):
            x.clear(target, const(0), size.span)

    # -- a block of query rows

    def _block(self, head: Affine, t0: Expr) -> None:
        b, x = self.b, self.tiles
        count = b.let(minimum(self.t - t0, self.size.rows), "count")  # type: ignore[operator]
        padded = b.let((count + (MR - 1)) // MR * MR, "padded")  # type: ignore[operator]
        self._limits(t0, count, padded)
        for i, target in ((0, self.q), (3, self.rows), (4, self.g)):
            source, base = self._operand(i, head, t0)
            x.pack(source, base, target, count, padded)
        x.scale_rows(self.q, count, lambda _: const(x.scale, F32))
        first = b.let(self.first - self.first % self.size.keys, "first")  # type: ignore[operator]
        self._over(first, padded, self._scores)
        self._each_tile(padded, self._weigh)
        x.scale_rows(self.g, padded, lambda r: load(self.delta, r))
        x.row_dots(self.rows, self.g, self.delta, padded)
        self._over(first, padded, self._slopes)
        self._each_tile(padded, self._dq)
        x.write(self.rows, const(0), count, x.scale, self._writer(head, t0, self.t, self.heads, 0))
        self._dkv(t0, padded)

    def _limits(self, t0: Expr, count: Expr, padded: Expr) -> None:
        """Which keys each row sees (none where there is no row), and all rows together."""
        b, params = self.b, self.params

        def limits(row: Expr) -> tuple[Expr, Expr]:
            return visible_keys(
                b, row, self.t, self.s, self.length, params["causal"], params["window"]
            )

        with b.loop(padded, name="r") as r:
            low, high = limits(b.let(t0 + r, "row"))  # type: ignore[operator]
            b.store(self.low, r, low)
            b.store(self.high, r, select(r < count, high, 0))  # type: ignore[operator]
        low, _ = limits(t0)
        self.first = b.let(low, "first_key")
        self.stop = b.let(load(self.high, count - 1), "stop_key")  # type: ignore[operator]

    def _tile_limits(self, r: Expr) -> tuple[list[Expr], list[Expr], Expr, Expr]:
        """low and high of the tile's rows, the least low and the greatest high."""
        b = self.b
        low = [b.let(load(self.low, r + i), "low") for i in range(MR)]  # type: ignore[operator]
        high = [b.let(load(self.high, r + i), "high") for i in range(MR)]  # type: ignore[operator]
        near = minimum(minimum(low[0], low[1]), minimum(low[2], low[3]))
        far = maximum(maximum(high[0], high[1]), maximum(high[2], high[3]))
        return low, high, b.let(near, "near"), b.let(far, "far")

    def _each_tile(self, padded: Expr, body: Callable[[Expr], None]) -> None:
        with self.b.loop(padded, step=MR, name="r") as r:
            body(r)

    def _over(self, first: Expr, padded: Expr, body: Callable[..., None]) -> None:
        """body(r, k0, low, high) for each key block and the row tiles that see some of it."""
        b, keys = self.b, self.size.keys
        rows = b.loop(padded, step=MR, name="r")
        with b.loop(self.stop, first, step=keys, name="k0") as k0, rows as r:
            low, high, near, far = self._tile_limits(r)
            with b.when((far > k0) & (near < k0 + keys)):  # type: ignore[operator]
                body(r, k0, low, high)

    def _scores(self, r: Expr, k0: Expr, low: list[Expr], high: list[Expr]) -> None:
        b, x, keys = self.b, self.tiles, self.size.keys
        slope = self.ds if x.softcap else None
        x.scores(self.q, r, self.kt, b.let(k0 * x.wide, "block"), k0, self.p, slope)  # type: ignore[operator]
        last = maximum(maximum(low[0], low[1]), maximum(low[2], low[3]))
        least = minimum(minimum(high[0], high[1]), minimum(high[2], high[3]))
        with b.when((least < k0 + keys) | (last > k0)):  # type: ignore[operator]
            x.hide(self.p, r, k0, k0, low, high)

    def _weigh(self, r: Expr) -> None:
        """Scores become weights without their common factor, which the rows of g take."""
        b, x, keys = self.b, self.tiles, self.size.keys
        _, _, near, far = self._tile_limits(r)
        first = b.let(near - near % keys, "first")  # type: ignore[operator]
        stop = b.let((far + (keys - 1)) // keys * keys, "stop")  # type: ignore[operator]
        tops = x.row_tops(self.p, r, first, stop)
        sums = x.exponents(self.p, r, first, stop, [extract(tops, i) for i in range(MR)])
        totals = b.let(fold_lanes(b, sums), "totals")
        some = b.let(totals > 0.0, "some")  # type: ignore[operator]
        inverse = b.let(select(some, 1.0 / select(some, totals, 1.0), 0.0), "inverse")  # type: ignore[operator]
        b.store(self.delta, r, inverse)

    def _slopes(self, r: Expr, k0: Expr, low: list[Expr], high: list[Expr]) -> None:
        b, x = self.b, self.tiles
        at = b.let(k0 * x.wide, "block")  # type: ignore[operator]
        x.slopes(self.g, r, self.vt, at, k0, self.p, self.ds, self.delta)

    def _dq(self, r: Expr) -> None:
        b, x = self.b, self.tiles
        _, _, near, far = self._tile_limits(r)
        x.add_keys(self.ds, r, near, b.let(maximum(far, near), "stop"), self.k, self.rows, True)

    def _dkv(self, t0: Expr, padded: Expr) -> None:
        """Every tile of keys meets the rows that see some of it."""
        b, x = self.b, self.tiles
        off = b.let(t0 + (self.s - self.t), "off")  # type: ignore[operator]
        window, causal = self.params["window"], self.params["causal"]
        with b.loop(self.stop, self.first - self.first % MR, step=MR, name="j") as j:  # type: ignore[operator]
            first, stop = seeing_rows(b, j, MR, off, padded, causal, window)
            first = b.let(first - first % MR, "first")  # type: ignore[operator]
            stop = b.let((stop + (MR - 1)) // MR * MR, "stop")  # type: ignore[operator]
            x.add_rows(self.p, j, first, stop, self.g, self.dv)
            x.add_rows(self.ds, j, first, stop, self.q, self.dk)
