"""A convolution by 3 x 3 on a CPU with fewer products (ops/winograd has the scheme).

A group computes some rows of tiles of one image for a panel of outputs. It copies the image rows it
sees into scratch, with zeros around them. It turns each tile into 16 sums and differences, a vector
of channels at a time. It multiplies those of all its tiles by one of the 16 matrices after the
other, and turns the products into 2 x 2 results per tile. A product is one chain of fused
multiply-adds over ascending channels, so results depend neither on the batch nor on the number of
groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.kernel.expr import const, eq, fma, load, minimum, splat
from weft.kernel.ir import Expr, Kernel, Type
from weft.ops.winograd import ENTER, LEAVE, STEP, TILE, Row
from weft.templates.conv.rows import PaddedRows
from weft.templates.conv.sizes import ConvShape, WinogradTiling
from weft.templates.emit import Emitter
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Epilogue
from weft.templates.product.problem import MatmulProblem
from weft.templates.registers import tail_mask

COUNT = TILE**2  # number of matrices


class CpuWinograd:
    """The kernel under construction."""

    def __init__(self, em: Emitter, p: MatmulProblem, s: ConvShape) -> None:
        self.em, self.b, self.p, self.lanes = em, em.b, p, em.caps.lanes
        self.tail = Epilogue(em, p, em.group.outputs)
        self.x, self.u = (em.buffers[id(v.node)] for v in (p.a, p.bs[0]))
        self.t = t = WinogradTiling(s, em.caps)
        self.s = t.s
        self.columns = t.nv * self.lanes
        self.deep = -(-s.c // self.lanes) * self.lanes  # channels, in whole vectors
        self.room = t.rows * t.wide  # tiles per group
        self.type = Type(dt.float32, self.lanes)

    def kernel(self) -> Kernel:
        b, s, t, lanes = self.b, self.s, self.t, self.lanes
        blocks = -(-t.high // t.rows)
        panels = -(-s.o // self.columns)
        self.image = b.let(b.group(1) // blocks, "image")
        self.top = b.let(b.group(1) % blocks * t.rows, "top")
        self.n0 = b.let(b.group(0) * self.columns, "n0")
        self.tiles = b.let(minimum(t.high - self.top, t.rows) * t.wide, "tiles")
        rows = PaddedRows(b, self.x, s, t.rows * STEP + 2, lanes)
        start = b.let(self.image * (s.h * s.w * s.c), "image0")
        rows.copy(start, b.let(self.top * STEP - s.padding[0][0], "above"))
        self.entered = b.array("entered", dt.float32, COUNT * self.room * self.deep)
        self.made = b.array("made", dt.float32, COUNT * self.room * self.columns)
        self._enter(rows)
        with b.loop(COUNT, name="e") as e, self.em.scope():
            self._products(e)
        self._leave()
        flops, moved = self.p.flops, traffic(self.em.group)
        return b.kernel((panels, s.n * blocks), (1,), flops, moved)

    def _enter(self, rows: PaddedRows) -> None:
        """entered[e][tile][channel]."""
        b, s, lanes = self.b, self.s, self.lanes
        with b.loop(self.tiles, name="t") as t, self.em.scope():
            spot = t // self.t.wide * (STEP * rows.row) + t % self.t.wide * (STEP * s.c)
            spot, to = b.let(spot, "spot"), b.let(t * self.deep, "to")
            with b.loop(s.c, step=lanes, name="c") as c, self.em.scope():
                mask = b.let(tail_mask(c, s.c, lanes), "mask") if s.c % lanes else None

                def pixel(i: int, j: int) -> Expr:
                    return load(rows.pixels, spot + c + (i * rows.row + j * s.c), lanes, mask)

                found = self._acted(pixel, TILE, ENTER)
                for e, value in enumerate(found):
                    b.store(self.entered, to + c + e * self.room * self.deep, value)

    def _acted(
        self, at: Callable[[int, int], Expr], size: int, matrix: Sequence[Row]
    ) -> list[Expr]:
        """A square of vectors with the matrix acting on both of its axes, row by row."""
        columns = []
        for j in range(size):
            line = [self.b.let(at(i, j), "v") for i in range(size)]
            columns.append([self._row(line, row) for row in matrix])
        return [
            self._row([column[i] for column in columns], row)
            for i in range(len(matrix))
            for row in matrix
        ]

    def _row(self, line: Sequence[Expr], row: Row) -> Expr:
        total = line[row[0][0]]
        for place, sign in row[1:]:
            total = total + line[place] if sign > 0 else total - line[place]
        return self.b.let(total, "s")

    def _products(self, e: Expr) -> None:
        """made[e][tile][output]."""
        b, s, t = self.b, self.s, self.t
        bands = self.p.bs[0].node.shape[1]
        weights = b.let((e * (bands * self.lanes) + self.n0) * s.c, "weights")
        left = b.let(e * (self.room * self.deep), "left")
        to = b.let(e * (self.room * self.columns), "to")
        full = b.let(self.tiles - self.tiles % t.mr, "full")
        with b.loop(full, step=t.mr, name="row") as row, self.em.scope():
            self._tile(row, t.mr, weights, left, to)
        last = (t.high % t.rows or t.rows) * t.wide
        for rest in sorted({self.room % t.mr, last % t.mr} - {0}):
            with b.when(eq(self.tiles - full, rest)), self.em.scope():
                self._tile(full, rest, weights, left, to)

    def _tile(self, row: Expr, mr: int, weights: Expr, left: Expr, to: Expr) -> None:
        """The products of `mr` tiles from number `row` on."""
        b, s, lanes, nv = self.b, self.s, self.lanes, self.t.nv
        acc = [[b.var(const(0, self.type), "acc", self.type) for _ in range(nv)] for _ in range(mr)]
        first = b.let(left + row * self.deep, "first")
        with b.loop(s.c, name="k") as k:
            spot = b.let(weights + k * lanes, "spot")
            right = [b.let(load(self.u, spot + j * (s.c * lanes), lanes), "w") for j in range(nv)]
            for i, line in enumerate(acc):
                x = b.let(splat(load(self.entered, first + k + i * self.deep), lanes), "x")
                for var, y in zip(line, right):
                    b.assign(var, fma(x, y, var))
        for i, line in enumerate(acc):
            for j, var in enumerate(line):
                b.store(self.made, to + (row + i) * self.columns + j * lanes, var)

    def _leave(self) -> None:
        """Results from `made`, and the epilogue."""
        b, s, t, lanes = self.b, self.s, self.t, self.lanes
        image = self.em.axis(self.image, s.n)
        with b.loop(self.tiles, name="t") as number, self.em.scope():
            y = b.let((self.top + number // t.wide) * STEP, "y")
            x = b.let(number % t.wide * STEP, "x")
            start = b.let(number * self.columns, "start")
            with b.loop(self.columns, step=lanes, name="n") as j, self.em.scope():
                n = b.let(self.n0 + j, "n")
                mask = b.let(tail_mask(n, s.o, lanes), "mask") if s.o % self.columns else None

                def product(i: int, k: int) -> Expr:
                    at = start + j + (i * TILE + k) * self.room * self.columns
                    return load(self.made, at, lanes)

                found = self._acted(product, TILE, LEAVE)
                for i, value in enumerate(found):
                    down, right = divmod(i, STEP)
                    with contextlib.ExitStack() as inside:
                        if down and s.oh % STEP:
                            inside.enter_context(b.when(y + down < s.oh))
                        if right and s.ow % STEP:
                            inside.enter_context(b.when(x + right < s.ow))
                        inside.enter_context(self.em.scope())
                        spot = [self.em.axis(b.let(y + down, "oh"), s.oh),
                                self.em.axis(b.let(x + right, "ow"), s.ow)]  # fmt: skip
                        self.tail.write((image, *spot), n, lanes, mask, [value], 0)
