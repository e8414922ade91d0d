"""`attention_grad` on a CPU: all three gradients at once, one group per kv head and batch entry.

The group keeps its keys, values and their gradients in scratch and takes the query rows of its
heads in blocks. A block's weights against all keys fit in scratch too, so each score is computed
once: five matrix products, the least there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.expr import const, fma, load, maximum, minimum, select
from weft.kernel.ir import Expr
from weft.templates.attention.backward import BackwardKernel, BackwardWorker
from weft.templates.attention.backward_tiles import BackwardTiles, Seen, TileSizes, sizes_of
from weft.templates.attention.backward_vector import VectorBackward
from weft.templates.attention.positions import seeing_rows
from weft.templates.attention.softmax import FLOOR, inverse
from weft.templates.attention.tile import MR
from weft.templates.operand import Reader

SCORES = 1 << 15  # weights of a block of query rows, which fit easily in L2


def fits(node: Node, caps: Caps) -> bool:
    """True if one group can hold its keys in scratch, and groups suffice for all cores."""
    q, k = node.inputs[:2]
    size, span = _sizes(caps, {}, q.shape[2], k.shape[2])
    wide = -(-k.shape[3] // size.lanes) * size.lanes
    kept = 5 * span * wide + (4 * wide + 3 * (span + size.lanes) + 8) * size.rows
    return 4 * kept + 4096 <= caps.scratch_bytes and k.shape[0] * k.shape[1] >= caps.cores


def _sizes(caps: Caps, config: Mapping[str, Any], t: int, s: int) -> tuple[TileSizes, int]:
    """Blocks of query rows against blocks of keys, and keys in whole blocks."""
    rows = 64
    while rows > 16 and rows * s > SCORES:
        rows //= 2
    size = sizes_of(caps, config, t, s, rows)
    return size, -(-s // size.keys) * size.keys


class FusedBackward(VectorBackward):
    """A thread that holds all keys of a head. A key's gradients are one chain over all rows, since
    totals as well as sums would not stay in L2 (7 % of the time for 1,024 keys)."""

    cut = 0

    def __init__(self, call: BackwardKernel, config: Mapping[str, Any]) -> None:
        BackwardWorker.__init__(self, call)
        b, caps = self.b, call.caps
        self.size, self.rows = size, span = _sizes(caps, config, call.t, call.s)
        self.x = x = BackwardTiles(b, size, call.depth, span)
        self.k, self.kt, self.vt = (x.rows_array(n, span) for n in ("k", "kt", "vt"))
        self.q, self.g = (x.rows_array(n, size.rows) for n in "qg")
        self.dq = x.rows_array("dq", size.rows)
        self.dq_total = x.rows_array("dq_total", size.rows) if call.s > CHUNK else self.dq
        self.p, self.ds = x.pairs_array("p"), x.pairs_array("ds")
        self.slope = x.pairs_array("slope") if call.params["softcap"] else None
        self.inverse = b.array("inverse", dt.float32, size.rows)  # inverse sums of p
        self.padded: Expr = const(span)
        self.count: Expr = const(call.s)

    def range(self) -> tuple[Expr, Expr]:
        return const(0), const(self.call.t)

    def hold(self, sources: Sequence[Reader]) -> None:
        b, x = self.b, self.x
        for source, turned in zip(reversed(sources), (self.vt, self.kt)):
            x.pack(source, const(0), self.k, const(self.call.s), self.rows)
            with b.loop(self.rows, step=self.size.keys, name="k0") as k0:
                x.turn(self.k, k0, turned, k0 * x.wide)

    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        with self.b.loop(stop, start, self.size.rows, "t0") as t0, self.em.scope():
            self._take(sources, t0)
            self._scores()
            with self.b.loop(self.taken, step=MR, name="r") as r:
                self._weigh(r)
            self._changes()
            with self.b.loop(self.taken, step=MR, name="r") as r:
                self._settle(r)
            self._add_keys()
            self._write("dq", self.dq_total, t0, self.present)
            self._add_rows(t0)

    def _take(self, sources: Sequence[Reader], t0: Expr) -> None:
        """A block of query rows: `present` of them, `taken` in whole tiles, and what they see."""
        b, x, call = self.b, self.x, self.call
        self.present = present = b.let(minimum(call.t - t0, self.size.rows), "present")
        self.taken = b.let((present + (MR - 1)) // MR * MR, "taken")
        for source, target in zip(sources, (self.q, self.g)):
            x.pack(source, t0, target, present, self.taken)
        with b.loop(self.taken, name="r") as r:
            low, high = call.keys_of(b.let(t0 + r, "row"))
            x.limit(r, (low, select(r < present, high, 0)))
        first = b.let(load(x.low, const(0)), "first")
        self.first = b.let(first - first % self.size.keys, "first")
        self.stop = b.let(load(x.high, present - 1), "stop")

    def _each_seen(self, body: Callable[[Expr, Expr, Seen], None], start: Expr, stop: Expr) -> None:
        """body(k0, r, seen) for every block of keys and every tile of rows that sees some of it."""
        b, keys = self.b, self.size.keys
        with (
            b.loop(stop, start, step=keys, name="k0") as k0,
            b.loop(self.taken, step=MR, name="r") as r,
        ):
            seen = self.x.seen(r)
            with b.when((seen[3] > k0) & (seen[2] < k0 + keys)):
                body(k0, r, seen)

    def _blocks(self, seen: Seen) -> tuple[Expr, Expr]:
        """The keys, in whole blocks, that a tile of rows has scores for."""
        b, keys, (_, _, near, far) = self.b, self.size.keys, seen
        return b.let(near - near % keys, "first"), b.let((far + (keys - 1)) // keys * keys, "stop")

    def _scores(self) -> None:
        b, x = self.b, self.x

        def keep(i: int, column: Expr, at: Expr, product: Expr) -> None:
            score, slope = self.call.score(product)
            b.store(self.p.s, at, score)
            if slope is not None and self.slope is not None:
                b.store(self.slope.s, at, slope)

        def scores(k0: Expr, r: Expr, seen: Seen) -> None:
            x.against(self.q, r, self.kt, k0 * x.wide, k0, keep)
            x.hide(self.p, r, k0, k0, seen)

        self._each_seen(scores, self.first, self.stop)

    def _weigh(self, r: Expr) -> None:
        """Scores become weights without their common factor, which the rows of g take."""
        b, x, p = self.b, self.x, self.p
        first, stop = self._blocks(x.seen(r))
        base = b.let(r * x.ld, "base")
        most = b.let(maximum(p.best(base, MR, stop, first), FLOOR), "tops")
        tops = p.spread(most, MR, "top")
        total = p.sums(base, MR, stop, lambda i, at, sum_: sum_ + p.weight(at, tops[i]), first)
        by = inverse(b, total)
        b.store(self.inverse, r, by)
        x.scale_rows(self.g, r, by)

    def _changes(self) -> None:
        """ds = g v^T."""
        b, x = self.b, self.x

        def keep(i: int, column: Expr, at: Expr, product: Expr) -> None:
            b.store(self.ds.s, at, product)

        def changes(k0: Expr, r: Expr, seen: Seen) -> None:
            x.against(self.g, r, self.vt, k0 * x.wide, k0, keep)

        self._each_seen(changes, self.first, self.stop)

    def _settle(self, r: Expr) -> None:
        """ds = p (ds - delta) times the cap's slope, delta being the mean of ds under the rows'
        weights."""
        b, x, lanes = self.b, self.x, self.x.lanes
        first, stop = self._blocks(x.seen(r))

        def term(i: int, at: Expr, total: ir.Var) -> Expr:
            return fma(load(self.p.s, at, lanes), load(self.ds.s, at, lanes), total)

        sums = self.p.sums(b.let(r * x.ld, "base"), MR, stop, term, first)
        delta = b.let(sums * load(self.inverse, r, MR), "delta")
        deltas = self.p.spread(delta, MR, "delta")
        with b.loop(stop, first, lanes, "c") as c:
            for i, mean in enumerate(deltas):
                at = b.let((r + i) * x.ld + c, "at")
                change = load(self.p.s, at, lanes) * (load(self.ds.s, at, lanes) - mean)
                if self.slope is not None:
                    change = change * load(self.slope.s, at, lanes)
                b.store(self.ds.s, at, change)

    def _add_keys(self) -> None:
        """dq = ds k, joined where a chain of keys ends."""
        b, x, keys = self.b, self.x, self.size.keys

        def add(k0: Expr, r: Expr, seen: Seen) -> None:
            first = b.let(maximum(seen[2], k0), "first")
            count = b.let(minimum(seen[3], k0 + keys) - first, "count")
            start = b.let(r * x.ld + first, "w0")
            x.add(self.ds.s, start, x.ld, 1, count, self.k, first, self.dq, r)

        x.clear(self.dq, const(0), self.taken)
        if self.dq_total is self.dq:
            self._each_seen(add, self.first, self.stop)
            return
        x.clear(self.dq_total, const(0), self.taken)
        with b.loop(self.stop, self.first - self.first % CHUNK, CHUNK, "c0") as c0:
            first = b.let(maximum(c0, self.first), "first")
            self._each_seen(add, first, b.let(minimum(c0 + CHUNK, self.stop), "stop"))
            x.join(self.dq, self.dq_total, const(0), self.taken)

    def _add_rows(self, t0: Expr) -> None:
        """dv += p^T g and dk += ds^T q: every tile of keys meets the rows that see some."""
        b, x, call = self.b, self.x, self.call
        causal, window = call.params["causal"], call.params["window"]
        ahead = b.let(t0 + (call.s - call.t), "ahead")
        dk, dv = self.sums
        for weights, rows, target in ((self.p.s, self.g, dv), (self.ds.s, self.q, dk)):
            with b.loop(self.stop, self.first, MR, "j") as j:
                first, stop = seeing_rows(b, j, MR, ahead, self.taken, causal, window)
                first = b.let(first - first % MR, "first")
                count = b.let((stop + (MR - 1)) // MR * MR - first, "count")
                start = b.let(first * x.ld + j, "w0")
                x.add(weights, start, 1, x.ld, count, rows, first, target, j)
