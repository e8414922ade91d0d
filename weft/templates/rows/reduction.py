"""A reduction as loops, for every kind of target: what is kept, what is folded, and one element."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.caps import Caps
from weft.core.dtypes import compute_dtype
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import Bound, Space, bounded_rows, kernel_name, probe, traffic
from weft.templates.map import store_all
from weft.templates.rows.folds import Fold, State, argmax_fold, max_fold, sum_fold
from weft.templates.rows.product_fold import prod_fold
from weft.templates.rows.walk import States, Walk
from weft.templates.rows.walk_gpu import walk_of
from weft.templates.view import Index

FOLDS = {"sum": sum_fold, "max": max_fold, "argmax": argmax_fold, "prod": prod_fold}


class Reduction:
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
        tail = 0  # reduced loops at the end: a run
        while tail < len(self.is_reduced) and self.is_reduced[-1 - tail]:
            tail += 1
        self.outer = self.reduced[: len(self.reduced) - tail]
        self.inner = self.reduced[len(self.reduced) - tail :]
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)

    def wanted(self) -> Bound:
        """Returns the number of outputs that a run wants."""
        shape = self.anchor.shape
        if not shape or self.group.rows is None:
            return self.outputs
        return bounded_rows(self.group, shape[0]) * (self.outputs // shape[0])

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

    def states(self, kept: Sequence[Affine]) -> States:
        """The elements of an output as the walk of its row wants them."""

        def state(run: Affine, j: Affine) -> State:
            at = (*affine.unflatten(run, self.outer), *affine.unflatten(j, self.inner))
            return self.fold.lift(self.b, *self.element(kept, at))

        return state

    def walk(self) -> Walk:
        """The walk of an output's row."""
        if not self.count:
            return walk_of(self.em, 0)
        n, runs = math.prod(self.inner), math.prod(self.outer)
        inner = self.reduced[-1] if self.reduced and self.space.unit_inner else 1
        return walk_of(self.em, n, runs, self.like(), inner)

    def like(self) -> list[Node]:
        """The nodes that have a value for each element."""
        return [x for x in self.group.inputs if x.size == self.source.size] or [self.source]

    def finish(self, kept: Sequence[Affine], state: State) -> None:
        """Runs the epilogue for one output (or a vector of them) and stores it."""
        result = self.b.let(self.fold.finish(self.b, state), "out")
        full = self.space.index(self._spread(kept))
        index: Index = tuple(i for i, r in zip(full, self.reduced_axis) if not r)
        with self.em.scope():
            self.em.define(self.anchor, self.em.only(self.anchor, index, result))
            outputs = self.group.outputs
            first = outputs[0].shape
            at = affine.reshape_index(index, self.anchor.shape, first)
            store_all(self.em, outputs, at)

    def _spread(self, kept: Sequence[Affine]) -> list[Affine]:
        k = iter(kept)
        return [affine.ZERO if flag else next(k) for flag in self.is_reduced]

    def kernel(self, grid: Bound, *threads: int) -> Kernel:
        flops, nbytes = self.source.size, traffic(self.group)
        return self.b.kernel(grid=(grid,), threads=threads or (1,), flops=flops, bytes=nbytes)
