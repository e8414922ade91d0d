"""Scans on a CPU: along the last axis by vectors, along another across columns.

A tile is as many elements of a row as a vector has lanes, joined in log2 rounds with the run that
lies 1, 2, 4, ... elements before (Kogge and Stone 1973); along another axis than the last elements
are joined one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.core.caps import Caps
from weft.kernel import builder as kb
from weft.kernel import ir
from weft.kernel.ir import Kernel, Type
from weft.templates import affine
from weft.templates.affine import ZERO, Affine
from weft.templates.folds import Accumulator, State, bind
from weft.templates.group import Group
from weft.templates.loops import Bound, times, useful_lanes, vector_loop
from weft.templates.scan_base import Scans
from weft.transform.scan import COLUMNS

ABREAST = 4  # elements of a column read together where each comes from another page
PAGE = 4096  # bytes
CHUNK = 16384  # elements to a group at least


def build(group: Group, caps: Caps) -> Kernel:
    """The kernel of a scan, of the totals of its blocks, or of its blocks."""
    assert group.anchor is not None
    params = group.anchor.attrs["params"]
    last = params["axis"] == len(group.anchor.inputs[0].shape) - 1
    return (_Rows if last else _Columns)(group, caps).kernel()


class _Cpu(Scans):
    """What both styles share: several short rows to a group."""

    def shared_out(self, units: int, size: int, body: Callable[[Affine], None]) -> Kernel:
        """The kernel that runs body(unit) for the `units` of every outer row, `size` elements
        each."""
        b, em = self.b, self.em
        per = max(1, CHUNK // max(size, 1))
        wanted = times(self.wanted(), units)
        low = b.let(b.group(0) * per, "low")
        high = kb.minimum(low + per, wanted)
        with b.loop(high, low, name="unit") as u, em.scope():
            body(em.axis(u, self.outer * units))
        return self.finished(kb.ceil_div(wanted, per))


class _Rows(_Cpu):
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
                carry = tuple(kb.splat(x, self.tile) for x in self.carry(row, block))
                run = self.running(self.fold, self.tile)
                self.walk(row, block, bind(self.b, carry), run)
            else:
                run = self.running(self.fold, self.tile)
                self.walk(row, block, None, run)
                self.put_total(row, block, ZERO, tuple(kb.extract(x, 0) for x in run.state()))

        return self.shared_out(self.units, min(self.n, self.block), unit)

    def row(self, row: Affine) -> None:
        b, em = self.b, self.em
        if self.blocks == 1:
            self.walk(row, ZERO, None, self.running(self.first, self.tile))
            return
        carry = self.running(self.first, self.tile)
        with b.loop(self.blocks, name="block") as k, em.scope():
            run = self.running(self.fold, self.tile)
            self.walk(row, em.axis(k, self.blocks), carry.state(), run)
            carry.join(run.state())

    def walk(self, row: Affine, block: Affine, carry: State | None, run: Accumulator) -> None:
        """Scans a block; `run`, the same in every lane, ends as its total."""
        b, em = self.b, self.em

        def tile(first: Affine, length: int) -> None:
            at = affine.number(self.n - length) - first if self.reverse else first
            index = self.index(row, at + em.lane(self.tile))
            mask = None
            if length < self.tile:
                mask = b.let(kb.binary("lt", kb.iota(self.tile), length), "mask")
            with em.masked(mask):
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

        self.each_tile(block, tile)

    def each_tile(self, block: Affine, body: Callable[[Affine, int], None]) -> None:
        """Runs body(first, length) for the tiles of a block: where they begin in the order of the
        scan, and how many elements they have."""
        b, em, tile = self.b, self.em, self.tile
        start = block * self.block
        size: Bound = min(self.block, self.n // tile * tile)
        if self.blocks > 1 and self.n % self.block:
            left = kb.as_expr(self.n // tile * tile) - em.expr(start)
            size = b.let(kb.minimum(self.block, left), "size")
        if size != 0:
            extent = min(self.block, self.n) - tile + 1
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

    def moved(self, state: State, by: int) -> State:
        """Each lane has what was `by` lanes before, the first ones the state of no elements."""
        lanes = range(self.tile)
        if self.tile == 1:
            return self.fold.empty()
        if self.reverse:
            taken = [i + by if i + by < self.tile else self.tile for i in lanes]
        else:
            taken = [i - by if i >= by else self.tile for i in lanes]
        empty = self.fold.empty(self.tile)
        return bind(self.b, tuple(kb.shuffle(taken, x, e) for x, e in zip(state, empty)))

    def ends(self, state: State) -> State:
        """What the whole tile joins to, in every lane."""
        last = 0 if self.reverse else self.tile - 1
        if self.tile == 1:
            return state
        return tuple(kb.shuffle([last] * self.tile, x) for x in state)


class _Columns(_Cpu):
    """One element of each of up to COLUMNS columns after another, by vectors; what they have come
    to lies in private arrays."""

    def kernel(self) -> Kernel:
        lanes = useful_lanes(self.caps, self.inner)
        self.lanes, self.width = lanes, min(COLUMNS, -(-self.inner // lanes) * lanes)
        chunks = -(-self.inner // self.width)

        def unit(at: Affine) -> None:
            row, chunk = affine.divide(at, chunks)
            row, block = self.parted(row)
            self.columns(row, block, chunk * self.width)

        size = min(self.n, self.block) * self.width
        return self.shared_out(self.units * chunks, size, unit)

    def columns(self, row: Affine, block: Affine | None, start: Affine) -> None:
        b, em = self.b, self.em
        run = self._arrays("run")
        if block is None and self.blocks == 1:
            self._fill(run, self.first.identity)
            self.walk(row, ZERO, start, None, run)
        elif block is None:
            carry = self._arrays("carry")
            self._fill(carry, self.first.identity)
            with b.loop(self.blocks, name="block") as k, em.scope():
                self._fill(run, self.fold.identity)
                self.walk(row, em.axis(k, self.blocks), start, carry, run)
                self._each(start, lambda c: self._join(carry, run, c))
        else:
            carries = self._arrays("carry") if self.writes else None
            if carries is not None:
                self._each(start, lambda c: self._fetch(carries, row, block, start, c))
            self._fill(run, self.fold.identity)
            self.walk(row, block, start, carries, run)
            if not self.writes:
                self._each(
                    start, lambda c: self.put_total(row, block, start + c, self._load(run, c))
                )

    def walk(
        self,
        row: Affine,
        block: Affine,
        start: Affine,
        carry: list[ir.Array] | None,
        run: list[ir.Array],
    ) -> None:
        """Scans a block of columns; `run` ends as its totals."""
        b, em = self.b, self.em
        first = block * self.block
        size: Bound = min(self.block, self.n)
        if self.n > self.block and self.n % self.block:
            size = b.let(kb.minimum(self.block, self.n - em.expr(first)), "size")

        def elements(at: list[Affine], c: Affine) -> None:
            places = [affine.number(self.n - 1) - i if self.reverse else i for i in at]
            indices = [self.index(row, i, start + c) for i in places]
            states = [self.state(i) for i in indices]
            past = self._load(run, c)
            before = self._load(carry, c) if carry else None
            for index, state in zip(indices, states):
                joined = self.combine(past, state)
                if self.writes:
                    found = self.before(before, past if self.exclusive else joined)
                    self.put(index, self.finish(found))
                past = joined
            self._store(run, c, past)

        def rows(low: Bound, high: Bound, step: int) -> None:
            if isinstance(low, int) and low == high:
                return
            with b.loop(high, low, step, name="k") as k, em.scope():
                at = first + em.axis(k, min(self.block, self.n) - step + 1, step)
                self._each(start, lambda c: elements([at + i for i in range(step)], c))

        nbytes = self.inner * self.operands[0].dtype.itemsize
        step = ABREAST if nbytes >= PAGE or nbytes <= PAGE // 64 else 1
        whole: Bound = size // step * step
        whole = whole if isinstance(whole, int) else b.let(whole, "whole")
        rows(0, whole, step)
        rows(whole, size, 1)

    # -- arrays of one state per column

    def _arrays(self, name: str) -> list[ir.Array]:
        return [self.b.array(name, d, self.width) for d in self.fold.dtypes]

    def _each(self, start: Affine, body: Callable[[Affine], None]) -> None:
        size: Bound = self.width
        if self.inner % self.width:
            left = kb.as_expr(self.inner) - self.em.expr(start)
            size = self.b.let(kb.minimum(self.width, left), "width")
        vector_loop(self.em, 0, size, self.width, body, self.lanes)

    def _fill(self, arrays: list[ir.Array], state: tuple[float | int, ...]) -> None:
        def fill(c: Affine) -> None:
            values = zip(state, self.fold.dtypes)
            self._store(arrays, c, tuple(kb.const(v, Type(d, c.lanes)) for v, d in values))

        vector_loop(self.em, 0, self.width, self.width, fill, self.lanes)

    def _load(self, arrays: list[ir.Array], c: Affine) -> State:
        at = self.em.address(c)
        return bind(self.b, tuple(kb.load(a, at, c.lanes) for a in arrays), "past")

    def _store(self, arrays: list[ir.Array], c: Affine, state: State) -> None:
        at = self.em.address(c)
        for array, value in zip(arrays, state):
            self.b.store(array, at, kb.splat(value, c.lanes))

    def _join(self, carry: list[ir.Array], run: list[ir.Array], c: Affine) -> None:
        self._store(carry, c, self.combine(self._load(carry, c), self._load(run, c)))

    def _fetch(
        self, arrays: list[ir.Array], row: Affine, block: Affine, start: Affine, c: Affine
    ) -> None:
        self._store(arrays, c, self.carry(row, block, start + c))
