"""Matrix multiplication in a GPU's matrix units: 16-bit operands with f32 sums, int8 with int32.

As in blocked_threads a group multiplies one block of its operands in shared memory while the next
ones arrive. Subgroups share the group's block of results, each holds its part in tiles of 16 x 16.
The left block lies [row][k], a right one [column][k] or [k][column]. Results leave the tiles
through shared memory, tile row by tile row, and the group's threads run the epilogue on them in
vectors along N.

An output element is one chain over tiles of k in ascending order per span of K (core/order), in
every plan: a row's result does not depend on M. Sums of integers are exact in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import SPAN
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.expr import eq, load
from weft.kernel.ir import Expr, Kernel
from weft.templates.emit import Emitter
from weft.templates.product import blocks
from weft.templates.product.blocks import STRIP, BlockedProduct, choose, variants
from weft.templates.product.pipeline import ASYNC, SharedStage, pitch, rotate
from weft.templates.product.problem import MatmulProblem

TILE = 16
_FEATURES = {dt.bfloat16: "mma16_bf16", dt.float16: "mma16_f16", dt.int8: "mma16_int8"}
_HALF = 2  # bytes of a 16-bit element
_DEPTH = 32  # bytes of k in an operand's tile


def tile_depth(dtype: dt.DType) -> int:
    """Returns the k of an operand's tile."""
    return _DEPTH // dtype.itemsize


def suits(p: MatmulProblem, caps: Caps) -> bool:
    """True if the matrix units take this problem. All operands need one dtype that the units
    support, and at least half a tile of k and of n (the choice must not depend on the number of
    rows)."""
    dtypes = {v.dtype for v in (p.a, *p.bs)}
    feature = _FEATURES.get(p.a.dtype)
    return len(dtypes) == 1 and feature in caps.features and min(p.k, p.n) >= TILE // 2


def streams(p: MatmulProblem, caps: Caps) -> bool:
    """True if the matrix units take this problem for few rows too. (Integers have the same sums
    without.)"""
    return suits(p, caps) and p.a.dtype.is_float


@dataclass(frozen=True)
class UnitPlan(blocks.BlockPlan):
    """`down` subgroups share the block's rows, `across` its columns."""

    down: int
    across: int

    def threads(self, caps: Caps) -> int:
        return self.down * self.across * caps.subgroup

    def shared(self, p: MatmulProblem, caps: Caps) -> int:
        dots, dtype = len(p.dots), p.a.dtype
        rights = [
            self.bk * pitch(self.columns, dtype)
            if rows_of_k(p, i, caps)
            else self.columns * pitch(self.bk, dtype)
            for i in range(dots)
        ]
        left = self.rows * pitch(self.bk, dtype)
        moved = self.ring * dtype.itemsize * (left + sum(rights))
        return moved + 4 * dots * self.down * TILE * pitch(self.columns, dt.float32)

    def problem(self, p: MatmulProblem, caps: Caps) -> str | None:
        if self.bk % tile_depth(p.a.dtype):
            return f"tiles of {TILE} x {tile_depth(p.a.dtype)}"
        return super().problem(p, caps)

    def misfit(self) -> str | None:
        if self.rows % (TILE * self.down) or self.columns % (TILE * self.across) or self.bk % TILE:
            return f"subgroups hold tiles of {TILE} x {TILE}"
        if SPAN % self.bk:
            return f"a depth of {self.bk} is no part of a span of {SPAN}"
        return None


def rows_of_k(p: MatmulProblem, i: int, caps: Caps) -> bool:
    """True if the right block of dot number i is stored [k][column]: as in memory, if it is copied
    from there. Blocks through registers are transposed on the way, as [column][k] loads faster.
    The units take bytes in no other way."""
    return ASYNC in caps.features and p.b_strides(i)[1] != 1 and p.a.dtype.itemsize == _HALF


def plans(p: MatmulProblem, caps: Caps) -> list[UnitPlan]:
    """Blocks worth having on the target, the largest first; each fits, except perhaps the last."""
    narrow = 1 << (len(p.dots) - 1).bit_length()  # each of several dots gets a part of the columns
    many = 8 if caps.subgroup <= 32 else 4
    found: list[UnitPlan] = []
    times = _HALF // p.a.dtype.itemsize  # as many bytes of k
    large = [(128, 128, 32, many), (128, 64, 32, many)]
    for rows, whole, bk, subgroups in [*large, (64, 64, 64, 4), (32, 64, 64, 4), (32, 32, 64, 2)]:
        columns = max(whole // narrow, TILE)
        down = min((1, 2, 4, 8), key=lambda d: edge(rows, columns, subgroups, d, len(p.dots)))
        ring = 3 if ASYNC in caps.features else 2
        plan = UnitPlan(rows, columns, bk * times, ring, down, subgroups // down)
        depths = [plan, *(replace(plan, bk=depth * times, ring=2) for depth in (bk, 32, 16))]
        found += [plan for plan in depths if plan.problem(p, caps) is None][:1]
    return found or [UnitPlan(TILE, TILE, TILE * times, 2, 1, 1)]


def edge(rows: int, columns: int, subgroups: int, down: int, dots: int) -> float:
    """Half the edge of a subgroup's part, which it loads once to multiply; infinite where it is not
    made of tiles."""
    across = subgroups // down
    if not across or rows % (TILE * down) or columns % (TILE * across):
        return math.inf
    return rows / down + dots * columns / across


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring."""
    return variants(plans(p, caps), p, caps, (32, 64))


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a target with matrix units. Raises CompileError for a
    configuration that the target cannot hold."""
    chosen = choose(plans(p, em.caps), p, em.caps, config)
    return MatrixUnitBlocks(em, p, em.group.outputs, chosen).kernel()


class MatrixUnitBlocks(BlockedProduct):
    """The kernel, or a part of one, of a plan."""

    strip = STRIP
    resident = 2  # one multiplies while the other waits at its barrier

    def __init__(
        self, em: Emitter, p: MatmulProblem, outputs: Sequence[Node], plan: UnitPlan
    ) -> None:
        super().__init__(em, p, outputs)
        self.plan = plan
        self.rows, self.columns = plan.rows, plan.columns
        self.threads = (plan.threads(em.caps),)
        self.tall = plan.rows // plan.down // TILE  # tiles of a subgroup, down and across
        self.wide = plan.columns // plan.across // TILE

    def body(self) -> None:
        b, plan = self.b, self.plan
        self.flat = b.let(b.thread(0), "flat")
        number = b.let(self.flat // self.caps.subgroup, "subgroup")
        self.top = b.let(number // plan.across * (self.tall * TILE), "top")
        self.side = b.let(number % plan.across * (self.wide * TILE), "side")
        self.sums = self.tiles("sum")
        self._multiply()
        self._finish()

    def tiles(self, name: str) -> list[list[list[ir.Tile]]]:
        """Zeroed tiles, [dot][down][across]."""
        b = self.b

        def tile() -> ir.Tile:
            made = b.tile(name, self.acc, TILE, TILE)
            b.tile_zero(made)
            return made

        return [[[tile() for _ in range(self.wide)] for _ in range(self.tall)] for _ in self.p.dots]

    # -- products

    def _multiply(self) -> None:
        b, p, plan = self.b, self.p, self.plan
        spans = p.k > SPAN and p.a.dtype.is_float
        self.totals = self.tiles("total") if spans else self.sums
        dtype, self.deep = p.a.dtype, tile_depth(p.a.dtype)
        self.lefts = [b.tile("a", dtype, TILE, self.deep) for _ in range(self.tall)]
        self.rights = [b.tile("b", dtype, TILE, self.deep) for _ in range(self.wide)]
        turned = [rows_of_k(p, i, self.caps) for i in range(len(p.dots))]
        stages = self.stages(plan, dtype, [False, *turned])

        def step(k0: Expr, bases: list[Expr]) -> None:
            self._step(stages, bases)
            if spans:
                with b.when(eq((k0 + plan.bk) % SPAN, 0)):
                    self.join(self.sums, self.totals)

        rotate(b, stages, p.k, plan.bk, step)
        if spans and p.k % SPAN:
            self.join(self.sums, self.totals)

    def join(self, sums: Sequence[Any], totals: Sequence[Any]) -> None:
        """A span ends: its sums join the product's."""
        for total, part in zip(totals, sums):
            for to, line in zip(total, part):
                for whole, sum_ in zip(to, line):
                    self.b.tile_add(whole, sum_)
                    self.b.tile_zero(sum_)

    def _step(self, stages: Sequence[SharedStage], bases: Sequence[Expr]) -> None:
        """The subgroup's rows of the left block times its columns of the others."""
        b, left = self.b, stages[0]
        for k in range(0, self.plan.bk, self.deep):
            at = b.let(bases[0] + self.top * left.pitch + k, "at")
            for i, tile in enumerate(self.lefts):
                b.tile_load(tile, left.target, at + i * TILE * left.pitch, left.pitch)
            for part, right, base in zip(self.sums, stages[1:], bases[1:]):
                self._products(part, right, base, k)

    def _products(self, sums: list[list[ir.Tile]], right: SharedStage, base: Expr, k: int) -> None:
        b = self.b
        multiply = b.mma if right.k_major else b.mma_nt
        for j, tile in enumerate(self.rights):
            column = self.side + j * TILE
            at = column + k * right.pitch if right.k_major else column * right.pitch + k
            b.tile_load(tile, right.target, base + at, right.pitch)
        for line, left in zip(sums, self.lefts):
            for sum_, tile in zip(line, self.rights):
                multiply(sum_, left, tile)

    # -- results

    def _finish(self) -> None:
        """Tile row by tile row: into shared memory, then written by all threads."""
        b, p, plan = self.b, self.p, self.plan
        limit = b.let(self.rows_wanted(), "limit")
        wide = pitch(plan.columns, dt.float32)
        size = plan.down * TILE * wide
        results = b.array("results", self.acc, len(p.dots) * size, "shared")
        corner = b.let(self.top // self.tall * wide + self.side, "corner")
        for i in range(self.tall):
            if i:
                b.barrier()
            for d, part in enumerate(self.totals):
                for j, tile in enumerate(part[i]):
                    b.tile_store(results, corner + (d * size + j * TILE), wide, tile)
            b.barrier()
            self._write(results, i, limit)

    def _write(self, results: ir.Array, i: int, limit: Expr) -> None:
        """Tile row i of all subgroups, from shared memory to the outputs."""
        b, p, plan, em = self.b, self.p, self.plan, self.em
        lanes = 8 if all(o.dtype.itemsize == _HALF for o in self.tail.outputs) else 4
        while p.n % lanes:
            lanes //= 2
        wide, across = pitch(plan.columns, dt.float32), plan.columns // lanes
        rows = plan.down * TILE
        with b.loop(rows * across, step=self.threads[0], name="from") as start, em.scope():
            e = b.let(start + self.flat, "e")
            row, column = b.let(e // across, "row"), b.let(e % across * lanes, "column")
            block = row // TILE * (self.tall * TILE) + row % TILE + i * TILE
            m, n = b.let(self.m0 + block, "m"), b.let(self.n0 + column, "n")
            inside = (m < limit) & (n < p.n)
            if rows * across % self.threads[0]:
                inside = inside & (e < rows * across)
            with b.when(inside), em.scope():
                at = b.let(row * wide + column, "at")
                values = [
                    b.let(load(results, at + d * rows * wide, lanes), "sum")
                    for d in range(len(p.dots))
                ]
                self.write(m, n, lanes, values)
