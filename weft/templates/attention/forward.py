"""Attention: both composites, parts of a decoding step, and the rows' log-sum-exp alone.

A group takes a block of rows under one key/value head: query rows of one head, or, where there are
few (decoding), the query heads that share it. Keys pass in blocks and spans at fixed places
(weft/core/order.py); a `ForwardWorker` computes: a thread per row, or
threads that share tiles. With
`parts` a group takes one span and hands its state over, for `merge` to join in the same way; so a
row has the same bits however many there are.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import KEY_SPAN, STEP_ROWS, STREAM_ROWS
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.expr import Value, ceil_div, const, maximum, minimum, select
from weft.kernel.ir import Expr, Kernel
from weft.ops.attention import PAGE, beside, cache_shape
from weft.ops.attention_grad import UNSEEN
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.positions import (
    keys_until,
    length_of,
    page_of,
    position_of,
    slot_of,
    visible_keys,
)
from weft.templates.attention.softmax import log_sum, with_sink
from weft.templates.emit import Emitter
from weft.templates.following import store_all
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, traffic
from weft.templates.operand import Reader
from weft.templates.view import OperandView, operand

Q, K, V = range(3)


def cached(node: Node) -> bool:
    """True if the keys belong to a cache."""
    return str(node.attrs["name"]).startswith("cached")


def scaled(node: Node) -> bool:
    """True if the keys and values are int8 with a scale per row, the call's sixth operand."""
    return cached(node) and bool(beside(node.inputs[5:])[0])


def sinks_of(node: Node) -> Node | None:
    """The scores of a key without a value that each head has, where the call has them: last."""
    return next(iter(beside(node.inputs[5:])[2]), None) if cached(node) else None


def table_of(node: Node) -> Node | None:
    """Returns the table of pages of each slot, or None for a cache without pages."""
    return next(iter(beside(node.inputs[5:])[1]), None) if cached(node) else None


def few(node: Node) -> bool:
    """True for a decoding step, whose blocks hold heads. Most rows of a paged cache belong to
    different sequences, which a block of rows would take one after the other."""
    most = STREAM_ROWS if table_of(node) is None else STEP_ROWS
    return cached(node) and node.shape[0] <= most


def operands(node: Node) -> tuple[Node, ...]:
    """The query, the keys and, unless the call is `attention_lse`, the values."""
    return node.inputs[: 2 if node.attrs["name"] == "attention_lse" else 3]


Source = Callable[[Expr], Reader]
"""Keys or values of a slot by their positions, in the block of KEYS that holds the one given."""


@dataclass(frozen=True)
class QueryRow:
    """A row: its cache slot (or batch entry) and the keys it sees, none if there is no such row
    (all bound); its index in the query and in the result."""

    slot: Expr
    low: Expr
    high: Expr
    index: tuple[Affine, ...]


class ForwardKernel:
    """One call: its rows, the keys they see, and the places of results. `few`: rows of a group are
    query heads. `flat`: rows of a group belong to all sequences (else to one key/value head).
    `statistics`: without values; the rows' log-sum-exp is the result."""

    def __init__(self, group: Group, node: Node, caps: Caps, flat: bool = False) -> None:
        self.group, self.node, self.caps = group, node, caps
        self.params = node.attrs["params"]
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.views = [operand(group, x) for x in operands(node)]
        self.passing = (K, V)[: len(self.views) - 1]
        self.cached, self.statistics = cached(node), len(self.views) == 2
        self.scales = operand(group, node.inputs[5]) if scaled(node) else None
        self.sinks, self.table = sinks_of(node), table_of(node)
        q, k = node.inputs[:2]
        self.n, self.heads, self.depth = q.shape[0], q.shape[1], q.shape[-1]
        more = node.inputs[5:] if self.cached else ()
        self.slots, self.groups, self.length = cache_shape(k, more)
        self.share = self.heads // self.groups
        self.few = few(node)
        self.flat = self.few and flat
        self.parts = -(-self.length // KEY_SPAN) if "part" in self.params else 0
        self.spans = self.length > KEY_SPAN and not (self.parts or self.statistics)
        self.count = self.n if self.cached else node.shape[2]  # rows per head
        # rows see different numbers of keys
        self.growing = not self.few and (self.cached or self.params["causal"])
        self.wanted = bounded_rows(group, self.n)  # rows, or batch entries

    def kernel(self, worker: ForwardWorker) -> Kernel:
        """The finished kernel."""
        b = self.b
        at = self._place(worker.rows)
        with worker.inside():
            worker.hold()
            with worker.slots() as (slot, start, stop):
                self._walk(worker, slot, start, stop)
            worker.finish()
        rows = self.n * self.heads * (1 if self.cached else self.items)
        products = 2 * len(self.passing) * rows * self.length * self.depth
        flops = products // (2 if self.growing else 1)
        return b.kernel(at, worker.threads, flops, traffic(self.group))

    def _place(self, rows: int) -> tuple[Value, ...]:
        """Sets the block of rows that this group takes, from `first`, of `items`; returns the
        grid."""
        b, em = self.b, self.em
        part = b.let(b.group(1), "part") if self.flat else None
        blocks: Value
        grid: tuple[Value, ...]
        limit: Value
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
            self.items = self.count
            limit = self.wanted if self.cached else self.items
            block = b.group(0)
            head = b.let(b.group(1), "head")
            self.head = em.axis(head, self.heads)
            self.kv = em.axis(b.let(head // self.share, "kv"), self.groups)
            grid = (ceil_div(limit, rows), self.heads, 1 if self.cached else self.wanted)
            self.entry = em.axis(b.group(2), 1 if self.cached else self.n)
        self.part = part if self.parts else None
        self.limit = b.let(limit, "limit")
        if self.growing:  # the longest rows first
            block = ceil_div(self.limit, rows) - 1 - block
        self.first = b.let(block * rows, "first")
        if not self.cached:
            self.keys = length_of(em, self.node, len(self.views), self.entry)
        return grid

    def _walk(self, worker: ForwardWorker, slot: Expr, start: Expr, stop: Expr) -> None:
        """The rows meet keys start .. stop (bound) of a slot, span by span."""
        b = self.b
        if not self.spans:
            worker.meet(slot, start, stop)
            return
        with b.loop(stop, start - start % KEY_SPAN, KEY_SPAN, "span") as span, self.em.scope():
            begin = b.let(maximum(span, start), "begin")
            worker.meet(slot, begin, b.let(minimum(span + KEY_SPAN, stop), "end"))
            worker.join()

    # -- places

    def index(self, at: Expr) -> tuple[Affine, ...]:
        """Row `at` of the group's head, which exists, in the query and in the result."""
        em = self.em
        if self.flat:
            return affine.unflatten(em.axis(at, self.items), (self.n, self.heads))
        if self.few:
            return self.row, affine.combine([(self.kv, self.share), (em.axis(at, self.share), 1)])
        if self.cached:
            return em.axis(at, self.n), self.head
        return self.entry, self.head, em.axis(at, self.items)

    def item(self, at: Expr) -> QueryRow:
        """Row `at` (bound) of the group's head; one beyond the last sees nothing."""
        b, em, node, params = self.b, self.em, self.node, self.params
        real = b.let(minimum(at, self.limit - 1), "real")
        index = self.index(real)
        if self.cached:
            slot, pos = slot_of(em, node, index[0]), position_of(em, node, index[0])
            low, high = keys_until(pos, params["window"])
        else:
            slot, t = em.expr(self.entry), self.items
            causal, window = params["causal"], params["window"]
            low, high = visible_keys(b, real, t, self.length, self.keys, causal, window)
        if self.part is not None:
            low = maximum(low, self.part * KEY_SPAN)
            high = minimum(high, (self.part + 1) * KEY_SPAN)
        high = b.let(select(at < self.limit, high, 0), "high")
        return QueryRow(slot, b.let(low, "low"), high, index)

    @property
    def one_slot(self) -> bool:
        """True if all rows of the group meet the same keys and values."""
        return not self.cached or self.few

    def range(self, rows: int) -> tuple[Expr, Expr]:
        """The first key that any of the group's `rows` rows sees and the one after the last (bound,
        the same in every thread), where they have one slot: then later rows see no earlier keys."""
        b, first = self.b, self.first
        low = self.item(first).low
        high = self.item(b.let(minimum(first + (rows - 1), self.limit - 1), "last")).high
        return b.let(minimum(low, high), "start"), high

    def queries(self) -> Reader:
        """The query of the group's head: its rows as they are counted (not flat)."""
        view, axis = self.views[Q], 1 if self.few else 0 if self.cached else 2
        return self._reader(view, self.index(const(0)), view.strides[axis])

    def start(self, row: QueryRow) -> Expr:
        """Returns the start of a row's query (bound)."""
        return self._base(self.views[Q], row.index)

    def query(self, start: Expr) -> Reader:
        """The query that starts there, as row 0."""
        view = self.views[Q]
        return Reader(self.em.buffers[id(view.node)], start, 0, view.strides[-1], dt.float32)

    def source(self, i: int, slot: Expr, head: Expr | None = None) -> Source:
        """Keys or values of a slot, of the group's head or that of a query head (flat)."""
        em, table = self.em, self.table
        kv = self.kv if head is None else em.axis(head // self.share, self.groups)
        at = em.axis(slot, self.slots)
        if table is None:
            whole = self._rows(i, (at, kv))
            return lambda key: whole

        def of_page(key: Expr) -> Reader:
            key = self.b.let(key, "key")
            with em.scope():
                page = self._rows(i, (kv, page_of(em, self.node, table, at, key)))
            return page.row(self.b, -(key // PAGE * PAGE))

        return of_page

    def _rows(self, i: int, lead: tuple[Affine, ...]) -> Reader:
        """Keys or values of one slot and key/value head, or of one head and page."""
        view = self.views[i]
        reader = self._reader(view, lead, view.strides[2])
        if (by := self.scales) is None:
            return reader
        start = self.b.let(self._base(by, lead) + (i - K) * by.strides[3], "base")
        scales = Reader(self.em.buffers[id(by.node)], start, by.strides[2], 0, dt.float32)
        return replace(reader, scales=scales)

    def _reader(self, view: OperandView, lead: tuple[Affine, ...], row: int) -> Reader:
        base, source = self._base(view, lead), self.em.buffers[id(view.node)]
        return Reader(source, base, row, view.strides[-1], dt.float32)

    def _base(self, view: OperandView, lead: tuple[Affine, ...]) -> Expr:
        at = affine.flatten(lead, view.strides[: len(lead)], view.offset)
        return self.b.let(self.em.expr(at), "base")

    # -- results

    def whole(self, index: tuple[Affine, ...], top: Expr, total: Expr) -> Expr:
        """The total (bound) of a row, with its head's sink where there are sinks."""
        if self.sinks is None:
            return total
        with self.em.scope():
            return with_sink(self.b, total, top, self.em.value(self.sinks, index[1:2]))

    def write(
        self, index: tuple[Affine, ...], column: Affine, value: Expr, mask: Expr | None = None
    ) -> None:
        """Components of a row's result; with `parts`, of its sums."""
        part = () if self.part is None else (self.em.axis(self.part, self.parts),)
        with self.em.scope():
            store_all(self.em, self.node, (*index, *part, column), value, mask)

    def write_state(self, index: tuple[Affine, ...], *state: Expr) -> None:
        """Writes a row's maximum and total if there are `parts`, else its log-sum-exp."""
        if self.part is None:
            with self.em.scope():
                top, total = (self.b.let(x, "state") for x in state)
                lse = log_sum(self.b, top, total, UNSEEN)
                store_all(self.em, self.node, index, lse, None)
            return
        for i, x in enumerate(state):
            with self.em.scope():
                at = (*index, self.em.axis(self.part, self.parts), affine.number(i))
                store_all(self.em, self.group.results[1], at, self.b.let(x, "y"), None)


class ForwardWorker(abc.ABC):
    """The worker of a call: `rows` rows per group, from `call.first` on."""

    rows: int
    threads: tuple[int, ...]

    def __init__(self, call: ForwardKernel) -> None:
        self.call, self.b, self.em = call, call.b, call.em

    def inside(self) -> AbstractContextManager[None]:
        """Wraps everything that a thread does."""
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
