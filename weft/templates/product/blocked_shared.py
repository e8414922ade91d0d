"""Matrix multiplication through shared memory: every thread sums a tile of the group's block.

Blocks of either operand lie in shared memory, [k][row] and [k][column]: one is multiplied while
the next ones arrive (matmul_stage). A thread's rows and columns come in fours, which vector loads
fetch. An element's sum takes the one order of core/order, so a row's result does not depend on M
nor on the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK
from weft.kernel.expr import const, extract, fma, load
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates.group import Group
from weft.templates.product.blocks import BlockMatmul, choose, variants
from weft.templates.product.pipeline import ASYNC, Operand, Stage, pitch, rotate
from weft.templates.product.problem import Problem
from weft.templates.product.sums import Sums

FOUR = 4
# Neighbouring threads form patches of 4 x 8: they read few different words of shared memory.
_DOWN, _ACROSS = 4, 8


@dataclass(frozen=True)
class Plan:
    """Rows and columns of a group's block, its depth along k, a thread's tile `tm` x `tn`, and how
    many blocks of either operand lie in shared memory."""

    rows: int
    columns: int
    bk: int
    tm: int
    tn: int
    ring: int = 2

    @property
    def threads(self) -> int:
        return self.rows // self.tm * (self.columns // self.tn)

    def problem(self, p: Problem, caps: Caps) -> str | None:
        """Why it cannot be had, or None."""
        if self.ring < 2:
            return "one block is multiplied while another arrives"
        if self.tm % FOUR or self.tn % FOUR or self.bk % FOUR:
            return "tiles and the depth come in fours"
        if CHUNK % self.bk:
            return f"a depth of {self.bk} is no part of a chunk of {CHUNK}"
        if self.rows % (_DOWN * self.tm) or self.columns % (_ACROSS * self.tn):
            return f"threads form patches of {_DOWN} x {_ACROSS}"
        if self.threads > caps.max_threads:
            return f"{self.threads} threads of {caps.max_threads}"
        wide = pitch(self.rows, dt.float32) + len(p.dots) * pitch(self.columns, dt.float32)
        shared = self.ring * self.bk * wide * dt.float32.itemsize
        return None if shared <= caps.shared_bytes else f"{shared} bytes of {caps.shared_bytes}"


def plans(p: Problem, caps: Caps) -> list[Plan]:
    """Blocks worth having on the target, the largest first; each fits, except perhaps the last."""
    sizes = [(64, 64, 4, 4), (32, 32, 4, 4)]
    if caps.subgroup:  # real hardware: its registers hold 64 sums per thread
        large = {1: [(128, 128, 8, 8), (128, 64, 8, 8)], 2: [(128, 64, 8, 4)]}
        sizes = large.get(len(p.dots), []) + sizes
    found: list[Plan] = []
    for rows, columns, tm, tn in sizes:
        if found and not caps.subgroup:
            break
        depths = [Plan(rows, columns, bk, tm, tn) for bk in ((8, 4) if tm == 8 else (16, 8, 4))]
        if ASYNC in caps.features:
            depths.insert(0, replace(depths[0], ring=4 if tm == 8 else 3))
        found += [plan for plan in depths if plan.problem(p, caps) is None][:1]
    return found or [Plan(32, 32, 4, 4, 4)]


def candidates(p: Problem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring."""
    return variants(plans(p, caps), p, caps, (8, 16))


def build(group: Group, p: Problem, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a target with cheap barriers. Raises CompileError for a
    configuration that the target cannot hold."""
    return _Shared(group, p, caps, choose(plans(p, caps), p, caps, config)).kernel()


class _Shared(BlockMatmul):
    def __init__(self, group: Group, p: Problem, caps: Caps, plan: Plan) -> None:
        super().__init__(group, p, caps)
        self.plan = plan
        self.rows, self.columns, self.threads = plan.rows, plan.columns, plan.threads

    def body(self) -> None:
        b, p, plan = self.b, self.p, self.plan
        patch, lane = b.let(self.flat // 32, "patch"), b.let(self.flat % 32, "lane")
        across = plan.columns // (_ACROSS * plan.tn)
        row = patch // across * (_DOWN * plan.tm) + lane // _ACROSS * FOUR
        column = patch % across * (_ACROSS * plan.tn) + lane % _ACROSS * FOUR
        self.row, self.column = b.let(row, "row"), b.let(column, "column")
        four = Type(self.acc_type, FOUR)
        self.acc = [
            [
                [b.var(const(0, four), "acc", four) for _ in range(plan.tn // FOUR)]
                for _ in range(plan.tm)
            ]
            for _ in p.dots
        ]
        self._multiply()
        self._finish()

    # -- products

    def _multiply(self) -> None:
        b, p, plan = self.b, self.p, self.plan
        stages = [self._stage("left", self.left(), self.m0, plan.rows)]
        for i in range(len(p.dots)):
            stages.append(self._stage("right", self.right(i), self.n0, plan.columns))

        sums = Sums(b, p.k, [var for tile in self.acc for line in tile for var in line])

        def step(k0: Expr, bases: Sequence[Expr]) -> None:
            with b.loop(plan.bk, name="k", unroll=True) as k:
                self._step(stages, bases, k)
            sums.after(b.let(k0 + plan.bk, "done"))

        rotate(b, stages, p.k, plan.bk, step)
        sums.finish()
        result = iter(sums.result)
        self.acc = [[[next(result) for _ in line] for line in tile] for tile in self.acc]

    def _stage(self, name: str, operand: Operand, first: Expr, items: int) -> Stage:
        block, team = (items, self.plan.bk, self.plan.ring), (self.flat, self.threads)
        copies = ASYNC in self.caps.features
        return Stage(self.b, name, operand, first, block, True, self.acc_type, team, copies)

    def _step(self, stages: Sequence[Stage], bases: Sequence[Expr], k: Expr) -> None:
        """One k: the thread's rows of the left block times its columns of the others."""
        xs = self._fours(stages[0], bases[0], k, self.row, self.plan.tm, _DOWN)
        scalars = [self.b.let(extract(x, t), "x") for x in xs for t in range(FOUR)]
        for acc, stage, base in zip(self.acc, stages[1:], bases[1:]):
            ys = self._fours(stage, base, k, self.column, self.plan.tn, _ACROSS)
            for x, line in zip(scalars, acc):
                for y, var in zip(ys, line):
                    exact = self.acc_type == dt.int32
                    self.b.assign(var, var + x * y if exact else fma(x, y, var))

    def _fours(
        self, stage: Stage, base: Expr, k: Expr, start: Expr, items: int, apart: int
    ) -> list[Expr]:
        b = self.b
        at = b.let(base + k * stage.pitch + start, "at")
        return [
            b.let(load(stage.target, at + c * apart * FOUR, FOUR), "four")
            for c in range(items // FOUR)
        ]

    # -- results

    def _finish(self) -> None:
        """Short epilogues are written out for every row. For others all rows take their turn in the
        place of the first, so that a loop need not index registers."""
        b, tm = self.b, self.plan.tm
        limit = b.let(self.limit(), "limit")
        first = b.let(self.m0 + self.row, "first")
        if self.tail.cheap:
            for i in range(tm):
                self._row(first + (i // FOUR * _DOWN * FOUR + i % FOUR), limit, i)
            return
        with b.loop(tm, name="i") as turn, self.em.scope():
            self._row(first + (turn // FOUR * (_DOWN * FOUR) + turn % FOUR), limit, 0)
            for tile in self.acc:
                for here, below in itertools.pairwise(tile):
                    for var, value in zip(here, below):
                        b.assign(var, value)

    def _row(self, at: Expr, limit: Expr, i: int) -> None:
        """Writes row i of the thread's tile, which is row m of the result."""
        b, p, em = self.b, self.p, self.em
        m = b.let(at, "m")
        with b.when(m < limit), em.scope():
            self.tail.position(self.batch, em.axis(m, p.m))
            for c in range(self.plan.tn // FOUR):
                values = [tile[i][c] for tile in self.acc]
                n = b.let(self.n0 + self.column + c * _ACROSS * FOUR, "n")
                if p.n % FOUR == 0:
                    self._write(n, FOUR, values)
                    continue
                for t in range(FOUR):
                    self._write(b.let(n + t, "n"), 1, [extract(v, t) for v in values])

    def _write(self, n: Expr, lanes: int, values: Sequence[Expr]) -> None:
        with self.b.when(n < self.p.n), self.em.scope():
            self.tail.write(n, lanes, None, [self.b.let(v, "sum") for v in values])
