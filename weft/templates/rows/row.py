"""The interface for the norm template's formulas: one row, and passes over it that a walk turns
into loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.graph.ir import Node
from weft.kernel import expr as kb, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.view import Index

if TYPE_CHECKING:
    from weft.templates.rows.rows import GroupRows

ElementFn = Callable[[Affine], Expr]


Formula = Callable[["AnchorRow"], None]


class AnchorRow:
    """One row of the anchor's operands; `lead` is its index without the last axis."""

    def __init__(self, rows: GroupRows, lead: Index) -> None:
        self.rows, self.lead = rows, lead
        self.em: Emitter = rows.em
        self.b: Builder = rows.em.b
        self.n, self.fold, self.each = rows.n, rows.fold, rows.each
        self.params: dict[str, Any] = dict(rows.anchor.attrs.get("params", {}))

    def operand(self, k: int, once: bool = False) -> RowValue:
        """The anchor's k-th operand, which has the rows' shape; one read `once` is not kept."""
        node = self.rows.anchor.inputs[k]

        def compute(j: Affine) -> Expr:
            index = (*self.lead, j)
            if k == 0:
                self.rows.see(index)
            return self.em.value(node, index)

        def again(j: Affine) -> Expr:
            return self.em.value(node, (*self.lead, j))

        array = None if once else self.rows.array(_is_load(node, self.em))
        return RowValue(self, compute, again, array)

    def held(self, compute: ElementFn, over: RowValue) -> RowValue:
        """A computed value of each element, in the memory of one that is needed no more."""
        array = over.array or self.rows.array(False)
        return RowValue(self, compute, compute, array)

    def weight(self, k: int, j: Affine) -> Expr:
        """Element j of the anchor's k-th operand, a vector for all rows."""
        return self.em.value(self.rows.anchor.inputs[k], (j,))

    def number(self, k: int) -> Expr:
        """The row's entry of the anchor's k-th operand, one number per row."""
        return self.em.value(self.rows.anchor.inputs[k], self.lead)

    def ahead(self, j: Affine, most: int) -> None:
        """Asks for the next row if one has at most that many bytes. Stands in the pass that
        computes most, where waiting for memory costs least."""
        self.rows.ahead((*self.lead, j), most)

    def write(self, j: Affine, value: Expr) -> None:
        """Element j of the result (or a vector of them) is known."""
        self.rows.put((*self.lead, j), value)

    def results(self, *values: Expr) -> None:
        """The row's numbers: one of each result."""
        self.rows.put(self.lead, *values)


class RowValue:
    """A value of each element of a row: computed on first sight, then read from an array where
    there is one, else computed again."""

    def __init__(
        self, row: AnchorRow, first: ElementFn, again: ElementFn, array: ir.Array | None
    ) -> None:
        self.row, self._first, self._again, self.array = row, first, again, array

    def first(self, j: Affine) -> Expr:
        """Element j, kept."""
        value = self.row.b.let(self._first(j), "x")
        if self.array is not None:
            at = self.row.rows.place(j)
            assert at is not None
            self.row.b.store(self.array, at, kb.splat(value, j.lanes))
        return value

    def again(self, j: Affine) -> Expr:
        """Element j, which `first` has met."""
        at = None if self.array is None else self.row.rows.place(j)
        if self.array is None or at is None:
            return self.row.b.let(self._again(j), "x")
        return self.row.b.let(kb.load(self.array, at, j.lanes), "x")


def _is_load(node: Node, em: Emitter) -> bool:
    """True if reading the value again costs at most as much as reading a kept copy."""
    while id(node) not in em.buffers and node.op in ("reshape", "cast", "broadcast"):
        node = node.inputs[0]
    return id(node) in em.buffers or (node.op == "const" and node.shape == ())
