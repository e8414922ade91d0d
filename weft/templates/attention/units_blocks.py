"""Both attention composites in the matrix units of GPUs: which rows a group takes, which keys they
see, where results go. The work itself is `attention_units`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.builder import (
    Builder,
    Expr,
    as_expr,
    ceil_div,
    const,
    eq,
    load,
    maximum,
    minimum,
    select,
)
from weft.kernel.ir import I32, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.places import visible_keys
from weft.templates.attention.units import Units, forward_plan
from weft.templates.attention.units_tiles import WORD, Need, Operand, Plan, others
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import View, operand


def plan_for(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Plan | None:
    """How the units take an `attention` or `cached_attention` call, or None."""
    views = [operand(group, x) for x in node.inputs[:3]]
    return forward_plan(node.inputs[0].dtype, node.shape[-1], views, caps, config)


def candidates(group: Group, node: Node, caps: Caps) -> list[dict[str, Any]]:
    """Other numbers of subgroups for the call; a row's sums stay as they are."""
    return others(plan_for(group, node, caps, {}), node.shape[-1], caps, Need())


def build(group: Group, node: Node, caps: Caps, plan: Plan) -> Kernel:
    """The kernel for one `attention` or `cached_attention` call (see the composites)."""
    kind = _Cached if node.attrs["name"] == "cached_attention" else _Whole
    return kind(group, node, caps, plan).kernel()


class _Blocks:
    """What both share: heads, operands, columns of the result."""

    def __init__(self, group: Group, node: Node, caps: Caps, plan: Plan) -> None:
        self.group, self.node, self.caps, self.plan = group, node, caps, plan
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.views = tuple(operand(group, x) for x in node.inputs[:3])
        self.heads, self.depth = node.shape[1], node.shape[-1]
        self.groups, self.keys = node.inputs[1].shape[1:3]
        head = b.let(b.group(1), "head")
        self.head = self.em.axis(head, self.heads)
        kv = b.let(head // (self.heads // self.groups), "kv_head")
        self.kv = self.em.axis(kv, self.groups)
        self.units = Units(
            b, caps, plan, node.inputs[0].dtype, self.depth,
            self.params["scale"], self.params["softcap"],
        )  # fmt: skip

    def _operand(self, view: View, lead: tuple[Affine, ...], axes: tuple[int, ...]) -> Operand:
        """The rows at `lead`, which indexes `axes`; they lie along the axis that is left out."""
        at = affine.flatten(lead, tuple(view.strides[a] for a in axes), view.offset)
        (row,) = set(range(len(view.strides) - 1)) - set(axes)
        base = self.b.let(self.em.expr(at), "base")
        return Operand(self.em.buffers[id(view.node)], base, view.strides[row])

    def _keys(self, place: Affine) -> tuple[Operand, Operand]:
        """A head's keys and values in a batch entry or slot."""
        _, k, v = self.views
        lead = (place, self.kv)
        return self._operand(k, lead, (0, 1)), self._operand(v, lead, (0, 1))

    def _write(self, index: tuple[Affine, ...], column: Expr, value: Expr) -> None:
        """Eight columns of a row that exists; `index` lacks the column."""
        b, em = self.b, self.em
        with b.when(column < as_expr(self.depth)), em.scope():
            at = em.axis(column, self.depth - WORD + 1, WORD) + em.lane(WORD)
            store_all(em, self.node, (*index, at), value, None)


class _Whole(_Blocks):
    """attention: rows of one batch entry."""

    def kernel(self) -> Kernel:
        b, em, node, units, params = self.b, self.em, self.node, self.units, self.params
        batch, _, t, depth = node.shape
        rows, s = self.plan.rows, self.keys
        blocks = -(-t // rows)
        block: Expr = b.group(0)
        if params["causal"]:
            block = (blocks - 1) - block  # the longest rows first
        t0 = b.let(block * rows, "t0")
        bi = em.axis(b.group(2), batch)
        length: Expr = const(s)
        if len(node.inputs) == 4:
            length = b.let(minimum(em.value(node.inputs[3], (bi,)), s), "length")

        def limits(row: Expr) -> tuple[Expr, Expr]:
            low, high = visible_keys(b, row, t, s, length, params["causal"], params["window"])
            return b.let(low, "low"), b.let(high, "high")

        mine = b.let(t0 + units.row, "row")
        low, high = limits(mine)
        high = b.let(select(mine < t, high, 0), "high")
        start, _ = limits(t0)
        _, stop = limits(b.let(minimum(t0 + (rows - 1), t - 1), "last"))
        q = self._operand(self.views[0], (bi, self.head), (0, 1))
        units.take_rows(q, t0, const(t - 1))
        units.sweep(*self._keys(bi), start, stop, low, high)

        def write(row: Expr, column: Expr, value: Expr) -> None:
            at = b.let(t0 + row, "at")
            with b.when(at < t), em.scope():
                self._write((bi, self.head, em.axis(at, t)), column, value)

        units.finish(write)
        flops = 4 * batch * self.heads * t * s * depth // (2 if params["causal"] else 1)
        grid = (blocks, self.heads, row_limit(self.group, 1, batch))
        return b.kernel(grid, (self.plan.threads,), flops, traffic(self.group))


class _Cached(_Blocks):
    """cached_attention: rows of any slots; a group meets the slots of its rows one by one."""

    def kernel(self) -> Kernel:
        b, em, node, units = self.b, self.em, self.node, self.units
        waves = self.plan.threads // self.caps.subgroup
        self.meet = b.array("meet", dt.int32, 2 * waves, "shared")
        n, rows, window = node.shape[0], self.plan.rows, self.params["window"]
        blocks = ceil_div(row_limit(self.group, 1, n), rows)
        wanted = b.let(row_limit(self.group, 1, n), "limit")
        turned = ceil_div(wanted, rows) - 1 - b.group(0)  # the longest rows first
        n0 = b.let(turned * rows, "n0")
        mine = b.let(n0 + units.row, "row")
        exists = b.let(mine < wanted, "exists")
        row = em.axis(minimum(mine, wanted - 1), n)
        slots = node.inputs[1].shape[0]
        slot = minimum(maximum(em.value(node.inputs[3], (row,)), 0), slots - 1)
        slot = b.let(slot, "slot")
        pos = b.let(minimum(em.value(node.inputs[4], (row,)), self.keys - 1), "pos")
        low = b.let(maximum(pos - (window - 1), 0) if window else const(0), "low")
        high = b.let(select(exists, maximum(pos + 1, 0), 0), "high")
        q = self._operand(self.views[0], (self.head,), (1,))
        units.take_rows(q, n0, b.let(wanted - 1, "last"))
        first, last = self._range(slot, slot)
        with b.loop(last + 1, first, name="slot") as place, em.scope():
            here = b.let(eq(slot, place), "here")
            stop = b.let(select(here, high, 0), "stop")
            start, end = self._range(b.let(select(here, low, self.keys), "low"), stop)
            units.sweep(*self._keys(em.axis(place, slots)), start, end, low, stop)

        def write(row: Expr, column: Expr, value: Expr) -> None:
            at = b.let(n0 + row, "at")
            with b.when(at < wanted), em.scope():
                self._write((em.axis(at, n), self.head), column, value)

        units.finish(write)
        flops = 2 * n * self.heads * self.keys * self.depth
        return b.kernel((blocks, self.heads), (self.plan.threads,), flops, traffic(self.group))

    def _range(self, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        """The least of `low` and the greatest of `high` over the group."""
        b, width, t = self.b, self.caps.subgroup, self.units.t
        waves = self.plan.threads // width
        tops = [b.let(ir.Collective("subgroup_max", (x,), I32), "top") for x in (b.let(-low), high)]
        b.barrier()
        with b.when(eq(t % width, 0)):
            for i, top in enumerate(tops):
                b.store(self.meet, t // width + i * waves, top)
        b.barrier()
        found = []
        for start in (0, waves):
            most = load(self.meet, start)
            for k in range(start + 1, start + waves):
                most = maximum(most, load(self.meet, k))
            found.append(b.let(most, "most"))
        return b.let(-found[0], "least"), found[1]
