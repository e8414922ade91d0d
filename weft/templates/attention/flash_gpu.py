"""Both attention composites in many threads, with an online softmax; no matrix of scores exists.

With cheap barriers a group takes one query row of one head: threads share out the keys of a block,
meet to find its maximum and sum, then share out the columns of V. Where barriers are dear one
thread takes a row alone. A row's result never depends on other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
    as_expr,
    binary,
    cast,
    ceil_div,
    const,
    extract,
    fma,
    load,
    maximum,
    minimum,
    select,
)
from weft.kernel.ir import F32, Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.places import visible_keys
from weft.templates.attention.softmax import FLOOR, HIDDEN, capped
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import View, operand
from weft.templates.view import Index

KEYS = 8  # keys per step where one thread works alone


@dataclass(frozen=True)
class Row:
    """One query row: where its operands start, which keys it sees, where its result goes."""

    q: Expr
    k: Expr
    v: Expr
    low: Expr
    high: Expr
    index: Index


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention` or `cached_attention` call (see the composites)."""
    return _Gpu(group, node, caps, config).kernel()


class _Gpu:
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        self.group, self.node = group, node
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.views = tuple(operand(group, x) for x in node.inputs[:3])
        self.cached = node.attrs["name"] == "cached_attention"
        self.heads, self.depth = node.shape[1], node.shape[-1]
        self.count = node.shape[0] if self.cached else node.shape[2]
        self.groups, self.keys = node.inputs[1].shape[1:3]
        self.together = config.get("shared", caps.cheap_barrier)
        limit = 128 if self.together else 64
        self.threads = config.get("threads", min(limit, caps.max_threads))

    def kernel(self) -> Kernel:
        b, node = self.b, self.node
        batch = 1 if self.cached else node.shape[0]
        bounded = row_limit(self.group, 1, node.shape[0])
        rows: Any = bounded if self.cached else self.count
        grid = (
            rows if self.together else ceil_div(rows, self.threads),
            self.heads,
            1 if self.cached else bounded,
        )
        self.head = b.let(b.group(1), "head")
        self.bi = self.em.axis(b.group(2), batch)
        if self.together:
            self._together(self._row(b.let(b.group(0), "row")))
        else:
            at = b.let(b.group(0) * self.threads + b.thread(0), "row")
            with b.when(at < self.count), self.em.scope():
                self._alone(self._row(at))
        flops = 4 * batch * self.count * self.heads * self.keys * self.depth
        return b.kernel(grid, (self.threads,), flops, traffic(self.group))

    # -- places

    def _row(self, at: Expr) -> Row:
        b, em, node = self.b, self.em, self.node
        h = em.axis(self.head, self.heads)
        share = self.heads // self.groups
        kv = em.axis(b.let(self.head // share, "kv_head"), self.groups)
        row = em.axis(at, self.count)
        index: Index
        if self.cached:
            slots = node.inputs[1].shape[0]
            slot = minimum(maximum(em.value(node.inputs[3], (row,)), 0), slots - 1)
            pos = b.let(minimum(em.value(node.inputs[4], (row,)), self.keys - 1), "pos")
            place, index = em.axis(slot, slots), (row, h)
            window = self.params["window"]
            low: Expr = maximum(pos - (window - 1), 0) if window else const(0)
            high = maximum(pos + 1, 0)
        else:
            length: Expr = const(self.keys)
            if len(node.inputs) == 4:
                length = b.let(minimum(em.value(node.inputs[3], (self.bi,)), self.keys), "length")
            low, high = visible_keys(
                b, at, self.count, self.keys, length, self.params["causal"], self.params["window"]
            )
            place, index = self.bi, (self.bi, h, row)
        q, k, v = self.views
        return Row(
            self._base(q, index), self._base(k, (place, kv)), self._base(v, (place, kv)),
            b.let(low, "low"), b.let(high, "high"), index,
        )  # fmt: skip

    def _base(self, view: View, lead: tuple[Affine, ...]) -> Expr:
        at = affine.flatten(lead, view.strides[: len(lead)], view.offset)
        return self.b.let(self.em.expr(at), "base")

    def _element(self, i: int, at: Expr) -> Expr:
        return cast(load(self.em.buffers[id(self.views[i].node)], at), dt.float32)

    def _score(self, q: ir.Array, k_row: Expr) -> Expr:
        """q . k for the key whose components start at element `k_row` (bound), scaled."""
        b, step = self.b, self.views[1].strides[3]
        quad = 4 if step == 1 and self.depth % 4 == 0 else 1
        zero = const(0.0, Type(dt.float32, quad))
        acc = b.var(zero, "acc", zero.type)
        buffer = self.em.buffers[id(self.views[1].node)]
        with b.loop(self.depth, step=quad, name="d") as d:
            k = cast(load(buffer, k_row + d * step, quad), dt.float32)
            b.assign(acc, fma(load(q, d, quad), k, acc))
        total: Expr = acc
        if quad == 4:
            a0, a1, a2, a3 = (extract(acc, i) for i in range(4))
            total = (a0 + a1) + (a2 + a3)
        return b.let(capped(b, b.let(total, "s"), self.params["scale"], self.params["softcap"]))

    def _store(self, row: Row, column: Affine, value: Expr) -> None:
        with self.em.scope():
            store_all(self.em, self.node, (*row.index, column), value, None)

    def _inverse(self, total: Expr) -> Expr:
        some = self.b.let(total > 0.0, "some")
        one = const(1.0, F32)
        return self.b.let(select(some, binary("div", one, select(some, total, one)), 0.0))

    # -- a group per row

    def _together(self, row: Row) -> None:
        b, threads, depth = self.b, self.threads, self.depth
        t = b.let(b.thread(0), "t")
        q = b.array("q", dt.float32, -(-depth // threads) * threads, "shared")
        weights = b.array("weights", dt.float32, threads, "shared")
        meet = b.array("meet", dt.float32, threads, "shared")
        spread = range(0, depth, threads)
        for c in spread:
            column = b.let(minimum(t + c, depth - 1), "column")
            b.store(q, t + c, self._element(0, row.q + column * self.views[0].strides[-1]))
        top, total = b.var(FLOOR, "top"), b.var(0.0, "total")
        acc = [b.var(0.0, "acc") for _ in spread]
        b.barrier()
        k_step, v_step = self.views[1].strides[2], self.views[2].strides[2]
        with b.loop(row.high, row.low - row.low % threads, step=threads, name="k0") as k0:
            key = b.let(k0 + t, "key")
            at = b.let(row.k + minimum(key, self.keys - 1) * k_step, "k")
            seen = (key >= row.low) & (key < row.high)
            s = b.let(select(seen, self._score(q, at), HIDDEN), "score")
            best = self._meet(meet, t, s, maximum)
            new = b.let(maximum(top, best), "new")
            fade = b.let(math.exp(b, b.let(top - new, "fall")), "fade")
            b.assign(top, new)
            p = b.let(math.exp(b, b.let(s - new, "gap")), "p")
            b.store(weights, t, p)
            added = self._meet(meet, t, p, lambda x, y: x + y)
            b.assign(total, fma(total, fade, added))
            count = b.let(minimum(row.high - k0, threads), "count")
            for c, var in zip(spread, acc):
                b.assign(var, var * fade)
                column = b.let(minimum(t + c, depth - 1), "column")
                v = b.let(row.v + k0 * v_step + column * self.views[2].strides[3], "v")
                with b.loop(count, name="j") as j:
                    value = self._element(2, v + j * v_step)
                    b.assign(var, fma(load(weights, j), value, var))
            b.barrier()
        by = self._inverse(total)
        for c, var in zip(spread, acc):
            column = b.let(t + c, "column")
            with b.when(column < as_expr(depth)), self.em.scope():
                self._store(row, self.em.axis(column, depth), b.let(var * by, "y"))

    def _meet(self, meet: ir.Array, t: Expr, x: Expr, op: Callable[[Expr, Expr], Expr]) -> Expr:
        """The values of all threads combined, the same in each."""
        b, half = self.b, self.threads // 2
        b.store(meet, t, x)
        b.barrier()
        while half:
            with b.when(t < half):
                b.store(meet, t, op(load(meet, t), load(meet, t + half)))
            b.barrier()
            half //= 2
        result = b.let(load(meet, const(0)), "all")
        b.barrier()
        return result

    # -- a thread per row

    def _alone(self, row: Row) -> None:
        b, depth = self.b, self.depth
        q, o = b.array("q", dt.float32, depth), b.array("o", dt.float32, depth)
        scores = b.array("scores", dt.float32, KEYS)
        with b.loop(depth, name="d") as d:
            b.store(q, d, self._element(0, row.q + d * self.views[0].strides[-1]))
            b.store(o, d, const(0.0, F32))
        top, total = b.var(FLOOR, "top"), b.var(0.0, "total")
        k_step, v_step = self.views[1].strides[2], self.views[2].strides[2]
        with b.loop(row.high, row.low, step=KEYS, name="k0") as k0:
            count = b.let(minimum(row.high - k0, KEYS), "count")
            best = b.var(HIDDEN, "best")
            with b.loop(count, name="j") as j:
                s = self._score(q, b.let(row.k + (k0 + j) * k_step, "k"))
                b.store(scores, j, s)
                b.assign(best, maximum(best, s))
            new = b.let(maximum(top, best), "new")
            fade = b.let(math.exp(b, b.let(top - new, "fall")), "fade")
            b.assign(top, new)
            b.assign(total, total * fade)
            with b.loop(depth, name="d") as d:
                b.store(o, d, load(o, d) * fade)
            with b.loop(count, name="j") as j:
                p = b.let(math.exp(b, b.let(load(scores, j) - new, "gap")), "p")
                b.assign(total, total + p)
                v = b.let(row.v + (k0 + j) * v_step, "v")
                with b.loop(depth, name="d") as d:
                    value = self._element(2, v + d * self.views[2].strides[3])
                    b.store(o, d, fma(p, value, load(o, d)))
        by = self._inverse(total)
        with b.loop(depth, name="d") as d, self.em.scope():
            self._store(row, self.em.axis(d, depth), b.let(load(o, d) * by, "y"))
