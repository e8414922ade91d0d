"""The rows of a group around a norm: its prologue and its epilogue, around a walk of any kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node, toposort
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import Bound, bounded_rows, kernel_name, traffic
from weft.templates.map import streams
from weft.templates.rows import formulas, grads
from weft.templates.rows.folds import Fold, State, several
from weft.templates.rows.row import AnchorRow, Formula
from weft.templates.rows.walk import CpuWalk
from weft.templates.rows.walk_gpu import walk_of
from weft.templates.view import Index

Element = Callable[[Affine], tuple[Expr, ...]]

FORMULAS: dict[str, Formula] = {
    "softmax": formulas.softmax,
    "log_softmax": formulas.log_softmax,
    "layer_norm": formulas.layer_norm,
    "rms_norm": formulas.rms_norm,
    "cross_entropy": formulas.cross_entropy,
    "moments": formulas.moments,
    "rms_scale": formulas.rms_scale,
    "softmax_grad": grads.softmax_grad,
    "log_softmax_grad": grads.log_softmax_grad,
    "layer_norm_grad": grads.layer_norm_grad,
    "rms_norm_grad": grads.rms_norm_grad,
    "cross_entropy_grad": grads.cross_entropy_grad,
}


class GroupRows:
    """A group's rows, of which `walk` makes loops. With an Emitter given, the rows are part of its
    kernel."""

    def __init__(self, group: Group, caps: Caps, em: Emitter | None = None) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        self.shape = self.anchor.inputs[0].shape
        self.n = self.shape[-1]
        self.rows = self.anchor.inputs[0].size // self.n
        self.em = em or Emitter(Builder(kernel_name(group)), group, caps)
        self.b = self.em.b
        like = [x for x in (*group.inputs, *group.outputs) if x.size == self.rows * self.n]
        self.walk = walk_of(self.em, self.n, like=like or group.outputs)
        after = _after(group)
        self.late = [o for o in group.outputs if id(o) in after]
        self.early = [o for o in group.outputs if id(o) not in after]
        self.large = dict(zip(map(id, group.outputs), streams(group, caps)))
        for o in group.outputs:
            size = self.anchor.size if id(o) in after else self.anchor.inputs[0].size
            if o.size != size:
                name = self.anchor.attrs["name"]
                raise CompileError(f"{o!r} cannot be an output of {name} {self.anchor!r}")

    def fold(self, folds: Sequence[Fold], element: Element) -> tuple[Expr, ...]:
        """The results of `folds` over a row; `element(j)` gives a value for each."""
        b = self.b

        def states(_: Affine, j: Affine) -> State:
            values = zip(folds, element(j), strict=True)
            return tuple(v for fold, x in values for v in fold.lift(b, x, None))

        state = iter(self.walk.fold(several(folds), states))
        parts = [tuple(itertools.islice(state, len(f.dtypes))) for f in folds]
        return tuple(b.let(f.finish(b, s), f.name) for f, s in zip(folds, parts))

    def each(self, body: Callable[[Affine], None]) -> None:
        """Runs body(j) for every element of a row."""
        self.walk.each(lambda _, j: body(j))

    def kernel(self) -> Kernel:
        """The kernel of all rows."""
        grid, threads = self.walk.spread(self.rows, self.wanted(), self.run)
        return self.finished(grid, threads)

    def run(self, row: Affine) -> None:
        """Emits one row."""
        FORMULAS[self.anchor.attrs["name"]](AnchorRow(self, affine.unflatten(row, self.shape[:-1])))

    def wanted(self) -> Bound:
        """Returns the number of rows that a run wants."""
        if self.group.rows is None or len(self.shape) < 2:
            return self.rows
        return bounded_rows(self.group, self.shape[0]) * (self.rows // self.shape[0])

    def array(self, cheap: bool) -> ir.Array | None:
        """Memory for one value per element of a row, or None (see Walk.keep)."""
        return self.walk.keep(cheap)

    def place(self, j: Affine) -> Expr | None:
        """Returns the place of element j in such memory, or None when it is not available."""
        return self.walk.place(j)

    def see(self, index: Index) -> None:
        """An element of the row operands has been met: writes prologue values that are outputs."""
        for node in self.early:
            self._write(node, index, self.shape)

    def ahead(self, index: Index, most: int) -> None:
        """Prefetches, on a CPU, the next row's operands and where this row's results go, for rows
        of at most that many bytes. On a GPU other groups run while one waits."""
        walk = self.walk
        if not isinstance(walk, CpuWalk) or self.rows == 1 or 4 * self.n > most:
            return
        if index[-1].lanes < walk.lanes:
            return
        at = self.em.address(affine.flatten(index, affine.contiguous(self.shape)))
        for node in self.group.inputs:
            if node.shape == self.shape:
                self.b.prefetch(self.em.buffers[id(node)], at + self.n)
        for k, node in enumerate(self.group.outputs):
            plain = not self.large[id(node)] and k not in self.group.in_place
            if node.shape == self.shape and plain:
                self.b.prefetch(self.em.buffers[~id(node)], at)

    def put(self, index: Index, *values: Expr) -> None:
        """Runs the epilogue on one element (or a vector) of each result; a number of the row is
        the work of one thread."""
        whole = len(index) == len(self.shape) and self.anchor.shape == self.shape
        with self.walk.only(None if whole else self.walk.writer):
            for node, value in zip(self.group.results, values, strict=True):
                bound = self.b.let(value, "y")
                self.em.define(node, self.em.only(node, index, bound))
            for node in self.late:
                self._write(node, index, self.anchor.shape)

    def _write(self, node: Node, index: Index, shape: tuple[int, ...]) -> None:
        with self.walk.only(self.walk.real):
            at = affine.reshape_index(index, shape, node.shape)
            linear = affine.flatten(index, affine.contiguous(shape))
            self.em.store(node, at, self.large[id(node)] and linear.aligned(linear.lanes))

    def finished(self, grid: Bound, threads: int = 1) -> Kernel:
        flops = 8 * self.rows * self.n
        return self.b.kernel((grid,), (threads,), flops=flops, bytes=traffic(self.group))


def _after(group: Group) -> set[int]:
    """ids of the nodes that depend on the anchor, itself included."""
    after = {id(group.anchor)}
    for node in toposort(group.outputs):
        if any(id(x) in after for x in node.inputs):
            after.add(id(node))
    return after
