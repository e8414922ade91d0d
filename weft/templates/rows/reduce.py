"""reduce: sum, max, argmax over any axes, with fused elementwise code before and after.

Where the last axis is reduced an output folds a row, as norms do (walk, walk_gpu); where it is kept
outputs lie side by side and each folds a column (columns). Either order is that of core/order.py on
every target: a result's bits depend on what is folded and on the shape alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.order import COLUMN_SEGMENT
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.group import Group
from weft.templates.registry import template
from weft.templates.rows import columns
from weft.templates.rows.reduction import Reduction
from weft.templates.rows.walk import ThreadWalk


@template("reduce")
def build_reduce(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a sum, max or argmax node."""
    assert group.anchor is not None
    plan = Reduction(group, caps, group.anchor)
    if caps.is_cpu and (plan.strided or (plan.count < caps.lanes <= plan.outputs)):
        return columns.across(plan)
    if plan.strided and caps.cheap_barrier and plan.count > COLUMN_SEGMENT:
        return columns.shared(plan)
    walk = ThreadWalk(plan.em, 1) if plan.strided else plan.walk()

    def run(row: Affine) -> None:
        kept = affine.unflatten(row, plan.kept)
        if plan.strided:
            plan.finish(kept, columns.chain(plan, [kept])[0])
        else:
            state = walk.fold(plan.fold, plan.states(kept))
            with walk.only(walk.writer):
                plan.finish(kept, state)

    return plan.kernel(*walk.spread(plan.outputs, plan.wanted(), run))
