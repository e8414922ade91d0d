"""recurrence: row after row, with the memory close to the one worker that keeps it.

A worker has some columns of one head's memory, which other columns never touch. All rows pass it in
order. So sums are chains of fused multiply-adds in ascending order of the key's elements. They do
not depend on how a prompt was cut into steps, or on other sequences in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, kernel_name, traffic, useful_lanes
from weft.templates.registry import template

_THREADS = 64  # threads of a group on a GPU, a column each
_VECTORS = 4  # vectors of columns that a CPU takes together: that many chains hide a sum's latency
_REGISTERS = 128  # of a column's elements that a GPU's thread keeps in registers
_HELD = 1 << 13  # most elements that a worker of a CPU keeps


@template("recurrence")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `recurrence` call (see weft.ops.recurrence)."""
    assert group.anchor is not None
    node, b = group.anchor, Builder(kernel_name(group))
    em = Emitter(b, group, caps)
    _, heads, depth, width = node.inputs[-1].shape
    flops = (7 if len(node.inputs) == 7 else 5) * node.size * depth
    if not caps.is_cpu:
        threads = min(_THREADS, caps.max_threads)
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < heads * width), em.scope():
            head, column = affine.divide(em.axis(at, heads * width), width)
            _MemoryColumns(em, group, head, [column], 1).walk()
        grid = kb.ceil_div(heads * width, threads)
        return b.kernel((grid,), (threads,), flops, traffic(group))
    lanes = useful_lanes(caps, width)
    vectors = max(1, min(_VECTORS, -(-width // lanes), _HELD // (depth * lanes)))
    wide = lanes * vectors
    parts = -(-width // wide)
    head, part = affine.divide(em.axis(b.group(0), heads * parts), parts)
    columns = [part * wide + u * lanes + em.lane(lanes) for u in range(vectors)]
    _MemoryColumns(em, group, head, columns, lanes).walk()
    return b.kernel((heads * parts,), flops=flops, bytes=traffic(group))


class _MemoryColumns:
    """Columns of one head's memory, `lanes` of them in each vector."""

    def __init__(
        self, em: Emitter, group: Group, head: Affine, columns: list[Affine], lanes: int
    ) -> None:
        assert group.anchor is not None
        self.em, self.b, self.group, self.node = em, em.b, group, group.anchor
        self.q, self.k, self.v, self.decay, *self.rates, self.slot, self.memory = self.node.inputs
        self.after: Node = group.results[1]
        self.head, self.columns, self.lanes = head, columns, lanes
        self.slots, heads, self.depth, self.width = self.memory.shape
        groups = self.q.shape[1]
        tiled = self.node.attrs["params"]["tiled"]
        whole, rest = affine.divide(head, groups if tiled else heads // groups)
        self.key_head = rest if tiled else whole
        self.kind = Type(dt.float32, lanes)
        self.wide = lanes * len(columns)
        self.held = self.b.array("memory", dt.float32, self.depth * self.wide)
        # Registers have no addresses: loops over a column that they hold are unrolled. (Compilers
        # of shaders take too long for so much text.)
        self.unroll = em.caps.subgroup > 0 and self.depth <= _REGISTERS
        full = self.width % self.wide == 0 or lanes == 1
        self.masks = [None if full else self._inside(column) for column in columns]

    def _inside(self, column: Affine) -> Expr:
        return self.b.let(kb.binary("lt", self.em.expr(column), self.width), "inside")

    def walk(self) -> None:
        b, em = self.b, self.em
        if not self.group.in_place:
            self._copy()
        rows = self.node.shape[0]
        stop = b.let(bounded_rows(self.group, rows), "rows")
        with b.loop(stop, name="r") as r, em.scope():
            row = em.axis(r, rows)
            near = [em.axis(x, rows) for x in (kb.maximum(r - 1, 0), kb.minimum(r + 1, stop - 1))]
            before, slot, later = (self._slot(x) for x in (near[0], row, near[1]))
            place = em.axis(slot, self.slots)
            with b.when(b.let(em.value(self.slot, (row,)) < 0, "begins")):
                self._each(lambda i, u: kb.const(0.0, self.kind))
            with b.otherwise(), b.when(kb.eq(r, 0) | kb.ne(before, slot)), em.scope():
                self._each(lambda i, u: em.value(self.memory, self._at(place, i, u)))
            self._step(row)
            with b.when(kb.eq(r, stop - 1) | kb.ne(later, slot)), em.scope():
                self._put(place, self._kept)

    def _slot(self, row: Affine) -> Expr:
        given = self.em.value(self.slot, (row,))
        return self.b.let(kb.minimum(kb.maximum(given, -1 - given), self.slots - 1), "slot")

    def _at(self, slot: Affine, i: Affine, u: int) -> tuple[Affine, ...]:
        return slot, self.head, i, self.columns[u]

    def _kept(self, i: Affine, u: int) -> Expr:
        at = self.em.expr(i * self.wide + u * self.lanes)
        return self.b.let(kb.load(self.held, at, self.lanes), "kept")

    def _elements(self, body: Callable[[Affine, int], None]) -> None:
        """body(element of the key, vector) under the vector's mask."""
        b, em = self.b, self.em
        with b.loop(self.depth, name="i", unroll=self.unroll) as i, em.scope():
            at = em.axis(i, self.depth)
            for u, mask in enumerate(self.masks):
                with em.masked(mask):
                    body(at, u)

    def _each(self, value: Callable[[Affine, int], Expr]) -> None:
        """Keeps value(element, vector) of all of them."""
        self._elements(lambda i, u: self._keep(i, u, value(i, u)))

    def _keep(self, i: Affine, u: int, value: Expr) -> None:
        self.b.store(self.held, self.em.expr(i * self.wide + u * self.lanes), value)

    def _put(self, slot: Affine, value: Callable[[Affine, int], Expr]) -> None:
        self._elements(lambda i, u: self.em.put(self.after, self._at(slot, i, u), value(i, u)))

    def _copy(self) -> None:
        """All memories as they were: those of slots without rows stay so."""
        with self.b.loop(self.slots, name="s") as s, self.em.scope():
            slot = self.em.axis(s, self.slots)
            self._put(slot, lambda i, u: self.em.value(self.memory, self._at(slot, i, u)))

    def _step(self, row: Affine) -> None:
        """One row: what is learned of its key, what its query reads."""
        b, em, rank = self.b, self.em, len(self.decay.shape)
        whole = em.value(self.decay, (row, self.head)) if rank == 2 else None

        def faded(i: Affine, u: int) -> Expr:
            kept = self._kept(i, u)
            return kept * (self._decay(row, i, u) if whole is None else whole)

        learned = self._learned(row, whole, faded)
        out = [b.var(0.0, "out", self.kind) for _ in self.columns]

        def learn(i: Affine, u: int) -> None:
            at = (row, self.key_head, i)
            key, query = (kb.splat(em.value(x, at), self.lanes) for x in (self.k, self.q))
            new = b.let(kb.fma(key, learned[u], faded(i, u)), "new")
            self._keep(i, u, new)
            b.assign(out[u], kb.fma(new, query, out[u]))

        self._elements(learn)
        scale = self.node.attrs["params"]["scale"]
        for total, column, mask in zip(out, self.columns, self.masks):
            with em.masked(mask):
                em.put(self.node, (row, self.head, column), total * scale)

    def _decay(self, row: Affine, i: Affine, u: int) -> Expr:
        """The decay of an element of the key, or of the elements of a vector."""
        if len(self.decay.shape) == 3:
            return kb.splat(self.em.value(self.decay, (row, self.head, i)), self.lanes)
        at = (row, self.head, i, self.columns[u])
        return self.b.let(kb.splat(self.em.value(self.decay, at), self.lanes), "decay")

    def _learned(
        self, row: Affine, whole: Expr | None, faded: Callable[[Affine, int], Expr]
    ) -> list[Expr]:
        """Returns the news for each vector: the row's values; by the delta rule, a part of what its
        key does not recall. `whole` is the head's decay, which a sum needs only once."""
        b, em = self.b, self.em
        rates = [em.value(rate, (row, self.head)) for rate in self.rates]
        sums = [b.var(0.0, "recalled", self.kind) for _ in self.columns if rates]

        def recall(i: Affine, u: int) -> None:
            key = kb.splat(em.value(self.k, (row, self.key_head, i)), self.lanes)
            kept = faded(i, u) if whole is None else self._kept(i, u)
            b.assign(sums[u], kb.fma(kept, key, sums[u]))

        if rates:
            self._elements(recall)
        learned = []
        for u, (column, mask) in enumerate(zip(self.columns, self.masks)):
            with em.masked(mask):
                value = kb.splat(em.value(self.v, (row, self.head, column)), self.lanes)
            for rate in rates:
                known = sums[u] if whole is None else sums[u] * whole
                value = (value - known) * rate
            learned.append(b.let(value, "learned"))
        return learned
