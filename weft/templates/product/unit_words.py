"""Integers with scales times packed weights in a GPU's integer matrix units, for many rows.

Blocks of both operands lie in shared memory as bytes, rows of k, as in blocked_units; codes are
unpacked on their way. A tile covers a run: the k that share both scales. Its integers meet the
product of the scales in the registers of the units, as blocked_words' meet it in those of threads.
So the bits are the same (core/order).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.order import CHUNK, SPAN
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.expr import bitcast, const, eq, pack
from weft.kernel.ir import Expr, Kernel
from weft.ops.quantize import BLOCK, STEP, run_of
from weft.templates.emit import Emitter
from weft.templates.product.blocked_units import TILE, MatrixUnitBlocks, UnitPlan, edge
from weft.templates.product.blocked_words import Made
from weft.templates.product.blocks import choose, variants
from weft.templates.product.code_words import least_of
from weft.templates.product.integer_rows import left_of
from weft.templates.product.operands import Lines, Operand
from weft.templates.product.packed_rows import PackedRows
from weft.templates.product.pipeline import ASYNC, SharedStage, pitch, rotate
from weft.templates.product.problem import MatmulProblem

_SUMS = 16  # of a thread


def suits(p: MatmulProblem, caps: Caps) -> bool:
    """True if the units take this product of integers: runs of a whole tile, whose codes less
    their offset are signed bytes. It follows from the forms, not from the rows."""
    forms = [v.form for v in p.bs]
    known = all(
        form is not None
        and form.shift in ("none", "low")
        and least_of(form) == form.offset
        and run_of(form, p.k) == BLOCK
        for form in forms
    )
    return known and "mma16_int8" in caps.features and caps.cheap_barrier and p.n >= TILE // 2


@dataclass(frozen=True)
class UnitWordPlan(UnitPlan):
    def shared(self, p: MatmulProblem, caps: Caps) -> int:
        planes, runs = len(p.a.stored) - 1, self.bk // BLOCK
        beside = sum(1 + (v.form is not None and v.form.shift != "none") for v in p.bs)
        codes = (planes * self.rows + len(p.bs) * self.columns) * pitch(self.bk, dt.int8)
        rows, columns = (pitch(n, dt.float32) for n in (self.rows, self.columns))
        moved = self.ring * (codes + 4 * runs * (rows + beside * columns))
        return moved + 4 * len(p.dots) * self.down * TILE * columns + 4 * TILE + BLOCK

    def problem(self, p: MatmulProblem, caps: Caps) -> str | None:
        whole = self.bk % BLOCK == 0 and CHUNK % self.bk == 0
        return super().problem(p, caps) if whole else f"a depth of {self.bk}: runs have {BLOCK}"


def plans(p: MatmulProblem, caps: Caps) -> list[UnitWordPlan]:
    """Blocks worth having on the target, the largest first; each fits, except perhaps the last.
    A thread holds few sums, since those of a chunk and of a span come on top."""
    narrow = 1 << (len(p.dots) - 1).bit_length()  # each of several dots gets a part of the columns
    found: list[UnitWordPlan] = []
    for rows, whole in ((64, 64), (64, 32), (32, 32)):
        columns, waves = max(whole // narrow, TILE), rows * whole // (_SUMS * caps.subgroup)
        down = min((1, 2, 4, 8), key=lambda d: edge(rows, columns, waves, d, len(p.dots)))
        # Two planes fill shared memory, and registers on their way there, twice as fast.
        deep = (2 * BLOCK, BLOCK)[len(p.a.stored) - 2 :]
        depths = (UnitWordPlan(rows, columns, bk, 2, down, waves // down) for bk in deep)
        found += [plan for plan in depths if plan.problem(p, caps) is None][:1]
    return found or [UnitWordPlan(TILE, TILE, BLOCK, 2, 1, 1)]


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring."""
    return variants(plans(p, caps), p, caps, (BLOCK, 2 * BLOCK, 4 * BLOCK))


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group; config as that of blocked_units."""
    chosen = choose(plans(p, em.caps), p, em.caps, config)
    return UnitWordBlocks(em, p, em.group.outputs, chosen).kernel()


class UnitWordBlocks(MatrixUnitBlocks):
    """The kernel, or a part of one, of a plan."""

    def _multiply(self) -> None:
        """`sums` are of a chunk. Levels are what a chunk, and a span, joins where it ends."""
        b, p, plan = self.b, self.p, self.plan
        if len(p.a.stored) == 3 and any(w.form.shift == "low" for w in self.of(PackedRows)):
            self.resident = 1  # two groups would lack a few registers
        cuts = [n for n in (CHUNK, SPAN) if p.k > n]
        self.levels = [(n, self.tiles("level")) for n in cuts]
        self.totals = self.levels[-1][1] if self.levels else self.sums
        stages = self._arriving()
        self.lefts = [b.tile("a", dt.int8, TILE, BLOCK) for _ in self.planes]
        self.rights = [b.tile("b", dt.int8, TILE, BLOCK) for _ in range(self.wide)]
        self.ints, self.scale = b.tile("int", dt.int32, TILE, TILE), self._floats("scale")
        if any("lows" in own for own in self.beside):
            self._ones()

        def step(k0: Expr, bases: list[Expr]) -> None:
            for first in range(0, plan.bk, BLOCK):
                self._run(stages, bases, first)
            self._end(b.let(k0 + plan.bk, "done"))

        rotate(b, stages, p.k, plan.bk, step)
        for i, (length, _) in enumerate(self.levels):
            if p.k % length:
                self._lift(i)

    def _floats(self, name: str) -> ir.Tile:
        return self.b.tile(name, dt.float32, TILE, TILE)

    def _ones(self) -> None:
        """Sums of rows of x: bytes of one, and floats that their scales are taken into."""
        b = self.b
        self.float_ones = b.array("float_ones", dt.float32, TILE, "shared")
        byte_ones = b.array("byte_ones", dt.int8, BLOCK, "shared")
        with b.when(self.flat < TILE):
            b.store(self.float_ones, self.flat, 1.0)
        with b.when(self.flat < BLOCK):
            b.store(byte_ones, self.flat, 1)
        b.barrier()
        self.ones = b.tile("ones", dt.int8, TILE, BLOCK)
        b.tile_load(self.ones, byte_ones, 0, 0)
        self.of_x, self.low = self._floats("of_x"), self._floats("low")

    # -- moving

    def _arriving(self) -> list[SharedStage]:
        p, b, x = self.p, self.b, self.x
        self.ways: list[SharedStage] = []
        left, rows = left_of(self), (self.m0, self.plan.rows)
        self.planes = [
            self._way("left", replace(x, source=plane), dt.int8, rows) for plane in left.planes
        ]
        base, known = b.let(x.base // BLOCK, "base"), tuple(n // BLOCK for n in x.known)
        blocks = Operand(
            left.scales, base, x.s_row // BLOCK, 1, dt.float32, x.items, p.k // BLOCK, known
        )
        self.sx = self._way("sx", blocks, dt.float32, rows, BLOCK)
        self.beside = [self._packed(w) for w in self.of(PackedRows)]
        return self.ways

    def _packed(self, w: PackedRows) -> dict[str, int]:
        """Returns the stages of codes and of a run's scales and lows, by name."""
        b, p, columns = self.b, self.p, (self.n0, self.plan.columns)

        def way(name: str, dtype: DType, unit: int, found: Callable[..., list[Expr]]) -> int:
            count = BLOCK // unit
            made = Made(p.n, p.k // unit, dtype, count, unit, w.line, found)
            return self._way(name, made, dtype, columns, unit)

        def codes(row: PackedRows, k: Expr) -> list[Expr]:
            return [bitcast(pack(*row.fours(b, k)), dt.int8)]

        found = {"codes": way("right", dt.int8, 1, codes)}
        for part in ("scales", "lows")[: 1 + (w.form.shift == "low")]:

            def number(row: PackedRows, k: Expr, part: str = part) -> list[Expr]:
                return [row.numbers(b, k)[part]]

            found[part] = way(part, dt.float32, BLOCK, number)
        return found

    def _way(
        self, name: str, source: Lines, dtype: DType, items: tuple[Expr, int], unit: int = 1
    ) -> int:
        """The number of a new way to shared memory: rows of codes, columns of scales."""
        block = (items[1], self.plan.bk // unit, self.plan.ring)
        team, copies = (self.flat, self.threads[0]), ASYNC in self.caps.features
        turned = unit > 1
        self.ways.append(
            SharedStage(self.b, name, source, items[0], block, turned, dtype, team, copies, unit)
        )
        return len(self.ways) - 1

    # -- products

    def _run(self, stages: Sequence[SharedStage], bases: Sequence[Expr], first: int) -> None:
        """The run that begins `first` k into the block: its integers, which meet the scales."""
        b = self.b

        def start(way: int, line: Expr) -> Expr:
            """The codes of a run from a line on."""
            return b.let(bases[way] + line * stages[way].pitch + first, "codes_at")

        def numbers(way: int, line: Expr) -> Expr:
            return b.let(bases[way] + first // BLOCK * stages[way].pitch + line, "numbers_at")

        planes, scales = [start(x, self.top) for x in self.planes], numbers(self.sx, self.top)
        for own, part in zip(self.beside, self.sums):
            codes, at = stages[own["codes"]], start(own["codes"], self.side)
            for j, right in enumerate(self.rights):
                b.tile_load(right, codes.target, at + j * TILE * codes.pitch, codes.pitch)
            beside = {x: numbers(way, self.side) for x, way in own.items() if x != "codes"}
            for i, line in enumerate(part):
                for left, way, place in zip(self.lefts, self.planes, planes):
                    stage = stages[way]
                    b.tile_load(left, stage.target, place + i * TILE * stage.pitch, stage.pitch)
                factors = stages[self.sx].target, b.let(scales + i * TILE, "sx")
                if "lows" in own:
                    self._multiply_by(self.ones)
                    self._spread(self.scale, self.float_ones, const(0), factors)
                    b.tile_zero(self.of_x)
                    b.tile_fma(self.of_x, self.ints, self.scale)
                for j, (sum_, right) in enumerate(zip(line, self.rights)):
                    self._multiply_by(right)
                    found = {x: (stages[own[x]].target, v + j * TILE) for x, v in beside.items()}
                    self._spread(self.scale, *found["scales"], factors)
                    b.tile_fma(sum_, self.ints, self.scale)
                    if "lows" in own:
                        self._spread(self.low, *found["lows"])
                        b.tile_fma(sum_, self.of_x, self.low)

    def _multiply_by(self, right: ir.Tile) -> None:
        """`ints` becomes the integers of the left tiles with a right one. A first plane of two
        counts STEP times, so it is added to itself."""
        b = self.b
        b.tile_zero(self.ints)
        for n, left in enumerate(self.lefts):
            for _ in range(STEP.bit_length() - 1 if n else 0):
                b.tile_add(self.ints, self.ints)
            b.mma_nt(self.ints, left, right)

    def _spread(
        self, tile: ir.Tile, source: ir.Array, at: Expr, rows: tuple[ir.Array, Expr] | None = None
    ) -> None:
        """The tile becomes numbers of columns, the same in every row, times those of rows."""
        self.b.tile_load(tile, source, at, 0)
        if rows is not None:
            self.b.tile_scale(tile, *rows)

    # -- chunks and spans

    def _end(self, done: Expr) -> None:
        for i, (length, _) in enumerate(self.levels):
            with self.b.when(eq(done % length, 0)):
                self._lift(i)

    def _lift(self, i: int) -> None:
        """The sums below level i join it."""
        self.join(self.levels[i - 1][1] if i else self.sums, self.levels[i][1])
