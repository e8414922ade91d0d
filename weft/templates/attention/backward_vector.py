"""The derivative of attention in parts on a CPU: one thread and its vectors.

A group holds a block of items in scratch as f32. A passing block is kept twice: transposed for the
products (vectors of passing items) and unchanged for the sums (vectors of components).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.kernel.expr import const, load, maximum, minimum, splat
from weft.kernel.ir import Array, Expr
from weft.templates.attention.backward import BackwardKernel, BackwardWorker
from weft.templates.attention.backward_tiles import BackwardTiles, Seen, sizes_of
from weft.templates.attention.tile import MR
from weft.templates.operand import Reader

ROWS = 128  # items per group


class VectorBackward(BackwardWorker):
    def __init__(self, call: BackwardKernel, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        b, rows, planes = self.b, ROWS, call.batch * call.heads
        while rows > 16 and planes * -(-call.items // rows) < 4 * call.caps.cores:
            rows //= 2  # small blocks fill the cores
        self.size = size = sizes_of(call.caps, config, call.items, call.others, rows)
        self.x = x = BackwardTiles(b, size, call.depth, size.keys)
        self.rows = size.rows
        self.held = [x.rows_array("held", size.rows) for _ in call.held]
        self.plain = [x.rows_array("passing", size.keys) for _ in call.results]
        self.turned = [x.rows_array("turned", size.keys) for _ in call.passing]
        self.p = x.pairs_array("p")
        self.ds = x.pairs_array("ds")
        noted = size.rows if call.rows_stay else size.keys
        self.notes = [b.array(n, dt.float32, noted) for n in ("lse", "delta")]

    def hold(self, sources: Sequence[Reader]) -> None:
        b, call = self.b, self.call
        self.count = b.let(minimum(call.items - call.first, self.rows), "count")
        self.padded = b.let((self.count + (MR - 1)) // MR * MR, "padded")
        for source, target in zip(sources, self.held):
            self.x.pack(source, call.first, target, self.count, self.padded)
        with b.loop(self.padded, name="r") as r:
            self.x.limit(r, call.sees(b.let(call.first + r, "item")))
        if call.rows_stay:
            self._note(call.first, self.padded)

    def _note(self, first: Expr, count: Expr) -> None:
        """Stores lse and delta of query rows from `first` on; rows beyond the last repeat it."""
        b, call = self.b, self.call
        with b.loop(count, name="r") as r, self.em.scope():
            for value, target in zip(call.note(minimum(first + r, call.t - 1)), self.notes):
                b.store(target, r, value)

    def _take(self, sources: Sequence[Reader], p0: Expr) -> None:
        """The block that passes, zeros beyond the last."""
        b, x, keys = self.b, self.x, self.size.keys
        count = b.let(minimum(self.call.others - p0, keys), "passing")
        for i in reversed(range(len(sources))):
            plain = self.plain[min(i, len(self.plain) - 1)]
            x.pack(sources[i], p0, plain, count, keys)
            x.turn(plain, 0, self.turned[i], 0)
        if not self.call.rows_stay:
            self._note(p0, const(keys))

    def _pairs(self, p0: Expr, r: Expr, seen: Seen) -> None:
        """p and ds of rows r .. r + MR."""
        b, x, call, lanes = self.b, self.x, self.call, self.x.lanes

        def keep(i: int, column: Expr, at: Expr, product: Expr) -> None:
            score, slope = call.score(product)
            b.store(self.p.s, at, score)
            if slope is not None:
                b.store(self.ds.s, at, slope)

        x.against(self.held[0], r, self.turned[0], 0, 0, keep)
        x.hide(self.p, r, 0, p0, seen)
        if call.rows_stay:
            lines = [[splat(load(n, r + i), lanes) for n in self.notes] for i in range(MR)]
            notes = [[b.let(value, "note") for value in line] for line in lines]

        def weigh(i: int, column: Expr, at: Expr, change: Expr) -> None:
            if call.rows_stay:
                note = notes[i]
            else:
                note = [b.let(load(n, column, lanes), "note") for n in self.notes]
            slope = load(self.ds.s, at, lanes) if call.params["softcap"] else None
            ds, p = call.weigh(load(self.p.s, at, lanes), slope, change, note)
            b.store(self.ds.s, at, ds)
            b.store(self.p.s, at, p)

        x.against(self.held[1], r, self.turned[1], 0, 0, weigh)

    def _each(self, sources: Sequence[Reader], start: Expr, stop: Expr, body: Any) -> None:
        """Calls body(p0, r, seen), after computing its pairs, for every passing block and every
        tile that sees part of it."""
        b, keys = self.b, self.size.keys
        with b.loop(stop, start - start % keys, keys, "p0") as p0, self.em.scope():
            self._take(sources, p0)
            with b.loop(self.padded, step=MR, name="r") as r:
                seen = self.x.seen(r)
                with b.when((seen[3] > p0) & (seen[2] < p0 + keys)):
                    self._pairs(p0, r, seen)
                    body(p0, r, seen)

    # -- gradients

    def clear(self, totals: bool) -> None:
        x, results = self.x, self.call.results
        self.sums = [x.rows_array("sum", self.rows) for _ in results]
        self.totals = [x.rows_array("total", self.rows) for _ in results] if totals else self.sums
        for array in self.sums + (self.totals if totals else []):
            x.clear(array, const(0), self.padded)

    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        b, x, keys = self.b, self.x, self.size.keys

        def add(p0: Expr, r: Expr, seen: Seen) -> None:
            first = b.let(maximum(seen[2] - p0, 0), "first")
            count = b.let(minimum(seen[3] - p0, keys) - first, "count")
            at = b.let(r * x.ld + first, "w0")
            for weights, plain, sums in zip((self.ds.s, self.p.s), self.plain, self.sums):
                x.add(weights, at, x.ld, 1, count, plain, first, sums, r)

        self._each(sources, start, stop, add)

    def join(self) -> None:
        for array, total in zip(self.sums, self.totals):
            self.x.join(array, total, const(0), self.padded)

    def finish(self) -> None:
        call = self.call
        for result, array in zip(call.results, self.totals):
            self._write(result, array, call.first, self.count)

    def _write(self, result: str, array: Array, first: Expr, count: Expr) -> None:
        """A result of `count` items from `first` on."""
        em, call = self.em, self.call
        items = call.t if result == "dq" else call.s

        def write(row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
            with em.scope():
                lane = em.lane(value.type.lanes) + column
                call.write(result, em.axis(first + row, items), lane, value, mask)

        self.x.write(array, count, call.factor(result), write)
