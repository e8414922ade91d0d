"""The shared parts of all styles of the scan template: rows, blocks, operands, storing results.

One scan runs along a row; its elements and blocks are counted in the order of the scan. Within a
block `run` is the state before an element, and `carry` the state before the block. Their order of
joining is the same if blocks are walked one after the other or shared out. It depends on the length
and on the axis being the last, not on the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.caps import Caps
from weft.core.dtypes import compute_dtype
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import ZERO, Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, kernel_name, traffic
from weft.templates.map import streams
from weft.templates.rows.folds import Accumulator, Fold, State, bind
from weft.templates.scan.folds import beginning, kept, restored, scan_fold
from weft.templates.view import Index
from weft.transform.scan import block_length


class Scans:
    """The rows of a `scan`, or the blocks of `scan_totals` or `scan_blocks`."""

    def __init__(self, group: Group, caps: Caps) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        self.name: str = self.anchor.attrs["name"]
        params = self.anchor.attrs["params"]
        self.op, self.axis = params["op"], params["axis"]
        self.reverse: bool = params["reverse"]
        self.exclusive: bool = params.get("exclusive", False)
        self.operands = self.anchor.inputs[: 2 if self.op == "linear" else 1]
        self.shape = self.operands[0].shape
        self.n = self.shape[self.axis]
        self.outer_shape, self.inner_shape = self.shape[: self.axis], self.shape[self.axis + 1 :]
        self.outer, self.inner = math.prod(self.outer_shape), math.prod(self.inner_shape)
        last = self.axis == len(self.shape) - 1
        self.block: int = params.get("block") or block_length(caps, self.n, last)
        self.blocks = -(-self.n // self.block)
        self.tail: int = params.get("tail", 0)  # blocks at the end that one worker walks
        self.apart = self.name != "scan"  # each block is a unit of work of its own
        self.writes = self.name != "scan_totals"
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)
        self.fold = scan_fold(self.op, compute_dtype(self.operands[0].dtype))
        self.parts = len(self.fold.dtypes)
        self.large = streams(group, caps)

    # -- the work

    def wanted(self) -> Expr | int:
        """Returns the number of outer rows that a run wants."""
        if self.group.rows is None or not self.axis:
            return self.outer
        first = self.shape[0]
        return bounded_rows(self.group, first) * (self.outer // first)

    def parted(self, unit: Affine) -> tuple[Affine, Affine | None]:
        """The row of a unit of work, and its block where that is a unit of its own."""
        return affine.divide(unit, self.units) if self.apart else (unit, None)

    @property
    def units(self) -> int:
        """Units of work to an outer row."""
        walked = self.tail - 1 if self.tail and self.writes else 0
        return self.blocks - walked if self.apart else 1

    # -- operands and results

    def index(self, outer: Affine, i: Affine, inner: Affine = ZERO) -> Index:
        """The index of an element by its place in memory."""
        lead = affine.unflatten(outer, self.outer_shape)
        return (*lead, i, *affine.unflatten(inner, self.inner_shape))

    def state(self, index: Index) -> State:
        """The states of the elements at an index, each a run of its own."""
        lanes = max(i.lanes for i in index)
        values = [kb.splat(self.em.value(x, index), lanes) for x in self.operands]
        return bind(self.b, self.fold.lift(self.b, values[0], values[-1]), "x")

    def carry(self, outer: Affine, block: Affine, inner: Affine = ZERO) -> State:
        """Returns the state before a block, which another kernel has computed."""
        carries = self.anchor.inputs[-1]
        at = [(*self.index(outer, block, inner), affine.number(k)) for k in range(self.parts)]
        return restored(self.b, self.fold, [self.em.value(carries, i) for i in at])

    def put_total(self, outer: Affine, block: Affine, inner: Affine, total: State) -> None:
        """Writes what a whole block joins to."""
        for k, value in enumerate(kept(self.b, self.fold, total)):
            self.put((*self.index(outer, block, inner), affine.number(k)), value)

    def put(self, index: Index, value: Expr) -> None:
        """Runs the epilogue on a result (or a vector of them) and stores it."""
        with self.em.scope():
            self.em.define(self.anchor, self.em.only(self.anchor, index, self.b.let(value, "y")))
            for node, large in zip(self.group.outputs, self.large):
                at = affine.reshape_index(index, self.anchor.shape, node.shape)
                linear = affine.flatten(index, affine.contiguous(self.anchor.shape))
                whole = linear.lanes == self.caps.lanes and linear.aligned(linear.lanes)
                self.em.store(node, at, large and whole)

    # -- states

    def combine(self, s: State, t: State) -> State:
        return bind(self.b, self.fold.combine(self.b, s, t), "run")

    def quick(self, s: State, t: State) -> State:
        """Combines states that span at most one tile, or that form a result."""
        return bind(self.b, (self.fold.quick or self.fold.combine)(self.b, s, t), "run")

    def finish(self, state: State) -> Expr:
        return self.fold.finish(self.b, state)

    @property
    def first(self) -> Fold:
        """The fold, beginning with what comes before the first element."""
        return beginning(self.fold, self.exclusive)

    def running(self, fold: Fold, lanes: int = 1) -> Accumulator:
        """A state of no elements, to be joined to."""
        return Accumulator(self.b, fold, lanes)

    def before(self, carry: State | None, run: State) -> State:
        return run if carry is None else self.combine(carry, run)

    def finished(self, grid: Expr | int, threads: Sequence[int] = (1,)) -> Kernel:
        flops = 4 * math.prod(self.shape)
        return self.b.kernel((grid,), threads, flops=flops, bytes=traffic(self.group))
