"""Both attention composites in the matrix units of GPUs: which rows a group takes, which keys they
see, where results go. The work itself is `units`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import KEY_SPAN, STREAM_ROWS
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
from weft.templates.attention.places import (
    keys_until,
    length_of,
    position_of,
    slot_of,
    visible_keys,
)
from weft.templates.attention.units import Units, forward_plan
from weft.templates.attention.units_tiles import WORD, Need, Operand, Plan, fewer, others
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import View, operand


def plan_for(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Plan | None:
    """How the units take an `attention` or `cached_attention` call, or None."""
    views = [operand(group, x) for x in node.inputs[:3]]
    q = node.inputs[0]
    plan = forward_plan(q.dtype, q.shape[-1], views, caps, config)
    if plan is None or not few(node):
        return plan
    return fewer(plan, node.shape[1] // node.inputs[1].shape[1], q.shape[-1], caps, Need())


def few(node: Node) -> bool:
    """Whether the call is a decoding step, whose blocks hold heads."""
    return node.attrs["name"] != "attention" and node.shape[0] <= STREAM_ROWS


def candidates(group: Group, node: Node, caps: Caps) -> list[dict[str, Any]]:
    """Other numbers of subgroups for the call; a row's sums stay as they are."""
    plan = None if few(node) else plan_for(group, node, caps, {})
    return others(plan, node.shape[-1], caps, Need())


def build(group: Group, node: Node, caps: Caps, plan: Plan) -> Kernel:
    """The kernel for one `attention` or `cached_attention` call (see the composites)."""
    kind = _Heads if few(node) else _Cached if node.attrs["name"] != "attention" else _Whole
    return kind(group, node, caps, plan).kernel()


class _Blocks:
    """What both share: heads, operands, columns of the result."""

    def __init__(self, group: Group, node: Node, caps: Caps, plan: Plan) -> None:
        self.group, self.node, self.caps, self.plan = group, node, caps, plan
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.views = tuple(operand(group, x) for x in node.inputs[:3])
        self.heads, self.depth = node.shape[1], node.inputs[0].shape[-1]
        self.parts = -(-node.inputs[1].shape[2] // KEY_SPAN) if "part" in self.params else 0
        self.groups, self.keys = node.inputs[1].shape[1:3]
        self.share = self.heads // self.groups
        self._place()
        self.units = Units(
            b, caps, plan, node.inputs[0].dtype, self.depth,
            self.params["scale"], self.params["softcap"],
            spans=self.keys > KEY_SPAN and not self.parts,
        )  # fmt: skip

    def _place(self) -> None:
        """The group's head and key/value head."""
        head = self.b.let(self.b.group(1), "head")
        self.head = self.em.axis(head, self.heads)
        self.kv = self.em.axis(self.b.let(head // self.share, "kv_head"), self.groups)

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
            at = em.axis(column, self.node.shape[-1] - WORD + 1, WORD) + em.lane(WORD)
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
        length = length_of(em, node, 3, bi)

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
        units.walk(*self._keys(bi), start, stop, low, high)

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
        n, rows = node.shape[0], self.plan.rows
        blocks = ceil_div(row_limit(self.group, 1, n), rows)
        wanted = b.let(row_limit(self.group, 1, n), "limit")
        turned = ceil_div(wanted, rows) - 1 - b.group(0)  # the longest rows first
        n0 = b.let(turned * rows, "n0")
        mine = b.let(n0 + units.row, "row")
        exists = b.let(mine < wanted, "exists")
        row = em.axis(minimum(mine, wanted - 1), n)
        slots, slot = node.inputs[1].shape[0], slot_of(em, node, row)
        low, high = keys_until(position_of(em, node, row), self.params["window"])
        low, high = b.let(low, "low"), b.let(select(exists, high, 0), "high")
        q = self._operand(self.views[0], (self.head,), (1,))
        units.take_rows(q, n0, b.let(wanted - 1, "last"))
        first, last = self._range(slot, slot)
        with b.loop(last + 1, first, name="slot") as place, em.scope():
            here = b.let(eq(slot, place), "here")
            stop = b.let(select(here, high, 0), "stop")
            start, end = self._range(b.let(select(here, low, self.keys), "low"), stop)
            units.walk(*self._keys(em.axis(place, slots)), start, end, low, stop)

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


class _Heads(_Blocks):
    """cached_attention of few rows, or a part of it: the query heads that share a key/value head,
    for one row and perhaps one span."""

    def _place(self) -> None:
        b, em, rows = self.b, self.em, self.plan.rows
        blocks = -(-self.share // rows)
        self.first = b.let(b.group(0) % blocks * rows, "first_head")
        self.part = b.let(b.group(0) // blocks, "part")
        self.grid = (blocks * max(self.parts, 1), self.groups, row_limit(self.group, 1, self.n))
        self.kv = em.axis(b.group(1), self.groups)
        self.row = em.axis(b.group(2), self.n)

    @property
    def n(self) -> int:
        return self.node.shape[0]

    def kernel(self) -> Kernel:
        b, em, node, units = self.b, self.em, self.node, self.units
        low, high = keys_until(position_of(em, node, self.row), self.params["window"])
        if self.parts:
            low = maximum(low, self.part * KEY_SPAN)
            high = minimum(high, (self.part + 1) * KEY_SPAN)
        low, high = b.let(low, "low"), b.let(high, "high")
        view = self.views[0]
        at = affine.flatten((self.row, affine.combine([(self.kv, self.share)])), view.strides[:2])
        base = b.let(em.expr(at) + view.offset, "q")
        q = Operand(em.buffers[id(view.node)], base, view.strides[1])
        units.take_rows(q, self.first, const(self.share - 1))
        place = em.axis(slot_of(em, node, self.row), node.inputs[1].shape[0])
        start = b.let(minimum(low, high), "start")
        units.walk(*self._keys(place), start, high, low, high)
        if self.parts:
            self._hand_over()
        else:
            units.finish(self._out)
        flops = 4 * self.n * self.heads * self.keys * self.depth
        return b.kernel(self.grid, (self.plan.threads,), flops, traffic(self.group))

    def _out(self, row: Expr, column: Expr, value: Expr) -> None:
        b, em = self.b, self.em
        at = b.let(self.first + row, "at")
        with b.when(at < as_expr(self.share)), em.scope():
            self._write(self._index(at), column, value)

    def _index(self, at: Expr) -> tuple[Affine, ...]:
        head = affine.combine([(self.kv, self.share), (self.em.axis(at, self.share), 1)])
        part = (self.em.axis(self.part, self.parts),) if self.parts else ()
        return (self.row, head, *part)

    def _hand_over(self) -> None:
        """The state of the span: sums, maximum, total."""
        b, em, units = self.b, self.em, self.units
        state = units.state()
        units.leave(units.sums, units.s, self._out)
        at = b.let(self.first + units.row, "at")
        with b.when((units.part < 1) & (at < self.share)), em.scope():
            index = self._index(at)
            for i, x in enumerate(state):
                column = em.axis(self.depth + i, self.depth + 2)
                with em.scope():
                    store_all(em, self.node, (*index, column), x, None)
