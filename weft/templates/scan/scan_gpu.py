"""Scans in many threads: a team shares a row, or a thread walks it alone.

Along the last axis, where barriers are cheap, each thread of a team joins a vector of neighbouring
elements. The team joins its totals in log2 rounds through shared memory (Hillis and Steele 1986),
then takes the next tile. Across rows neighbouring threads take neighbouring columns.
"""

from __future__ import annotations

from weft.core.caps import Caps
from weft.kernel import expr as kb
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import ZERO, Affine
from weft.templates.group import Group
from weft.templates.lanes import ROW_THREADS, vector_lanes
from weft.templates.rows.folds import Accumulator, State, bind
from weft.templates.scan.base import Scans
from weft.templates.view import Index
from weft.transform.scan import alone

TEAM = 256  # most threads of a row
ITEMS = 4  # fewest elements of a thread
ALONE = 64  # threads of a group where each walks a row


def build(group: Group, caps: Caps) -> Kernel:
    """The kernel of a scan, of the totals of its blocks, or of its blocks."""
    assert group.anchor is not None
    last = group.anchor.attrs["params"]["axis"] == len(group.anchor.inputs[0].shape) - 1
    return (_ThreadScan if alone(caps, last) else _SharedScan)(group, caps).kernel()


class _ThreadScan(Scans):
    """One thread per row, element by element."""

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        threads = min(ALONE, self.caps.max_threads)
        wanted = self.wanted() * (self.units * self.inner)
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < wanted), em.scope():
            unit, inner = affine.divide(
                em.axis(at, self.outer * self.units * self.inner), self.inner
            )
            self.unit(*self.parted(unit), inner)
        return self.finished(kb.ceil_div(wanted, threads), (threads,))

    def unit(self, row: Affine, block: Affine | None, inner: Affine) -> None:
        b, em = self.b, self.em
        if block is not None:
            run = self.running(self.fold)
            carry = bind(b, self.carry(row, block, inner)) if self.writes else None
            self.walk(row, block, inner, carry, run)
            if not self.writes:
                self.put_total(row, block, inner, run.state())
        elif self.blocks == 1:
            self.walk(row, ZERO, inner, None, self.running(self.first))
        else:
            past = self.running(self.first)
            with b.loop(self.blocks, name="block") as k, em.scope():
                run = self.running(self.fold)
                self.walk(row, em.axis(k, self.blocks), inner, past.state(), run)
                past.join(run.state())

    def walk(
        self, row: Affine, block: Affine, inner: Affine, carry: State | None, run: Accumulator
    ) -> None:
        b, em = self.b, self.em
        start = block * self.block
        size: Expr | int = min(self.block, self.n)
        if self.n > self.block and self.n % self.block:
            size = b.let(kb.minimum(self.block, kb.as_expr(self.n) - em.expr(start)), "size")
        with b.loop(size, name="k") as k, em.scope():
            at = start + em.axis(k, min(self.block, self.n))
            index = self.index(row, affine.number(self.n - 1) - at if self.reverse else at, inner)
            past, state = run.state(), self.state(index)
            joined = self.combine(past, state)
            if self.writes:
                found = self.before(carry, past if self.exclusive else joined)
                self.put(index, self.finish(found))
            run.set(joined)


class _SharedScan(Scans):
    """`team` threads share a row, `items` neighbouring elements of it to each at a time."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        like = [x for x in (*group.inputs, *group.outputs) if x.size == self.outer * self.n]
        self.lanes = vector_lanes(caps, self.n, like or list(self.operands))
        self.items = max(self.lanes, ITEMS)
        limit = 1 << (min(TEAM, caps.max_threads).bit_length() - 1)
        shared = -(-min(self.n, self.block) // self.items)
        self.team = min(limit, 1 << (shared - 1).bit_length())
        self.threads = max(self.team, min(ROW_THREADS, limit))
        self.tile = self.team * self.items
        self.shared = [
            self.b.array("runs", d, 2 * self.threads, "shared")
            for d in self.fold.dtypes
            if self.team > 1
        ]
        self.here = self.b.let(self.b.thread(0), "here")
        self.t = self.b.let(self.here % self.team, "t")
        self.real: Expr | None = None  # true if this team's row exists

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        per = self.threads // self.team
        wanted, most = self.wanted() * self.units, self.outer * self.units
        unit: Expr = b.group(0)
        if per > 1:
            unit = b.let(b.group(0) * per + self.here // self.team, "unit")
            self.real = b.let(unit < wanted, "real")
            unit = kb.minimum(unit, most - 1)
        with em.scope():
            self.unit(*self.parted(em.axis(unit, most)))
        return self.finished(kb.ceil_div(wanted, per), (self.threads,))

    def unit(self, row: Affine, block: Affine | None) -> None:
        b, em = self.b, self.em
        if block is not None:
            run = self.running(self.fold)
            self.walk(row, block, self.carry(row, block) if self.writes else None, run)
            if not self.writes:
                first = kb.eq(self.t, 0)
                with b.when(first if self.real is None else first & self.real), em.scope():
                    self.put_total(row, block, ZERO, run.state())
        elif self.blocks == 1:
            self.walk(row, ZERO, None, self.running(self.first))
        else:
            past = self.running(self.first)
            with b.loop(self.blocks, name="block") as k, em.scope():
                run = self.running(self.fold)
                self.walk(row, em.axis(k, self.blocks), past.state(), run)
                past.join(run.state())

    def walk(self, row: Affine, block: Affine, carry: State | None, run: Accumulator) -> None:
        """Scans a block tile by tile; those beyond the row's end join nothing."""
        b, em = self.b, self.em
        tiles = -(-min(self.n, self.block) // self.tile)
        with b.loop(tiles, name="tile") as k, em.scope():
            first = block * self.block + em.axis(k, tiles) * self.tile
            first = first + em.axis(self.t, self.team) * self.items
            self.one_tile(row, first, carry, run)

    def one_tile(self, row: Affine, first: Affine, carry: State | None, run: Accumulator) -> None:
        b, em = self.b, self.em
        places, inside, states = [], [], []
        for at in range(0, self.items, self.lanes):
            k = b.let(em.expr(first + at), "k")
            inside.append(b.let(k < self.n, "inside"))
            last = self.n - self.lanes
            places.append(em.axis(kb.minimum(k, last), last + 1, self.lanes))
            states += self.elements(self.place(row, places[-1]), inside[-1])
        for i in range(1, self.items):
            states[i] = self.quick(states[i - 1], states[i])
        past, total = self.meet(states[-1])
        if self.writes:
            before = self.combine(self.before(carry, run.state()), past)
            found = [self.quick(before, s) for s in states]
            if self.exclusive:
                found = [before, *found[:-1]]
            for i, (place, there) in enumerate(zip(places, inside)):
                part = found[i * self.lanes : (i + 1) * self.lanes]
                with b.when(there if self.real is None else there & self.real), em.scope():
                    values = [b.let(self.finish(s), "y") for s in part]
                    packed = kb.pack(*(reversed(values) if self.reverse else values))
                    self.put(self.place(row, place), packed)
        run.join(total)

    def place(self, row: Affine, k: Affine) -> Index:
        at = affine.number(self.n - self.lanes) - k if self.reverse else k
        return self.index(row, at + self.em.lane(self.lanes))

    def elements(self, index: Index, inside: Expr) -> list[State]:
        """The states of a vector's elements, in the order of the scan."""
        state = self.state(index)
        lanes = range(self.lanes)
        found = []
        for lane in reversed(lanes) if self.reverse else lanes:
            one = (kb.extract(x, lane) for x in state)
            kept = (kb.select(inside, x, e) for x, e in zip(one, self.fold.empty()))
            found.append(bind(self.b, tuple(kept), "x"))
        return found

    def meet(self, mine: State) -> tuple[State, State]:
        """Returns the joined state of the threads before this one, and that of the whole team."""
        b = self.b
        if self.team == 1:
            return self.fold.empty(), mine
        at, step = 0, 1
        self._store(self.here, mine)
        while step < self.team:
            b.barrier()
            other = self._load(kb.maximum(self.here - step, 0) + at)
            joined = self.combine(other, self._load(self.here + at))
            taken = b.let(step <= self.t, "taken")
            own = self._load(self.here + at)
            at = self.threads - at
            state = (kb.select(taken, j, o) for j, o in zip(joined, own))
            self._store(self.here + at, bind(b, tuple(state)))
            step *= 2
        b.barrier()
        before = self._load(kb.maximum(self.here - 1, 0) + at)
        empty = zip(before, self.fold.empty())
        past = bind(b, tuple(kb.select(kb.eq(self.t, 0), e, x) for x, e in empty), "past")
        total = self._load(self.here - self.t + (at + self.team - 1))
        b.barrier()
        return past, total

    def _load(self, at: Expr | int) -> State:
        at = self.b.let(at, "at")
        return bind(self.b, tuple(kb.load(a, at) for a in self.shared), "there")

    def _store(self, at: Expr, state: State) -> None:
        at = self.b.let(at, "at")
        for array, value in zip(self.shared, state):
            self.b.store(array, at, value)
