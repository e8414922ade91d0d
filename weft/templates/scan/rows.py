"""Scans along the last axis on a CPU, by vectors.

A tile is as many elements of a row as a vector has lanes, joined in log2 rounds with the run that
lies 1, 2, 4, ... elements before (Kogge and Stone 1973).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.core.caps import Caps
from weft.kernel import expr as kb
from weft.kernel.ir import BOOL, Expr, Kernel
from weft.templates import affine
from weft.templates.affine import ZERO, Affine
from weft.templates.group import Group
from weft.templates.loops import Bound, useful_lanes
from weft.templates.rows.folds import Accumulator, State, bind
from weft.templates.scan.base import Scans
from weft.templates.view import Index

ABREAST = 4  # whole tiles that `several` takes together
CHUNK = 16384  # fewest elements of a group


class CpuScan(Scans):
    """The shared part of both styles: several short rows in a group."""

    def shared_out(self, units: int, size: int, body: Callable[[Affine], None]) -> Kernel:
        """The kernel that runs body(unit) for the `units` of every outer row, `size` elements
        each."""
        b, em = self.b, self.em
        per = max(1, CHUNK // max(size, 1))
        wanted = self.wanted() * units
        low = b.let(b.group(0) * per, "low")
        high = kb.minimum(low + per, wanted)
        with b.loop(high, low, name="unit") as u, em.scope():
            body(em.axis(u, self.outer * units))
        return self.finished(kb.ceil_div(wanted, per))


class RowScan(CpuScan):
    """A block as tiles of a vector each, of which the last may be cut."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        self.tile = useful_lanes(caps, self.n)
        self.rest = self.n % self.tile

    def rounds(self) -> Iterator[int]:
        step = 1
        while step < self.tile:
            yield step
            step *= 2

    def kernel(self) -> Kernel:
        def unit(at: Affine) -> None:
            row, block = self.parted(at)
            if block is None:
                self.row(row)
            elif self.writes:
                self.blocks_from(row, block)
            else:
                self.total(row, block)

        return self.shared_out(self.units, min(self.n, self.block), unit)

    def total(self, row: Affine, block: Affine) -> None:
        """Writes what a block joins to, of the tail's what no elements do."""
        b, em = self.b, self.em
        run = self.running(self.fold, self.tile)
        if self.tail:
            with b.when(em.expr(block) < self.blocks - self.tail), em.scope():
                self.walk(row, block, None, run)
        else:
            self.walk(row, block, None, run)
        self.put_total(row, block, ZERO, tuple(kb.extract(x, 0) for x in run.state()))

    def blocks_from(self, row: Affine, unit: Affine) -> None:
        """Scans a block; where there is a tail all of it as unit 0, since it takes longest."""
        b, em = self.b, self.em
        head = self.blocks - self.tail
        block = affine.number(head) - unit if self.tail else unit
        carry = self.running(self.fold, self.tile)
        carry.set(tuple(kb.splat(x, self.tile) for x in self.carry(row, block)))
        if not self.tail:
            self.walk(row, block, carry.state(), self.running(self.fold, self.tile))
            return
        first = b.let(em.expr(block), "first")
        stop = kb.select(kb.eq(first, head), self.blocks, first + 1)
        with b.loop(b.let(stop, "stop"), first, name="block") as k, em.scope():
            self.along(row, em.axis(k, self.blocks), carry)

    def along(self, row: Affine, block: Affine, carry: Accumulator) -> None:
        """Scans a block, which `carry` then includes."""
        run = self.running(self.fold, self.tile)
        self.walk(row, block, carry.state(), run)
        carry.join(run.state())

    def row(self, row: Affine) -> None:
        b, em = self.b, self.em
        if self.blocks == 1:
            self.walk(row, ZERO, None, self.running(self.first, self.tile))
            return
        carry = self.running(self.first, self.tile)
        with b.loop(self.blocks, name="block") as k, em.scope():
            self.along(row, em.axis(k, self.blocks), carry)

    def walk(self, row: Affine, block: Affine, carry: State | None, run: Accumulator) -> None:
        """Scans a block; `run`, the same in every lane, ends as its total."""

        def one(first: Affine, length: int) -> None:
            self.one(row, first, length, carry, run)

        def several(first: Affine, done: Expr) -> None:
            self.several(row, first, carry, run, done)

        self.each_tile(block, one, several if self.abreast else None)

    @property
    def abreast(self) -> bool:
        """True if whole tiles are better taken ABREAST at a time."""
        return not self.writes and self.tile > 2

    def several(
        self, row: Affine, first: Affine, carry: State | None, run: Accumulator, done: Expr
    ) -> None:
        """Joins ABREAST tiles to the run."""
        places = [self.place(row, first + i * self.tile, self.tile) for i in range(ABREAST)]
        totals = self.totals([self.state(index) for index in places], self.quick)
        for k in range(ABREAST):
            run.join(tuple(kb.shuffle([k] * self.tile, x) for x in totals))
        self.b.assign(done, True)

    def totals(self, states: list[State], join: Callable[[State, State], State]) -> State:
        """Returns the joined state of each of some tiles, one per lane. Neighbours are joined in
        pairs, those of two tiles in one vector. The order is that in which `one` reaches the last
        lane of a tile."""
        count = len(states)
        while len(states) > 1 or states[0][0].type.lanes > count:
            pairs: list[tuple[State, ...]] = list(zip(states[::2], states[1::2]))
            pairs = pairs or [(states[0],)]
            width = states[0][0].type.lanes * len(pairs[0])
            halves = [range(i, width, 2) for i in ((1, 0) if self.reverse else (0, 1))]
            states = [
                join(*(tuple(kb.shuffle(half, *xs) for xs in zip(*pair)) for half in halves))
                for pair in pairs
            ]
        return bind(self.b, states[0])

    def place(self, row: Affine, first: Affine, length: int) -> Index:
        """The index of a tile, by where it begins in the order of the scan."""
        at = affine.number(self.n - length) - first if self.reverse else first
        return self.index(row, at + self.em.lane(self.tile))

    def one(
        self, row: Affine, first: Affine, length: int, carry: State | None, run: Accumulator
    ) -> None:
        """Scans a tile."""
        b = self.b
        index = self.place(row, first, length)
        mask = None
        if length < self.tile:
            mask = b.let(kb.binary("lt", kb.iota(self.tile), length), "mask")
        with self.em.masked(mask):
            state = self.state(index)
            if mask is not None:
                empty = self.fold.empty(self.tile)
                state = bind(b, tuple(kb.select(mask, x, e) for x, e in zip(state, empty)))
            for by in self.rounds():
                state = self.quick(self.moved(state, by), state)
            if self.writes:
                found = self.moved(state, 1) if self.exclusive else state
                before = self.before(carry, run.state())
                self.put(index, self.finish(self.quick(before, found)))
        run.join(self.ends(state))

    def each_tile(
        self,
        block: Affine,
        body: Callable[[Affine, int], None],
        several: Callable[[Affine, Expr], None] | None = None,
    ) -> None:
        """Runs body(first, length) for the tiles of a block: their starts in the order of the scan,
        and their lengths. If given, several(first, done) runs before it for ABREAST whole tiles,
        and sets `done` where it has handled them."""
        b, em, tile = self.b, self.em, self.tile
        start = block * self.block
        size: Bound = min(self.block, self.n // tile * tile)
        if self.blocks > 1 and self.n % self.block:
            left = kb.as_expr(self.n // tile * tile) - em.expr(start)
            size = b.let(kb.minimum(self.block, left), "size")
        if size != 0:
            extent = min(self.block, self.n) - tile + 1
            if several is not None and extent > tile * (ABREAST - 1):
                self._abreast(start, size, extent, body, several)
            else:
                with b.loop(size, step=tile, name="k") as k, em.scope():
                    body(start + em.axis(k, extent, tile), tile)
        if not self.rest:
            return
        rest = affine.number(self.n - self.rest)
        if self.blocks == 1:
            with em.scope():
                body(rest, self.rest)
            return
        with b.when(kb.eq(em.expr(block), self.blocks - 1)), em.scope():
            body(rest, self.rest)

    def _abreast(
        self,
        start: Affine,
        size: Bound,
        extent: int,
        body: Callable[[Affine, int], None],
        several: Callable[[Affine, Expr], None],
    ) -> None:
        """The whole tiles of a block, ABREAST at a time; one by one where those are not to be had,
        or have been left."""
        b, em, tile, step = self.b, self.em, self.tile, self.tile * ABREAST
        with b.loop(size, step=step, name="k") as k, em.scope():
            done = b.var(kb.const(False, BOOL), "done")
            with b.when(k < kb.as_expr(size) - (step - tile)), em.scope():
                several(start + em.axis(k, extent - step + tile, tile), done)
            with b.when(kb.not_(done)), em.scope():
                last = kb.minimum(k + step, size)
                with b.loop(last, k, step=tile, name="t") as t, em.scope():
                    body(start + em.axis(t, extent, tile), tile)

    def moved(self, state: State, by: int) -> State:
        """Each lane has what was `by` lanes before, the first ones the state of no elements."""
        if self.tile == 1:
            return self.fold.empty()
        taken, empty = self.sources(by), self.fold.empty(self.tile)
        return bind(self.b, tuple(kb.shuffle(taken, x, e) for x, e in zip(state, empty)))

    def sources(self, by: int) -> list[int]:
        """The lanes `by` before each, `tile` where there are none."""
        lanes = range(self.tile)
        if self.reverse:
            return [i + by if i + by < self.tile else self.tile for i in lanes]
        return [i - by if i >= by else self.tile for i in lanes]

    def ends(self, state: State) -> State:
        """Returns the joined state of the whole tile, in every lane."""
        last = 0 if self.reverse else self.tile - 1
        if self.tile == 1:
            return state
        return tuple(kb.shuffle([last] * self.tile, x) for x in state)
