"""A depthwise convolution on a CPU: vectors of neighbouring channels, several places at once.

A group computes some rows of results of one image. For each vector of channels it goes along a row
by tiles of places, whose windows share what they read: a column of the image is loaded once per row
of the windows. Rows of a window that lie outside the image are left out; columns that do count as
zeros, in the tiles at the edges only. A result is one chain of fused multiply-adds in ascending
order of the window's places. Codes are widened as they are read: float32 holds their sums exactly.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.kernel.expr import cast, const, fma, load, maximum, minimum, select, splat
from weft.kernel.ir import Expr, Kernel, Type, Var
from weft.templates.conv.sizes import ConvShape
from weft.templates.emit import Emitter
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Epilogue
from weft.templates.product.problem import MatmulProblem
from weft.templates.registers import tail_mask

PLACES = 256  # most places of a window: one chunk of the order of sums
TILE = {32: 8, 16: 4}  # registers -> places at once
BLOCK = 1 << 15  # results of a group


class CpuDepthwise:
    """The kernel under construction."""

    def __init__(self, em: Emitter, p: MatmulProblem, s: ConvShape) -> None:
        self.em, self.b, self.s, self.lanes = em, em.b, s, em.caps.lanes
        self.p, self.tail = p, Epilogue(em, p, em.group.outputs)
        self.x, self.w, *more = (em.buffers[id(v.node)] for v in (p.a, *p.bs))
        self.start = more[0] if more else None  # initial values of sums of codes
        bank = 32 if em.caps.registers >= 32 else 16
        self.tile = min(TILE[bank], s.ow)
        blocks = max(1, min(s.oh, -(-s.oh * s.ow * s.c // BLOCK)))
        self.high = -(-s.oh // blocks)
        self.blocks = -(-s.oh // self.high)

    def kernel(self) -> Kernel:
        b, s, lanes = self.b, self.s, self.lanes
        image = b.let(b.group(0) // self.blocks, "image")
        top = b.let(b.group(0) % self.blocks * self.high, "top")
        stop = b.let(minimum(top + self.high, s.oh), "stop")
        self.image0 = b.let(image * (s.h * s.w * s.c), "image0")
        self.image = image
        with b.loop(s.c, step=lanes, name="c") as c, self.em.scope():
            self.c = c
            mask = tail_mask(c, s.c, lanes) if s.c % lanes else None
            self.mask = None if mask is None else b.let(mask, "mask")
            with b.loop(stop, top, name="oh") as oh, self.em.scope():
                self._row(oh)
        return b.kernel((s.n * self.blocks,), (1,), self.p.flops, traffic(self.em.group))

    def _row(self, oh: Expr) -> None:
        b, s = self.b, self.s
        (kh, kw), (sh, sw), (dh, dw) = s.kernel, s.stride, s.dilation
        self.oh = oh
        self.y = b.let(oh * sh - s.padding[0][0], "y")
        # the rows of the window that are inside the image
        self.low = b.let((maximum(0 - self.y, 0) + (dh - 1)) // dh, "low")
        self.high_row = b.let(minimum((maximum(s.h - self.y, 0) + (dh - 1)) // dh, kh), "high")
        left, reach = s.padding[1][0], dw * (kw - 1)
        first = min(-(-left // sw), s.ow)  # windows begin inside the image from here
        # and end inside it up to here
        last = max(min((s.w - 1 - reach + left) // sw + 1, s.ow), first)
        whole = first + (last - first) // self.tile * self.tile
        self._tiles(0, first, True)
        if whole > first:
            with b.loop(whole, first, step=self.tile, name="ow") as ow, self.em.scope():
                self._tile(ow, self.tile, False)
        self._tiles(whole, s.ow, True)

    def _tiles(self, start: int, stop: int, edge: bool) -> None:
        """Computes the remaining places at an edge, in tiles of one place each."""
        if stop - start == 1:
            with self.em.scope():
                self._tile(const(start), 1, edge)
        elif stop > start:
            with self.b.loop(stop, start, name="ow") as ow, self.em.scope():
                self._tile(ow, 1, edge)

    def _tile(self, ow: Expr, places: int, edge: bool) -> None:
        """The results of `places` neighbours from `ow` on."""
        b, s, lanes = self.b, self.s, self.lanes
        (_, sw), (dh, dw) = s.stride, s.dilation
        first = self._first()
        acc = [b.var(first, "acc", first.type) for _ in range(places)]
        column = b.let(ow * sw - s.padding[1][0], "column")
        with b.loop(self.high_row, self.low, name="i") as i:
            line = self.image0 + ((self.y + i * dh) * s.w + column) * s.c + self.c
            line = b.let(line, "line")
            seen: dict[int, Expr] = {}
            for j, w in enumerate(self._weights(i)):
                for t, var in enumerate(acc):
                    at = t * sw + j * dw
                    if at not in seen:
                        seen[at] = self._pixel(line, column, at, edge)
                    b.assign(var, fma(seen[at], w, var))
        if s.zero and any(s.padding[0]):
            self._outside(acc)
        index = [self.em.axis(self.image, s.n), self.em.axis(self.oh, s.oh)]
        for t, var in enumerate(acc):
            with self.em.scope():
                place = self.em.axis(b.let(ow + t, "place"), s.ow)
                self.tail.write((*index, place), self.c, lanes, self.mask, [var], 0)

    def _first(self) -> Expr:
        """Returns the initial value of the channels' sums."""
        type_ = Type(dt.float32, self.lanes)
        if self.start is None:
            return const(0, type_)
        return self.b.let(load(self.start, self.c, self.lanes, self.mask), "start")

    def _weights(self, i: Expr) -> list[Expr]:
        """Row i of the channels' windows."""
        b, s = self.b, self.s
        first = b.let(i * (s.kernel[1] * s.c) + self.c, "weights")
        found = (load(self.w, first + j * s.c, self.lanes, self.mask) for j in range(s.kernel[1]))
        return [b.let(cast(w, dt.float32), "w") for w in found]

    def _outside(self, acc: list[Var]) -> None:
        """Adds the contribution of window rows outside the image."""
        b, s = self.b, self.s
        zero = const(s.zero, Type(dt.float32, self.lanes))
        for stop, start in ((self.low, const(0)), (const(s.kernel[0]), self.high_row)):
            with b.loop(stop, start, name="i") as i:
                for w in self._weights(i):
                    for var in acc:
                        b.assign(var, fma(zero, w, var))

    def _pixel(self, line: Expr, column: Expr, at: int, edge: bool) -> Expr:
        """The channels of the column `at` beyond the window's first; zeros outside the image."""
        b, s, mask = self.b, self.s, self.mask
        inside = None
        if edge:
            here = b.let(column + at, "here")
            inside = b.let(splat((here >= 0) & (here < s.w), self.lanes), "inside")
            mask = inside if mask is None else b.let(inside & mask, "mask")
        x = b.let(cast(load(self.x, line + at * s.c, self.lanes, mask), dt.float32), "x")
        return b.let(select(inside, x, float(s.zero)), "x") if inside is not None and s.zero else x
