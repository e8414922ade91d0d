"""Reductions in many threads: teams along contiguous elements, columns side by side across rows.

A team of threads, the part of a subgroup or a whole group that norm's rows have too, folds one
output from vectors of 16 bytes; several short outputs share a group. Where the reduction is strided
neighbouring threads take neighbouring outputs, some rows of threads share out the elements, and
meet in shared memory. Where barriers are dear one thread folds an output alone. The order depends
on the shape of what is folded alone.
"""

from __future__ import annotations

from dataclasses import replace

from weft.core.caps import Caps
from weft.kernel import builder as kb
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.rows.folds import Accumulator, fold_group, fold_lanes
from weft.templates.rows.reduce_plan import Plan
from weft.templates.wide import ROW_THREADS, STREAM, row_threads, vector_lanes

SHORT = 32  # a thread folds up to this many elements alone where there are no subgroups
COLUMNS = 32  # threads side by side across outputs
ROWS = 16  # of them, sharing out the elements


def build(plan: Plan) -> Kernel:
    """The kernel of a reduce group for a target with many threads per group."""
    caps = plan.caps
    if not caps.cheap_barrier or plan.count == 0:
        return _alone(plan)
    if plan.strided and plan.outputs >= COLUMNS:
        return _columns(plan) if plan.count > SHORT else _alone(plan)
    if not caps.subgroup and plan.count <= SHORT:
        return _alone(plan)
    return _teams(plan)


def _alone(plan: Plan) -> Kernel:
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


def _teams(plan: Plan) -> Kernel:
    """A team per output: its threads stride over vectors of elements, then fold together."""
    b, em, caps = plan.b, plan.em, plan.caps
    unit = plan.reduced[-1] if plan.reduced and plan.space.unit_inner else 1
    like = [x for x in plan.group.inputs if x.size == plan.source.size]
    lanes = vector_lanes(caps, unit, like or [plan.source])
    team = row_threads(caps, plan.count, lanes)
    threads = max(team, ROW_THREADS if caps.subgroup else 1)
    per, wanted = threads // team, plan.wanted()
    t = b.let(b.thread(0) % team, "t")
    row = b.let(b.group(0) * per + b.thread(0) // team, "row")
    first: Expr = kb.eq(t, 0)
    if per > 1:
        first = first & (row < wanted)
        row = kb.minimum(row, plan.outputs - 1)
    kept = affine.unflatten(em.axis(row, plan.outputs), plan.kept)
    acc = Accumulator(b, plan.fold, lanes)

    def add(vector: Expr) -> None:
        with em.scope():
            at = em.axis(vector, plan.count // lanes) * lanes + em.lane(lanes)
            acc.add(*plan.element(kept, affine.unflatten(at, plan.reduced)))

    vectors = plan.count // lanes
    whole = vectors // (team * STREAM) * team * STREAM
    if whole:
        with b.loop(whole, step=team * STREAM, name="v") as v, em.scope():
            for u in range(STREAM):
                add(v + t + u * team)
    with b.loop(vectors, t + whole, team, name="v") as v, em.scope():
        add(v)
    state = fold_lanes(b, plan.fold, acc.state())
    state = fold_group(b, plan.fold, state, t, team, caps)
    with b.when(first):
        plan.finish(kept, b.let(plan.fold.finish(b, state), "out"))
    return plan.kernel(kb.ceil_div(wanted, per), threads)


def _columns(plan: Plan) -> Kernel:
    """Threads (column, row): a row of threads takes every so manyth element of its outputs, and the
    rows meet by halves."""
    b, em, caps = plan.b, plan.em, plan.caps
    lanes = _column_lanes(plan, caps)
    rows = ROWS
    while rows > 1 and (rows * COLUMNS > caps.max_threads or rows * 4 > plan.count):
        rows //= 2
    tx, ty = b.let(b.thread(0), "tx"), b.let(b.thread(1), "ty")
    wanted = plan.wanted()
    column = b.let((b.group(0) * COLUMNS + tx) * lanes, "column")
    inside = b.let(column < wanted, "inside")
    start = em.axis(kb.minimum(column, plan.outputs - lanes), plan.outputs - lanes + 1, lanes)
    kept = affine.unflatten(start + em.lane(lanes), plan.kept)
    acc = Accumulator(b, plan.fold, lanes)
    whole = plan.count // (rows * STREAM) * rows * STREAM

    def add(k: Expr) -> None:
        with em.scope():
            acc.add(*plan.element(kept, affine.unflatten(em.axis(k, plan.count), plan.reduced)))

    if whole:
        with b.loop(whole, step=rows * STREAM, name="k") as k, em.scope():
            for u in range(STREAM):
                add(k + ty + u * rows)
    with b.loop(plan.count, ty + whole, rows, name="k") as k, em.scope():
        add(k)
    state = acc.state()
    parts = [b.array("part", d, rows * COLUMNS * lanes, "shared") for d in plan.fold.dtypes]
    mine = b.let((ty * COLUMNS + tx) * lanes, "mine")
    for part, value in zip(parts, state):
        b.store(part, mine, value)
    half = rows // 2
    while half:
        b.barrier()
        with b.when(ty < half):
            far = b.let(mine + half * COLUMNS * lanes, "far")
            ours = tuple(b.let(kb.load(p, mine, lanes), "mine") for p in parts)
            other = tuple(b.let(kb.load(p, far, lanes), "other") for p in parts)
            for part, value in zip(parts, plan.fold.combine(b, ours, other)):
                b.store(part, mine, value)
        half //= 2
    with b.when(kb.eq(ty, 0) & inside), em.scope():
        found = tuple(b.let(kb.load(p, mine, lanes), "all") for p in parts)
        plan.finish(kept, b.let(plan.fold.finish(b, found), "out"))
    return _shaped(plan, kb.ceil_div(wanted, COLUMNS * lanes), rows)


def _shaped(plan: Plan, grid: Expr | int, rows: int) -> Kernel:
    kernel = plan.kernel(grid, COLUMNS)
    return replace(kernel, threads=(COLUMNS, rows, 1))


def _column_lanes(plan: Plan, caps: Caps) -> int:
    """Narrow elements side by side, so that a row of threads reads whole lines of memory."""
    like = [x for x in plan.group.inputs if x.size == plan.source.size]
    lanes = 4 // max((x.dtype.itemsize for x in like), default=4) if caps.subgroup else 1
    while plan.kept[-1] % lanes or plan.outputs % lanes:
        lanes //= 2
    return lanes
