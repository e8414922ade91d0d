"""Convolutions in many threads: each sums a tile of places and outputs for itself, reading windows
where they lie. No barrier and no shared memory: neighbouring threads share what caches hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.expr import (
    bitcast,
    cast,
    ceil_div,
    const,
    extract,
    fma,
    load,
    maximum,
    minimum,
    pack,
    select,
    splat,
)
from weft.kernel.ir import Expr, Kernel, Type, Var
from weft.ops import codes
from weft.templates import affine
from weft.templates.conv.sizes import FOUR, ConvShape
from weft.templates.emit import Emitter
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Epilogue
from weft.templates.product.problem import MatmulProblem
from weft.templates.product.sums import ChunkSums
from weft.templates.view import Index

THREADS = 128
PLACES = 8  # places per thread; each weight that it loads serves all of them


class _Threads:
    """The shared parts of both kernels: a thread's number, the windows' places, storing results."""

    def __init__(self, em: Emitter, p: MatmulProblem, s: ConvShape) -> None:
        self.em, self.b, self.s, self.p = em, em.b, s, p
        self.tail = Epilogue(em, p, em.group.outputs)
        self.x, self.w, *more = (em.buffers[id(v.node)] for v in (p.a, *p.bs))
        self.start = more[0] if more else None  # initial values of sums of codes
        self.threads = min(THREADS, em.caps.max_threads)

    def launch(self, total: int) -> Kernel:
        """The kernel of `total` threads."""
        b = self.b
        at = b.let(b.group(0) * self.threads + b.thread(0), "at")
        with b.when(at < total), self.em.scope():
            self.thread(at)
        grid = (ceil_div(total, self.threads),)
        return b.kernel(grid, (self.threads,), self.p.flops, traffic(self.em.group))

    def thread(self, at: Expr) -> None:
        raise NotImplementedError

    def corner(self, m: Expr) -> tuple[Expr, Expr, Expr]:
        """Returns, for place number m, the start of its image and the row and column of its
        window's corner."""
        b, s = self.b, self.s
        row, image = m // s.ow, m // (s.oh * s.ow)
        y = row % s.oh * s.stride[0] - s.padding[0][0]
        x = m % s.ow * s.stride[1] - s.padding[1][0]
        return b.let(image * (s.h * s.w * s.c), "image"), b.let(y, "y"), b.let(x, "x")

    def seen(self, corner: tuple[Expr, Expr, Expr], i: Expr, j: Expr) -> tuple[Expr, Expr | None]:
        """Returns the start of the channels that place (i, j) of a window sees (the nearest in the
        image), and a condition that is true if it is in the image (None: always)."""
        b, s = self.b, self.s
        image, y, x = corner
        y, x = b.let(y + i * s.dilation[0], "row"), b.let(x + j * s.dilation[1], "column")
        inside = None
        if s.padded:
            inside = b.let((y >= 0) & (y < s.h) & (x >= 0) & (x < s.w), "inside")
            y, x = (maximum(minimum(v, n - 1), 0) for v, n in ((y, s.h), (x, s.w)))
        return b.let(image + (y * s.w + x) * s.c, "pixel"), inside

    def lead(self, m: Expr) -> Index:
        """The index of place number m."""
        s = self.s
        return affine.unflatten(self.em.axis(m, self.p.m), (s.n, s.oh, s.ow))


class GpuConv(_Threads):
    """A thread has FOUR outputs of PLACES places. Sums keep the order of core/order."""

    def kernel(self) -> Kernel:
        p = self.p
        self.lanes = p.bs[0].node.shape[-1]
        return self.launch(-(-p.m // PLACES) * (self.lanes // FOUR))

    def thread(self, at: Expr) -> None:
        b, p, s = self.b, self.p, self.s
        n, m, places = self._tile(at)
        corners = [self.corner(place) for place in places]
        sums = ChunkSums(b, p.k, Type(self.x.dtype, FOUR), PLACES)

        def chunk(start: Expr, stop: Expr) -> None:
            with b.loop((stop - 1) // s.c + 1, start // s.c, name="part") as part:
                i, j = b.let(part // s.kernel[1], "i"), b.let(part % s.kernel[1], "j")
                spots = [self.seen(corner, i, j) for corner in corners]
                first = b.let(part * s.c, "first")
                low, high = maximum(start, first), minimum(stop, first + s.c)
                self._products(sums.acc, spots, n, first, b.let(low, "low"), b.let(high, "high"))

        sums.chunks(chunk)
        for t, value in enumerate(sums.result):
            with b.when(m + t < p.m), self.em.scope():
                self._write(places[t], n, value)

    def _tile(self, at: Expr) -> tuple[Expr, Expr, list[Expr]]:
        """The first output and the first place of thread `at`, and its places, kept in bounds."""
        b, across = self.b, self.lanes // FOUR
        n = b.let(at % across * FOUR, "n")
        m = b.let(at // across * PLACES, "m")
        return n, m, [b.let(minimum(m + t, self.p.m - 1), "place") for t in range(PLACES)]

    def _products(
        self, acc: Sequence[Var], spots: Sequence[tuple[Expr, Expr | None]], n: Expr, first: Expr,
        low: Expr, high: Expr,
    ) -> None:  # fmt: skip
        b = self.b
        with b.loop(high, low, name="k") as k:
            w = b.let(load(self.w, k * self.lanes + n, FOUR), "w")
            channel = b.let(k - first, "channel")
            for (pixel, inside), var in zip(spots, acc):
                x = b.let(load(self.x, pixel + channel, 1, inside), "x")
                b.assign(var, fma(splat(x, FOUR), w, var))

    def _write(self, m: Expr, n: Expr, value: Expr) -> None:
        b, o = self.b, self.s.o
        if o % FOUR == 0:
            self.tail.write(self.lead(m), n, FOUR, None, [value], FOUR)
            return
        for u in range(FOUR):
            with b.when(n + u < o), self.em.scope():
                one = b.let(extract(value, u), "one")
                self.tail.write(self.lead(m), b.let(n + u, "column"), 1, None, [one], 1)


class GpuCodes(GpuConv):
    """The same for codes, whose sums are exact: words of four channels and of as many k."""

    def kernel(self) -> Kernel:
        self.lanes = self.p.bs[0].node.shape[2]
        return self.launch(-(-self.p.m // PLACES) * (self.lanes // FOUR))

    def thread(self, at: Expr) -> None:
        b, p, s = self.b, self.p, self.s
        n, m, places = self._tile(at)
        corners = [self.corner(place) for place in places]
        first = self._first(n)
        acc = [b.var(first, "acc", first.type) for _ in places]
        with b.loop(s.places, name="part") as part:
            i, j = b.let(part // s.kernel[1], "i"), b.let(part % s.kernel[1], "j")
            spots = [self.seen(corner, i, j) for corner in corners]
            with b.loop(s.c, step=codes.FOUR, name="c") as c:
                spot = b.let((part * s.c + c) * self.lanes + n * codes.FOUR, "spot")
                w = b.let(load(self.w, spot, FOUR * codes.FOUR), "w")
                for (pixel, inside), var in zip(spots, acc):
                    x = self._word(pixel + c, inside)
                    b.assign(var, ir.Collective("dot4", (var, x, w), var.type))
        for t, var in enumerate(acc):
            with b.when(m + t < p.m), self.em.scope():
                self._write(places[t], n, var)

    def _first(self, n: Expr) -> Expr:
        """Returns the initial values of the sums of the outputs from n on."""
        assert self.start is not None
        if self.s.o % FOUR == 0:
            return self.b.let(load(self.start, n, FOUR), "start")
        near = (minimum(n + u, self.s.o - 1) for u in range(FOUR))
        return self.b.let(pack(*(load(self.start, at) for at in near)), "start")

    def _word(self, at: Expr, inside: Expr | None) -> Expr:
        """Four channels, for each of four outputs."""
        word = bitcast(load(self.x, at, codes.FOUR), dt.int32)
        if inside is not None:
            fill = int.from_bytes((self.s.zero & 255).to_bytes() * codes.FOUR, signed=True)
            word = select(inside, word, const(fill))
        return bitcast(splat(self.b.let(word, "x"), FOUR), self.x.dtype)


class GpuDepthwise(_Threads):
    """A thread has one channel of one place: neighbours read neighbouring channels."""

    def kernel(self) -> Kernel:
        return self.launch(self.p.m * self.s.c)

    def thread(self, at: Expr) -> None:
        b, s = self.b, self.s
        c, m = b.let(at % s.c, "c"), b.let(at // s.c, "m")
        corner, zero = self.corner(m), const(0.0, Type(dt.float32))
        acc = b.var(zero if self.start is None else load(self.start, c), "acc", zero.type)
        with b.loop(s.kernel[0], name="i") as i, b.loop(s.kernel[1], name="j") as j:
            pixel, inside = self.seen(corner, i, j)
            x = cast(load(self.x, pixel + c, 1, inside), dt.float32)
            if inside is not None and s.zero:
                x = select(inside, x, float(s.zero))
            w = cast(load(self.w, (i * s.kernel[1] + j) * s.c + c), dt.float32)
            b.assign(acc, fma(x, w, acc))
        self.tail.write(self.lead(m), c, 1, None, [acc], 1)
