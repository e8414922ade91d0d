"""reduce: sum, max, argmax over any axes, with fused elementwise code before and after.

CPU: vectors along the last reduced axis, or across the last kept axis when the reduction is strided
or short. GPU: a group per output folding through shared memory, or a thread per output when the
reduction is short or strided or barriers are dear. Every order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.caps import Caps
from weft.core.dtypes import compute_dtype
from weft.graph.ir import Node
from weft.kernel import builder as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.folds import (
    Accumulator,
    Fold,
    State,
    fold_group,
    fold_lanes,
    fold_states,
    of_node_dtype,
)
from weft.templates.group import Group
from weft.templates.loops import (
    Space,
    bounded_rows,
    kernel_name,
    probe,
    times,
    traffic,
    useful_lanes,
    vector_loop,
)  # fmt: skip
from weft.templates.map import store_all
from weft.templates.registry import template
from weft.templates.view import Index

ACCUMULATORS = 4
COLUMNS = 8  # vectors side by side when reducing across rows
CHUNK = 16384  # elements read by one group on a CPU
SHORT = 32  # a GPU thread folds up to this many elements alone


@template("reduce")
def build_reduce(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a sum, max or argmax node."""
    assert group.anchor is not None
    plan = _Plan(group, caps, group.anchor)
    if caps.is_cpu:
        return _cpu_columns(plan) if plan.across else _cpu_rows(plan)
    if not caps.cheap_barrier or plan.count <= SHORT or (plan.strided and plan.outputs >= 1024):
        return _gpu_threads(plan)
    return _gpu_groups(plan)


class _Plan:
    """Loops of a reduction: `kept` and `reduced` dims (row-major), and how to run one element."""

    def __init__(self, group: Group, caps: Caps, anchor: Node) -> None:
        self.group, self.caps, self.anchor = group, caps, anchor
        (self.source,) = anchor.inputs
        axes = anchor.attrs["axes"] if "axes" in anchor.attrs else (anchor.attrs["axis"],)
        shape = self.source.shape
        self.reduced_axis = [i in axes for i in range(len(shape))]
        self.space: Space = probe(
            group, caps, shape, lambda em, at: em.value(self.source, at), self.reduced_axis
        )
        self.is_reduced = [self.reduced_axis[a] for a, _ in self.space.spans]
        self.kept = [d for d, r in zip(self.space.dims, self.is_reduced) if not r]
        self.reduced = [d for d, r in zip(self.space.dims, self.is_reduced) if r]
        self.outputs, self.count = math.prod(self.kept), math.prod(self.reduced)
        self.fold: Fold = of_node_dtype(anchor.op, compute_dtype(self.source.dtype))
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
        if self.anchor.op != "argmax":
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


# -- CPU ----------------------------------------------------------------------------------------


def _cpu_rows(plan: _Plan) -> Kernel:
    """Each output folds its elements by vectors along the innermost reduced loop."""
    b, em = plan.b, plan.em
    per = max(1, CHUNK // max(plan.count, 1))
    wanted = plan.wanted()
    low = b.let(b.group(0) * per, "low")
    high = kb.minimum(low + per, wanted)
    with b.loop(high, low, name="row") as row, em.scope():
        kept = affine.unflatten(em.axis(row, plan.outputs), plan.kept)
        state = _fold_row(plan, kept)
        plan.finish(kept, plan.fold.finish(b, state))
    return plan.kernel(kb.ceil_div(wanted, per))


def _fold_row(plan: _Plan, kept: Sequence[Affine]) -> State:
    b, em = plan.b, plan.em
    *outer, n = plan.reduced or [1]
    lanes = useful_lanes(plan.caps, n)
    unroll = min(ACCUMULATORS, max(n // lanes, 1))
    accs = [Accumulator(b, plan.fold, lanes) for _ in range(unroll)]
    rest = Accumulator(b, plan.fold)
    turn = iter(range(1 << 30))

    def body(coords: Sequence[Affine]) -> Callable[[Affine], None]:
        def step(i: Affine) -> None:
            value, at = plan.element(kept, [*coords, i][: len(plan.reduced)])
            if i.lanes == 1 and lanes > 1:
                rest.add(value, at)
            else:
                accs[next(turn) % unroll].add(value, at, em.mask)

        return step

    if outer:
        with b.loop(math.prod(outer), name="k") as k, em.scope():
            coords = affine.unflatten(em.axis(k, math.prod(outer)), outer)
            vector_loop(em, 0, n, n, body(coords), lanes, unroll)
    else:
        vector_loop(em, 0, n, n, body([]), lanes, unroll)
    total = fold_lanes(b, plan.fold, fold_states(b, plan.fold, [a.state() for a in accs]))
    return plan.fold.combine(b, total, rest.state()) if lanes > 1 else total


def _cpu_columns(plan: _Plan) -> Kernel:
    """Vectors across the innermost kept loop; each lane folds one output in order."""
    b, em = plan.b, plan.em
    *outer, n = plan.kept
    lanes = useful_lanes(plan.caps, n)
    vectors = min(COLUMNS, max(n // lanes, 1))
    if math.prod(outer) * (n // (vectors * lanes)) < 2 * plan.caps.cores:
        vectors = max(1, vectors // 4)  # few columns: narrower blocks, so that every core has one
    blocks = -(-n // (vectors * lanes))
    g = em.axis(b.group(0), math.prod(outer) * blocks)
    row, block = affine.divide(g, blocks)
    coords = affine.unflatten(row, outer)
    start = block * (vectors * lanes)
    wanted = plan.wanted()
    if outer:
        grid = _ceil_rows(wanted, n, blocks)
    else:
        grid = kb.ceil_div(wanted, vectors * lanes)
    full = n % (vectors * lanes) == 0
    left = None if full else b.let(n - em.expr(start), "left")
    accs = [Accumulator(b, plan.fold, lanes) for _ in range(vectors)]
    columns = [start + v * lanes + em.lane(lanes) for v in range(vectors)]
    masks: list[Expr | None] = [None] * vectors
    if left is not None and lanes > 1:
        masks = [
            b.let(kb.binary("lt", kb.iota(lanes) + v * lanes, left), "mask") for v in range(vectors)
        ]
    with b.loop(max(plan.count, 0), name="k") as k, em.scope():
        reduced = affine.unflatten(em.axis(k, plan.count), plan.reduced)
        for acc, column, mask in zip(accs, columns, masks):
            with em.masked(mask):
                acc.add(*plan.element([*coords, column], reduced))
    for acc, column, mask in zip(accs, columns, masks):
        with em.masked(mask):
            plan.finish([*coords, column], b.let(plan.fold.finish(b, acc.state()), "out"))
    return plan.kernel(grid)


def _ceil_rows(wanted: Expr | int, n: int, blocks: int) -> Expr | int:
    """Groups for whole rows of n outputs, `blocks` groups to a row."""
    return wanted // n * blocks


# -- GPU ----------------------------------------------------------------------------------------


def _gpu_threads(plan: _Plan) -> Kernel:
    """One thread per output, folding in order."""
    b, em = plan.b, plan.em
    threads = min(64, plan.caps.max_threads)
    wanted = plan.wanted()
    at = b.let(b.group(0) * threads + b.thread(0), "at")
    with b.when(at < wanted), em.scope():
        kept = affine.unflatten(em.axis(at, plan.outputs), plan.kept)
        acc = Accumulator(b, plan.fold)
        with b.loop(plan.count, name="k") as k, em.scope():
            acc.add(*plan.element(kept, affine.unflatten(em.axis(k, plan.count), plan.reduced)))
        plan.finish(kept, b.let(plan.fold.finish(b, acc.state()), "out"))
    return plan.kernel(kb.ceil_div(wanted, threads), threads)


def _gpu_groups(plan: _Plan) -> Kernel:
    """One group per output: threads stride over the elements, then fold through shared memory."""
    b, em = plan.b, plan.em
    threads = group_threads(plan.caps, plan.count)
    t = b.let(b.thread(0), "t")
    kept = affine.unflatten(em.axis(b.group(0), plan.outputs), plan.kept)
    acc = Accumulator(b, plan.fold)
    with b.loop(plan.count, t, threads, name="k") as k, em.scope():
        acc.add(*plan.element(kept, affine.unflatten(em.axis(k, plan.count), plan.reduced)))
    state = fold_group(b, plan.fold, acc.state(), t, threads, plan.caps)
    with b.when(kb.eq(t, 0)):
        plan.finish(kept, b.let(plan.fold.finish(b, state), "out"))
    return plan.kernel(plan.wanted(), threads)


def group_threads(caps: Caps, count: int) -> int:
    """Threads of a group that folds `count` elements: a power of two up to 256, and at least a
    subgroup."""
    limit = min(256, caps.max_threads)
    threads = max(caps.subgroup, 16)
    while threads * 2 <= limit and threads * 2 <= count:
        threads *= 2
    return min(threads, limit)
