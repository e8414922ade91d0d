"""Attention in many threads: both attention composites, and parts of a decoding step.

A group takes a block of rows under one key/value head: query rows of one head, or, where there are
few (decoding), the query heads that share it. Keys pass in blocks and spans at fixed places
(weft/core/order.py); who computes is a `Team`: a thread per row, or threads that share tiles. With
`parts` a group takes one span and hands its state over, for `merge` to join in the same way; so a
row has the same bits however many there are.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import KEY_SPAN, STREAM_ROWS
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.builder import Builder, Expr, Value, cast, ceil_div, load, maximum, minimum, select
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.places import (
    keys_until,
    length_of,
    position_of,
    slot_of,
    visible_keys,
)
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import View, operand

Q, K, V = range(3)


@dataclass(frozen=True)
class Source:
    """A head of an operand: rows `row` elements apart from `base` (bound), components `step`."""

    buffer: ir.Buffer
    base: Expr
    row: int
    step: int

    def load(self, row: Value, column: Value, lanes: int = 1) -> Expr:
        """Components of a row, in f32."""
        at = self.base + row * self.row + column * self.step
        return cast(load(self.buffer, at, lanes), dt.float32)


@dataclass(frozen=True)
class Row:
    """A row: its cache slot (or batch entry), the keys it sees (none if there is no such row), its
    query, where its result goes; all bound."""

    slot: Expr
    low: Expr
    high: Expr
    q: Expr
    index: tuple[Affine, ...]


class Call:
    """One call: what rows there are, what they see, where results go. `heads`: rows of a group
    are query heads; `flat`: those of all sequences (else of one key/value head)."""

    def __init__(self, group: Group, node: Node, caps: Caps, flat: bool = False) -> None:
        self.group, self.node, self.caps = group, node, caps
        self.params = node.attrs["params"]
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.views = [operand(group, x) for x in node.inputs[:3]]
        self.cached = node.attrs["name"] != "attention"
        q, k = node.inputs[:2]
        self.n, self.heads, self.depth = q.shape[0], q.shape[1], q.shape[-1]
        self.slots, self.groups, self.length, _ = k.shape
        self.share = self.heads // self.groups
        self.few = self.cached and self.n <= STREAM_ROWS
        self.flat = self.few and flat
        self.parts = -(-self.length // KEY_SPAN) if "part" in self.params else 0
        self.spans = self.length > KEY_SPAN and not self.parts
        self.wanted = row_limit(group, 1, self.n)  # rows, or batch entries

    def kernel(self, team: Team) -> Kernel:
        """The finished kernel."""
        b = self.b
        at = self._place(team.rows)
        with team.inside():
            team.hold()
            with team.slots() as (slot, start, stop):
                self._walk(team, slot, start, stop)
            team.finish()
        rows = self.n * self.heads * (1 if self.cached else self.items)
        flops = 4 * rows * self.length * self.depth
        return b.kernel(at, team.threads, flops, traffic(self.group))

    def _place(self, rows: int) -> tuple[Value, ...]:
        """Which block of rows this group takes, from `first`, of `items`; the grid."""
        b, em = self.b, self.em
        part = b.let(b.group(1), "part") if self.flat else None
        blocks: Value
        grid: tuple[Value, ...]
        limit: Value
        longest_first = False
        if self.flat:
            self.items, limit = self.n * self.heads, self.wanted * self.heads
            grid = (ceil_div(limit, rows), max(self.parts, 1))
            block = b.group(0)
        elif self.few:
            self.items = limit = self.share
            blocks = -(-self.share // rows)
            block, part = b.group(0) % blocks, b.let(b.group(0) // blocks, "part")
            self.row = em.axis(b.group(2), self.n)
            self.kv = em.axis(b.group(1), self.groups)
            grid = (blocks * max(self.parts, 1), self.groups, self.wanted)
        else:
            self.items = self.n if self.cached else self.node.shape[2]
            limit = self.wanted if self.cached else self.items
            block, longest_first = b.group(0), self.cached or self.params["causal"]
            head = b.let(b.group(1), "head")
            self.head = em.axis(head, self.heads)
            self.kv = em.axis(b.let(head // self.share, "kv"), self.groups)
            grid = (ceil_div(limit, rows), self.heads, 1 if self.cached else self.wanted)
            self.entry = em.axis(b.group(2), 1 if self.cached else self.n)
        self.part = part if self.parts else None
        self.limit = b.let(limit, "limit")
        if longest_first:
            block = ceil_div(self.limit, rows) - 1 - block
        self.first = b.let(block * rows, "first")
        if not self.cached:
            self.keys = length_of(em, self.node, 3, self.entry)
        return grid

    def _walk(self, team: Team, slot: Expr, start: Expr, stop: Expr) -> None:
        """The rows meet keys start .. stop (bound) of a slot, span by span."""
        b = self.b
        if not self.spans:
            team.meet(slot, start, stop)
            return
        with b.loop(stop, start - start % KEY_SPAN, KEY_SPAN, "span") as span, self.em.scope():
            begin = b.let(maximum(span, start), "begin")
            team.meet(slot, begin, b.let(minimum(span + KEY_SPAN, stop), "end"))
            team.join()

    # -- places

    def item(self, at: Expr) -> Row:
        """Row `at` (bound) of the group's head; one beyond the last sees nothing."""
        b, em, node = self.b, self.em, self.node
        real = b.let(minimum(at, self.limit - 1), "real")
        if self.cached:
            if self.flat:
                row, head = affine.unflatten(em.axis(real, self.items), (self.n, self.heads))
            elif self.few:
                row = self.row
                head = affine.combine([(self.kv, self.share), (em.axis(real, self.share), 1)])
            else:
                row, head = em.axis(real, self.n), self.head
            slot, pos = slot_of(em, node, row), position_of(em, node, row)
            low, high = keys_until(pos, self.params["window"])
            index: tuple[Affine, ...] = (row, head)
        else:
            slot, t = em.expr(self.entry), self.items
            causal, window = self.params["causal"], self.params["window"]
            low, high = visible_keys(b, real, t, self.length, self.keys, causal, window)
            index = (self.entry, self.head, em.axis(real, t))
        if self.part is not None:
            low = maximum(low, self.part * KEY_SPAN)
            high = minimum(high, (self.part + 1) * KEY_SPAN)
            index = (*index, em.axis(self.part, self.parts))
        exists = at < self.limit
        q = self.base(self.views[Q], index[:2] if self.cached else index)
        return Row(slot, b.let(low, "low"), b.let(select(exists, high, 0), "high"), q, index)

    def base(self, view: View, lead: tuple[Affine, ...]) -> Expr:
        at = affine.flatten(lead, view.strides[: len(lead)], view.offset)
        return self.b.let(self.em.expr(at), "base")

    def query(self, base: Expr) -> Source:
        """The query of a row that starts at `base` (bound), as row 0."""
        view = self.views[Q]
        return Source(self.em.buffers[id(view.node)], base, 0, view.strides[-1])

    def source(self, i: int, slot: Expr, head: Expr | None = None) -> Source:
        """Keys or values of a slot, of the group's head or that of a query head (flat)."""
        view, em = self.views[i], self.em
        kv = self.kv if head is None else em.axis(head // self.share, self.groups)
        base = self.base(view, (em.axis(slot, self.slots), kv))
        return Source(em.buffers[id(view.node)], base, *view.strides[2:])

    # -- results

    def write(self, row: Row, column: Affine, value: Expr) -> None:
        """Components of a row's result; with `parts`, of its sums, its maximum and its total."""
        with self.em.scope():
            store_all(self.em, self.node, (*row.index, column), value, None)


class Team(abc.ABC):
    """Who computes a call: `rows` rows per group, from `call.first` on."""

    rows: int
    threads: tuple[int, ...]

    def __init__(self, call: Call) -> None:
        self.call, self.b, self.em = call, call.b, call.em

    def inside(self) -> AbstractContextManager[None]:
        """Around everything that a thread does."""
        return nullcontext()

    @abc.abstractmethod
    def hold(self) -> None:
        """Takes the rows; nothing has been seen."""

    @abc.abstractmethod
    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The slots of the rows, one after the other: the keys that rows there see, the first and
        the one after the last (bound)."""

    @abc.abstractmethod
    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        """The rows meet keys start .. stop of a slot: one span from nothing seen."""

    @abc.abstractmethod
    def join(self) -> None:
        """The span joins the totals."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Writes the results."""
