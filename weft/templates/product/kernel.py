"""A product inside a kernel: which rows and batch entries a run wants, its operands as readers, and
its multiply-add. Blocked and streaming kernels of every tier are written over it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.expr import cast, const, fma, load, minimum, shuffle, splat
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.loops import Bound, bounded_rows, traffic
from weft.templates.operand import Reader
from weft.templates.product.bands import PackedBands
from weft.templates.product.epilogue import Epilogue
from weft.templates.product.operands import Operand
from weft.templates.product.packed_rows import PackedRows
from weft.templates.product.problem import MatmulProblem, mode
from weft.templates.view import Index, OperandView, Pick, operand

Right = Operand | PackedBands | PackedRows
R = TypeVar("R", bound=Right)


class ProductKernel:
    """The dots of one problem in a kernel under construction; `outputs` (and `kept`, see Epilogue)
    follow from them."""

    def __init__(
        self, em: Emitter, p: MatmulProblem, outputs: Sequence[Node], kept: Node | None = None
    ) -> None:
        self.em, self.b, self.group, self.caps, self.p = em, em.b, em.group, em.caps, p
        self.tail = Epilogue(em, p, outputs, kept)
        self.mode = mode(p, em.caps)
        self.acc: DType = dt.int32 if self.mode == "i32" else dt.float32
        self.counts = next((v.pick.count for v in p.bs if v.pick is not None), None)
        self.wanted: Expr | None = None  # rows of the batch entry that are wanted
        # True if rows are counted at run time.
        self.bounded = self.counts is not None or (em.group.rows is not None and not p.batch)
        self.x = self._plain(p.a, p.a_m, p.a_k, p.m)
        self.ws = [self._right(i) for i in range(len(p.dots))]

    def _right(self, i: int) -> Right:
        """The right operand of dot number i."""
        p, caps, view = self.p, self.caps, self.p.bs[i]
        if view.form is None:
            _, s_k, s_n = p.b_strides(i)
            return self._plain(view, s_n, s_k, p.n)
        parts = dict(zip(view.form.parts, (self.em.buffers[id(x)] for x in view.stored)))
        if view.run > 1:
            return PackedBands(view.form, parts, p.k, view.run, caps)
        return PackedRows(view.form, parts, p.n, p.k, caps)

    def _plain(self, view: OperandView, s_row: int, s_k: int, items: int) -> Operand:
        strides, more = view.strides[: len(self.p.batch)], (view.pick.by,) if view.pick else ()
        known = (*strides, view.offset, *more)
        source = self.em.buffers[id(view.stored[0])]
        return Operand(source, const(0), s_row, s_k, self.acc, items, self.p.k, known)

    def of(self, kind: type[R]) -> list[R]:
        """The right operands, where all are of one kind."""
        found: list[R] = [w for w in self.ws if isinstance(w, kind)]
        assert len(found) == len(self.ws)
        return found

    @property
    def lines(self) -> list[Operand | PackedRows]:
        """The right operands, where threads read them: none is in bands."""
        return [w for w in self.ws if not isinstance(w, PackedBands)]

    @property
    def pair(self) -> int:
        """The number of k in one step of a chain."""
        return 2 if self.mode == "dot2" else 1

    def rows_wanted(self) -> Bound:
        """Returns the number of rows of a batch entry that a run wants. The host can evaluate it
        outside of batch entries, so a grid may use it."""
        p = self.p
        if self.counts is not None or not self.bounded:
            return p.m if self.wanted is None else self.wanted
        return bounded_rows(self.group, p.rows[0]) * (p.m // p.rows[0])

    def entries(self) -> Bound:
        """Returns the number of batch entries that a run wants, for a grid."""
        p = self.p
        if not p.batch:
            return p.batches
        return bounded_rows(self.group, p.batch[0]) * (p.batches // p.batch[0])

    def enter(self, entry: Expr) -> None:
        """Moves to a batch entry: its operands start there."""
        p = self.p
        self.batch = affine.unflatten(self.em.axis(entry, p.batches), p.batch)
        self.x = self._placed(self.x, p.a)
        self.ws = [self._placed(w, v) for w, v in zip(self.ws, p.bs)]
        if self.counts is not None:
            pick = next(v.pick for v in p.bs if v.pick is not None)
            self.wanted = self.b.let(minimum(self._picked(pick, self.counts), p.m), "wanted")

    def _placed(self, x: R, view: OperandView) -> R:
        """The operand in the batch entry."""
        pick = view.pick
        if isinstance(x, Operand):
            strides = view.strides[: len(self.batch)]
            start = self.em.expr(affine.flatten(self.batch, strides, view.offset))
            if pick is not None:
                start = start + self._picked(pick) * pick.by
            return replace(x, base=self.b.let(start, "base"))
        if pick is None:
            return x
        return replace(x, first=self.b.let(self._picked(pick) * (pick.by // self.p.k), "first"))

    def _picked(self, pick: Pick, source: Node | None = None) -> Expr:
        """Returns the number in a pick's index, or in `source` at the same place, for this batch
        entry."""
        lead = {f"axis{i}": value for i, value in enumerate(self.batch)}
        at = [
            affine.combine([(affine.number(x.const), 1), *((lead[s.name], c) for s, c in x.terms)])
            for x in pick.at
        ]
        view = operand(self.group, source or pick.index)
        where = self.em.expr(affine.flatten(at, view.strides, view.offset))
        return self.b.let(load(self.em.buffers[id(view.node)], where), "picked")

    def add(self, acc: ir.Var, x: Expr, y: Expr) -> None:
        """acc += x * y, or x0 * y0 + x1 * y1 of pairs."""
        if self.mode == "dot2":
            value: Expr = ir.Collective("dot2", (acc, x, y), acc.type)
        else:
            value = acc + x * y if self.mode == "i32" else fma(x, y, acc)
        self.b.assign(acc, value)

    def spread(self, source: ir.Buffer | ir.Array, index: Expr, lanes: int) -> Expr:
        """The element of the left operand at `index` (of pairs: it and the next) in every lane."""
        if self.mode == "dot2":
            return self.b.let(shuffle([0, 1] * lanes, load(source, index, 2)), "x")
        return self.b.let(splat(cast(load(source, index), self.acc), lanes), "x")

    def write(
        self, m: Expr, n: Expr, lanes: int, values: Sequence[Expr], mask: Expr | None = None,
        step: int = 0,
    ) -> Expr | None:  # fmt: skip
        """Columns n + 0..lanes-1 of row m, given each dot's values there: see Tail.write."""
        return self.tail.write(self.lead(m), n, lanes, mask, values, step)

    def lead(self, m: Expr) -> Index:
        """The index of row m of the batch entry on an output's axes before N."""
        return (*self.batch, *affine.unflatten(self.em.axis(m, self.p.m), self.p.rows))


class StreamedProduct(ProductKernel):
    """A product that streams its weights past few rows, in some of a launch's groups: `groups` of
    them share the columns, `down` the rows. `emit` wants a shared array of `shared_size`."""

    groups: int
    down = 1
    shared_size = 0

    def emit(self, index: Expr, rows: Expr, entry: Expr, sums: ir.Array | None) -> None:
        """The code of group number `index`, block of rows `rows`, batch entry `entry`."""
        raise NotImplementedError

    def begin(self, entry: Expr) -> None:
        self.enter(entry)
        self.limit = self.b.let(self.rows_wanted(), "limit")

    def starts(self, x: Reader, rows: Sequence[Expr]) -> list[Expr]:
        """Returns the starts of rows of x; rows that do not exist repeat the last."""
        last = self.p.m - 1
        near = [r if isinstance(r, ir.Const) else minimum(r, last) for r in rows]
        return [self.b.let(x.at(r, 0), "x") for r in near]

    def store(
        self, rows: Sequence[Expr], n: Expr, lanes: int, sums: list[list[Any]],
        mask: Expr | None = None, step: int = 0,
    ) -> None:  # fmt: skip
        """sums[dot][row] of the columns n + 0..lanes-1, of each row that is wanted."""
        for i, r in enumerate(rows):
            wanted = nullcontext() if isinstance(r, ir.Const) else self.b.when(r < self.limit)
            with wanted, self.em.scope():
                self.write(r, n, lanes, [dot[i] for dot in sums], mask, step)


def nothing(em: Emitter, *problems: MatmulProblem) -> Kernel | None:
    """Returns an empty kernel without groups for products without results, or None if there are
    results."""
    if any(p.m and p.n and p.batches for p in problems):
        return None
    return em.b.kernel((0,), (1,), 0, traffic(em.group))
