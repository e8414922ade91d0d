"""reduce: sum, max, argmax over any axes, with fused elementwise code before and after.

CPU: vectors along the last reduced axis, or across the last kept axis when the reduction is strided
or short. GPU: see reduce_gpu. Every order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.caps import Caps
from weft.kernel import builder as kb
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.group import Group
from weft.templates.loops import useful_lanes, vector_loop
from weft.templates.registry import template
from weft.templates.rows import reduce_gpu
from weft.templates.rows.folds import Accumulator, State, fold_lanes, fold_states
from weft.templates.rows.reduce_plan import Plan

ACCUMULATORS = 4
COLUMNS = 8  # vectors side by side when reducing across rows
CHUNK = 16384  # elements read by one group on a CPU


@template("reduce")
def build_reduce(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a sum, max or argmax node."""
    assert group.anchor is not None
    plan = Plan(group, caps, group.anchor)
    if caps.is_cpu:
        return _columns(plan) if plan.across else _rows(plan)
    return reduce_gpu.build(plan)


def _rows(plan: Plan) -> Kernel:
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


def _fold_row(plan: Plan, kept: Sequence[Affine]) -> State:
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


def _columns(plan: Plan) -> Kernel:
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
