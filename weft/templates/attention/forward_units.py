"""Attention in the matrix units of GPUs (see `forward`); the work itself is `units`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.expr import as_expr, eq, load, maximum, select
from weft.kernel.ir import I32, Expr
from weft.templates.attention.forward import Call, K, Team, V, few
from weft.templates.attention.units import Softmax
from weft.templates.attention.units_tiles import WORD, Need, Plan, fewer, others, plan_of
from weft.templates.group import Group
from weft.templates.view import View, operand

# (rows of a subgroup, subgroups, keys of a block), the quickest first
SHAPES = ((32, 4, 64), (32, 4, 32), (32, 2, 64), (32, 2, 32), (16, 4, 32), (16, 2, 32))


def forward_plan(
    dtype: DType, depth: int, views: Sequence[View], caps: Caps, config: Mapping[str, Any]
) -> Plan | None:
    """The blocks of a forward kernel for these operands, or None (see `plan_of`)."""
    return plan_of(dtype, depth, views, caps, config, SHAPES, Need())


def plan_for(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Plan | None:
    """How the units take an `attention` or `cached_attention` call, or None."""
    views = [operand(group, x) for x in node.inputs[:3]]
    q = node.inputs[0]
    plan = forward_plan(q.dtype, q.shape[-1], views, caps, config)
    if plan is None or not few(node):
        return plan
    return fewer(plan, node.shape[1] // node.inputs[1].shape[1], q.shape[-1], caps, Need())


def candidates(group: Group, node: Node, caps: Caps) -> list[dict[str, Any]]:
    """Other numbers of subgroups for the call; a row's sums stay as they are."""
    plan = None if few(node) else plan_for(group, node, caps, {})
    return others(plan, node.inputs[0].shape[-1], caps, Need())


class Units(Team):
    """Subgroups with matrix units; `plan` says how large blocks are."""

    def __init__(self, call: Call, plan: Plan) -> None:
        super().__init__(call)
        self.rows, self.threads = plan.rows, (plan.threads,)
        self.waves = plan.threads // call.caps.subgroup
        self.units = Softmax(
            self.b, call.caps, plan, call.node.inputs[0].dtype, call.depth,
            call.params["scale"], call.params["softcap"], spans=call.spans,
        )  # fmt: skip
        if not call.one_slot:
            self.meeting = self.b.array("meeting", dt.int32, 2 * self.waves, "shared")

    def hold(self) -> None:
        b, call = self.b, self.call
        self.mine = call.item(b.let(call.first + self.units.row, "at"))
        self.high = self.mine.high
        self.units.take_rows(call.queries(), call.first, b.let(call.limit - 1, "last"))

    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        b, call, row = self.b, self.call, self.mine
        if call.one_slot:
            yield row.slot, *call.range(self.rows)
            return
        first, last = self._range(row.slot, row.slot)
        with b.loop(last + 1, first, name="slot") as slot, self.em.scope():
            here = b.let(eq(row.slot, slot), "here")
            self.high = b.let(select(here, row.high, 0), "high")
            low = b.let(select(here, row.low, call.length), "low")
            yield slot, *self._range(low, self.high)

    def _range(self, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        """The least of `low` and the greatest of `high` over the group."""
        b, waves = self.b, self.waves
        width, t = self.call.caps.subgroup, self.units.t
        tops = [b.let(ir.Collective("subgroup_max", (x,), I32), "top") for x in (b.let(-low), high)]
        b.barrier()
        with b.when(eq(t % width, 0)):
            for i, top in enumerate(tops):
                b.store(self.meeting, t // width + i * waves, top)
        b.barrier()
        found = []
        for start in (0, waves):
            most = load(self.meeting, start)
            for k in range(start + 1, start + waves):
                most = maximum(most, load(self.meeting, k))
            found.append(b.let(most, "most"))
        return b.let(-found[0], "least"), found[1]

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        keys, values = (self.call.source(i, slot) for i in (K, V))
        self.units.sweep(keys, values, start, stop, self.mine.low, self.high)

    def join(self) -> None:
        self.units.join()

    def finish(self) -> None:
        if self.call.parts:
            self._hand_over()
        else:
            self.units.finish(self._write)

    def _write(self, row: Expr, column: Expr, value: Expr) -> None:
        """Eight columns of a row of the block, where both exist."""
        b, em, call = self.b, self.em, self.call
        at = b.let(call.first + row, "at")
        with b.when((at < call.limit) & (column < as_expr(call.depth))), em.scope():
            columns = em.axis(column, call.node.shape[-1] - WORD + 1, WORD) + em.lane(WORD)
            call.write(call.index(at), columns, value)

    def _hand_over(self) -> None:
        """The state of the span: sums, maximum, total."""
        b, em, call, units = self.b, self.em, self.call, self.units
        state = units.state()
        units.leave(units.sums, units.s, self._write)
        at = b.let(call.first + units.row, "at")
        with b.when((units.part < 1) & (at < call.limit)), em.scope():
            call.write_state(call.index(at), *state)
