"""The derivative of attention in parts on a CPU: one thread and its vectors.

A group holds a block of items in scratch as f32; of what passes, a block is turned for the products
(vectors of items that pass) and kept as it is for the sums (vectors of components).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import STRANDS
from weft.kernel import math
from weft.kernel.expr import const, extract, fma, iota, load, maximum, minimum, splat
from weft.kernel.ir import Array, Expr, Type
from weft.templates.attention.backward_pairs import Call, Team
from weft.templates.attention.backward_tiles import MR, Seen, Tiles, sizes_of
from weft.templates.attention.softmax import FLOOR, fold_strands, follow
from weft.templates.operand import Reader
from weft.templates.registers import fold_lanes

ROWS = 128  # items per group


class Vector(Team):
    def __init__(self, call: Call, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        b, rows, planes = self.b, ROWS, call.batch * call.heads
        while rows > 16 and planes * -(-call.items // rows) < 4 * call.caps.cores:
            rows //= 2  # small blocks fill the cores
        self.size = size = sizes_of(call.caps, config, call.items, call.others, rows)
        self.x = x = Tiles(b, size, call.depth, size.keys)
        self.rows = size.rows
        self.held = [x.rows_array("held", size.rows) for _ in call.held]
        self.plain = [x.rows_array("passing", size.keys) for _ in call.results or "k"]
        self.turned = [x.rows_array("turned", size.keys) for _ in call.passing]
        self.p = x.pairs_array("p")
        self.ds = x.pairs_array("ds") if call.results else self.p
        noted = size.rows if call.rows_stay else size.keys
        self.notes = [b.array(n, dt.float32, noted) for n in ("lse", "delta")[: len(call.sums)]]

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
        """lse and delta of query rows from `first` on; the last instead of those beyond it."""
        b, call = self.b, self.call
        with b.loop(count if self.notes else const(0), name="r") as r, self.em.scope():
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
        """p and ds of rows r .. r + MR, or their scores where that is all."""
        b, x, call, lanes = self.b, self.x, self.call, self.x.lanes

        def keep(i: int, column: Expr, at: Expr, product: Expr) -> None:
            score, slope = call.score(product)
            b.store(self.p, at, score)
            if slope is not None and call.results:
                b.store(self.ds, at, slope)

        x.against(self.held[0], r, self.turned[0], 0, 0, keep)
        x.hide(self.p, r, 0, p0, seen)
        if not call.results:
            return
        if call.rows_stay:
            lines = [[splat(load(n, r + i), lanes) for n in self.notes] for i in range(MR)]
            notes = [[b.let(value, "note") for value in line] for line in lines]

        def weigh(i: int, column: Expr, at: Expr, change: Expr) -> None:
            if call.rows_stay:
                note = notes[i]
            else:
                note = [b.let(load(n, column, lanes), "note") for n in self.notes]
            slope = load(self.ds, at, lanes) if call.params["softcap"] else None
            ds, p = call.weigh(load(self.p, at, lanes), slope, change, note)
            b.store(self.ds, at, ds)
            b.store(self.p, at, p)

        x.against(self.held[1], r, self.turned[1], 0, 0, weigh)

    def _each(self, sources: Sequence[Reader], start: Expr, stop: Expr, body: Any) -> None:
        """body(p0, r, seen) for every block that passes and every tile that sees some of it, after
        its pairs."""
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
            for weights, plain, sums in zip((self.ds, self.p), self.plain, self.sums):
                x.add(weights, at, x.ld, 1, count, plain, first, sums, r)

        self._each(sources, start, stop, add)

    def join(self) -> None:
        for array, total in zip(self.sums, self.totals):
            self.x.join(array, total, const(0), self.padded)

    def finish(self) -> None:
        call = self.call
        if not call.results:
            with self.b.loop(self.padded, step=MR, name="r") as r:
                self._log_sums(r)
            return
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

    # -- row statistics

    def follow(self, source: Reader, start: Expr, stop: Expr) -> None:
        """Strand i of STRANDS has its own maximum and sum, of keys i, i + STRANDS, ..."""
        b, lanes = self.b, self.x.lanes
        size = self.rows * STRANDS
        self.tops, self.under = (b.array(n, dt.float32, size) for n in ("tops", "under"))
        with b.loop(self.padded * STRANDS, step=lanes, name="at") as at:
            b.store(self.tops, at, const(FLOOR, Type(dt.float32, lanes)))
            b.store(self.under, at, const(0.0, Type(dt.float32, lanes)))

        def step(p0: Expr, r: Expr, seen: Seen) -> None:
            for i in range(MR):
                for strand in range(0, STRANDS, lanes):
                    self._follow(b.let(r + i, "row"), strand)

        self._each([source], start, stop, step)

    def _follow(self, row: Expr, strand: int) -> None:
        """A row's strands from `strand` on take the block's scores."""
        b, x, lanes = self.b, self.x, self.x.lanes
        at = b.let(row * STRANDS + strand, "state")
        columns = range(strand, self.size.keys, STRANDS)
        scores = [b.let(load(self.p, row * x.ld + c, lanes), "s") for c in columns]
        best = scores[0]
        for s in scores[1:]:
            best = b.let(maximum(best, s), "best")
        new, fade = follow(b, b.let(load(self.tops, at, lanes), "top"), best)
        weights = [b.let(math.exp(b, b.let(s - new, "gap")), "p") for s in scores]
        added = weights[0]
        for p in weights[1:]:
            added = b.let(added + p, "added")
        b.store(self.tops, at, new)
        b.store(self.under, at, fma(load(self.under, at, lanes), fade, added))

    def _log_sums(self, r: Expr) -> None:
        b, em, call, lanes = self.b, self.em, self.call, self.x.lanes

        def state(array: Array, i: int) -> list[Expr]:
            at = b.let((r + i) * STRANDS, "at")
            steps = range(0, STRANDS, lanes)
            return [b.let(load(array, at + c, lanes), "state") for c in steps]

        tops = [state(self.tops, i) for i in range(MR)]
        most = []
        for line in tops:
            best = line[0]
            for top in line[1:]:
                best = b.let(maximum(best, top), "best")
            most.append(best)
        top = b.let(fold_lanes(b, most, "max"), "top")
        faded = []
        for i, line in enumerate(tops):
            wide = b.let(splat(extract(top, i), lanes), "top")
            fades = [math.exp(b, b.let(x - wide, "fall")) for x in line]
            faded.append([b.let(x * f, "sum") for x, f in zip(state(self.under, i), fades)])
        lse = call.log_sum(top, fold_strands(b, faded))
        mask = b.let(iota(MR) < splat(self.count - r, MR), "mask")
        with em.scope():
            call.write_row(em.axis(call.first + r, call.t) + em.lane(MR), lse, mask)
