"""Threads that share a row.

A segment belongs to a worker of up to WORKER threads. Each thread holds neighbouring strands (one
vector, or single elements half the strands apart). So a segment's sum is a chain per thread and one
fold across the worker. Several short rows share a group; a longer row has several workers, whose
segments' sums meet in shared memory. A row with one segment per worker stays in registers: it is
read once and written once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from weft.core import dtypes as dt
from weft.core.order import ROW_SEGMENT, ROW_STRANDS
from weft.graph.ir import Node
from weft.kernel import expr as kb, ir
from weft.kernel.ir import Expr
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.lanes import ROW_THREADS, vector_lanes
from weft.templates.loops import Bound
from weft.templates.rows.folds import (
    Accumulator,
    Fold,
    State,
    bind,
    fold_lanes,
    fold_strands,
)
from weft.templates.rows.walk import BLOCKS, Body, CpuWalk, SegmentStates, States, ThreadWalk, Walk

WORKER = 32  # most threads of a worker
WORKERS = 16  # most workers of a group
FEW = 32  # segments whose sums every thread folds by itself
SHORT = 32  # elements that one thread folds by itself where there are no subgroups
STREAM = 4  # blocks loaded together where a row exceeds the registers


class SharedWalk(Walk):
    """`workers` workers of `p` threads share a row: worker w takes segments w, w + workers, ..."""

    space = "shared"

    def __init__(
        self, em: Emitter, n: int, runs: int = 1, like: Iterable[Node] = (), inner: int = 0
    ) -> None:
        super().__init__(em, n, runs)
        caps = em.caps
        self.lanes = min(2, vector_lanes(caps, inner or n, like))
        strands = min(ROW_STRANDS, 1 << (n - 1).bit_length())
        self.threads = min(WORKER, caps.subgroup or WORKER, max(1, strands // self.lanes))
        self.sets = strands // (self.lanes * self.threads)  # sets of vectors in a block
        most = min(WORKERS, caps.max_threads // self.threads)
        most = most if caps.subgroup else most // 2
        self.workers = max(1, min(self.segments, most))
        if self.workers > 1:  # whole subgroups
            fill = max(1, caps.subgroup // self.threads)
            self.workers = -(-self.workers // fill) * fill
        self.kept = self.segments <= self.workers and runs == 1
        self.team = self.threads * self.workers
        self.group = ROW_THREADS if caps.subgroup and self.workers == 1 else self.team
        self.thread = self.b.let(self.b.thread(0), "thread")
        self.t = self.b.let(self.thread % self.team, "t")
        self.p = self.b.let(self.t % self.threads, "p")
        self.w = self.b.let(self.t // self.threads, "w")
        self.here: tuple[Affine, int] | None = None  # the current vector and its place
        self._real: Expr | None = None

    @property
    def writer(self) -> Expr | None:
        first = kb.eq(self.t, 0)
        return first if self._real is None else first & self._real

    @property
    def real(self) -> Expr | None:
        return self._real

    def spread(self, rows: int, wanted: Bound, run: Callable[[Affine], None]) -> tuple[Bound, int]:
        b, em = self.b, self.em
        per = self.group // self.team
        if per == 1:
            run(em.axis(b.group(0), rows))
            return wanted, self.group
        at = b.let(b.group(0) * per + self.thread // self.team, "row")
        if not isinstance(wanted, int) or wanted % per:
            self._real = b.let(at < wanted, "real")
            at = kb.minimum(at, rows - 1)
        run(em.axis(at, rows))
        return kb.ceil_div(wanted, per), self.group

    # -- what is kept

    def keep(self, cheap: bool) -> ir.Array | None:
        if not self.kept:
            return None
        steps = min(self.blocks, BLOCKS) * self.sets
        row = self.b.array("row", dt.float32, steps * self.lanes)
        # A thread without a last vector keeps zeros, so that its unused elements are defined.
        for step in range(steps):
            if not self._full(step // self.sets):
                zero = ir.Const(0.0, ir.Type(dt.float32, self.lanes))
                self.b.store(row, step * self.lanes, zero)
        return row

    def place(self, j: Affine) -> Expr | None:
        if self.here is None or self.here[0] != j:
            return None
        return kb.const(self.here[1])

    # -- walking

    def each(self, body: Body) -> None:
        if self.kept:
            self._kept(body)
            return
        with self._rounds(self.segments) as s:
            self._segment(body, s)

    def _full(self, k: int) -> bool:
        """True if block k of every worker's segment is whole (where rows are kept)."""
        return ((self.workers - 1) * BLOCKS + k + 1) * ROW_STRANDS <= self.n

    def _kept(self, body: Body) -> None:
        for k in range(min(self.blocks, BLOCKS)):
            block = self.b.let(self.w * BLOCKS + k if self.workers > 1 else k, "block")
            for set_ in range(self.sets):
                step = (k * self.sets + set_) * self.lanes
                self._vector(body, affine.ZERO, block, set_, self._full(k), step)

    @contextlib.contextmanager
    def _rounds(self, count: int):  # type: ignore[no-untyped-def]
        """Over segments in turn, one to a worker, `count` of them and up to workers - 1 more."""
        with self.b.loop(count, step=self.workers, name="s") as s, self.em.scope():
            yield self.b.let(s + self.w, "s")

    def _segment(self, body: Body, s: Expr) -> None:
        """Segment s, which may reach beyond the row."""
        b, em = self.b, self.em
        low = b.let(s * BLOCKS, "low")
        high = b.let(kb.minimum(low + BLOCKS, self.blocks), "high")
        if self.runs == 1:
            whole = kb.minimum(low + BLOCKS, self.n // ROW_STRANDS)
            fours = b.let(low + (whole - low) // STREAM * STREAM, "fours")
            with b.loop(fours, low, STREAM, name="k") as k, em.scope():
                for u in range(STREAM):
                    block = b.let(k + u, "block")
                    for set_ in range(self.sets):
                        self._vector(body, affine.ZERO, block, set_, True)
            low = b.let(kb.maximum(fours, low), "low")
        with b.loop(high, low, name="k") as k, em.scope():
            run, at = affine.divide(em.axis(k, self.blocks), self.per_run)
            for set_ in range(self.sets):
                self._vector(body, run, em.expr(at), set_, self.n % ROW_STRANDS == 0)

    def _vector(
        self, body: Body, run: Affine, block: Expr, set_: int, full: bool, step: int | None = None
    ) -> None:
        """One thread's vector of a block; `full`: it surely exists."""
        b, em = self.b, self.em
        per = ROW_STRANDS // self.lanes
        at = b.let(block * per + (self.p + set_ * self.threads), "v")
        vectors = self.n // self.lanes
        with contextlib.nullcontext() if full else b.when(at < vectors), em.scope():
            j = em.axis(at, vectors) * self.lanes + em.lane(self.lanes)
            self.here = None if step is None else (j, step)
            body(run, j)
            self.here = None

    # -- folding

    def segment(self, fold: Fold, states: States, s: Expr) -> State:
        accs = [Accumulator(self.b, fold, self.lanes) for _ in range(self.sets)]
        turn = iter(range(1 << 30))

        def body(run: Affine, j: Affine) -> None:
            accs[next(turn) % self.sets].join(states(run, j))

        if self.kept:
            self._kept(body)
        else:
            self._segment(body, s)
        return self._worker(fold, fold_strands(self.b, fold, [acc.state() for acc in accs]))

    def fill(self, parts: SegmentStates, states: States, first: Expr, count: int) -> None:
        b = self.b
        if self.kept:
            self._hand_over(parts, self.segment(parts.fold, states, self.w), self.w, count)
        else:
            with self._rounds(count) as at:
                b.barrier()  # the previous content has been read
                found = self.segment(parts.fold, states, b.let(first + at, "s"))
                self._hand_over(parts, found, at, count)
        b.barrier()

    def _hand_over(self, parts: SegmentStates, found: State, at: Expr, count: int) -> None:
        with self.b.when(kb.eq(self.p, 0) & (at < count)):
            parts.store(at, found)

    def joined(self, parts: SegmentStates) -> State:
        b = self.b
        if parts.count <= FEW:
            return fold_strands(
                b, parts.fold, [parts.load(kb.const(k)) for k in range(parts.count)]
            )
        return _Redundant(self, parts.count).fold(
            parts.fold, lambda _, j: parts.load(self.em.address(j), j.lanes)
        )

    def _worker(self, fold: Fold, state: State) -> State:
        """Joins the states of a worker's threads; each gets the result."""
        b, half = self.b, self.threads // 2
        state = bind(b, state)
        if self.em.caps.subgroup:
            while half:
                other = tuple(ir.Collective("subgroup_xor", (x,), x.type, half) for x in state)
                state = bind(b, fold.combine(b, state, bind(b, other, "other")))
                half //= 2
        elif half:
            lanes = self.lanes
            met = SegmentStates(b, fold, self.group * lanes, "shared")
            met.store(self.thread * lanes, state)
            while half:
                b.barrier()
                with b.when(self.p < half):
                    mine = met.load(self.thread * lanes, lanes)
                    far = met.load((self.thread + half) * lanes, lanes)
                    met.store(self.thread * lanes, fold.combine(b, mine, far))
                half //= 2
            b.barrier()
            state = met.load((self.thread - self.p) * lanes, lanes)
        return fold_lanes(b, fold, state)


class _Redundant(SharedWalk):
    """A short row that each worker of a team folds for itself."""

    def __init__(self, team: SharedWalk, n: int) -> None:
        Walk.__init__(self, team.em, n)
        self.__dict__.update(vars(team) | vars(self))
        self.lanes, self.kept, self.workers = 1, False, 1
        self.sets = ROW_STRANDS // self.threads
        self.w = kb.const(0)
        assert n <= ROW_SEGMENT


def walk_of(em: Emitter, n: int, runs: int = 1, like: Iterable[Node] = (), inner: int = 0) -> Walk:
    """The walk of rows for the emitter's target. `like`: what moves with the row's elements;
    `inner`: how many of them lie side by side (all, by default)."""
    caps = em.caps
    if caps.is_cpu:
        return CpuWalk(em, n, runs)
    if not caps.cheap_barrier or not n or (not caps.subgroup and n * runs <= SHORT):
        return ThreadWalk(em, n, runs)
    return SharedWalk(em, n, runs, like, inner)
