"""A few query rows over a KV cache on a CPU: each key and value is read once, at bandwidth.

One group takes one row and one key/value head with all the query heads that share it. Positions
are walked in blocks of fixed size: scores of `lanes` keys at a time (lanes along D, then one
shuffle tree), the online softmax's maximum and sum per block, then weights times V. The order
depends on positions only, so a row's result is the same bit for bit in any batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
    binary,
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
from weft.templates.attention.softmax import FLOOR, HIDDEN, capped
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.pack import fold_lanes
from weft.templates.product.problem import View, operand


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `cached_attention` call (see the composite for its meaning)."""
    return _Decode(group, node, caps, config).kernel()


class _Decode:
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        self.group, self.node = group, node
        self.b = b = Builder(group.name or "cached_attention")
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.q, self.k, self.v = (operand(group, x) for x in node.inputs[:3])
        self.n, self.heads, self.depth = node.shape
        self.slots, self.groups, self.length, _ = node.inputs[1].shape
        self.share = self.heads // self.groups  # query heads per key/value head
        self.lanes = lanes = caps.lanes
        self.big = caps.registers >= 32
        self.block = max(config.get("keys", 128), lanes)
        self.vectors = -(-self.depth // lanes)
        self.wide = self.vectors * lanes
        self.qs = b.array("q", dt.float32, self.share * self.wide)
        self.s = b.array("s", dt.float32, self.share * self.block)
        self.o = b.array("o", dt.float32, self.share * self.wide)
        self.top = b.array("top", dt.float32, self.share)
        self.total = b.array("total", dt.float32, self.share)
        self.tail = None
        if self.depth % lanes:
            self.tail = b.let(iota(lanes) < self.depth % lanes, "tail")

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        self.row = em.axis(b.group(1), self.n)
        self.kv = em.axis(b.group(0), self.groups)
        slot = em.value(self.node.inputs[3], (self.row,))
        place = em.axis(minimum(maximum(slot, 0), self.slots - 1), self.slots)
        pos = b.let(minimum(em.value(self.node.inputs[4], (self.row,)), self.length - 1), "pos")
        self.k_base = self._base(self.k, (place, self.kv))
        self.v_base = self._base(self.v, (place, self.kv))
        self._start()
        self.stop = b.let(maximum(pos + 1, 0), "stop")
        self.low: Expr = const(0)
        if self.params["window"]:
            self.low = b.let(maximum(pos - (self.params["window"] - 1), 0), "low")
        begin = self.low - self.low % self.block
        with b.loop(self.stop, begin, step=self.block, name="k0") as k0:
            self._block(k0)
        self._finish()
        rows = row_limit(self.group, 1, self.n)
        flops = 4 * self.n * self.heads * self.length * self.depth
        return b.kernel((self.groups, rows), (1,), flops, traffic(self.group))

    def _base(self, view: View, index: Sequence[Affine]) -> Expr:
        return self.b.let(self.em.expr(affine.flatten(index, view.strides[:2], view.offset)))

    def _columns(self, vector: int) -> Expr | None:
        return self.tail if (vector + 1) * self.lanes > self.depth else None

    def _read(self, view: View, at: Expr, vector: int) -> Expr:
        """A vector of components (f32) of a row of K or V that starts at element `at` (bound)."""
        source, step = self.em.buffers[id(view.node)], view.strides[3]
        mask = self._columns(vector)
        first = vector * self.lanes
        if step == 1:
            value = load(source, at + first, self.lanes, mask)
        else:
            value = load(source, at + (iota(self.lanes) + first) * step, self.lanes, mask)
        return cast(value, dt.float32)

    def _start(self) -> None:
        """Widens the query heads into scratch; nothing has been seen yet."""
        b, em, lanes = self.b, self.em, self.lanes
        zero = const(0.0, Type(dt.float32, lanes))
        with b.loop(self.share, name="h") as h, em.scope():
            head = affine.combine([(self.kv, self.share), (em.axis(h, self.share), 1)])
            at = affine.flatten((self.row, head), self.q.strides[:2], self.q.offset)
            base = b.let(em.expr(at), "q")
            for v in range(self.vectors):
                source, step = em.buffers[id(self.q.node)], self.q.strides[2]
                index = base + v * lanes
                if step != 1:
                    index = base + (iota(lanes) + v * lanes) * step
                value = cast(load(source, index, lanes, self._columns(v)), dt.float32)
                b.store(self.qs, h * self.wide + v * lanes, value)
                b.store(self.o, h * self.wide + v * lanes, zero)
            b.store(self.top, h, const(FLOOR, F32))
            b.store(self.total, h, const(0.0, F32))

    def _block(self, k0: Expr) -> None:
        b = self.b
        seen = b.let(minimum(self.stop - k0, self.block), "seen")
        last = self.length - 1
        with b.loop(seen, step=self.lanes, name="c") as c:
            first = b.let(k0 + c, "first")
            key = b.let(splat(first, self.lanes) + iota(self.lanes), "key")
            visible = (key >= self.low) & (key < self.stop)
            visible = b.let(visible, "visible")
            starts = []
            for t in range(self.lanes):
                at = first + t if self.length % self.lanes == 0 else minimum(first + t, last)
                starts.append(b.let(self.k_base + at * self.k.strides[2], "k"))
            with b.loop(self.share, name="h") as h:
                self._scores(h, c, starts, visible)
        with b.loop(self.share, name="h") as h:
            fade = self._weigh(h, seen)
            self._fade(h, fade)
        self._values(k0, seen)

    def _scores(self, h: Expr, c: Expr, starts: Sequence[Expr], visible: Expr) -> None:
        """s[h][c ..] = q_h . k for `lanes` keys, hidden ones far below."""
        b, lanes = self.b, self.lanes
        zero = const(0.0, Type(dt.float32, lanes))
        accs: list[Expr] = [zero] * lanes
        for v in range(self.vectors):
            q = b.let(load(self.qs, h * self.wide + v * lanes, lanes), "q")
            accs = [
                b.let(fma(q, self._read(self.k, start, v), acc), "acc")
                for start, acc in zip(starts, accs)
            ]
        score = b.let(fold_lanes(b, accs), "score")
        score = b.let(capped(b, score, self.params["scale"], self.params["softcap"]), "score")
        b.store(self.s, h * self.block + c, select(visible, score, HIDDEN))

    def _weigh(self, h: Expr, seen: Expr) -> Expr:
        """Scores of one head become weights; returns what the past must be multiplied by."""
        b, lanes = self.b, self.lanes
        base = b.let(h * self.block, "s")
        top = b.var(const(HIDDEN, Type(dt.float32, lanes)), "top")
        with b.loop(seen, step=lanes, name="c") as c:
            b.assign(top, maximum(top, load(self.s, base + c, lanes)))
        old = b.let(load(self.top, h), "old")
        new = b.let(maximum(old, fold_lanes(b, [top], "max")), "new")
        fade = b.let(math.exp(b, b.let(old - new, "fall")), "fade")
        b.store(self.top, h, new)
        total = b.var(const(0.0, Type(dt.float32, lanes)), "total")
        wide = b.let(splat(new, lanes), "wide")
        with b.loop(seen, step=lanes, name="c") as c:
            at = b.let(base + c, "at")
            p = b.let(math.exp(b, b.let(load(self.s, at, lanes) - wide, "gap")), "p")
            b.store(self.s, at, p)
            b.assign(total, total + p)
        kept = load(self.total, h) * fade
        b.store(self.total, h, kept + fold_lanes(b, [total]))
        return fade

    def _fade(self, h: Expr, fade: Expr) -> None:
        b, lanes = self.b, self.lanes
        by = b.let(splat(fade, lanes), "by")
        for v in range(self.vectors):
            at = b.let(h * self.wide + v * lanes, "at")
            b.store(self.o, at, load(self.o, at, lanes) * by)

    def _values(self, k0: Expr, seen: Expr) -> None:
        """o[h] += sum over keys of p[h][key] * v[key]: V is read once for a few heads at a time,
        then again from the cache."""
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
        b, lanes = self.b, self.lanes
        heads = [b.let(h, "h") for h in heads]
        spots = [[b.let(h * self.wide + v * lanes, "o") for v in columns] for h in heads]
        acc: list[list[ir.Var]] = [
            [b.var(load(self.o, at, lanes), "acc") for at in line] for line in spots
        ]
        with b.loop(seen, name="j") as j:
            base = b.let(self.v_base + (k0 + j) * self.v.strides[2], "v")
            vs = [b.let(self._read(self.v, base, v), "v") for v in columns]
            for h, line in zip(heads, acc):
                p = b.let(splat(load(self.s, h * self.block + j), lanes), "p")
                for var, value in zip(line, vs):
                    b.assign(var, fma(p, value, var))
        for marks, line in zip(spots, acc):
            for at, var in zip(marks, line):
                b.store(self.o, at, var)

    def _finish(self) -> None:
        b, em, lanes = self.b, self.em, self.lanes
        one = const(1.0, F32)
        with b.loop(self.share, name="h") as h, em.scope():
            total = b.let(load(self.total, h), "total")
            some = b.let(total > 0.0, "some")
            inverse = select(some, binary("div", one, select(some, total, one)), 0.0)
            by = b.let(splat(b.let(inverse, "inverse"), lanes), "by")
            head = affine.combine([(self.kv, self.share), (em.axis(h, self.share), 1)])
            for v in range(self.vectors):
                value = b.let(load(self.o, h * self.wide + v * lanes, lanes) * by, "y")
                index = (self.row, head, em.lane(lanes) + v * lanes)
                with em.scope():
                    store_all(em, self.node, index, value, self._columns(v))
