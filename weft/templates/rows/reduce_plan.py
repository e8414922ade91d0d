"""A reduction as loops, for every kind of target: what is kept, what is folded, and one element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.core.caps import Caps
from weft.core.dtypes import compute_dtype
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import Space, bounded_rows, kernel_name, probe, times, traffic
from weft.templates.map import store_all
from weft.templates.rows.folds import Fold, argmax_fold, max_fold, sum_fold
from weft.templates.rows.product_fold import prod_fold
from weft.templates.view import Index

FOLDS = {"sum": sum_fold, "max": max_fold, "argmax": argmax_fold, "prod": prod_fold}


class Plan:
    """Loops of a reduction: `kept` and `reduced` dims (row-major), and how to run one element."""

    def __init__(self, group: Group, caps: Caps, anchor: Node) -> None:
        self.group, self.caps, self.anchor = group, caps, anchor
        (self.source,) = anchor.inputs
        called = anchor.op == "call"  # a composite: prod
        self.op: str = anchor.attrs["name"] if called else anchor.op
        attrs = anchor.attrs["params"] if called else anchor.attrs
        axes = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
        shape = self.source.shape
        self.reduced_axis = [i in axes for i in range(len(shape))]
        self.space: Space = probe(
            group, caps, shape, lambda em, at: em.value(self.source, at), self.reduced_axis
        )
        self.is_reduced = [self.reduced_axis[a] for a, _ in self.space.spans]
        self.kept = [d for d, r in zip(self.space.dims, self.is_reduced) if not r]
        self.reduced = [d for d, r in zip(self.space.dims, self.is_reduced) if r]
        self.outputs, self.count = math.prod(self.kept), math.prod(self.reduced)
        self.fold: Fold = FOLDS[self.op](compute_dtype(self.source.dtype))
        self.strided = bool(self.is_reduced) and not self.is_reduced[-1]
        self.across = self.strided or (self.count < caps.lanes and self.outputs >= caps.lanes)
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)

    def wanted(self) -> Expr | int:
        """How many outputs a run wants."""
        shape = self.anchor.shape
        if not shape or self.group.rows is None:
            return self.outputs
        return times(bounded_rows(self.group, shape[0]), self.outputs // shape[0])

    def element(
        self, kept: Sequence[Affine], reduced: Sequence[Affine]
    ) -> tuple[Expr, Expr | None]:
        """The prologue's value at these loop coordinates and, for argmax, its index."""
        k, r = iter(kept), iter(reduced)
        index = self.space.index([next(r) if flag else next(k) for flag in self.is_reduced])
        value = self.em.value(self.source, index)
        if self.op != "argmax":
            return value, None
        return value, self.em.expr(index[self.anchor.attrs["axis"]])

    def finish(self, kept: Sequence[Affine], result: Expr) -> None:
        """Runs the epilogue for one output (or a vector of them) and stores it."""
        full = self.space.index(self._spread(kept))
        index: Index = tuple(i for i, r in zip(full, self.reduced_axis) if not r)
        with self.em.scope():
            self.em.define(self.anchor, self._only(index, result))
            outputs = self.group.outputs
            first = outputs[0].shape
            at = affine.reshape_index(index, self.anchor.shape, first)
            store_all(self.em, outputs, at)

    def _only(self, index: Index, result: Expr) -> Callable[[Index], Expr]:
        return self.em.only(self.anchor, index, result)

    def _spread(self, kept: Sequence[Affine]) -> list[Affine]:
        k = iter(kept)
        return [affine.ZERO if flag else next(k) for flag in self.is_reduced]

    def kernel(self, grid: Expr | int, threads: int = 1) -> Kernel:
        return self.b.kernel(
            grid=(grid,), threads=(threads,), flops=self.source.size, bytes=traffic(self.group)
        )
