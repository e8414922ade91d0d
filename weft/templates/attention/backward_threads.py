"""The derivative of attention in the threads of a GPU: alone, or sharing tiles.

Where barriers are expensive a thread takes an item alone. Elsewhere a group of side x side threads
takes a block of items. Products of a pair of blocks are staged through shared memory a slice of D
at a time. Weights go to shared memory, and each thread adds its items and columns of the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.expr import const, fma, load, minimum
from weft.kernel.ir import F32, Expr
from weft.templates.attention.backward import BackwardKernel, BackwardWorker
from weft.templates.attention.forward_threads import Take, ThreadGrid
from weft.templates.operand import Reader

THREADS = 64  # threads of a group without shared tiles
LARGE = 40 << 10  # bytes of shared memory for blocks of 64


class ItemThread(BackwardWorker):
    """A thread per item."""

    def __init__(self, call: BackwardKernel, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        self.rows = config.get("threads", min(THREADS, call.caps.max_threads))
        self.threads = (self.rows,)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self.at = self.b.let(self.call.first + self.b.thread(0), "item")
        with self.b.when(self.at < self.call.items), self.em.scope():
            yield

    def range(self) -> tuple[Expr, Expr]:
        return self.call.sees(self.at)

    def hold(self, sources: Sequence[Reader]) -> None:
        self.held = [self._array("held") for _ in sources]
        for array, source in zip(self.held, sources):
            row = source.row(self.b, self.at)
            with self._components() as d:
                self.b.store(array, d, row.read(0, d))
        if self.call.rows_stay:
            self.note = self.call.note(self.at)

    def _array(self, name: str) -> ir.Array:
        return self.b.array(name, dt.float32, self.call.depth)

    def _components(self) -> contextlib.AbstractContextManager[Expr]:
        return self.b.loop(self.call.depth, name="d")

    def _dot(self, x: ir.Array, row: Reader) -> Expr:
        """x times a row."""
        acc = self.b.var(0.0, "acc")
        with self._components() as d:
            self.b.assign(acc, fma(load(x, d), row.read(0, d), acc))
        return self.b.let(acc, "dot")

    def clear(self, totals: bool) -> None:
        self.sums = [self._array("sum") for _ in self.call.results]
        self.totals = [self._array("total") for _ in self.call.results] if totals else self.sums
        for x in self.sums + (self.totals if totals else []):
            with self._components() as d:
                self.b.store(x, d, const(0.0, F32))

    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        b, call = self.b, self.call
        with b.loop(stop, start, name="j") as j, self.em.scope():
            rows = [x.row(b, j) for x in sources]
            note = self.note if call.rows_stay else call.note(j)
            qk, gv = (self._dot(*x) for x in zip(self.held, rows))
            weights = call.weigh(*call.score(qk), gv, note)
            for total, w, row in zip(self.sums, weights, rows):
                with self._components() as d:
                    b.store(total, d, fma(w, row.read(0, d), load(total, d)))

    def join(self) -> None:
        for x, total in zip(self.sums, self.totals):
            with self._components() as d:
                self.b.store(total, d, load(total, d) + load(x, d))
                self.b.store(x, d, const(0.0, F32))

    def finish(self) -> None:
        b, em, call = self.b, self.em, self.call
        item = em.axis(self.at, call.items)
        for result, x in zip(call.results, self.totals):
            with self._components() as d, em.scope():
                value = b.let(load(x, d) * call.factor(result), "y")
                call.write(result, item, em.axis(d, call.depth), value)


class SharedTilesBackward(BackwardWorker):
    """Threads that share tiles: items of a block stay, those of another pass."""

    def __init__(self, call: BackwardKernel, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        caps = call.caps
        side = 16 if caps.max_threads >= 256 else 8
        large = side == 16 and caps.shared_bytes >= LARGE and call.depth <= 128
        self.rows = rows = config.get("block", 64 if large else 32)
        self.threads = (side, side)
        deep = 8 if rows > 32 else 16  # components staged at once
        self.grid = ThreadGrid(call, side, rows, rows, deep, len(call.held))
        self.weights = [self.grid.array("weight", rows**2) for _ in call.results]

    def hold(self, sources: Sequence[Reader]) -> None:
        b, call = self.b, self.call
        self.held = [self._taker(x, call.first, call.items) for x in sources]
        self.at = [b.let(call.first + y, "item") for y in self.grid.mine]
        self.sees = [call.sees(at) for at in self.at]
        if call.rows_stay:
            self.notes = [call.note(b.let(minimum(at, call.t - 1), "row")) for at in self.at]

    def _taker(self, source: Reader, first: Expr, limit: int) -> Take:
        """Elements of a block; those of its last row for rows that do not exist."""

        def take(item: Expr, d: Expr) -> Expr:
            row = self.b.let(minimum(first + item, limit - 1), "row")
            return source.read(row, d)

        return take

    def clear(self, totals: bool) -> None:
        self.sums = self._zeros("sum")
        self.totals = self._zeros("total") if totals else self.sums

    def _zeros(self, name: str) -> list[list[list[ir.Var]]]:
        columns, mine = self.grid.columns, self.grid.mine
        return [[[self.b.var(0.0, name) for _ in columns] for _ in mine] for _ in self.call.results]

    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        b, call, grid = self.b, self.call, self.grid
        with b.loop(stop, start - start % self.rows, self.rows, "p0") as p0, self.em.scope():
            passing = [b.let(p0 + x, "passing") for x in grid.across]
            takers = [self._taker(x, p0, call.others) for x in sources]
            self._weigh(grid.products([*zip(self.held, takers)]), passing)
            b.barrier()
            count = b.let(minimum(call.others - p0, self.rows), "count")
            grid.add(p0, count, [*zip(self.weights, sources, self.sums)])

    def _weigh(self, products: list[list[list[Expr]]], passing: list[Expr]) -> None:
        """The thread's weights to shared memory, [stays][passes]."""
        b, call = self.b, self.call
        if not call.rows_stay:
            rows = [b.let(minimum(at, call.t - 1), "row") for at in passing]
            notes = [call.note(row) for row in rows]
        for i, (y, (low, high)) in enumerate(zip(self.grid.mine, self.sees)):
            for j, (x, at) in enumerate(zip(self.grid.across, passing)):
                seen = b.let((at >= low) & (at < high), "seen")
                qk, gv = (b.let(sums[i][j], "product") for sums in products)
                note = self.notes[i] if call.rows_stay else notes[j]
                weights = call.weigh(*call.score(qk), gv, note, seen)
                for weight, array in zip(weights, self.weights):
                    b.store(array, y * self.rows + x, weight)

    def join(self) -> None:
        for sums, totals in zip(self.sums, self.totals):
            for var, total in zip(chain(*sums), chain(*totals)):
                self.b.assign(total, total + var)
                self.b.assign(var, const(0.0, F32))

    def finish(self) -> None:
        b, em, call = self.b, self.em, self.call
        for at, *lines in zip(self.at, *self.totals):
            with b.when(at < call.items), em.scope():
                item = em.axis(at, call.items)
                for result, line in zip(call.results, lines):
                    for column, var in self.grid.inside(line):
                        with em.scope():
                            value = b.let(var * call.factor(result), "y")
                            call.write(result, item, em.axis(column, call.depth), value)
