"""The derivative of attention in many threads: row statistics, dq and dk with dv, in three kernels.

Here a thread takes a query row (or, for dk and dv, a key) alone, which needs no barrier; where
barriers are cheap `attention_grad_blocks` shares tiles among the threads of a group. Either way an
element of a result is one sum in a fixed order, made by one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
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
from weft.ops.attention_grad import UNSEEN
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.places import seeing_rows, visible_keys
from weft.templates.attention.softmax import FLOOR
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import store_all
from weft.templates.product.problem import operand

THREADS = 64
Q, K, V, G = range(4)  # operands that hold components; then come lse and delta


class Parts:
    """What both variants share: operands, places, the weight of a score, results."""

    def __init__(self, group: Group, node: Node, caps: Caps) -> None:
        self.group, self.node = group, node
        self.name = node.attrs["name"]
        self.b = b = Builder(group.name or self.name)
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        wide = 2 if self.name == "attention_lse" else 4
        self.views = [operand(group, x) for x in node.inputs[:wide]]
        self.sums = node.inputs[4:6]  # lse, delta
        self.batch, self.heads, self.t, self.depth = node.inputs[0].shape
        self.groups, self.s = node.inputs[1].shape[1:3]
        self.share = self.heads // self.groups
        self.bi = self.em.axis(b.group(2), self.batch)
        self.length: Expr = const(self.s)
        count = wide if wide == 2 else 6
        if len(node.inputs) > count:
            given = self.em.value(node.inputs[count], (self.bi,))
            self.length = b.let(maximum(minimum(given, self.s), 0), "length")

    @property
    def flops(self) -> int:
        products = {"attention_lse": 1, "attention_dq": 3, "attention_dkv": 4}[self.name]
        return 2 * products * self.batch * self.heads * self.t * self.s * self.depth

    def kernel_of(self, items: int, threads: tuple[int, ...], per_group: int) -> Kernel:
        """One group per `per_group` rows (or keys) of each head and batch entry."""
        heads = self.groups if self.name == "attention_dkv" else self.heads
        grid = (ceil_div(items, per_group), heads, self.batch)
        return self.b.kernel(grid, threads, self.flops, traffic(self.group))

    # -- places

    def head(self) -> tuple[Affine, Affine]:
        """This group's query head and the kv head it shares."""
        b, em = self.b, self.em
        head = b.let(b.group(1), "head")
        kv = em.axis(b.let(head // self.share, "kv"), self.groups)
        return em.axis(head, self.heads), kv

    def base(self, i: int, head: Affine) -> Expr:
        """Where row 0 of operand i starts in a head (bound)."""
        view = self.views[i]
        at = affine.flatten((self.bi, head), view.strides[:2], view.offset)
        return self.b.let(self.em.expr(at), "base")

    def row(self, i: int, base: Expr, row: Expr) -> Expr:
        return self.b.let(base + row * self.views[i].strides[2], "row")

    def element(self, i: int, row: Expr, column: Expr, lanes: int = 1) -> Expr:
        """Components of operand i, from the start of their row."""
        view = self.views[i]
        at = row + column * view.strides[3]
        return cast(load(self.em.buffers[id(view.node)], at, lanes), dt.float32)

    def limits(self, row: Expr) -> tuple[Expr, Expr]:
        """The first key that a row sees and the one after its last (bound)."""
        params = self.params
        low, high = visible_keys(
            self.b, row, self.t, self.s, self.length, params["causal"], params["window"]
        )
        return self.b.let(low, "low"), self.b.let(high, "high")

    def rows_of(self, key: Expr, keys: int) -> tuple[Expr, Expr]:
        params, ahead, rows = self.params, const(self.s - self.t), const(self.t)
        return seeing_rows(self.b, key, keys, ahead, rows, params["causal"], params["window"])

    def sum_of(self, i: int, head: Affine, row: Expr) -> Expr:
        """lse (0) or delta (1) of a row."""
        return self.em.value(self.sums[i], (self.bi, head, self.em.axis(row, self.t)))

    # -- weights

    def score(self, product: Expr) -> tuple[Expr, Expr | None]:
        """The (capped) score of q . k, and the cap's derivative (both bound)."""
        b, cap = self.b, self.params["softcap"]
        scaled = b.let(product * self.params["scale"], "s")
        if not cap:
            return scaled, None
        bent = b.let(math.tanh(b, b.let(scaled * (1.0 / cap), "s")), "bent")
        return b.let(bent * cap, "s"), b.let(fma(-bent, bent, 1.0), "slope")

    def weights(
        self, qk: Expr, gv: Expr, lse: Expr, delta: Expr, seen: Expr | None
    ) -> tuple[Expr, Expr]:
        """p and scale * ds of one pair, from the products q . k and g . v (both bound)."""
        b = self.b
        s, slope = self.score(qk)
        p = math.exp(b, b.let(s - lse, "gap"))
        p = b.let(p if seen is None else select(seen, b.let(p, "p"), 0.0), "p")
        ds = p * (gv - delta) * self.params["scale"]
        return p, b.let(ds if slope is None else ds * slope, "ds")

    def log_sum(self, top: Expr, total: Expr) -> Expr:
        """The row's log-sum-exp (bound), from its maximum and the sum under it."""
        b = self.b
        some = b.let(total > 0.0, "some")
        log = b.let(math.log(b, b.let(select(some, total, 1.0), "total")), "log")
        return b.let(select(some, top + log, UNSEEN), "lse")

    def store(self, index: tuple[Affine, ...], value: Expr) -> None:
        with self.em.scope():
            store_all(self.em, self.node, index, value, None)


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention_lse`, `attention_dq` or `attention_dkv` call."""
    return _Alone(group, node, caps, config).kernel()


class _Alone(Parts):
    """A thread per query row, or per key for dk and dv."""

    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        super().__init__(group, node, caps)
        self.threads = config.get("threads", min(THREADS, caps.max_threads))

    def kernel(self) -> Kernel:
        b = self.b
        emit = {
            "attention_lse": self._lse, "attention_dq": self._dq, "attention_dkv": self._dkv
        }[self.name]  # fmt: skip
        items = self.s if self.name == "attention_dkv" else self.t
        at = b.let(b.group(0) * self.threads + b.thread(0), "item")
        with b.when(at < items), self.em.scope():
            emit(at)
        return self.kernel_of(items, (self.threads,), self.threads)

    def _take(self, i: int, row: Expr) -> ir.Array:
        """A row of operand i in a private array."""
        b = self.b
        array = b.array("x", dt.float32, self.depth)
        with b.loop(self.depth, name="d") as d:
            b.store(array, d, self.element(i, row, d))
        return array

    def _zeros(self) -> ir.Array:
        array = self.b.array("sum", dt.float32, self.depth)
        with self.b.loop(self.depth, name="d") as d:
            self.b.store(array, d, const(0.0, F32))
        return array

    def _dot(self, x: ir.Array, i: int, row: Expr) -> Expr:
        """x times a row of operand i (bound)."""
        b = self.b
        quad = 4 if self.views[i].strides[3] == 1 and self.depth % 4 == 0 else 1
        acc = b.var(const(0.0, Type(dt.float32, quad)), "acc")
        with b.loop(self.depth, step=quad, name="d") as d:
            b.assign(acc, fma(load(x, d, quad), self.element(i, row, d, quad), acc))
        if quad == 1:
            return b.let(acc, "dot")
        a0, a1, a2, a3 = (extract(acc, i) for i in range(4))
        return b.let((a0 + a1) + (a2 + a3), "dot")

    def _add(self, target: ir.Array, weight: Expr, i: int, row: Expr) -> None:
        """target += weight * (a row of operand i)."""
        b = self.b
        with b.loop(self.depth, name="d") as d:
            b.store(target, d, fma(weight, self.element(i, row, d), load(target, d)))

    def _lse(self, at: Expr) -> None:
        b = self.b
        head, kv = self.head()
        q = self._take(Q, self.row(Q, self.base(Q, head), at))
        keys = self.base(K, kv)
        low, high = self.limits(at)
        top, total = b.var(FLOOR, "top"), b.var(0.0, "total")
        with b.loop(high, low, name="j") as j:
            s, _ = self.score(self._dot(q, K, self.row(K, keys, j)))
            new = b.let(maximum(top, s), "new")
            fade = math.exp(b, b.let(top - new, "fall"))
            b.assign(total, fma(total, fade, math.exp(b, b.let(s - new, "gap"))))
            b.assign(top, new)
        self.store((self.bi, head, self.em.axis(at, self.t)), self.log_sum(top, total))

    def _dq(self, at: Expr) -> None:
        b = self.b
        head, kv = self.head()
        q = self._take(Q, self.row(Q, self.base(Q, head), at))
        g = self._take(G, self.row(G, self.base(G, head), at))
        keys, values = self.base(K, kv), self.base(V, kv)
        lse, delta = (self.sum_of(i, head, at) for i in range(2))
        dq = self._zeros()
        low, high = self.limits(at)
        with b.loop(high, low, name="j") as j:
            key = self.row(K, keys, j)
            gv = self._dot(g, V, self.row(V, values, j))
            _, ds = self.weights(self._dot(q, K, key), gv, lse, delta, None)
            self._add(dq, ds, K, key)
        self._write((self.bi, head, self.em.axis(at, self.t)), dq)

    def _dkv(self, at: Expr) -> None:
        b, em = self.b, self.em
        kv_at = b.let(b.group(1), "kv")
        kv = em.axis(kv_at, self.groups)
        k = self._take(K, self.row(K, self.base(K, kv), at))
        v = self._take(V, self.row(V, self.base(V, kv), at))
        dk, dv = self._zeros(), self._zeros()
        first, stop = self.rows_of(at, 1)
        with b.when(at < self.length), b.loop(self.share, name="h") as h, em.scope():
            head = em.axis(kv_at * self.share + h, self.heads)
            qs, gs = self.base(Q, head), self.base(G, head)
            with b.loop(stop, first, name="r") as r, em.scope():
                q, g = self.row(Q, qs, r), self.row(G, gs, r)
                lse, delta = (self.sum_of(i, head, r) for i in range(2))
                gv = self._dot(v, G, g)
                p, ds = self.weights(self._dot(k, Q, q), gv, lse, delta, None)
                self._add(dk, ds, Q, q)
                self._add(dv, p, G, g)
        key = em.axis(at, self.s)
        for i, x in enumerate((dk, dv)):
            self._write((affine.number(i), self.bi, kv, key), x)

    def _write(self, index: tuple[Affine, ...], x: ir.Array) -> None:
        b, em = self.b, self.em
        with b.loop(self.depth, name="d") as d, em.scope():
            self.store((*index, em.axis(d, self.depth)), b.let(load(x, d), "y"))
