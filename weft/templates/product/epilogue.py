"""Applies the group's elementwise chain to a dot's accumulators, then masked stores."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.graph.ir import Node
from weft.kernel.expr import cast
from weft.kernel.ir import Expr
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.group import reached
from weft.templates.product.problem import MatmulProblem
from weft.templates.view import Index


class Epilogue:
    """Writes the group's outputs from accumulators of its dots, a vector along N at a time.

    `write` takes one accumulator per dot, for columns n .. n + lanes - 1 of a row, given by its
    index on the axes before. It returns the value of `kept` there, if something in the same kernel
    goes on with one: as it would be read from memory.
    """

    def __init__(
        self, em: Emitter, problem: MatmulProblem, outputs: Sequence[Node], kept: Node | None = None
    ) -> None:
        self.em = em
        self.p = problem
        self.outputs = tuple(outputs)
        self.kept = kept
        self.roots = self.outputs if kept is None else (*self.outputs, kept)

    @property
    def others(self) -> list[Node]:
        """Operands of the chain that have an element for each of the output's."""
        factors = {id(self.p.a.node), *(id(v.node) for v in self.p.bs)}
        stop = {id(n) for n in self.em.group.inputs}
        read = [n for n in reached(self.roots, stop) if id(n) in stop - factors]
        return [n for n in read if n.shape == self.roots[0].shape]

    @property
    def cheap(self) -> bool:
        """True if the chain is short enough to be repeated for every vector of a tile."""
        stop = {id(n) for n in (*self.em.group.inputs, *self.p.dots)}
        return sum(id(n) not in stop for n in reached(self.roots, stop)) <= 3

    def write(
        self, row: Index, n: Expr, lanes: int, mask: Expr | None, values: Sequence[Expr], step: int
    ) -> Expr | None:
        """Computes and stores every output at the row's columns n + 0..lanes-1; n is a
        multiple of `step` (0: of `lanes`)."""
        em, p = self.em, self.p
        first = em.axis(n, max(p.n - lanes + 1, 1), step or lanes)
        index = (*row, first + em.lane(lanes))
        for dot, value in zip(p.dots, values):
            em.define(dot, lambda _, value=value: value)  # type: ignore[misc]
        with em.masked(mask):
            for out in self.outputs:
                em.store(out, affine.reshape_index(index, p.dots[0].shape, out.shape))
            if self.kept is None:
                return None
            at = affine.reshape_index(index, p.dots[0].shape, self.kept.shape)
            return em.b.let(cast(em.stored(self.kept, at), dt.float32), "kept")

    def prefetch(self, row: Index, columns: Sequence[Expr], lanes: int) -> None:
        """Asks for the elements of other operands that `write` will read of the row, a vector
        from each of `columns`: they arrive while the products are summed."""
        em, p = self.em, self.p
        for node in self.others:
            for n in columns:
                index = (*row, em.axis(n, max(p.n - lanes + 1, 1), lanes))
                at = affine.reshape_index(index, p.dots[0].shape, node.shape)
                linear = affine.flatten(at, affine.contiguous(node.shape))
                em.b.prefetch(em.buffers[id(node)], em.expr(linear))
