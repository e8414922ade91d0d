"""Reductions whose last axis is kept: neighbouring outputs fold their columns side by side.

A column is chains of COLUMN_SEGMENT elements, and more of them are the column of their results
(core/order.py). CPU: vectors across outputs, each lane folds one. GPU: threads across outputs;
where columns are long several threads share one, a chain each, and meet in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.caps import Caps
from weft.core.order import COLUMN_SEGMENT
from weft.kernel import expr as kb
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.loops import Bound, useful_lanes
from weft.templates.rows.folds import Accumulator, State, fold_strands
from weft.templates.rows.reduction import Reduction
from weft.templates.rows.walk import SegmentStates

VECTORS = 8  # vectors taken together on a CPU
SIDE = 32  # adjacent threads on a GPU
ROWS = 16  # rows of threads, a chain each
THREADS = 128  # fewest threads of a group, where columns are long
STREAM = 4  # elements of a chain loaded together

Outputs = Sequence[Sequence[Affine]]  # indices over the kept loops, vectors or numbers


def chain(plan: Reduction, outputs: Outputs, masks: Sequence[Expr | None] = ()) -> list[State]:
    """The folded columns of some outputs, by one thread."""
    top = COLUMN_SEGMENT
    while top < plan.count:
        top *= COLUMN_SEGMENT
    return _level(
        plan, outputs, masks or [None] * len(outputs), 0, plan.count if plan.fold.free else top
    )


def _level(
    plan: Reduction, outputs: Outputs, masks: Sequence[Expr | None], start: Bound, span: int
) -> list[State]:
    """The fold of elements start .. start + span: of one chain, or of results of chains."""
    b, em, count = plan.b, plan.em, plan.count
    lanes = [max(i.lanes for i in (*kept, affine.ZERO)) for kept in outputs]
    accs = [Accumulator(b, plan.fold, n) for n in lanes]
    stop: Bound = count
    if not isinstance(start, int):
        stop = b.let(kb.minimum(start + span, count), "stop")
    if span <= COLUMN_SEGMENT or plan.fold.free:
        with b.loop(stop, start, name="k") as k, em.scope():
            reduced = affine.unflatten(em.axis(k, count), plan.reduced)
            for acc, kept, mask in zip(accs, outputs, masks):
                with em.masked(mask):
                    acc.add(*plan.element(kept, reduced))
    else:
        with b.loop(stop, start, span // COLUMN_SEGMENT, name="at") as at, em.scope():
            found = _level(plan, outputs, masks, at, span // COLUMN_SEGMENT)
            for acc, state in zip(accs, found):
                acc.join(state)
    return [acc.state() for acc in accs]


def across(plan: Reduction) -> Kernel:
    """Vectors across the innermost kept loop of a CPU; each lane folds one output: a column, or a
    row that is shorter than a vector."""
    b, em = plan.b, plan.em
    *outer, n = plan.kept
    lanes = useful_lanes(plan.caps, n)
    vectors = min(VECTORS, max(n // lanes, 1))
    if math.prod(outer) * (n // (vectors * lanes)) < 2 * plan.caps.cores:
        vectors = max(1, vectors // 4)  # few columns: narrower blocks, so that every core has one
    blocks = -(-n // (vectors * lanes))
    row, block = affine.divide(em.axis(b.group(0), math.prod(outer) * blocks), blocks)
    coords = affine.unflatten(row, outer)
    start = block * (vectors * lanes)
    wanted = plan.wanted()
    grid = wanted // n * blocks if outer else kb.ceil_div(wanted, vectors * lanes)
    outputs = [[*coords, start + v * lanes + em.lane(lanes)] for v in range(vectors)]
    masks: list[Expr | None] = [None] * vectors
    if n % (vectors * lanes) and lanes > 1:
        left = b.let(n - em.expr(start), "left")
        ends = [kb.binary("lt", kb.iota(lanes) + v * lanes, left) for v in range(vectors)]
        masks = [b.let(end, "mask") for end in ends]
    if plan.strided:
        states = chain(plan, outputs, masks)
    else:
        states = [_short(plan, kept, lanes, mask) for kept, mask in zip(outputs, masks)]
    for kept, state, mask in zip(outputs, states, masks):
        with em.masked(mask):
            plan.finish(kept, state)
    return plan.kernel(grid)


def _short(plan: Reduction, kept: Sequence[Affine], lanes: int, mask: Expr | None) -> State:
    """A row of fewer elements than strands, strand by strand."""
    element, count = plan.states(kept), math.prod(plan.inner)
    strands = [Accumulator(plan.b, plan.fold, lanes) for _ in range(max(count, 1))]
    with plan.em.masked(mask):
        for j, strand in enumerate(strands[:count]):
            for run in range(math.prod(plan.outer)):
                strand.join(element(affine.number(run), affine.number(j)))
        return fold_strands(plan.b, plan.fold, [strand.state() for strand in strands])


def shared(plan: Reduction) -> Kernel:
    """Threads (column, row) of a GPU: each row of threads takes a chain of its outputs, and the
    rows' results are joined in ascending order."""
    b, em, caps = plan.b, plan.em, plan.caps
    lanes = _lanes(plan, caps)
    side = min(SIDE, 1 << max(plan.outputs // lanes - 1, 0).bit_length())
    most = min(max(ROWS, THREADS // side), COLUMN_SEGMENT, caps.max_threads // side)
    rows = min(most, -(-plan.count // COLUMN_SEGMENT))
    tx, ty = b.let(b.thread(0), "tx"), b.let(b.thread(1), "ty")
    wanted = plan.wanted()
    column = b.let((b.group(0) * side + tx) * lanes, "column")
    inside = b.let(column < wanted, "inside")
    start = em.axis(kb.minimum(column, plan.outputs - lanes), plan.outputs - lanes + 1, lanes)
    kept = affine.unflatten(start + em.lane(lanes), plan.kept)
    parts = SegmentStates(plan.b, plan.fold, rows * side * lanes, "shared")

    def one(low: Expr) -> State:
        """The chain from element `low` on."""
        acc = Accumulator(b, plan.fold, lanes)

        def add(k: Expr) -> None:
            with em.scope():
                at = affine.unflatten(em.axis(k, plan.count), plan.reduced)
                acc.add(*plan.element(kept, at))

        high = b.let(kb.minimum(low + COLUMN_SEGMENT, plan.count), "high")
        fours = b.let(low + (high - low) // STREAM * STREAM, "fours")
        with b.loop(fours, low, STREAM, name="k") as k, em.scope():
            for u in range(STREAM):
                add(k + u)
        with b.loop(high, kb.maximum(fours, low), name="k") as k, em.scope():
            add(k)
        return acc.state()

    def level(first: Bound, span: int) -> State:
        """Returns the state of elements first .. first + span, in the first row of threads."""
        acc = Accumulator(b, plan.fold, lanes)
        stop: Bound = plan.count
        if not isinstance(first, int):
            stop = b.let(kb.minimum(first + span, plan.count), "stop")
        if span > COLUMN_SEGMENT**2:
            with b.loop(stop, first, span // COLUMN_SEGMENT, name="at") as at, em.scope():
                acc.join(level(at, span // COLUMN_SEGMENT))
            return acc.state()
        with b.loop(stop, first, rows * COLUMN_SEGMENT, name="at") as at, em.scope():
            found = one(b.let(at + ty * COLUMN_SEGMENT, "low"))
            parts.store((ty * side + tx) * lanes, found)
            b.barrier()
            with b.when(kb.eq(ty, 0)):
                for row in range(rows):
                    acc.join(parts.load((tx + row * side) * lanes, lanes))
            b.barrier()
        return acc.state()

    top = COLUMN_SEGMENT**2
    while top < plan.count:
        top *= COLUMN_SEGMENT
    state = level(0, top)
    with b.when(kb.eq(ty, 0) & inside), em.scope():
        plan.finish(kept, state)
    return plan.kernel(kb.ceil_div(wanted, side * lanes), side, rows)


def _lanes(plan: Reduction, caps: Caps) -> int:
    """Narrow elements side by side, so that a row of threads reads whole lines of memory."""
    lanes = 4 // max(x.dtype.itemsize for x in plan.like()) if caps.subgroup else 1
    while plan.kept[-1] % lanes or plan.outputs % lanes:
        lanes //= 2
    return lanes
