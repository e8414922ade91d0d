"""scatter_add where each column has an index of its own, on a CPU.

A group owns some columns of some rows of the result and looks at these columns' indices only. So as
long as all rows fit in a group's scratch memory, no index is read twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core import dtypes as dt
from weft.kernel import expr as kb
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.loops import useful_lanes, vector_loop
from weft.templates.rows.folds import sum_fold

if TYPE_CHECKING:
    from weft.templates.scatter import Scatter

BLOCK = 1 << 16  # elements that one group accumulates in scratch memory
LEAST = 4  # columns of a group, if there are as many: fewer use little of the lines they read


def scan_columns(plan: Scatter) -> Kernel:
    """The kernel: x is copied into sums, joined rows are added in their order, sums are written."""
    b, em, x = plan.b, plan.em, plan.x
    kind = sum_fold(dt.compute_dtype(x.dtype)).dtypes[0]
    count, total = max(plan.width, 1), x.shape[0]
    part, block = _sizes(total, count, plan)
    parts, blocks = -(-count // part), -(-total // block)
    lanes = useful_lanes(plan.caps, part)
    stride = -(-part // lanes) * lanes
    sums = b.array("sums", kind, block * stride)
    owner, piece = affine.divide(em.axis(b.group(0), blocks * parts), parts)
    first = b.let(em.expr(owner * block), "first")
    rows = b.let(kb.minimum(block, total - first), "rows")
    start = piece * part
    stop = b.let(kb.minimum(part, count - em.expr(start)), "stop") if count % part else part

    def at(column: Affine) -> tuple[Affine, ...]:
        return affine.unflatten(start + column, plan.columns or [1])[: len(plan.columns)]

    def begin(row: Affine, place: Affine, column: Affine) -> None:
        value = kb.cast(em.value(x, plan.at(row, at(column))), kind)
        b.store(sums, em.address(place), kb.splat(value, place.lanes))

    def end(row: Affine, place: Affine, column: Affine) -> None:
        plan.put(plan.at(row, at(column)), kb.load(sums, em.address(place), place.lanes))

    def join(source: Affine, column: Affine) -> None:
        mine = b.let(plan.target(source, at(column)) - first, "mine")
        with b.when((mine >= 0) & (mine < rows)), em.scope():
            place = em.expr(em.axis(mine, block) * stride + column)
            value = kb.cast(em.value(plan.rows, plan.at(source, at(column))), kind)
            b.store(sums, place, kb.load(sums, place) + value)

    def each(visit: Callable[[Affine, Affine, Affine], None]) -> None:
        """visit(row, its place in sums, column) of all that the group owns."""
        with b.loop(rows, name="v") as v, em.scope():
            line, row = em.axis(v, block) * stride, em.axis(first + v, total)
            vector_loop(em, 0, stop, part, lambda c: visit(row, line + c, c), lanes)

    each(begin)
    with b.loop(plan.count, name="r") as r, em.scope():
        source = em.axis(r, plan.idx.shape[0])
        with b.loop(stop, name="c") as c, em.scope():
            join(source, em.axis(c, part))
    each(end)
    return plan.kernel(blocks * parts)


def _sizes(total: int, count: int, plan: Scatter) -> tuple[int, int]:
    """(columns, rows) of a group: all rows where that is possible, so that no index is read
    twice."""
    lanes = useful_lanes(plan.caps, count)
    part = -(-count // (2 * plan.caps.cores))
    part = min(-(-part // lanes) * lanes, count)
    part = min(part, max(BLOCK // max(total, 1), LEAST))
    return part, max(1, min(total, BLOCK // (-(-part // lanes) * lanes)))
