"""Matrix times a few vectors in many threads: a thread takes whole chunks of K, one chain each.

Where barriers are cheap the chunks of a column go to different threads; their sums meet in shared
memory, where one thread adds them in order (core.order). Where barriers are expensive one thread
walks all of K. For w[N, K] a thread reads its own rows, whole cache lines at a time; for w[K, N]
neighbouring threads read neighbouring columns.

Its config has: threads (at most, per group), rows (of x in a group), each (rows of w in a thread),
ahead (loads in flight together).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.core.order import CHUNK, SPAN
from weft.kernel import ir
from weft.kernel.expr import cast, const, eq, extract, load, minimum, pack, splat
from weft.kernel.ir import Expr, Type
from weft.ops.quantize import BLOCK
from weft.templates.emit import Emitter
from weft.templates.product.blocked_units import TILE, MatrixUnitBlocks, UnitPlan
from weft.templates.product.integer_rows import add_block, left_of
from weft.templates.product.kernel import StreamedProduct
from weft.templates.product.pipeline import ASYNC
from weft.templates.product.problem import DotSegment, MatmulProblem
from weft.templates.product.sums import ChunkSums

_PARTS = 16  # most threads that share a column


def candidates(segments: tuple[DotSegment, ...], caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring, all of one order of additions."""
    if not caps.subgroup:
        return []
    sizes = [t for t in (64, 128, 256, 512) if t <= caps.max_threads]
    found = [{"threads": t, "ahead": a} for t in sizes for a in (2, 4, 8)]
    return [*found, *({"each": e} for e in (1, 2, 4)), *({"rows": r} for r in (1, 2, 8))]


def team(p: MatmulProblem, caps: Caps, config: Mapping[str, Any]) -> tuple[int, int]:
    """(threads along N, threads that share the chunks of a column) of a group."""
    threads = min(config.get("threads", 128 if caps.subgroup else 64), caps.max_threads)
    chunks = max(-(-p.k // CHUNK), 1)
    parts = min(chunks, _PARTS, threads) if caps.cheap_barrier else 1
    across = 1 << (threads // parts).bit_length() - 1
    values = chunks * len(p.dots) * 4 * 4 * across  # bytes for the sums of four rows
    while parts > 1 and across > 1 and values > caps.shared_bytes:
        across, values = across // 2, values // 2
    return (across, parts) if values <= caps.shared_bytes else (threads, 1)


class ColumnStreamer(StreamedProduct):
    """Emits the part of the kernel that computes one segment, for a team of threads."""

    def __init__(
        self, em: Emitter, segment: DotSegment, shape: tuple[int, int], config: Mapping[str, Any]
    ) -> None:
        super().__init__(em, segment.problem, segment.outputs)
        p, caps = self.p, self.caps
        self.across, self.parts = shape
        self.mb = min(p.m, config.get("rows", 4))  # rows of x in a group
        self.ahead = config.get("ahead", 4 if caps.subgroup else 1)
        self.chunks = -(-p.k // CHUNK)
        self.along = all(w.along_k for w in self.lines)  # row by row, w[N, K]
        # Neighbours that one load of every dot's weights may take, along K or along N.
        self.lanes = min(w.lanes(1, CHUNK) if self.along else w.lanes(p.n, 1) for w in self.lines)
        if not self.along and not caps.cheap_barrier:
            self.lanes = 1
        self.vector = 1 if self.along else self.lanes  # neighbouring columns of a thread
        self.each = config.get("each", 1) if self.along else 1
        self.columns = self.across * self.each * self.vector
        self.groups, self.down = -(-p.n // self.columns), -(-p.m // self.mb)
        self.per_chunk = len(p.dots) * self.mb * self.columns  # sums [dot][row][column]
        self.shared_size = self.chunks * self.per_chunk if self.parts > 1 else 0

    # -- one group

    def emit(self, index: Expr, rows: Expr, entry: Expr, sums: ir.Array | None) -> None:
        b, p = self.b, self.p
        self.begin(entry)
        self.m0 = b.let(rows * self.mb, "m0")
        self.rows = [b.let(self.m0 + i, "row") for i in range(self.mb)]
        self.xs = self.starts(self.x, self.rows)
        self.n0 = b.let(index * self.columns, "n0")
        t = b.let(b.thread(0), "t")
        if sums is None:
            self._alone(t)
            return
        column, part = b.let(t % self.across, "column"), b.let(t // self.across, "part")
        self._begin(column, min(p.k, CHUNK))
        with b.loop(self.chunks, part, step=self.parts, name="chunk") as c:
            for var in self.sums.flat:
                b.assign(var, const(0, var.type))
            first = b.let(c * CHUNK, "first")
            self._chunk(first, b.let(minimum(first + CHUNK, p.k), "stop"))
            self._put(sums, c, column)
        b.barrier()
        self._collect(sums, t)

    def _begin(self, column: Expr, k: int) -> None:
        """Prepares sums [dot][column of this thread][row] over `k`, and the starts of the thread's
        weights."""
        b, p = self.b, self.p
        self.ns = [
            b.let(self.n0 + (column + e * self.across) * self.vector, "n") for e in range(self.each)
        ]
        inside = [b.let(minimum(n, p.n - self.vector), "inside") for n in self.ns]
        self.own = [[w.line(b, n, "w") for n in inside] for w in self.lines]
        shape = len(self.own), self.each, self.mb
        self.sums = ChunkSums(b, k, Type(self.acc, self.vector), *shape)

    # -- products

    def _chunk(self, first: Expr, stop: Expr) -> None:
        """The chains from k = first to stop: `ahead` loads at a time, the rest one by one."""
        b, step = self.b, self.lanes if self.along else 1
        run = step * self.ahead
        if self.ahead == 1 or self.p.k < run:
            with b.loop(stop, first, step=step, name="k") as k:
                self._steps([k])
            return
        whole = b.let(stop - (stop - first) % run, "whole") if self.p.k % run else stop
        with b.loop(whole, first, step=run, name="k") as k:
            self._steps([b.let(k + u * step, "k") for u in range(self.ahead)])
        if self.p.k % run:
            with b.loop(stop, whole, step=step, name="k") as k:
                self._steps([k])

    def _steps(self, places: Sequence[Expr]) -> None:
        """Loads of every place first, then their products in order."""
        loaded = [(self._weights(k), [self._left(s, k) for s in self.xs]) for k in places]
        for weights, lefts in loaded:
            xs = [self._elements(x) for x in lefts]
            for dot, accs in zip(weights, self.sums.acc):
                for parts, line in zip(dot, accs):
                    each = self._elements if self.along else self._wide
                    ws = [e for part in parts for e in each(part)]
                    for x, acc in zip(xs, line):
                        for u, y in zip(x, ws):
                            self.add(acc, splat(u, self.vector), y)

    def _weights(self, k: Expr) -> list[list[list[Expr]]]:
        """[dot][column]: a vector, or the elements of packed ones."""
        b, lanes = self.b, self.lanes
        return [
            [[b.let(part, "w") for part in line.parts(b, k, lanes)] for line in lines]
            for lines in self.own
        ]

    def _left(self, start: Expr, k: Expr) -> Expr:
        """The elements of x that go with one load of w."""
        b, source, count = self.b, self.x.source, self.lanes if self.along else 1
        if self.x.s_k == 1:
            return b.let(load(source, start + k, count), "x")
        first = b.let(start + k * self.x.s_k, "at")
        return b.let(pack(*(load(source, first + u * self.x.s_k) for u in range(count))), "x")

    def _wide(self, x: Expr) -> list[Expr]:
        return [self.b.let(cast(x, self.acc), "wide")]

    def _elements(self, x: Expr) -> list[Expr]:
        (wide,) = self._wide(x)
        return [self.b.let(extract(wide, u), "e") for u in range(x.type.lanes)]

    # -- sums

    def _alone(self, t: Expr) -> None:
        """All of K in one thread."""
        b, em = self.b, self.em
        with b.when(self.n0 + t * self.vector < self.p.n), em.scope():
            self._begin(t, self.p.k)
            self.sums.chunks(self._chunk)
            for e, n in enumerate(self.ns):
                with b.when(n < self.p.n), em.scope():
                    self.store(self.rows, n, self.vector, [dot[e] for dot in self.sums.result])

    def _put(self, sums: ir.Array, chunk: Expr, column: Expr) -> None:
        """The sums of a chunk, where `_collect` finds them."""
        b = self.b
        base = b.let(chunk * self.per_chunk + column * self.vector, "put")
        for d, dot in enumerate(self.sums.acc):
            for e, line in enumerate(dot):
                for i, var in enumerate(line):
                    at = (d * self.mb + i) * self.columns + e * self.across * self.vector
                    b.store(sums, base + at, var)

    def _collect(self, sums: ir.Array, t: Expr) -> None:
        """Each thread adds up the chunks of some of the group's rows x columns."""
        b, p = self.b, self.p
        per, count = self.mb * self.columns, self.per_chunk
        with b.loop(per, t, step=self.across * self.parts, name="e") as e, self.em.scope():
            m = b.let(self.m0 + e // self.columns, "m")
            n = b.let(self.n0 + e % self.columns, "n")
            with b.when((m < self.limit) & (n < p.n)), self.em.scope():
                values = [
                    self._joined(sums, b.let(e + d * per, "at"), count) for d in range(len(p.dots))
                ]
                self.write(m, n, 1, values)

    def _joined(self, sums: ir.Array, at: Expr, count: int) -> Expr:
        """The chunks' sums, `count` elements apart, in order: spans of them, then the spans."""
        b, many = self.b, SPAN // CHUNK
        # leaves everything unchanged
        nothing = const(-0.0 if self.acc.is_float else 0, Type(self.acc))
        span, total = (b.var(nothing, name, nothing.type) for name in ("span", "total"))
        with b.loop(self.chunks, name="chunk") as c:
            b.assign(span, span + load(sums, at + c * count))
            with b.when(eq(c % many, many - 1)):
                b.assign(total, total + span)
                b.assign(span, nothing)
        if self.chunks % many:
            b.assign(total, total + span)
        return b.let(total, "sum")


class IntegerColumnStreamer(ColumnStreamer):
    """The same where x is integers with scales (see integers): a block of each row at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lanes, self.left = BLOCK, left_of(self)

    def _steps(self, places: Sequence[Expr]) -> None:
        for k in places:
            add_block(self.b, self.left, self.xs, k, self.own, self.sums.acc)


# -- in matrix units


SUBGROUPS = 4  # subgroups per group, each with a tile's columns
_DEPTHS = (128, 64, 32, 16)


def plan_of(ps: list[MatmulProblem], caps: Caps, config: Mapping[str, Any]) -> UnitPlan:
    """The deepest blocks with which all the problems of a launch fit shared memory. Raises
    CompileError where none do."""
    most = 3 if ASYNC in caps.features else 2
    for depth in _DEPTHS if "bk" not in config else (config["bk"],):
        for ring in range(config.get("ring", most), 1, -1):
            plan = UnitPlan(TILE, SUBGROUPS * TILE, depth, ring, 1, SUBGROUPS)
            if sum(plan.shared(p, caps) for p in ps) <= caps.shared_bytes:
                return plan
    raise CompileError(f"{len(ps)} products in one launch do not fit {caps.shared_bytes} bytes")


def unit_candidates(caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring, all of one order of additions."""
    return [{"bk": depth} for depth in _DEPTHS]


class UnitStreamer(StreamedProduct, MatrixUnitBlocks):
    """The product in matrix units, where blocked_units takes 16-bit operands for many rows: its
    blocks with a tile's rows, so that w comes through shared memory well ahead of use."""

    def __init__(self, em: Emitter, segment: DotSegment, plan: UnitPlan) -> None:
        super().__init__(em, segment.problem, segment.outputs, plan)
        self.groups, self.down = -(-self.p.n // plan.columns), -(-self.p.m // TILE)

    def emit(self, index: Expr, rows: Expr, entry: Expr, sums: ir.Array | None) -> None:
        b = self.b
        self.enter(entry)
        self.m0 = b.let(rows * TILE, "m0")
        self.n0 = b.let(index * self.columns, "n0")
        self.body()
