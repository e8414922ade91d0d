"""Attention in the threads of a GPU that share tiles (see `forward`).

A group of side x side threads takes a block of rows. Products of a block of rows and one of keys
are staged through shared memory a slice of D at a time. Weights go to shared memory, and each
thread adds up its rows and columns. Where barriers are expensive threads work alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import KEYS, STRANDS
from weft.kernel import ir, math
from weft.kernel.expr import Value, as_expr, const, eq, fma, load, maximum, minimum, select
from weft.kernel.ir import I32, Expr
from weft.templates.attention import backward
from weft.templates.attention.forward import ForwardKernel, ForwardWorker, QueryRow
from weft.templates.attention.forward_row_thread import join_state
from weft.templates.attention.softmax import (
    FLOOR,
    HIDDEN,
    capped,
    fold_strands,
    follow,
    inverse,
    product,
)
from weft.templates.operand import Reader

SLICE = 8  # part of D that is staged at once


Take = Callable[[Expr, Expr], Expr]  # an element of an operand: item of the block, component


class ThreadGrid:
    """Side x side threads: items ty, ty + side, ... of a block of `rows` meet items tx, tx + side,
    ... of one of `others`, and columns tx, tx + side, ... of results. Operands are staged through
    shared memory `deep` components at a time."""

    def __init__(
        self,
        call: ForwardKernel | backward.BackwardKernel,
        side: int,
        rows: int,
        others: int,
        deep: int,
        pairs: int,
    ) -> None:
        self.b = b = call.b
        self.depth, self.deep = call.depth, deep
        self.side, self.rows, self.others = side, rows, others
        self.tx, self.ty = b.let(b.thread(0), "tx"), b.let(b.thread(1), "ty")
        self.flat = b.let(self.ty * side + self.tx, "flat")
        self.mine = [b.let(self.ty + i, "y") for i in range(0, rows, side)]
        self.across = [b.let(self.tx + i, "x") for i in range(0, others, side)]
        self.columns = range(0, self.depth, side)
        self.staged = [
            (self.array("left", deep * rows), self.array("right", deep * others))
            for _ in range(pairs)
        ]

    def array(self, name: str, size: int, dtype: dt.DType = dt.float32) -> ir.Array:
        return self.b.array(name, dtype, size, "shared")

    def products(self, takes: Sequence[tuple[Take, Take]]) -> list[list[list[Expr]]]:
        """Per pair of operands, the products of the thread's items, [its own][those they meet]."""
        flat = iter(product(self.b, self.depth, lambda part: self._chain(takes, part)))
        return [[[next(flat) for _ in self.across] for _ in self.mine] for _ in takes]

    def _chain(self, takes: Sequence[tuple[Take, Take]], part: range) -> list[ir.Var]:
        b = self.b
        acc = [[[b.var(0.0, "acc") for _ in self.across] for _ in self.mine] for _ in takes]
        with b.loop(part.stop, part.start, self.deep, "d0") as d0:
            for pair, arrays in zip(takes, self.staged):
                for take, target, items in zip(pair, arrays, (self.rows, self.others)):
                    self._stage(target, items, d0, part.stop, take)
            b.barrier()
            whole = len(part) % self.deep == 0
            with b.loop(self.deep if whole else minimum(part.stop - d0, self.deep), name="d") as d:
                for sums, (left, right) in zip(acc, self.staged):
                    xs = [b.let(load(left, d * self.rows + y), "x") for y in self.mine]
                    ys = [b.let(load(right, d * self.others + x), "y") for x in self.across]
                    for x, line in zip(xs, sums):
                        for y, var in zip(ys, line):
                            b.assign(var, fma(x, y, var))
            b.barrier()
        return [var for sums in acc for line in sums for var in line]

    def _stage(self, target: ir.Array, items: int, d0: Expr, stop: int, take: Take) -> None:
        """target[d][item] for a slice of D; threads run along D, which is contiguous in memory."""
        b, deep, count = self.b, self.deep, self.side**2
        for step in range(0, deep * items, count):
            e = b.let(self.flat + step, "e")
            inside = e < deep * items if step + count > deep * items else None
            with b.when(inside) if inside is not None else contextlib.nullcontext():
                d, item = b.let(e % deep, "d"), b.let(e // deep, "item")
                column = b.let(minimum(d0 + d, stop - 1), "column")
                b.store(target, d * items + item, take(item, column))

    def add(
        self, first: Expr, count: Expr,
        parts: Sequence[tuple[ir.Array, Reader, Sequence[Sequence[ir.Var]]]],
    ) -> None:  # fmt: skip
        """Adds to the thread's sums [own][columns] of each part `count` rows of the operand, from
        `first` on, times the block of weights."""
        b, last = self.b, self.depth - 1
        with b.loop(count, name="j") as j:
            at = b.let(first + j, "at")
            for weights, source, sums in parts:
                row = source.row(b, at)
                columns = [b.let(minimum(self.tx + c, last), "column") for c in self.columns]
                xs = [b.let(row.read(0, c), "x") for c in columns]
                for y, line in zip(self.mine, sums):
                    w = b.let(load(weights, y * self.others + j), "w")
                    for x, var in zip(xs, line):
                        b.assign(var, fma(w, x, var))

    def inside(self, values: Sequence[Value]) -> Iterator[tuple[Expr, Value]]:
        """Each of the thread's columns that exists, and its value."""
        for c, value in zip(self.columns, values):
            column = self.b.let(self.tx + c, "column")
            with self.b.when(column < as_expr(self.depth)):
                yield column, value


class SharedTilesForward(ForwardWorker):
    """Side x side threads: rows ty, ty + side, ... of the block, keys and columns tx, tx + side,
    ... Each of a row's threads knows its maximum and total."""

    def __init__(self, call: ForwardKernel, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        side = STRANDS if call.caps.max_threads >= STRANDS**2 else STRANDS // 2
        self.columns = range(0, 0 if call.statistics else call.depth, side)
        self.rows = side if call.few else config.get("rows", self._rows(side))
        self.threads = (side, side)
        self.grid = ThreadGrid(call, side, self.rows, KEYS, SLICE, 1)
        self.mine, self.across, self.tx = self.grid.mine, self.grid.across, self.grid.tx
        self.weights = self.grid.array("weights", self.rows * KEYS)
        self.meeting = self.grid.array("meeting", self.rows * STRANDS)

    def _rows(self, side: int) -> int:
        """Rows of a block: as many as shared memory and registers take easily."""
        caps, rows = self.call.caps, 4 * side
        while rows > side:
            shared = 4 * (SLICE * (rows + KEYS) + rows * (KEYS + STRANDS))
            held = rows // side * len(self.columns) * (2 if self.call.spans else 1)
            if shared <= caps.shared_bytes and held <= 64:
                break
            rows //= 2
        return rows

    # -- rows

    def hold(self) -> None:
        b, call = self.b, self.call
        self.held = [call.item(b.let(call.first + y, "at")) for y in self.mine]
        self.highs = [row.high for row in self.held]
        self.span, self.all = self._state(), self._state() if call.spans else None
        self.starts = self.grid.array("starts", self.rows, dt.int32)
        with b.when(eq(self.tx, 0)):
            for y, row in zip(self.mine, self.held):
                b.store(self.starts, y, call.start(row))
        b.barrier()

    def _state(self) -> list[list[ir.Var]]:
        """Per row of the thread its maximum, its total and its columns."""
        b = self.b
        zeros = [("total", 0.0)] + [("o", 0.0)] * len(self.columns)
        return [[b.var(x, n) for n, x in [("top", FLOOR), *zeros]] for _ in self.mine]

    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        b, call = self.b, self.call
        if call.one_slot:
            yield self.held[0].slot, *call.range(self.rows)
            return
        first, last = (b.var(self.held_by(const(0)).slot, "slot", I32) for _ in range(2))
        with b.loop(self.rows, 1, name="i") as i, self.em.scope():
            slot = self.held_by(i).slot
            b.assign(first, minimum(first, slot))
            b.assign(last, maximum(last, slot))
        with b.loop(last + 1, first, name="slot") as here, self.em.scope():
            highs = (select(eq(row.slot, here), row.high, 0) for row in self.held)
            self.highs = [b.let(x, "high") for x in highs]
            yield here, *self._range(here)

    def held_by(self, i: Expr) -> QueryRow:
        """Returns row i of the block. Every thread computes the bounds of loops with barriers
        itself: a WGSL compiler never treats a value from shared memory as uniform."""
        return self.call.item(self.b.let(self.call.first + i, "at"))

    def _range(self, slot: Expr) -> tuple[Expr, Expr]:
        """The first key that any row of a slot sees, and the one after the last."""
        b = self.b
        start, stop = b.var(self.call.length, "start", I32), b.var(0, "stop", I32)
        with b.loop(self.rows, name="i") as i, self.em.scope():
            row = self.held_by(i)
            high = b.let(select(eq(row.slot, slot), row.high, 0), "high")
            b.assign(start, minimum(start, select(high > row.low, row.low, self.call.length)))
            b.assign(stop, maximum(stop, high))
        last = b.let(stop, "stop")
        return b.let(minimum(start, last), "start"), last

    # -- a block of keys

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        b, call = self.b, self.call
        sources = [call.source(i, slot) for i in call.passing]

        def query(item: Expr, d: Expr) -> Expr:
            return call.query(b.let(load(self.starts, item), "q")).read(0, d)

        with b.loop(stop, start - start % KEYS, KEYS, "k0") as k0, self.em.scope():
            keys, *values = (source(k0) for source in sources)

            def key(item: Expr, d: Expr) -> Expr:
                return keys.read(b.let(minimum(k0 + item, call.length - 1), "key"), d)

            (products,) = self.grid.products([(query, key)])
            self._weigh(k0, products)
            count = b.let(minimum(stop - k0, KEYS), "count")
            for v in values:
                self.grid.add(k0, count, [(self.weights, v, [line for _, _, *line in self.span])])
            b.barrier()

    # -- weights

    def _weigh(self, k0: Expr, products: list[list[Expr]]) -> None:
        """Scores become weights in shared memory; the rows' states move on."""
        b, params = self.b, self.call.params
        scores, bests = [], []
        for row, high, dots in zip(self.held, self.highs, products):
            line = []
            for x, dot in zip(self.across, dots):
                key = b.let(k0 + x, "key")
                seen = (key >= row.low) & (key < high)
                score = capped(b, dot, params["scale"], params["softcap"])
                line.append(b.let(select(seen, score, HIDDEN), "score"))
            scores.append(line)
            bests.append([reduce(maximum, line)])
        fades = []
        for y, line, (top, _, *o), best in zip(self.mine, scores, self.span, self._gather(bests)):
            new, fade = follow(b, top, reduce(maximum, best))
            fades.append(fade)
            b.assign(top, new)
            for var in o:
                b.assign(var, var * fade)
            for x, score in zip(self.across, line):
                p = math.exp(b, b.let(score - new, "gap"))
                b.store(self.weights, y * KEYS + x, p)
        b.barrier()
        for (_, total, *_), fade, strands in zip(self.span, fades, self._gather(self._strands())):
            added = fold_strands(b, [[b.let(x, "strand") for x in strands]])
            b.assign(total, fma(total, fade, added))

    def _strands(self) -> list[list[Expr]]:
        """Per row, this thread's partial sums of the block's weights."""
        b, rows = self.b, []
        for y in self.mine:
            line = []
            for s in range(0, STRANDS, self.grid.side):
                at = b.let(y * KEYS + self.tx + s, "at")
                p = [load(self.weights, at + i) for i in range(0, KEYS, STRANDS)]
                line.append(reduce(lambda x, y: x + y, p))
            rows.append(line)
        return rows

    def _gather(self, rows: list[list[Expr]]) -> list[list[Expr]]:
        """Per row, the values of all its threads, in the order of tx."""
        b, count = self.b, self.grid.side * len(rows[0])
        for y, line in zip(self.mine, rows):
            for i, x in enumerate(line):
                b.store(self.meeting, y * STRANDS + self.tx + i * self.grid.side, x)
        b.barrier()
        return [[load(self.meeting, y * STRANDS + i) for i in range(count)] for y in self.mine]

    # -- results

    def join(self) -> None:
        assert self.all is not None
        for span, every in zip(self.span, self.all):
            join_state(self.b, span, every)

    def finish(self) -> None:
        b, em, call = self.b, self.em, self.call
        for y, row, (top, total, *line) in zip(self.mine, self.held, self.all or self.span):
            by = inverse(b, call.whole(row.index, top, b.let(total, "total")))
            with b.when(call.first + y < call.limit), em.scope():
                for column, var in self.grid.inside(line):
                    with em.scope():
                        value = b.let(var if call.parts else var * by, "y")
                        call.write(row.index, em.axis(column, call.depth), value)
                if call.parts or call.statistics:
                    with b.when(eq(self.tx, 0)), em.scope():
                        call.write_state(row.index, top, total)
