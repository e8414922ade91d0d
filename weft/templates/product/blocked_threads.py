"""Blocked products in many threads, each of which sums a tile of the group's block: through shared
memory where barriers are cheap, else (software rasterisers) every thread for itself.

In shared memory blocks of either operand lie [k][row] and [k][column]: one is multiplied while the
next ones arrive (pipeline). A thread's rows and columns come in fours, which vector loads fetch. An
element's sum takes the one order of core/order, so a row's result does not depend on M nor on the
block.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK
from weft.core.records import dataclass
from weft.kernel.expr import cast, extract, load, minimum
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates.emit import Emitter
from weft.templates.product import blocks
from weft.templates.product.blocks import STRIP, BlockedProduct, choose, variants
from weft.templates.product.operands import Lines, Operand
from weft.templates.product.pipeline import ASYNC, SharedStage, pitch, rotate
from weft.templates.product.problem import MatmulProblem
from weft.templates.product.sums import ChunkSums

FOUR = 4
# Neighbouring threads form patches of 4 x 8: they read few different words of shared memory.
_DOWN, _ACROSS = 4, 8


@dataclass(frozen=True)
class ThreadPlan(blocks.BlockPlan):
    """A thread's tile is `tm` x `tn`."""

    tm: int
    tn: int

    def threads(self, caps: Caps) -> int:
        return self.rows // self.tm * (self.columns // self.tn)

    def shared(self, p: MatmulProblem, caps: Caps) -> int:
        wide = pitch(self.rows, dt.float32) + len(p.dots) * pitch(self.columns, dt.float32)
        return self.ring * self.bk * wide * dt.float32.itemsize

    def misfit(self) -> str | None:
        if self.tm % FOUR or self.tn % FOUR or self.bk % FOUR:
            return "tiles and the depth come in fours"
        if CHUNK % self.bk:
            return f"a depth of {self.bk} is no part of a chunk of {CHUNK}"
        if self.rows % (_DOWN * self.tm) or self.columns % (_ACROSS * self.tn):
            return f"threads form patches of {_DOWN} x {_ACROSS}"
        return None


def plans(p: MatmulProblem, caps: Caps) -> list[ThreadPlan]:
    """Blocks worth having on the target, the largest first; each fits, except perhaps the last."""
    sizes = [(64, 64, 4, 4), (32, 32, 4, 4)]
    if caps.subgroup:  # real hardware: registers hold 64 sums per thread
        large = {1: [(128, 128, 8, 8), (128, 64, 8, 8)], 2: [(128, 64, 8, 4)]}
        sizes = large.get(len(p.dots), []) + sizes
    found: list[ThreadPlan] = []
    for rows, columns, tm, tn in sizes:
        if found and not caps.subgroup:
            break
        depths = [
            ThreadPlan(rows, columns, bk, 2, tm, tn) for bk in ((8, 4) if tm == 8 else (16, 8, 4))
        ]
        if ASYNC in caps.features:
            depths.insert(0, replace(depths[0], ring=4 if tm == 8 else 3))
        found += [plan for plan in depths if plan.problem(p, caps) is None][:1]
    return found or [ThreadPlan(32, 32, 4, 2, 4, 4)]


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring."""
    if caps.cheap_barrier:
        return variants(plans(p, caps), p, caps, (8, 16))
    return [{"side": side} for side in (4, 8, 16) if side * side <= caps.max_threads]


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group; config: rows, columns, bk, tm, tn, ring, or, where barriers are
    expensive, side (threads along either side of a group). Raises CompileError for a configuration
    that the target cannot hold."""
    if em.caps.cheap_barrier:
        return SharedTiles(em, p, choose(plans(p, em.caps), p, em.caps, config)).kernel()
    return DirectTiles(em, p, config.get("side", 8)).kernel()


class _Tiles(BlockedProduct):
    """A thread sums `tm` x `tn` results, in vectors of `lanes` columns that lie `step` apart, from
    `row` and `column` of the group's block on."""

    tm = tn = FOUR
    lanes = step = 1
    row: Expr
    column: Expr

    def hold(self) -> ChunkSums:
        """Accumulators [dot][row][vector]."""
        lengths = len(self.p.dots), self.tm, self.tn // self.lanes
        return ChunkSums(self.b, self.p.k, Type(self.acc, self.lanes), *lengths)

    def outer(self, xs: Sequence[Expr], ys: Sequence[Expr], tile: list[list[Any]]) -> None:
        """Adds a column of elements times a row of vectors to a dot's tile."""
        for x, line in zip(xs, tile):
            for y, var in zip(ys, line):
                self.add(var, x, y)

    # -- results

    def finish(self, sums: list[Any]) -> None:
        """Writes short epilogues out for every row. Otherwise all rows move in turn to the place of
        the first, so that a loop does not index registers."""
        b = self.b
        limit = b.let(self.rows_wanted(), "limit")
        first = b.let(self.m0 + self.row, "first")
        if self.tail.cheap:
            for i in range(self.tm):
                self._row(first + (i // FOUR * _DOWN * FOUR + i % FOUR), limit, sums, i)
            return
        with b.loop(self.tm, name="i") as turn, self.em.scope():
            self._row(first + (turn // FOUR * (_DOWN * FOUR) + turn % FOUR), limit, sums, 0)
            for tile in sums:
                for here, below in itertools.pairwise(tile):
                    for var, value in zip(here, below):
                        b.assign(var, value)

    def _row(self, at: Expr, limit: Expr, sums: list[Any], i: int) -> None:
        """Writes row i of the thread's tile, which is row m of the result."""
        b, p, em = self.b, self.p, self.em
        m = b.let(at, "m")
        with b.when(m < limit), em.scope():
            for c in range(self.tn // self.lanes):
                values = [tile[i][c] for tile in sums]
                n = b.let(self.n0 + self.column + c * self.step, "n")
                if p.n % self.lanes == 0:
                    self._write(m, n, self.lanes, values)
                    continue
                for t in range(self.lanes):
                    self._write(m, b.let(n + t, "n"), 1, [extract(v, t) for v in values])

    def _write(self, m: Expr, n: Expr, lanes: int, values: Sequence[Expr]) -> None:
        with self.b.when(n < self.p.n), self.em.scope():
            self.write(m, n, lanes, [self.b.let(v, "sum") for v in values])


class SharedTiles(_Tiles):
    """Blocks of the operands come through shared memory, `pace` of k at a time."""

    lanes, step, strip = FOUR, _ACROSS * FOUR, STRIP
    pace = 1

    def __init__(self, em: Emitter, p: MatmulProblem, plan: ThreadPlan) -> None:
        super().__init__(em, p, em.group.outputs)
        self.plan, self.tm, self.tn = plan, plan.tm, plan.tn
        self.rows, self.columns, self.threads = plan.rows, plan.columns, (plan.threads(em.caps),)

    def body(self) -> None:
        b, p, plan = self.b, self.p, self.plan
        self.flat = b.let(b.thread(0), "flat")
        patch, lane = b.let(self.flat // 32, "patch"), b.let(self.flat % 32, "lane")
        across = plan.columns // (_ACROSS * plan.tn)
        row = patch // across * (_DOWN * plan.tm) + lane // _ACROSS * FOUR
        column = patch % across * (_ACROSS * plan.tn) + lane % _ACROSS * FOUR
        self.row, self.column = b.let(row, "row"), b.let(column, "column")
        sums, stages = self.hold(), self.arriving()

        def step(k0: Expr, bases: Sequence[Expr]) -> None:
            with b.loop(plan.bk, step=self.pace, name="k", unroll=self.pace == 1) as k:
                self.step_k(sums.acc, stages, bases, k)
            sums.after(b.let(k0 + plan.bk, "done"))

        rotate(b, stages, p.k, plan.bk, step)
        sums.finish()
        self.finish(sums.result)

    def arriving(self) -> list[SharedStage]:
        """The ways of the operands to shared memory."""
        return self.stages(self.plan, self.acc, [True] * (1 + len(self.p.dots)))

    def step_k(
        self, acc: list[Any], stages: Sequence[SharedStage], bases: Sequence[Expr], k: Expr
    ) -> None:
        """One k: the thread's rows of the left block times its columns of the others."""
        xs = self.left(stages[0], bases[0], k)
        for tile, stage, base in zip(acc, stages[1:], bases[1:]):
            self.outer(xs, self.right(stage, base, k), tile)

    def left(self, stage: SharedStage, base: Expr, k: Expr) -> list[Expr]:
        """The thread's rows of a stage at its element k."""
        xs = self._fours(stage, base, k, self.row, self.tm, _DOWN)
        return [self.b.let(extract(x, t), "x") for x in xs for t in range(FOUR)]

    def right(self, stage: SharedStage, base: Expr, k: Expr) -> list[Expr]:
        """The thread's columns, in vectors."""
        return self._fours(stage, base, k, self.column, self.tn, _ACROSS)

    def _fours(
        self, stage: SharedStage, base: Expr, k: Expr, start: Expr, items: int, apart: int
    ) -> list[Expr]:
        b = self.b
        at = b.let(base + k * stage.pitch + start, "at")
        return [
            b.let(load(stage.target, at + c * apart * FOUR, FOUR), "four")
            for c in range(items // FOUR)
        ]


class DirectTiles(_Tiles):
    """Every thread reads its rows and columns itself, four elements at a time where they are
    contiguous."""

    def __init__(self, em: Emitter, p: MatmulProblem, side: int) -> None:
        super().__init__(em, p, em.group.outputs)
        self.rows = self.columns = side * FOUR
        self.threads = (side, side)

    def body(self) -> None:
        b = self.b
        self.row, self.column = (b.let(b.thread(i) * FOUR, "corner") for i in (1, 0))
        sums = self.hold()
        self.left_lines = self._own(self.x, self.m0 + self.row)
        self.right_lines = [self._own(w, self.n0 + self.column) for w in self.lines]
        sums.chunks(lambda start, stop: self._chunk(sums.acc, start, stop))
        self.finish(sums.result)

    def _own(self, x: Lines, first: Expr) -> list[Lines]:
        """Returns this thread's rows (or columns). Rows that do not exist repeat others; where
        tiles divide the items a tile stays whole."""
        b, count = self.b, x.items
        first = b.let(first, "first")
        if count % FOUR == 0:
            near = b.let(minimum(first, count - FOUR), "near")
            return [x.line(b, near + i) for i in range(FOUR)]
        return [x.line(b, minimum(first + i, count - 1)) for i in range(FOUR)]

    def _chunk(self, acc: list[Any], start: Expr, stop: Expr) -> None:
        b, k = self.b, self.p.k
        whole = stop if k % FOUR == 0 else b.let(stop - stop % FOUR, "whole")
        with b.loop(whole, start, step=FOUR, name="k") as at:
            self._steps(acc, at, FOUR)
        if k % FOUR:
            with b.loop(stop, whole, name="k") as at:
                self._steps(acc, at, 1)

    def _steps(self, acc: list[Any], k: Expr, count: int) -> None:
        """`count` of k: four or one."""
        xs = self._items(self.x, self.left_lines, k, count)
        for w, lines, tile in zip(self.lines, self.right_lines, acc):
            ys = self._items(w, lines, k, count)
            for t in range(count):
                self.outer([x[t] for x in xs], [y[t] for y in ys], tile)

    def _items(self, x: Lines, lines: list[Lines], k: Expr, count: int) -> list[list[Expr]]:
        """[i][t] is element k + t of row (or column) i."""
        b, steps = self.b, range(count)
        if x.along_k or count == 1:
            found = [self._wide(line, k, count) for line in lines]
            return [
                [b.let(extract(v, t), "e") for v in parts for t in range(v.type.lanes)]
                for parts in found
            ]
        if isinstance(x, Operand) and x.s_row == 1 and x.items % FOUR == 0:
            quads = [v for t in steps for v in self._wide(lines[0], k + t, FOUR)]
            return [[b.let(extract(q, i), "e") for q in quads] for i in steps]
        return [[v for t in steps for v in self._wide(line, k + t, 1)] for line in lines]

    def _wide(self, line: Lines, k: Expr, count: int) -> list[Expr]:
        """`count` neighbours in memory, from k on."""
        return [self.b.let(cast(part, self.acc), "v") for part in line.parts(self.b, k, count)]
