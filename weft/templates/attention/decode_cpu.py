"""A few query rows over a KV cache on a CPU: each key and value is read once, at bandwidth.

One group takes one row and one key/value head with all the query heads that share it. Keys are
turned in registers, so that scores run along keys as in `flash`: the same blocks, spans and sums,
hence the same bits as among many rows, and in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import KEY_SPAN, KEYS, STRANDS
from weft.graph.ir import Node
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
    cast,
    const,
    fma,
    iota,
    load,
    maximum,
    minimum,
    select,
    splat,
)
from weft.kernel.ir import F32, Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.places import keys_until, position_of, slot_of
from weft.templates.attention.softmax import (
    FLOOR,
    HIDDEN,
    capped,
    fold_strands,
    follow,
    inverse,
    join,
    joined,
    product,
)
from weft.templates.attention.transpose import transposed_16
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.pack import fold_lanes, transpose_block
from weft.templates.product.problem import View, operand


def build(group: Group, node: Node, caps: Caps) -> Kernel:
    """The kernel for one `cached_attention` call (see the composite for its meaning)."""
    return _Decode(group, node, caps).kernel()


@dataclass(frozen=True)
class Sums:
    """The state of an online softmax: weighted values, maxima, sums of weights."""

    o: ir.Array
    top: ir.Array
    total: ir.Array

    @classmethod
    def of(cls, b: Builder, rows: int, wide: int) -> Sums:
        sizes = {"o": rows * wide, "top": rows, "total": rows}
        return cls(*(b.array(n, dt.float32, size) for n, size in sizes.items()))


class _Decode:
    def __init__(self, group: Group, node: Node, caps: Caps) -> None:
        self.group, self.node = group, node
        self.b = b = Builder(group.name or "cached_attention")
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.q, self.k, self.v = (operand(group, x) for x in node.inputs[:3])
        self.n, self.heads, self.depth = node.shape
        self.slots, self.groups, self.length, _ = node.inputs[1].shape
        self.share = self.heads // self.groups  # query heads per key/value head
        self.lanes = lanes = min(caps.lanes, STRANDS)
        self.big = caps.registers >= 32
        self.block = min(KEYS, -(-self.length // STRANDS) * STRANDS)
        self.vectors = -(-self.depth // lanes)
        self.wide = self.vectors * lanes
        self.qs = b.array("q", dt.float32, self.share * self.wide)
        self.s = b.array("s", dt.float32, self.share * self.block)
        self.fade = b.array("fade", dt.float32, self.share)
        self.span = self.all = Sums.of(b, self.share, self.wide)
        if self.length > KEY_SPAN:
            self.all = Sums.of(b, self.share, self.wide)
        self.tail = None
        if self.depth % lanes:
            self.tail = b.let(iota(lanes) < self.depth % lanes, "tail")

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        self.row = em.axis(b.group(1), self.n)
        self.kv = em.axis(b.group(0), self.groups)
        place = em.axis(slot_of(em, self.node, self.row), self.slots)
        pos = position_of(em, self.node, self.row)
        self.k_base = self._base(self.k, (place, self.kv))
        self.v_base = self._base(self.v, (place, self.kv))
        self._start()
        low, high = keys_until(pos, self.params["window"])
        self.low, self.stop = b.let(low, "low"), b.let(high, "stop")
        first = b.let(self.low - self.low % self.block, "first")
        if self.all is self.span:
            self._clear(self.span)
            with b.loop(self.stop, first, step=self.block, name="k0") as k0:
                self._block(k0)
        else:
            self._clear(self.all)
            begin = self.low - self.low % KEY_SPAN
            with b.loop(self.stop, begin, step=KEY_SPAN, name="span") as span:
                self._clear(self.span)
                end = b.let(minimum(span + KEY_SPAN, self.stop), "end")
                with b.loop(end, maximum(span, first), step=self.block, name="k0") as k0:
                    self._block(k0)
                self._join()
        self._finish()
        rows = row_limit(self.group, 1, self.n)
        flops = 4 * self.n * self.heads * self.length * self.depth
        return b.kernel((self.groups, rows), (1,), flops, traffic(self.group))

    def _base(self, view: View, index: Sequence[Affine]) -> Expr:
        return self.b.let(self.em.expr(affine.flatten(index, view.strides[:2], view.offset)))

    def _columns(self, vector: int) -> Expr | None:
        return self.tail if (vector + 1) * self.lanes > self.depth else None

    def _read(self, view: View, at: Expr, mask: Expr | None) -> Expr:
        """A vector of components (f32) of q, K or V that starts at element `at`."""
        source, step = self.em.buffers[id(view.node)], view.strides[-1]
        index = at if step == 1 else at + iota(self.lanes) * step
        return cast(load(source, index, self.lanes, mask), dt.float32)

    def _start(self) -> None:
        """Widens the query heads into scratch."""
        b, em, lanes = self.b, self.em, self.lanes
        with b.loop(self.share, name="h") as h, em.scope():
            head = affine.combine([(self.kv, self.share), (em.axis(h, self.share), 1)])
            at = affine.flatten((self.row, head), self.q.strides[:2], self.q.offset)
            base = b.let(em.expr(at), "q")
            for v in range(self.vectors):
                first = base + v * lanes * self.q.strides[2]
                value = self._read(self.q, first, self._columns(v))
                b.store(self.qs, h * self.wide + v * lanes, value)

    def _clear(self, sums: Sums) -> None:
        """Nothing has been seen."""
        b, zero = self.b, const(0.0, Type(dt.float32, self.lanes))
        with b.loop(self.share, name="h") as h:
            for v in range(self.vectors):
                b.store(sums.o, h * self.wide + v * self.lanes, zero)
            b.store(sums.top, h, const(FLOOR, F32))
            b.store(sums.total, h, const(0.0, F32))

    # -- a block of keys

    def _block(self, k0: Expr) -> None:
        b = self.b
        seen = b.let(minimum(self.stop - k0, self.block), "seen")
        padded = b.let((seen + (STRANDS - 1)) // STRANDS * STRANDS, "padded")
        room = 8 if self.big else 4
        with b.loop(padded, step=self.lanes, name="c") as c:
            first = b.let(k0 + c, "first")
            key = b.let(splat(first, self.lanes) + iota(self.lanes), "key")
            visible = b.let((key >= self.low) & (key < self.stop), "visible")
            starts = self._keys(first)
            for i in range(0, self.share, room):
                heads = range(i, min(i + room, self.share))
                scores = product(b, self.depth, self._chain(first, starts, heads))
                for n, score in zip(heads, scores):
                    score = capped(b, score, self.params["scale"], self.params["softcap"])
                    b.store(self.s, c + n * self.block, select(visible, score, HIDDEN))
        with b.loop(self.share, name="h") as h:
            self._weigh(h, padded)
        self._values(k0, seen)

    def _keys(self, first: Expr) -> list[Expr]:
        """Where `lanes` keys from `first` start; those beyond the cache repeat its last."""
        b, last = self.b, self.length - 1
        starts = []
        for t in range(self.lanes):
            at = first + t if self.length % STRANDS == 0 else minimum(first + t, last)
            starts.append(b.let(self.k_base + at * self.k.strides[2], "k"))
        return starts

    def _ask_values(self, first: Expr, d: Expr) -> None:
        """Asks memory for the values of keys from `first` at the line of components `d`; where a
        line holds the components of several steps, for some of them in each."""
        source, lanes = self.em.buffers[id(self.v.node)], self.lanes
        turns = max(64 // source.dtype.itemsize // lanes, 1)
        base = self.b.let(first + d // lanes % turns, "ask")
        for t in range(0, lanes, turns):
            at = self.v_base + (base + t) * self.v.strides[2] + d * self.v.strides[3]
            self.b.prefetch(source, at)

    def _ask_keys(self, key: Expr) -> None:
        """Asks memory for a key of the next block."""
        source = self.em.buffers[id(self.k.node)]
        start = self.b.let(self.k_base + key * self.k.strides[2], "next")
        for d in range(0, self.depth, 64 // source.dtype.itemsize):
            self.b.prefetch(source, start + d * self.k.strides[3])

    def _chain(
        self, first: Expr, starts: Sequence[Expr], heads: range
    ) -> Callable[[range], list[ir.Var]]:
        """See `product`: q_h . k for some heads and `lanes` keys."""
        b, lanes = self.b, self.lanes
        zero = const(0.0, Type(dt.float32, lanes))

        def chain(part: range) -> list[ir.Var]:
            accs = [b.var(zero, "acc") for _ in heads]
            whole = part.stop - len(part) % lanes
            if whole > part.start:
                with b.loop(whole, part.start, step=lanes, name="d") as d:
                    step(d, lanes, accs)
            if whole < part.stop:
                step(const(whole), part.stop - whole, accs)
            return accs

        def step(d: Expr, count: int, accs: list[ir.Var]) -> None:
            if heads.start == 0:
                self._ask_values(first, d)
            for i, keys in enumerate(self._turned(starts, d, count)):
                for h, acc in zip(heads, accs):
                    x = splat(load(self.qs, d + (h * self.wide + i)), lanes)
                    b.assign(acc, fma(x, keys, acc))

        return chain

    def _turned(self, starts: Sequence[Expr], d: Expr, count: int) -> list[Expr]:
        """Components d .. d + count of the keys that begin at `starts`, a vector of each."""
        b, step = self.b, self.k.strides[3]
        along = b.let(d * step, "along")
        if self.lanes == 16 and step == 1 and count == 16:
            source = self.em.buffers[id(self.k.node)]
            return transposed_16(b, source, [b.let(x + along, "k") for x in starts])
        mask = self.tail if count < self.lanes else None
        rows = [b.let(self._read(self.k, x + along, mask), "k") for x in starts]
        return transpose_block(b, rows)[:count]

    def _weigh(self, h: Expr, count: Expr) -> None:
        """Scores of one head become weights."""
        b, lanes = self.b, self.lanes
        base = b.let(h * self.block, "s")
        floor, zero = (const(x, Type(dt.float32, lanes)) for x in (HIDDEN, 0.0))
        best = b.var(floor, "best")
        with b.loop(count, step=lanes, name="c") as c:
            b.assign(best, maximum(best, load(self.s, base + c, lanes)))
        old = b.let(load(self.span.top, h), "old")
        new, fade = follow(b, old, fold_lanes(b, [best], "max"))
        b.store(self.span.top, h, new)
        b.store(self.fade, h, fade)
        strands = [b.var(zero, "strand") for _ in range(0, STRANDS, lanes)]
        top = b.let(splat(new, lanes), "top")
        with b.loop(count, step=STRANDS, name="c") as c:
            for v, strand in enumerate(strands):
                at = b.let(base + c + v * lanes, "at")
                p = b.let(math.exp(b, b.let(load(self.s, at, lanes) - top, "gap")), "p")
                b.store(self.s, at, p)
                b.assign(strand, strand + p)
        old = load(self.span.total, h)
        b.store(self.span.total, h, fma(old, fade, fold_strands(b, [strands])))

    def _values(self, k0: Expr, seen: Expr) -> None:
        """o[h] = o[h] * fade + sum over keys of p[h][key] * v[key]: V is read once for a few heads
        at a time, then again from the cache."""
        room = 16 if self.big else 8
        columns = min(self.vectors, room)
        heads = 1
        while heads * 2 * columns <= room and self.share % (heads * 2) == 0:
            heads *= 2
        for start in range(0, self.vectors, columns):
            part = range(start, min(start + columns, self.vectors))
            with self.b.loop(self.share, step=heads, name="h") as h:
                self._value_tile(k0, seen, [h + i for i in range(heads)], part)

    def _value_tile(self, k0: Expr, seen: Expr, heads: Sequence[Expr], columns: range) -> None:
        b, lanes, o = self.b, self.lanes, self.span.o
        heads = [b.let(h, "h") for h in heads]
        fades = [b.let(splat(load(self.fade, h), lanes), "fade") for h in heads]
        spots = [[b.let(h * self.wide + v * lanes, "o") for v in columns] for h in heads]
        acc = [
            [b.var(load(o, at, lanes) * fade, "acc") for at in line]
            for line, fade in zip(spots, fades)
        ]
        with b.loop(seen, name="j") as j:
            base = b.let(self.v_base + (k0 + j) * self.v.strides[2], "v")
            self._ask_keys(k0 + self.block + j)
            vs = []
            for v in columns:
                at = base + v * lanes * self.v.strides[3]
                vs.append(b.let(self._read(self.v, at, self._columns(v)), "v"))
            for h, line in zip(heads, acc):
                p = b.let(splat(load(self.s, h * self.block + j), lanes), "p")
                for var, value in zip(line, vs):
                    b.assign(var, fma(p, value, var))
        for marks, line in zip(spots, acc):
            for at, var in zip(marks, line):
                b.store(o, at, var)

    # -- results

    def _join(self) -> None:
        """The span just walked joins the heads' totals."""
        b, lanes, every, span = self.b, self.lanes, self.all, self.span
        with b.loop(self.share, name="h") as h:
            new, fade, by = join(b, load(every.top, h), load(span.top, h))
            b.store(every.top, h, new)
            total = joined(load(every.total, h), load(span.total, h), fade, by)
            b.store(every.total, h, total)
            fade, by = (b.let(splat(x, lanes), "by") for x in (fade, by))
            for v in range(self.vectors):
                at = b.let(h * self.wide + v * lanes, "at")
                old = load(every.o, at, lanes)
                b.store(every.o, at, joined(old, load(span.o, at, lanes), fade, by))

    def _finish(self) -> None:
        b, em, lanes = self.b, self.em, self.lanes
        with b.loop(self.share, name="h") as h, em.scope():
            by = inverse(b, b.let(load(self.all.total, h), "total"))
            by = b.let(splat(by, lanes), "by")
            head = affine.combine([(self.kv, self.share), (em.axis(h, self.share), 1)])
            for v in range(self.vectors):
                value = b.let(load(self.all.o, h * self.wide + v * lanes, lanes) * by, "y")
                index = (self.row, head, em.lane(lanes) + v * lanes)
                with em.scope():
                    store_all(em, self.node, index, value, self._columns(v))
