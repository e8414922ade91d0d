"""A convolution on a CPU: a product whose left operand are windows, read in place.

A group computes some rows of results of one image for a panel of outputs. With padding, it copies
the image rows it sees into scratch with zeros around them. Each place of a window is then a
constant distance from the first, and no window matrix is written. Weights come in bands
(compile/channels_last), which the tile of product/blocked_cpu reads in place. Sums keep the order
of core/order over k = (row of the window, column, channel).
"""

from __future__ import annotations

from weft.core.order import CHUNK
from weft.kernel import ir
from weft.kernel.expr import const, eq, load, maximum, minimum, splat
from weft.kernel.ir import Expr, Kernel
from weft.templates.conv.rows import PaddedRows, window_starts
from weft.templates.conv.sizes import ConvShape, rows_per_group, tile
from weft.templates.emit import Emitter
from weft.templates.loops import traffic
from weft.templates.product.blocked_cpu import CpuMatmul
from weft.templates.product.cpu_plan import CpuPlan
from weft.templates.product.operands import Operand
from weft.templates.product.problem import MatmulProblem


class CpuConv(CpuMatmul):
    """The kernel under construction."""

    def __init__(self, em: Emitter, p: MatmulProblem, s: ConvShape) -> None:
        mr, nv = tile(s.o, em.caps)
        self.s, self.high = s, rows_per_group(s, em.caps, mr, nv)
        mb = self.high * s.ow
        super().__init__(em, p, CpuPlan("f32", em.caps.lanes, min(mr, mb), nv, CHUNK, mb, 1, False))
        # k runs through whole rows of windows where they are contiguous
        side_by_side = s.dilation[1] == 1
        self.run = (s.kernel[1] if side_by_side else 1) * s.c
        self.row = (s.wide if s.padded else s.w) * s.c  # distance between rows of the image

    def kernel(self) -> Kernel:
        b, s = self.b, self.s
        blocks = -(-s.oh // self.high)
        panels = -(-s.o // self.columns)
        self.image = b.let(b.group(1) // blocks, "image")
        self.top = b.let(b.group(1) % blocks * self.high, "top")
        self.m0 = b.let((self.image * s.oh + self.top) * s.ow, "m0")
        self.n0 = b.let(b.group(0) * self.columns, "n0")
        self.enter(const(0))
        self.body()
        return b.kernel((panels, s.n * blocks), (1,), self.p.flops, traffic(self.group))

    def _rows_here(self) -> Expr:
        return self.b.let(minimum(self.s.oh - self.top, self.high) * self.s.ow, "rows")

    def _operands(self) -> None:
        """The rows of the image that the group sees, with their padding."""
        b, s = self.b, self.s
        start = b.let(self.image * (s.h * s.w * s.c), "image0")
        if not s.padded:
            self.pixels: ir.Buffer | ir.Array = self.x.source
            self.first = b.let(start + self.top * (s.stride[0] * self.row), "first")
            return
        self.first = const(0)
        rows = PaddedRows(b, self.x.source, s, s.high(self.high), self.plan.lanes)
        rows.copy(start, b.let(self.top * s.stride[0] - s.padding[0][0], "above"))
        self.pixels = rows.pixels

    def _pack_b(self, i: int, n0: Expr) -> None:
        """Weights are read in place."""
        self.band = self.b.let(n0 * self.s.k, "band")

    def _rest(self, full: Expr) -> None:
        """Whole groups leave as many, the last of an image perhaps others."""
        s, mr = self.s, self.plan.mr
        last = (s.oh % self.high or self.high) * s.ow
        for rest in sorted({self.high * s.ow % mr, last % mr} - {0}):
            with self.b.when(eq(self.count - full, rest)), self.em.scope():
                self._tile(full, rest, None)

    def _accumulate(
        self, row: Expr, at: list[Expr], acc: list[list[ir.Var]], clamped: bool, k0: Expr,
        k1: Expr,
    ) -> None:  # fmt: skip
        b, s = self.b, self.s
        starts = window_starts(b, s, self.row, self.first, at)
        first, stop = b.let(self.k0 + k0, "k0"), b.let(self.k0 + k1, "k1")
        if self.run == s.k:
            self._run(starts, acc, first, stop, const(0))
            return
        with b.loop((stop - 1) // self.run + 1, first // self.run, name="part") as part:
            begin = b.let(part * self.run, "begin")
            low, high = maximum(first, begin), minimum(stop, begin + self.run)
            self._run(starts, acc, b.let(low, "low"), b.let(high, "high"), self._part(part, begin))

    def _part(self, part: Expr, begin: Expr) -> Expr:
        """Returns the distance from k to the elements of a part of a window."""
        s, (dh, dw) = self.s, self.s.dilation
        if self.run > s.c or s.kernel[1] == 1:
            away = part * (dh * self.row)
        else:
            away = part // s.kernel[1] * (dh * self.row) + part % s.kernel[1] * (dw * s.c)
        return self.b.let(away - begin, "away")

    def _run(
        self, starts: list[tuple[Expr, int]], acc: list[list[ir.Var]], low: Expr, high: Expr,
        away: Expr,
    ) -> None:  # fmt: skip
        """Adds the products for k from `low` to `high`, which are contiguous in the image."""
        b, lanes = self.b, self.plan.lanes
        known: dict[int, Expr] = {}
        for base, _ in starts:
            if id(base) not in known:
                known[id(base)] = b.let(base + away, "from")
        with b.loop(high, low, name="k") as k:
            spot = b.let(self.band + k * lanes, "spot")
            weights = self.of(Operand)[0].source
            right = [
                b.let(load(weights, spot + j * (self.s.k * lanes), lanes), "bv")
                for j in range(len(acc[0]))
            ]
            for (base, more), line in zip(starts, acc):
                x = b.let(splat(load(self.pixels, known[id(base)] + k + more), lanes), "x")
                for var, y in zip(line, right):
                    self.add(var, x, y)
