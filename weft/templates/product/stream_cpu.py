"""Matrix times a few vectors on a CPU: a lane is a row of w, and its sum one chain (see ChunkSums).

For w[N, K], contiguous along K (checkpoints), a group streams `lanes` rows at once and transposes
squares of them in registers. Every row is a stream: a line of each is prefetched some lines ahead,
a pattern that the hardware's prefetcher follows (it does not follow whole stretches of one row
after the other). For w[K, N], contiguous along N, a group streams a strip of columns, K in order.

The chain behind an output element is the same for any number of rows of x and for any rows in a
register tile. It is also that of every other product (core.order).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.core.caps import Caps
from weft.kernel import ir
from weft.kernel.expr import const, iota, load, minimum, select, splat
from weft.kernel.ir import Expr, Type
from weft.ops.quantize import BLOCK, run_of
from weft.templates.emit import Emitter
from weft.templates.operand import Reader, widen
from weft.templates.product.bands import PackedBands
from weft.templates.product.integers import IntegerBands, stage, way_of
from weft.templates.product.kernel import Right, StreamedProduct
from weft.templates.product.operands import Operand
from weft.templates.product.pack import Packer
from weft.templates.product.problem import DotSegment, MatmulProblem
from weft.templates.product.sums import ChunkSums
from weft.templates.registers import interleave, tail_mask, transpose_block

_LINE = 64  # bytes of a cache line
_SETS = 64  # lines after which L1 sets repeat
_KEPT = 1 << 20  # bytes of x that stay in L2
_STREAMS = 4  # bands of plain weights side by side, as measured (docs/performance-kernels.md)


def candidates(segments: tuple[DotSegment, ...], caps: Caps) -> list[dict[str, Any]]:
    """Returns choices for `weft tune`.

    For w[K, N]: vectors of columns read at once, and the distance of prefetches. For w[N, K]: bands
    of rows per group, and the lines to prefetch ahead.
    """
    p = segments[0].problem
    if _across(p):
        n = min(s.problem.n for s in segments)
        wide = [v for v in (1, 2, 4, 8) if v * caps.lanes <= n]
        return [*({"vectors": v} for v in wide), *({"further": f} for f in (0, 4, 16))]
    return [*({"bands": c} for c in (1, 2, 4, 8)), *({"ahead": a} for a in (0, 4, 16))]


def _across(p: MatmulProblem) -> bool:
    """True if w is contiguous along N and not along K: as a whole, or in runs of lanes."""
    plain = all(p.b_strides(i)[2] == 1 and p.n > 1 for i in range(len(p.dots)))
    return plain or all(v.run > 1 for v in p.bs)


class Streamer(StreamedProduct):
    """Emits the part of the kernel that computes one segment."""

    def __init__(self, em: Emitter, segment: DotSegment, config: Mapping[str, Any]) -> None:
        super().__init__(em, segment.problem, segment.outputs)
        p, caps = self.p, self.caps
        self.across, self.lanes = _across(p), caps.lanes
        big, dots = caps.registers >= 32, len(p.dots)
        self.further, self.ahead = config.get("further", 8), config.get("ahead", 8)
        if self.across:
            self.mb = min(p.m, 4)
            room = max((16 if big else 8) // (self.mb * dots), 1)
            if any(isinstance(w, PackedBands) for w in self.ws):  # scales and words take registers
                room = min(room, max((8 if big else 4) // dots, 1))
            elif big and p.bs[0].run > 1:  # bands lie far apart: more streams evict each other
                room = min(room, max(_STREAMS // dots, 1))
            self.width = (vectors := config.get("vectors", self._strip(room))) * self.lanes
            if p.bs[0].run == 1:  # a narrow strip takes more rows: few sums wait for each other
                self.mb = min(p.m, max(self.mb, (16 if big else 8) // (vectors * dots)))
        else:
            self.mb = min(p.m, max((16 if big else 4) // dots, 1))
            self.width = self.lanes
        self.bands = -(-p.n // self.width)
        many = config.get("bands", 1 if self.across else max(1, self.bands // (16 * caps.cores)))
        self.per_group = min(many, self.bands)
        self.groups = -(-self.bands // self.per_group) if self.bands else 0

    def _strip(self, room: int) -> int:
        """Vectors per strip of columns: wide, but enough strips for every core."""
        vectors = -(-self.p.n // self.lanes)
        while room > 1 and -(-vectors // room) < 4 * self.caps.cores:
            room //= 2
        return room

    # -- one group

    def emit(self, index: Expr, rows: Expr, entry: Expr, sums: ir.Array | None) -> None:
        b = self.b
        self.begin(entry)
        self.left = self._left()
        if self.per_group == 1:
            self._band(index)
            return
        first = b.let(index * self.per_group, "first")
        stop = b.let(minimum(first + self.per_group, self.bands), "stop")
        with b.loop(stop, first, name="band") as band, self.em.scope():
            self._band(band)

    def _left(self) -> Reader:
        """x, in place when it can be read as it is, else widened into scratch once per group."""
        b, p, x = self.b, self.p, self.x
        natural = p.a.dtype == self.acc or self.mode == "dot2"
        spread = natural and self.mode != "dot2" and self._collide(p.a_m)
        if natural and not spread and (self.across or p.a_k == 1):
            return x
        ld = -(-p.k // self.lanes) * self.lanes
        if self._collide(ld):
            ld += _LINE // self.acc.itemsize
        staged = b.array("x", self.acc, max(p.m * ld, 1))
        packer = Packer(b, x.source, x.base, staged, ld, self.lanes, self.acc)
        if p.a_k == 1:
            packer.rows(p.a_m, const(p.m), const(p.k), p.k % self.lanes == 0)
        else:
            packer.scalars((p.a_m, p.a_k), const(p.m), const(p.k))
        return Reader(staged, const(0), ld, 1, self.acc)

    def _collide(self, stride: int) -> bool:
        """True if rows of x at this stride evict each other from L1, and would not if kept in
        scratch a line further apart."""
        many = not self.across and self.mb > 4 and self.p.m * self.p.k * self.acc.itemsize <= _KEPT
        return many and stride * self.acc.itemsize % (_SETS * _LINE // 2) == 0

    def _band(self, band: Expr) -> None:
        """`width` columns of the output, for all rows."""
        b, p = self.b, self.p
        n0 = b.let(band * self.width, "n0")
        streamed = self._columns if self.across else self._rows
        if p.m <= self.mb and not self.bounded:
            streamed([const(i) for i in range(p.m)], n0)
            return
        with b.loop(self.limit, step=self.mb, name="m") as m, self.em.scope():
            streamed([b.let(m + i, "row") for i in range(self.mb)], n0)

    def _chains(self, rows: Sequence[Expr], vectors: int) -> ChunkSums:
        """Sums [dot][row][vector]."""
        lengths = len(self.p.dots), len(rows), vectors
        return ChunkSums(self.b, self.p.k, Type(self.acc, self.lanes), *lengths)

    def _x(self, start: Expr, k: Expr) -> Expr:
        return self.spread(self.left.source, start + k * self.left.s_k, self.lanes)

    # -- w[N, K]

    def _own(self, n0: Expr) -> tuple[Expr, Expr | None, int]:
        """The first row of w that the band at n0 takes (the last one starts early), which of its
        lanes are its own, and what divides the first row."""
        b, n, lanes = self.b, self.p.n, self.lanes
        if n % lanes == 0:
            return n0, None, lanes
        if n < lanes:
            return n0, b.let(tail_mask(n0, n, lanes), "own"), lanes
        first = b.let(minimum(n0, n - lanes), "n")
        return first, b.let(first + iota(lanes) >= splat(n0, lanes), "own"), 1

    def _rows(self, rows: Sequence[Expr], n0: Expr) -> None:
        """`lanes` rows of w, square by square."""
        b, p, lanes = self.b, self.p, self.lanes
        n, mask, step = self._own(n0)
        sums = self._chains(rows, 1)
        acc, starts = sums.acc, self.starts(self.left, rows)
        ws = [w.row(b, n) for w in self.of(Operand)]
        width = lanes * max(w.item for w in ws)
        whole = p.k - p.k % width

        def chunk(first: Expr, stop: Expr) -> None:
            if whole:
                end = stop if whole == p.k else b.let(minimum(stop, whole), "whole")
                # One after the other: a band gives only as many streams as it has rows.
                for w, dot in zip(ws, acc):
                    with b.loop(end, first, step=width, name="k") as k:
                        self._prefetch(w, k)
                        self._square([w], [dot], starts, k, width)
            if whole < p.k:
                with b.when(stop > whole) if whole else contextlib.nullcontext():
                    self._square(ws, acc, starts, const(whole), p.k - whole)

        sums.chunks(chunk)
        values = [[v for (v,) in dot] for dot in sums.result]
        self.store(rows, n, lanes, values, mask, step)

    def _prefetch(self, w: Reader, k: Expr) -> None:
        """Asks for a line of each row, `ahead` lines on; past their end come the next band's."""
        if w.s_k != 1 or not self.ahead:
            return
        b, k_end = self.b, self.p.k
        assert isinstance(w.source, ir.Buffer)
        at = b.let(k + self.ahead * _LINE // w.source.dtype.itemsize, "at")
        beyond = at + (self.lanes * w.s_row - k_end)
        coming = b.let(w.base + select(at < k_end, at, beyond), "coming")
        for r in range(self.lanes):
            b.prefetch(w.source, coming + r * w.s_row)

    def _square(
        self, ws: Sequence[Reader], acc: list[list[Any]], starts: list[Expr], k: Expr, count: int
    ) -> None:
        """`count` of k, at most a square's."""
        b, lanes = self.b, self.lanes
        for w, sums in zip(ws, acc):
            for part in range(0, count, lanes * w.item):
                inside = min(count - part, lanes * w.item)
                for u, vector in enumerate(self._turned(w, k + part, inside)):
                    at = b.let(k + (part + u * self.pair), "k")
                    for start, (var,) in zip(starts, sums):
                        self.add(var, self._x(start, at), vector)

    def _turned(self, w: Reader, k: Expr, count: int) -> list[Expr]:
        """Returns the weights for each of `count` steps of k: a vector with a lane (or pair) per
        row."""
        b, lanes, item = self.b, self.lanes, w.item
        size = lanes * item
        mask = None if count == size else b.let(iota(size) < count, "tail")
        rows = [b.let(w.words(r, k, size, mask), "w") for r in range(min(lanes, self.p.n))]
        words = transpose_block(b, [*rows, *rows[-1:] * (lanes - len(rows))], item)
        words = words[: -(-count // item)]
        if self.mode == "dot2":
            return words
        wide = [b.let(widen(v, item, u, self.acc), "wide") for v in words for u in range(item)]
        return wide[:count]

    # -- w[K, N]

    def _columns(self, rows: Sequence[Expr], n0: Expr) -> None:
        """A strip of columns, a lane each."""
        b, p, lanes = self.b, self.p, self.lanes
        vectors, ragged = self.width // lanes, p.n % self.width != 0
        columns = [b.let(n0 + v * lanes, "n") for v in range(vectors)]
        masks = [b.let(tail_mask(c, p.n, lanes), "cols") if ragged else None for c in columns]
        sums = self._chains(rows, vectors)
        acc, starts = sums.acc, self.starts(self.left, rows)
        further = self.further if p.bs[0].run == 1 else 0  # runs are streams that need no prefetch
        step = max(w.step if isinstance(w, PackedBands) else self.pair for w in self.ws)
        # The last strip's spare vectors read the last one again: to mask them takes microcode.
        last = -(-p.n // lanes) * lanes - lanes
        near = [b.let(minimum(c, last), "near") if ragged else c for c in columns]
        inside = masks if p.n % lanes and p.bs[0].run == 1 else [None] * vectors  # bands are whole
        own = [[w.at(b, c) for c in near] if isinstance(w, PackedBands) else w for w in self.ws]

        def lines(w: list[PackedBands] | Right, k: Expr) -> Iterator[list[Expr]]:
            """Yields the weights for each of `step` of k: a vector per column."""
            if isinstance(w, list):
                yield from map(list, zip(*(band.vectors(b, k) for band in w)))
                return
            assert isinstance(w, Operand)
            for u in range(0, step, self.pair):
                at = b.let(k + u, "k") if u else k
                line = _LINE // w.source.dtype.itemsize
                for c in range(0, self.width, line) if further else ():
                    assert isinstance(w.source, ir.Buffer)
                    b.prefetch(w.source, w.at(n0 + c, at + further))
                yield [self._line(w, at, c, mask) for c, mask in zip(near, inside)]

        def chunk(first: Expr, stop: Expr) -> None:
            with b.loop(stop, first, step=step, name="k") as k:
                read = [lines(w, k) for w in own]
                for u, vectors_ in enumerate(zip(*read)):
                    at = b.let(k + u, "k") if u else k
                    xs = [self._x(start, at) for start in starts]
                    for dot, line in zip(acc, vectors_):
                        for v, vector in enumerate(line):
                            for x, sums_ in zip(xs, dot):
                                self.add(sums_[v], x, vector)

        sums.chunks(chunk)
        for v in range(vectors):
            values = [[line[v] for line in dot] for dot in sums.result]
            self.store(rows, columns[v], lanes, values, masks[v])

    def _line(self, w: Reader, k: Expr, column: Expr, mask: Expr | None) -> Expr:
        """A vector of columns at k, or pairs of it and the next."""
        b, lanes = self.b, self.lanes
        lines = [
            b.let(load(w.source, w.at(column, k + u), lanes, mask), "w") for u in range(self.pair)
        ]
        if self.mode == "dot2":
            return b.let(interleave(b, *lines), "w")
        return b.let(widen(lines[0], 1, 0, self.acc), "w")


# -- packed weights times integers


_AHEAD = 1024  # bytes of codes that are prefetched ahead


class IntegerStreamer(Streamer):
    """Packed weights times a few rows of integers: a band of rows after the other, each word of
    codes read once and multiplied where it lies (see integers)."""

    def __init__(self, em: Emitter, segment: DotSegment, config: Mapping[str, Any]) -> None:
        super().__init__(em, segment, config)
        p, caps = self.p, self.caps
        self.mb = min(p.m, 8 if caps.registers >= 32 else 4)
        self.width = self.lanes
        self.bands = -(-p.n // self.lanes)
        self.per_group = min(
            config.get("bands", max(1, self.bands // (16 * caps.cores))), self.bands
        )
        self.groups = -(-self.bands // self.per_group)

    def _left(self) -> Reader:
        b, p = self.b, self.p
        sources = [self.em.buffers[id(x)] for x in p.a.stored]
        forms = [w.form for w in self.of(PackedBands)]
        self.ints = stage(b, forms, sources, self.x.base, p.a_m, self.limit, p.m, p.k, self.caps)
        return self.x

    def _columns(self, rows: Sequence[Expr], n0: Expr) -> None:
        """A band of rows of w."""
        b, p = self.b, self.p
        sums = self._chains(rows, 1)
        near = [r if isinstance(r, ir.Const) else b.let(minimum(r, self.limit - 1)) for r in rows]
        bands = []
        for w in self.of(PackedBands):
            own = IntegerBands.of(w, way_of(w.caps, len(p.a.stored) - 1)).at(b, n0)
            assert isinstance(own, IntegerBands)
            bands.append(own)

        def chunk(first: Expr, stop: Expr) -> None:
            with b.loop(stop, first, step=BLOCK, name="k") as k:
                for w, dot in zip(bands, sums.acc):
                    self._ask(w, k)
                    run = run_of(w.form, p.k)
                    for half in range(0, BLOCK, run):
                        at = b.let(k + half, "k") if half else k
                        w.add(b, self.ints, near, at, [line for (line,) in dot])

        sums.chunks(chunk)
        own_columns = b.let(tail_mask(n0, p.n, self.lanes), "cols") if p.n % self.lanes else None
        values = [[v for (v,) in dot] for dot in sums.result]
        self.store(rows, n0, self.lanes, values, own_columns)

    def _ask(self, w: IntegerBands, k: Expr) -> None:
        """Asks for the codes that come some lines later."""
        if not self.ahead:
            return
        assert w.starts is not None
        for part, bits in zip(("codes", "high"), w.form.planes):
            size = BLOCK * bits // 8 * self.lanes
            first = self.b.let(w.starts[part] + k // BLOCK * size + _AHEAD, "coming")
            for line in range(0, size, 64):
                self.b.prefetch(w.buffers[part], first + line)
