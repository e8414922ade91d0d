"""Scans on a CPU: along the last axis by vectors (scan_rows, scan_products), along another across
columns, whose elements are joined one by one."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.caps import Caps
from weft.kernel import expr as kb, ir
from weft.kernel.ir import Kernel, Type
from weft.templates import affine
from weft.templates.affine import ZERO, Affine
from weft.templates.group import Group
from weft.templates.loops import Bound, useful_lanes, vector_loop
from weft.templates.rows.folds import State, bind
from weft.templates.scan.products import ProductScan
from weft.templates.scan.rows import CpuScan, RowScan
from weft.transform.scan import COLUMNS

ABREAST = 4  # elements of a column read together where each comes from another page
PAGE = 4096  # bytes


def build(group: Group, caps: Caps) -> Kernel:
    """The kernel of a scan, of the totals of its blocks, or of its blocks."""
    assert group.anchor is not None
    params = group.anchor.attrs["params"]
    last = params["axis"] == len(group.anchor.inputs[0].shape) - 1
    floats = group.anchor.inputs[0].dtype.is_float
    rows = ProductScan if params["op"] == "prod" and floats else RowScan
    return (rows if last else _ColumnScan)(group, caps).kernel()


class _ColumnScan(CpuScan):
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
