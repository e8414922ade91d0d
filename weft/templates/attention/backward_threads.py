"""The derivative of attention in the threads of a GPU: alone, or sharing tiles.

Where barriers are expensive a thread takes an item alone. Elsewhere a group of side x side threads
takes a block of items: products of a pair of blocks are staged through shared memory a slice of D
at a time, weights go to shared memory, and each thread adds its items and columns of the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.expr import as_expr, const, fma, load, minimum, select
from weft.kernel.ir import F32, Expr
from weft.templates.attention.backward_pairs import Call, Team
from weft.templates.operand import Reader

THREADS = 64  # of a group whose threads work alone
LARGE = 40 << 10  # bytes of shared memory that blocks of 64 want


class Alone(Team):
    """A thread per item."""

    def __init__(self, call: Call, config: Mapping[str, Any]) -> None:
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


class Shared(Team):
    """Side x side threads: items ty, ty + side, ... of a block stay, tx, tx + side, ... pass, and
    so do columns of the results."""

    def __init__(self, call: Call, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        b, caps = self.b, call.caps
        self.side = side = 16 if caps.max_threads >= 256 else 8
        large = side == 16 and caps.shared_bytes >= LARGE and call.depth <= 128
        self.rows = config.get("block", 64 if large else 32)
        self.threads = (side, side)
        self.slice = 8 if self.rows > 32 else 16  # of D, staged at once
        self.tx, self.ty = b.let(b.thread(0), "tx"), b.let(b.thread(1), "ty")
        self.flat = b.let(self.ty * side + self.tx, "flat")
        self.mine = [b.let(self.ty + i, "y") for i in range(0, self.rows, side)]
        self.across = [b.let(self.tx + i, "x") for i in range(0, self.rows, side)]
        size, pairs = self.slice * self.rows, range(len(call.held))
        self.staged = [[self._array(n, size) for n in ("left", "right")] for _ in pairs]
        self.weights = [self._array("weight", self.rows**2) for _ in call.results]

    def _array(self, name: str, size: int) -> ir.Array:
        return self.b.array(name, dt.float32, size, "shared")

    def hold(self, sources: Sequence[Reader]) -> None:
        b, call = self.b, self.call
        self.held = sources
        self.at = [b.let(call.first + y, "item") for y in self.mine]
        self.sees = [call.sees(at) for at in self.at]
        if call.rows_stay:
            self.notes = [call.note(b.let(minimum(at, call.t - 1), "row")) for at in self.at]

    # -- products of two blocks

    def _stage(self, target: ir.Array, source: Reader, first: Expr, limit: int, d0: Expr) -> None:
        """target[d][item] for a slice of D and a block of items; zeros where there is nothing.
        Threads run along D, which is contiguous in memory."""
        b, depth = self.b, self.call.depth
        for step in range(0, self.slice * self.rows, self.side * self.side):
            e = b.let(self.flat + step, "e")
            d, item = b.let(e % self.slice, "d"), b.let(e // self.slice, "item")
            column, at = b.let(d0 + d, "column"), b.let(first + item, "at")
            row = source.row(b, minimum(at, limit - 1))
            value = row.read(0, b.let(minimum(column, depth - 1), "column"))
            inside = (column < depth) & (at < limit)
            b.store(target, d * self.rows + item, select(inside, value, 0.0))

    def _products(self, sources: Sequence[Reader], p0: Expr) -> list[list[list[ir.Var]]]:
        """Per pair of operands, the products of the thread's items that stay and that pass."""
        b, call = self.b, self.call
        acc = [[[b.var(0.0, "acc") for _ in self.across] for _ in self.mine] for _ in sources]
        with b.loop(call.depth, step=self.slice, name="d0") as d0:
            for held, passing, (left, right) in zip(self.held, sources, self.staged):
                self._stage(left, held, call.first, call.items, d0)
                self._stage(right, passing, p0, call.others, d0)
            b.barrier()
            with b.loop(self.slice, name="d") as d:
                at = b.let(d * self.rows, "at")
                for sums, (left, right) in zip(acc, self.staged):
                    xs = [b.let(load(left, at + y), "x") for y in self.mine]
                    ys = [b.let(load(right, at + x), "y") for x in self.across]
                    for x, line in zip(xs, sums):
                        for y, var in zip(ys, line):
                            b.assign(var, fma(x, y, var))
            b.barrier()
        return acc

    @contextlib.contextmanager
    def _blocks(self, start: Expr, stop: Expr) -> Iterator[tuple[Expr, list[Expr]]]:
        """The first of each block that passes, and the thread's own of it."""
        b = self.b
        with b.loop(stop, start - start % self.rows, self.rows, "p0") as p0, self.em.scope():
            yield p0, [b.let(p0 + x, "passing") for x in self.across]

    # -- weights and results

    def clear(self, totals: bool) -> None:
        self.columns = range(0, self.call.depth, self.side)
        self.sums = self._zeros("sum")
        self.totals = self._zeros("total") if totals else self.sums

    def _zeros(self, name: str) -> list[list[list[ir.Var]]]:
        var, results = self.b.var, self.call.results
        return [[[var(0.0, name) for _ in self.columns] for _ in self.mine] for _ in results]

    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        b, call = self.b, self.call
        with self._blocks(start, stop) as (p0, passing):
            acc = self._products(sources, p0)
            self._weigh(acc, passing)
            b.barrier()
            count = b.let(minimum(call.others - p0, self.rows), "count")
            with b.loop(count, name="j") as j:
                at = b.let(p0 + j, "at")
                for weights, source, sums in zip(self.weights, sources, self.sums):
                    row = source.row(b, at)
                    xs = [b.let(row.read(0, c), "x") for c in self._inside()]
                    for y, line in zip(self.mine, sums):
                        w = b.let(load(weights, y * self.rows + j), "w")
                        for x, var in zip(xs, line):
                            b.assign(var, fma(w, x, var))

    def _inside(self) -> list[Expr]:
        """The thread's columns, the last instead of those that do not exist."""
        last = self.call.depth - 1
        return [self.b.let(minimum(self.tx + c, last), "column") for c in self.columns]

    def _weigh(self, acc: list[list[list[ir.Var]]], passing: list[Expr]) -> None:
        """The thread's weights to shared memory, [stays][passes]."""
        b, call = self.b, self.call
        if not call.rows_stay:
            rows = [b.let(minimum(at, call.t - 1), "row") for at in passing]
            notes = [call.note(row) for row in rows]
        for i, (y, (low, high)) in enumerate(zip(self.mine, self.sees)):
            for j, (x, at) in enumerate(zip(self.across, passing)):
                seen = b.let((at >= low) & (at < high), "seen")
                qk, gv = (b.let(sums[i][j], "product") for sums in acc)
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
                    for c, var in zip(self.columns, line):
                        column = b.let(self.tx + c, "column")
                        with b.when(column < as_expr(call.depth)), em.scope():
                            value = b.let(var * call.factor(result), "y")
                            call.write(result, item, em.axis(column, call.depth), value)
