"""Rows in many threads: the GPU styles of the norm template.

Threads that share a row hold it in registers, each taking vectors of 16 bytes, so that a row is
read once and written once. A short row belongs to a part of a subgroup, with several rows to a
group; a longer one to a group; one that fits no registers is read again in each pass. How a row is
summed depends on its length alone. Where barriers are dear one thread takes a row by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import builder as kb
from weft.kernel import ir
from weft.kernel.ir import Expr, Kernel
from weft.templates.affine import Affine
from weft.templates.group import Group
from weft.templates.rows.folds import Accumulator, Fold, State, fold_group, fold_lanes, several
from weft.templates.rows.styles import Element, Rows
from weft.templates.view import Index
from weft.templates.wide import ROW_THREADS, STREAM, row_threads, vector_lanes

ALONE = 64  # threads to a group where each takes a row
KEPT = 32  # values of a row that a thread keeps of one operand


def build(group: Group, caps: Caps) -> Kernel:
    """The kernel of a group around a row composite, for a target with many threads per group."""
    assert group.anchor is not None
    n = group.anchor.inputs[0].shape[-1]
    if caps.cheap_barrier and (caps.subgroup or n > 32):
        return _SharedRows(group, caps).kernel()
    return _ThreadRows(group, caps).kernel()


class _ThreadRows(Rows):
    """One thread per row; nothing is kept but the statistics: values are computed again."""

    lanes = 1

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        threads = min(ALONE, self.caps.max_threads)
        wanted = self.wanted()
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < wanted), em.scope():
            self.run(em.axis(at, self.rows))
        return self.finished(kb.ceil_div(wanted, threads), threads)

    def each(self, body: Callable[[Affine], None]) -> None:
        with self.b.loop(self.n, name="j") as j, self.em.scope():
            body(self.em.axis(j, self.n))

    def joined(self, folds: Sequence[Fold], states: Sequence[State]) -> Sequence[State]:
        """The states of all threads of a row."""
        return states

    def fold(self, folds: Sequence[Fold], element: Element) -> tuple[Expr, ...]:
        b = self.b
        accs = [Accumulator(b, fold, self.lanes) for fold in folds]

        def body(j: Affine) -> None:
            for acc, value in zip(accs, element(j), strict=True):
                acc.add(value)

        self.each(body)
        states = [fold_lanes(b, f, acc.state()) for f, acc in zip(folds, accs)]
        states = list(self.joined(folds, states))
        return tuple(b.let(f.finish(b, s), f.name) for f, s in zip(folds, states))


class _SharedRows(_ThreadRows):
    """`team` threads share a row: thread t of it takes vectors t, t + team, ..."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        like = [x for x in (*group.inputs, *group.outputs) if x.size == self.rows * self.n]
        self.lanes = vector_lanes(caps, self.n, like or group.outputs)
        self.vectors = self.n // self.lanes
        self.team = row_threads(caps, self.n, self.lanes)
        self.threads = max(self.team, ROW_THREADS if caps.subgroup else 1)
        self.steps = -(-self.vectors // self.team)
        self.kept = self.steps * self.lanes <= KEPT
        self.t = self.b.let(self.b.thread(0) % self.team, "t")
        self.here: tuple[Affine, int] | None = None  # the vector at hand and where it is kept
        self.real: Expr | None = None  # whether this team's row exists

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        per = self.threads // self.team
        wanted = self.wanted()
        if per == 1:
            self.run(em.axis(b.group(0), self.rows))
            return self.finished(wanted, self.threads)
        at = b.let(b.group(0) * per + b.thread(0) // self.team, "row")
        if not isinstance(wanted, int) or wanted % per:
            self.real = b.let(at < wanted, "real")
            at = kb.minimum(at, self.rows - 1)
        self.run(em.axis(at, self.rows))
        return self.finished(kb.ceil_div(wanted, per), self.threads)

    def array(self, cheap: bool) -> ir.Array | None:
        if not self.kept:
            return None
        row = self.b.array("row", dt.float32, self.steps * self.lanes)
        # A thread that has no last vector keeps zeros: what it never reads holds something still.
        for step in range(self.vectors // self.team, self.steps):
            zero = ir.Const(0.0, ir.Type(dt.float32, self.lanes))
            self.b.store(row, step * self.lanes, zero)
        return row

    def place(self, j: Affine) -> Expr | None:
        if self.here is None or self.here[0] != j:
            return None
        return kb.const(self.here[1])

    def each(self, body: Callable[[Affine], None]) -> None:
        whole, span = self.vectors // self.team, self.team * STREAM
        if self.kept:
            first = 0
        else:
            first = self.vectors // span * STREAM
            with self.b.loop(first * self.team, step=span, name="v") as v, self.em.scope():
                for u in range(STREAM):
                    self._vector(body, v + self.t + u * self.team, None)
        for step in range(first, self.steps):
            at = self.t + step * self.team
            if step < whole:
                self._vector(body, at, step)
                continue
            at = self.b.let(at, "v")
            with self.b.when(at < self.vectors):
                self._vector(body, at, step)

    def _vector(self, body: Callable[[Affine], None], at: Expr, step: int | None) -> None:
        with self.em.scope():
            j = self.em.axis(at, self.vectors) * self.lanes + self.em.lane(self.lanes)
            self.here = None if step is None else (j, step * self.lanes)
            body(j)
            self.here = None

    def joined(self, folds: Sequence[Fold], states: Sequence[State]) -> Sequence[State]:
        flat = tuple(v for state in states for v in state)
        flat = fold_group(self.b, several(folds), flat, self.t, self.team, self.caps)
        parts = iter(flat)
        return [tuple(itertools.islice(parts, len(f.dtypes))) for f in folds]

    def put(self, index: Index, value: Expr) -> None:
        if len(index) == len(self.shape) and self.anchor.shape == self.shape:
            super().put(index, value)
            return
        with self.b.when(kb.eq(self.t, 0)), self.em.scope():  # a number of the row: one thread
            super().put(index, value)

    def _write(self, node: Node, index: Index, shape: tuple[int, ...]) -> None:
        if self.real is None:
            super()._write(node, index, shape)
            return
        with self.b.when(self.real), self.em.scope():
            super()._write(node, index, shape)
