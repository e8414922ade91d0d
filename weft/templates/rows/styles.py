"""What the styles of the norm template share: the group's rows, its prologue and its epilogue."""

from __future__ import annotations

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
from weft.templates.loops import bounded_rows, kernel_name, times, traffic
from weft.templates.map import streams
from weft.templates.rows import formulas, grads
from weft.templates.rows.folds import Fold
from weft.templates.rows.row import Formula, Row
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


class Rows:
    """What the styles share; the loops over a row (`fold`, `each`) are theirs. With an Emitter
    given, the rows are part of its kernel."""

    def __init__(self, group: Group, caps: Caps, em: Emitter | None = None) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        self.shape = self.anchor.inputs[0].shape
        self.n = self.shape[-1]
        self.rows = self.anchor.inputs[0].size // self.n
        self.em = em or Emitter(Builder(kernel_name(group)), group, caps)
        self.b = self.em.b
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
        raise NotImplementedError

    def each(self, body: Callable[[Affine], None]) -> None:
        raise NotImplementedError

    def run(self, row: Affine) -> None:
        """Emits one row."""
        FORMULAS[self.anchor.attrs["name"]](Row(self, affine.unflatten(row, self.shape[:-1])))

    def wanted(self) -> Expr | int:
        """How many rows a run wants."""
        if self.group.rows is None or len(self.shape) < 2:
            return self.rows
        return times(bounded_rows(self.group, self.shape[0]), self.rows // self.shape[0])

    def array(self, cheap: bool) -> ir.Array | None:
        return None

    def place(self, j: Affine) -> Expr | None:
        return None

    def see(self, index: Index) -> None:
        for node in self.early:
            self._write(node, index, self.shape)

    def ahead(self, index: Index) -> None:
        """Nothing: on a GPU other groups run while one waits."""

    def put(self, index: Index, value: Expr) -> None:
        """Runs the epilogue on one (or a vector) of the results."""
        bound = self.b.let(value, "y")
        self.em.define(self.anchor, self.em.only(self.anchor, index, bound))
        for node in self.late:
            self._write(node, index, self.anchor.shape)

    def _write(self, node: Node, index: Index, shape: tuple[int, ...]) -> None:
        at = affine.reshape_index(index, shape, node.shape)
        linear = affine.flatten(index, affine.contiguous(shape))
        self.em.store(node, at, self.large[id(node)] and linear.aligned(linear.lanes))

    def finished(self, grid: Expr | int, threads: int = 1) -> Kernel:
        flops = 8 * self.rows * self.n
        return self.b.kernel((grid,), (threads,), flops=flops, bytes=traffic(self.group))


def _after(group: Group) -> set[int]:
    """ids of the nodes that depend on the anchor, itself included."""
    after = {id(group.anchor)}
    for node in toposort(group.outputs):
        if any(id(x) in after for x in node.inputs):
            after.add(id(node))
    return after
