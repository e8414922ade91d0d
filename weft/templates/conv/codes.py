"""A convolution of codes on a CPU: windows read in place, four products of bytes at a time.

As cpu.py: a group computes some rows of results of one image for a panel of outputs, and copies the
rows of the image that it sees into scratch where there is padding. A word of the weights' bands
holds four codes of an output in ascending k, a word of the image four channels of a place. Sums are
exact, so nothing hangs on their order: each runs through all of k in its register.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.expr import const, load, minimum, shuffle
from weft.kernel.ir import Expr, Kernel
from weft.ops.codes import FOUR
from weft.templates import affine
from weft.templates.conv.rows import PaddedCodes, window_starts
from weft.templates.conv.sizes import ConvShape, rows_per_group, tile
from weft.templates.emit import Emitter
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Epilogue
from weft.templates.product.problem import MatmulProblem
from weft.templates.registers import tail_mask


class CpuCodes:
    """The kernel under construction."""

    def __init__(self, em: Emitter, p: MatmulProblem, s: ConvShape) -> None:
        self.em, self.b, self.p, self.s = em, em.b, p, s
        self.tail = Epilogue(em, p, em.group.outputs)
        self.x, self.w, self.start = (em.buffers[id(v.node)] for v in (p.a, *p.bs))
        self.lanes = em.caps.lanes
        mr, self.nv = tile(s.o, em.caps)
        self.high = rows_per_group(s, em.caps, mr, self.nv, 1)
        # places of the smallest (last) group of an image
        fewest = (s.oh % self.high or self.high) * s.ow
        self.mr, self.columns = min(mr, fewest), self.nv * self.lanes
        # k runs through whole rows of windows where they are contiguous
        self.run = (s.kernel[1] if s.dilation[1] == 1 else 1) * s.c
        self.row = (s.wide if s.padded else s.w) * s.c  # distance between rows of the image

    def kernel(self) -> Kernel:
        b, s = self.b, self.s
        blocks, panels = -(-s.oh // self.high), -(-s.o // self.columns)
        image = b.let(b.group(1) // blocks, "image")
        top = b.let(b.group(1) % blocks * self.high, "top")
        self.m0 = b.let((image * s.oh + top) * s.ow, "m0")
        self.n0 = b.let(b.group(0) * self.columns, "n0")
        self._image(b.let(image * (s.h * s.w * s.c), "image0"), top)
        self._outputs()
        self.staged = b.array("staged", dt.int32, self.mr * self.columns)
        count = b.let(minimum(s.oh - top, self.high) * s.ow, "rows")
        with b.loop(count, step=self.mr, name="row") as row, self.em.scope():
            self._tile(b.let(minimum(row, count - self.mr), "first"), row)
        grid = (panels, s.n * blocks)
        return b.kernel(grid, (1,), self.p.flops, traffic(self.em.group))

    # -- the image

    def _image(self, start: Expr, top: Expr) -> None:
        """The rows of the image that the group sees, with their padding."""
        b, s = self.b, self.s
        if not s.padded:
            self.pixels: ir.Buffer | ir.Array = self.x
            self.first = b.let(start + top * (s.stride[0] * self.row), "first")
            return
        self.first = const(0)
        rows = PaddedCodes(b, self.x, s, s.high(self.high), self.lanes)
        rows.copy(start, b.let(top * s.stride[0] - s.padding[0][0], "above"))
        self.pixels = rows.pixels

    # -- products

    def _outputs(self) -> None:
        """The panel's vectors of outputs: their numbers, and which of their lanes there are."""
        b, s = self.b, self.s
        self.vectors = [b.let(self.n0 + v * self.lanes, "n") for v in range(self.nv)]
        ragged = s.o % self.columns != 0
        self.masks = [
            b.let(tail_mask(n, s.o, self.lanes), "cols") if ragged else None for n in self.vectors
        ]
        self.band = b.let(self.n0 * s.k, "band")
        pairs = zip(self.vectors, self.masks)
        self.starts = [b.let(load(self.start, n, self.lanes, mask), "start") for n, mask in pairs]

    def _tile(self, first: Expr, fresh: Expr) -> None:
        """Stores the results of `mr` places from number `first` of the group on. Writes only those
        from `fresh` on: the last tile begins early, so that it is whole."""
        b, lanes, mr = self.b, self.lanes, self.mr
        acc = [[b.var(v, "acc", v.type) for v in self.starts] for _ in range(mr)]
        self._windows([b.let(first + i, "r") for i in range(mr)], acc)
        for i, line in enumerate(acc):
            for v, var in enumerate(line):
                b.store(self.staged, const(i * self.columns + v * lanes), var)
        with b.loop(const(mr), b.let(fresh - first, "done"), name="t") as t, self.em.scope():
            m = self.em.axis(b.let(self.m0 + first + t, "m"), self.p.m)
            lead = affine.unflatten(m, self.p.rows)
            for v, (n, mask) in enumerate(zip(self.vectors, self.masks)):
                at = b.let(t * self.columns + v * lanes, "at")
                value = b.let(load(self.staged, at, lanes), "sum")
                if mask is None or v == 0:
                    self.tail.write(lead, n, lanes, mask, [value], 0)
                    continue
                with b.when(n < self.s.o), self.em.scope():
                    self.tail.write(lead, n, lanes, mask, [value], 0)

    def _windows(self, at: list[Expr], acc: list[list[ir.Var]]) -> None:
        """Adds the products of the windows of places `at`."""
        b, s = self.b, self.s
        starts = window_starts(b, s, self.row, self.first, at)
        parts = s.k // self.run
        if parts == 1:
            self._run(starts, acc, const(0), const(0))
            return
        with b.loop(parts, name="part") as part:
            dh, dw = s.dilation
            if parts == s.kernel[0]:
                away = part * (dh * self.row)
            else:
                away = part // s.kernel[1] * (dh * self.row) + part % s.kernel[1] * (dw * s.c)
            self._run(starts, acc, b.let(part * self.run, "k0"), b.let(away, "away"))

    def _run(
        self, starts: list[tuple[Expr, int]], acc: list[list[ir.Var]], k0: Expr, away: Expr
    ) -> None:
        """Adds what one run of k gives, from k0 on, `away` from the windows' beginnings."""
        b, lanes = self.b, self.lanes
        known = {id(base): b.let(base + away, "from") for base, _ in starts}
        word = [0, 1, 2, 3] * lanes
        with b.loop(self.run, step=FOUR, name="k") as k:
            spot = b.let(self.band + (k0 + k) * lanes, "spot")
            right = [
                b.let(load(self.w, spot + j * (self.s.k * lanes), FOUR * lanes), "w")
                for j in range(self.nv)
            ]
            for (base, more), line in zip(starts, acc):
                x = load(self.pixels, known[id(base)] + k + more, FOUR)
                x = b.let(shuffle(word, x), "x")
                for var, y in zip(line, right):
                    b.assign(var, ir.Collective("dot4", (var, x, y), var.type))
