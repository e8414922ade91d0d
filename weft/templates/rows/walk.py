"""Walks and folds a row, in the one order of core/order.py, with each kind of worker.

A row is `runs` runs of n elements (one run unless reduced axes are not adjacent). A run is cut into
blocks of ROW_STRANDS, the row into segments of BLOCKS blocks. This module has the order, and a
CPU's thread, which walks by vectors. In walk_gpu: threads that share a row, and one thread by
itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import ROW_SEGMENT, ROW_STRANDS
from weft.kernel import expr as kb, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.loops import Bound, useful_lanes, vector_loop
from weft.templates.rows.folds import Accumulator, Fold, State, fold_lanes, fold_strands

BLOCKS = ROW_SEGMENT // ROW_STRANDS  # blocks of a segment
CHUNK = 16384  # elements per group on a CPU
UNROLL = 4  # vectors at once on a CPU where the order is free
MASKS = 16  # lanes of a CPU whose vectors have masks

Body = Callable[[Affine, Affine], None]  # (run, element of the run)
States = Callable[[Affine, Affine], State]  # an element as a state of the fold


class SegmentStates:
    """States in memory, one per piece of a row."""

    def __init__(self, b: Builder, fold: Fold, count: int, space: str = "private") -> None:
        self.b, self.fold, self.count = b, fold, count
        self.arrays = [b.array("part", d, count, space) for d in fold.dtypes]

    def store(self, at: Expr, state: State) -> None:
        at = self.b.let(at, "at")
        for array, v in zip(self.arrays, state):
            self.b.store(array, at, v)

    def load(self, at: Expr, lanes: int = 1, mask: Expr | None = None) -> State:
        at = self.b.let(at, "at")
        return tuple(self.b.let(kb.load(a, at, lanes, mask), "part") for a in self.arrays)


class Walk:
    """The order of a row's sums; what walks one segment is the subclass's."""

    space = "private"

    def __init__(self, em: Emitter, n: int, runs: int = 1) -> None:
        self.em, self.b, self.n, self.runs = em, em.b, n, runs
        self.per_run = -(-n // ROW_STRANDS)
        self.blocks = runs * self.per_run
        self.segments = max(1, -(-self.blocks // BLOCKS))

    def spread(self, rows: int, wanted: Bound, run: Callable[[Affine], None]) -> tuple[Bound, int]:
        """Emits run(row) for each of the `wanted` of `rows` rows; gives groups and threads."""
        raise NotImplementedError

    def each(self, body: Body) -> None:
        """Runs body for every element of a row, in any order."""
        raise NotImplementedError

    def segment(self, fold: Fold, states: States, s: Expr) -> State:
        """The sum of segment s."""
        raise NotImplementedError

    def keep(self, cheap: bool) -> ir.Array | None:
        """Memory for one f32 per element of a row; None where values are computed again (as they
        may be where that is as `cheap` as reading a kept one)."""
        return None

    def place(self, j: Affine) -> Expr | None:
        """Returns the place of element j in such memory, or None when it is not available."""
        return None

    @property
    def writer(self) -> Expr | None:
        """Returns a condition that is true if this thread writes the row's numbers; None where each
        thread has its own row."""
        return None

    @property
    def real(self) -> Expr | None:
        """Returns a condition that is true if this thread's row exists; None when it always
        does."""
        return None

    @contextlib.contextmanager
    def only(self, condition: Expr | None) -> Iterator[None]:
        """Emits the block under a condition; None: unconditionally."""
        if condition is None:
            yield
            return
        with self.b.when(condition), self.em.scope():
            yield

    def fold(self, fold: Fold, states: States) -> State:
        """The fold of a row, in every thread that shares it."""
        if self.segments == 1:
            return self.segment(fold, states, kb.const(0))
        if self.segments <= ROW_SEGMENT:
            parts = SegmentStates(self.b, fold, self.segments, self.space)
            self.fill(parts, states, kb.const(0), self.segments)
            return self.joined(parts)
        parts = SegmentStates(self.b, fold, ROW_SEGMENT, self.space)
        pieces = -(-self.segments // ROW_SEGMENT)
        tops = SegmentStates(self.b, fold, pieces)
        with self.b.loop(pieces, name="piece") as piece, self.em.scope():
            first = self.b.let(piece * ROW_SEGMENT, "first")
            self.fill(parts, states, first, ROW_SEGMENT)
            tops.store(piece, self.joined(parts))
        return ThreadWalk(self.em, pieces).fold(fold, lambda _, j: tops.load(self.em.expr(j)))

    def fill(self, parts: SegmentStates, states: States, first: Expr, count: int) -> None:
        """Stores the sums of `count` segments from `first` on; segments beyond the row are
        empty."""
        with self.b.loop(count, name="s") as s, self.em.scope():
            parts.store(s, self.segment(parts.fold, states, self.b.let(first + s, "s")))

    def joined(self, parts: SegmentStates) -> State:
        """The fold of such sums."""
        em = self.em
        return type(self)(em, parts.count).fold(
            parts.fold, lambda _, j: parts.load(em.address(j), j.lanes, em.mask)
        )

    def bounds(self, s: Expr, end: Bound) -> tuple[Bound, Bound]:
        """The blocks of segment s before block `end`."""
        if self.segments == 1:
            return 0, end
        low = self.b.let(s * BLOCKS, "low")
        return low, self.b.let(kb.minimum(low + BLOCKS, end), "high")


class CpuWalk(Walk):
    """One thread, by vectors: strands are lanes of several accumulators."""

    def __init__(self, em: Emitter, n: int, runs: int = 1) -> None:
        super().__init__(em, n, runs)
        self.lanes = useful_lanes(em.caps, n)
        self.unroll = max(1, min(UNROLL, n // self.lanes))

    def spread(self, rows: int, wanted: Bound, run: Callable[[Affine], None]) -> tuple[Bound, int]:
        b, em = self.b, self.em
        per = _evenly(rows, max(1, CHUNK // max(self.n * self.runs, 1)), em.caps.cores)
        low = b.let(b.group(0) * per, "low")
        high = kb.minimum(low + per, wanted)
        with b.loop(high, low, name="r") as r, em.scope():
            run(em.axis(r, rows))
        return kb.ceil_div(wanted, per), 1

    def each(self, body: Body) -> None:
        def element(j: Affine) -> None:
            body(affine.ZERO, j)

        vector_loop(self.em, 0, self.n, self.n, element, self.lanes, self.unroll)

    def keep(self, cheap: bool) -> ir.Array | None:
        if cheap:  # from the first cache, as the kept copy would be
            return None
        return self.array()

    def array(self) -> ir.Array:
        wide = self.lanes * self.unroll
        return self.b.array("row", dt.float32, -(-self.n // wide) * wide)

    def place(self, j: Affine) -> Expr:
        return self.em.address(j)

    def segment(self, fold: Fold, states: States, s: Expr) -> State:
        b, em = self.b, self.em
        used = max(1, min(ROW_STRANDS, self.n) // self.lanes + (self.n % self.lanes > 0))
        used = min(used, UNROLL if fold.free else ROW_STRANDS // self.lanes)
        accs = [Accumulator(b, fold, self.lanes) for _ in range(used)]
        whole = self.n // ROW_STRANDS
        if self.runs == 1:
            low, high = self.bounds(s, whole)
            if whole:
                with self._loop(low, high, whole) as k, em.scope():
                    start = em.axis(k, self.n - ROW_STRANDS + 1, ROW_STRANDS)
                    self._block(accs, states, affine.ZERO, start, ROW_STRANDS)
            if self.n % ROW_STRANDS:
                with self._last(s), em.scope():
                    start = affine.number(whole * ROW_STRANDS)
                    self._block(accs, states, affine.ZERO, start, self.n % ROW_STRANDS)
        else:
            low, high = self.bounds(s, self.blocks)
            with b.loop(high, low, name="k") as k, em.scope():
                self._run_block(accs, states, em.axis(k, self.blocks))
        return fold_lanes(b, fold, fold_strands(b, fold, [a.state() for a in accs]))

    def _loop(self, low: Bound, high: Bound, whole: int) -> Any:
        """Over the first elements of whole blocks."""
        return self.b.loop(high * ROW_STRANDS, low * ROW_STRANDS, ROW_STRANDS, name="k")

    def _last(self, s: Expr) -> Any:
        if self.segments == 1:
            return self.em.scope()
        return self.b.when(kb.eq(s, self.segments - 1))

    def _run_block(self, accs: list[Accumulator], states: States, block: Affine) -> None:
        """One block of one of several runs."""
        b, em = self.b, self.em
        run, k = affine.divide(block, self.per_run)
        count = self.n % ROW_STRANDS
        if not count or self.per_run == 1:
            self._block(accs, states, run, k * ROW_STRANDS, count or ROW_STRANDS)
            return
        with b.when(em.expr(k) < self.per_run - 1), em.scope():
            self._block(accs, states, run, k * ROW_STRANDS, ROW_STRANDS)
        with b.otherwise(), em.scope():
            self._block(accs, states, run, affine.number(self.n - count), count)

    def _block(
        self, accs: list[Accumulator], states: States, run: Affine, start: Affine, count: int
    ) -> None:
        """The first `count` elements of a block: vectors in turn, then what is left of one."""
        b, em, lanes = self.b, self.em, self.lanes
        for u in range(count // lanes):
            with em.masked(None):
                accs[u % len(accs)].join(states(run, start + u * lanes + em.lane(lanes)))
        rest, acc = count % lanes, accs[count // lanes % len(accs)]
        start = start + (count - rest)
        if rest and em.caps.lanes >= MASKS:
            with em.masked(b.let(kb.binary("lt", kb.iota(lanes), rest), "mask")):
                acc.join(states(run, start + em.lane(lanes)), em.mask)
        elif rest:
            lane = SegmentStates(b, acc.fold, lanes)
            lane.store(kb.const(0), acc.fold.empty(lanes))
            with b.loop(rest, name="i") as i, em.scope():
                lane.store(i, states(run, start + em.axis(i, rest)))
            acc.join(lane.load(kb.const(0), lanes))


def _evenly(rows: int, per: int, cores: int) -> int:
    """Rows to a group: `per` or somewhat fewer, so that each core gets as many."""

    def last(n: int) -> int:
        """Returns when the last core ends, in rows."""
        groups = -(-rows // n)
        return -(-groups // cores) * n

    return min(range(per, per * 2 // 3, -1), key=last)


class ThreadWalk(Walk):
    """One thread of many, element by element, strand by strand; nothing is kept."""

    threads = 64

    def spread(self, rows: int, wanted: Bound, run: Callable[[Affine], None]) -> tuple[Bound, int]:
        b, em = self.b, self.em
        threads = min(self.threads, em.caps.max_threads)
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < wanted), em.scope():
            run(em.axis(at, rows))
        return kb.ceil_div(wanted, threads), threads

    def each(self, body: Body) -> None:
        with self.b.loop(self.n, name="j") as j, self.em.scope():
            body(affine.ZERO, self.em.axis(j, self.n))

    def fold(self, fold: Fold, states: States) -> State:
        """Folds one element after the other where the order is free."""
        if not fold.free:
            return super().fold(fold, states)
        b, em = self.b, self.em
        acc = Accumulator(b, fold)
        with b.loop(self.runs, name="run") as run, b.loop(self.n, name="j") as j, em.scope():
            acc.join(states(em.axis(run, self.runs), em.axis(j, self.n)))
        return acc.state()

    def segment(self, fold: Fold, states: States, s: Expr) -> State:
        b, em = self.b, self.em
        if self.blocks <= 1 and self.n <= 1:
            return states(affine.ZERO, affine.ZERO) if self.n else fold.empty()
        strands = min(ROW_STRANDS, 1 << (self.n - 1).bit_length())
        parts = SegmentStates(b, fold, strands)
        with b.loop(strands, name="i") as i, em.scope():
            acc = Accumulator(b, fold)
            end: Bound = self.blocks
            if self.runs == 1 and self.n % strands:
                end = (self.n + (ROW_STRANDS - 1) - i) // ROW_STRANDS
            low, high = self.bounds(s, end)
            with b.loop(high, low, name="k") as k, em.scope():
                run, block = affine.divide(em.axis(k, self.blocks), self.per_run)
                j = b.let(em.expr(block) * ROW_STRANDS + i, "j")
                with b.when(j < self.n) if self.runs > 1 else em.scope(), em.scope():
                    acc.join(states(run, em.axis(j, self.n)))
            parts.store(i, acc.state())
        half = strands // 2
        while half:
            with b.loop(half, name="i") as i:
                parts.store(i, fold.combine(b, parts.load(i), parts.load(i + half)))
            half //= 2
        return parts.load(kb.const(0))
