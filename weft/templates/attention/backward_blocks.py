"""The derivative of attention in groups that share tiles: `attention_grad_gpu` with barriers.

A group of side x side threads takes a block of query rows (or of keys) and meets blocks of the
other one by one. Both products of a pair of blocks are staged through shared memory a slice of D
at a time; the weights go to shared memory, and each thread then adds its rows (or keys) and columns
of the result in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import ir, math
from weft.kernel.builder import Expr, as_expr, fma, load, maximum, minimum, select
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.attention.backward_gpu import G, K, Parts, Q, V
from weft.templates.attention.softmax import FLOOR, HIDDEN
from weft.templates.group import Group

LARGE = 40 << 10  # bytes of shared memory that blocks of 64 want


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention_lse`, `attention_dq` or `attention_dkv` call."""
    return _Blocks(group, node, caps, config).kernel()


class _Blocks(Parts):
    def __init__(self, group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> None:
        super().__init__(group, node, caps)
        self.side = side = 16 if caps.max_threads >= 256 else 8
        large = side == 16 and caps.shared_bytes >= LARGE and self.depth <= 128
        self.block = config.get("block", 64 if large else 32)
        self.tile = self.block // side
        self.slice = 8 if self.block > 32 else 16  # of D, staged at once
        b = self.b
        self.tx, self.ty = b.let(b.thread(0), "tx"), b.let(b.thread(1), "ty")
        self.columns = range(0, self.depth, side)
        pairs = 1 if self.name == "attention_lse" else 2
        size = self.slice * self.block
        self.left = [b.array("left", dt.float32, size, "shared") for _ in range(pairs)]
        self.right = [b.array("right", dt.float32, size, "shared") for _ in range(pairs)]
        self.flat = b.let(self.ty * side + self.tx, "flat")

    def kernel(self) -> Kernel:
        b = self.b
        at = b.let(b.group(0) * self.block, "first_item")
        emit = {
            "attention_lse": self._lse, "attention_dq": self._dq, "attention_dkv": self._dkv
        }[self.name]  # fmt: skip
        emit(at)
        items = self.s if self.name == "attention_dkv" else self.t
        return self.kernel_of(items, (self.side, self.side), self.block)

    # -- products of two blocks

    def _stage(
        self, target: ir.Array, i: int, base: Expr, first: Expr, limit: int, d0: Expr
    ) -> None:
        """target[d][item] for a slice of D and a block of rows of operand i; zeros where there is
        nothing. Threads run along D, which is contiguous in memory."""
        b, size = self.b, self.slice * self.block
        for step in range(0, size, self.side * self.side):
            e = b.let(self.flat + step, "e")
            d, item = b.let(e % self.slice, "d"), b.let(e // self.slice, "item")
            column, at = b.let(d0 + d, "column"), b.let(first + item, "at")
            inside = (column < self.depth) & (at < limit)
            row = self.row(i, base, minimum(at, limit - 1))
            value = self.element(i, row, b.let(minimum(column, self.depth - 1), "column"))
            b.store(target, d * self.block + item, select(inside, value, 0.0))

    def _products(
        self, pairs: Sequence[tuple[int, Expr, int, Expr]], row0: Expr, key0: Expr
    ) -> list[list[list[ir.Var]]]:
        """For each (row operand, base, key operand, base): products of rows row0 .. and keys key0
        .. , a tile of them per thread: rows ty, ty + side, ..., keys tx, tx + side, ..."""
        b, tile = self.b, self.tile
        acc = [[[b.var(0.0, "acc") for _ in range(tile)] for _ in range(tile)] for _ in pairs]
        with b.loop(self.depth, step=self.slice, name="d0") as d0:
            for (i, rows, j, keys), left, right in zip(pairs, self.left, self.right):
                self._stage(left, i, rows, row0, self.t, d0)
                self._stage(right, j, keys, key0, self.s, d0)
            b.barrier()
            with b.loop(self.slice, name="d") as d:
                at = b.let(d * self.block, "at")
                for sums, left, right in zip(acc, self.left, self.right):
                    xs = [b.let(load(left, at + self._y(i)), "x") for i in range(tile)]
                    ys = [b.let(load(right, at + self._x(j)), "y") for j in range(tile)]
                    for x, line in zip(xs, sums):
                        for y, var in zip(ys, line):
                            b.assign(var, fma(x, y, var))
            b.barrier()
        return acc

    def _y(self, i: int) -> Expr:
        return self.ty + i * self.side

    def _x(self, j: int) -> Expr:
        return self.tx + j * self.side

    def _rows(self, row0: Expr) -> tuple[list[Expr], list[tuple[Expr, Expr]]]:
        """This thread's rows from row0, and which keys each sees: none where there is no row."""
        b = self.b
        at = [b.let(row0 + self._y(i), "row") for i in range(self.tile)]
        limits = []
        for row in at:
            low, high = self.limits(row)
            limits.append((low, b.let(select(row < self.t, high, 0), "high")))
        return at, limits

    def _key_range(self, row0: Expr) -> tuple[Expr, Expr]:
        """The keys that a block of rows sees, from the start of a block of keys."""
        b = self.b
        low, _ = self.limits(row0)
        _, high = self.limits(b.let(minimum(row0 + (self.block - 1), self.t - 1), "last"))
        return b.let(low - low % self.block, "first_key"), high

    def _sums(self, head: affine.Affine, rows: Sequence[Expr]) -> list[list[Expr]]:
        """lse and delta of the thread's rows."""
        inside = [self.b.let(minimum(row, self.t - 1), "row") for row in rows]
        return [[self.sum_of(i, head, row) for row in inside] for i in range(2)]

    def _pair_weights(
        self, acc: list[list[list[ir.Var]]], sums: list[list[Expr]],
        limits: list[tuple[Expr, Expr]], key0: Expr, p: ir.Array | None, ds: ir.Array,
    ) -> None:  # fmt: skip
        """The thread's tile of weights to shared memory, [row][key]."""
        b = self.b
        keys = [b.let(key0 + self._x(j), "key") for j in range(self.tile)]
        for i, (low, high) in enumerate(limits):
            for j, key in enumerate(keys):
                seen = b.let((key >= low) & (key < high), "seen")
                qk, gv = (b.let(x[i][j], "product") for x in acc)
                weight, change = self.weights(qk, gv, sums[0][i], sums[1][i], seen)
                at = b.let(self._y(i) * self.block + self._x(j), "at")
                b.store(ds, at, change)
                if p is not None:
                    b.store(p, at, weight)

    def _sums_of_columns(self) -> list[list[ir.Var]]:
        return [[self.b.var(0.0, "sum") for _ in self.columns] for _ in range(self.tile)]

    def _components(self, i: int, row: Expr) -> list[Expr]:
        """The thread's columns of a row of operand i (bound)."""
        b = self.b
        columns = [b.let(minimum(self.tx + c, self.depth - 1), "column") for c in self.columns]
        return [b.let(self.element(i, row, c), "x") for c in columns]

    def _weights_array(self, name: str) -> ir.Array:
        return self.b.array(name, dt.float32, self.block * self.block, "shared")

    # -- kernels

    def _lse(self, row0: Expr) -> None:
        """Each thread follows its rows through its keys; at the end threads meet."""
        b, tile, side = self.b, self.tile, self.side
        tops = b.array("tops", dt.float32, self.block * side, "shared")
        totals = b.array("totals", dt.float32, self.block * side, "shared")
        head, kv = self.head()
        qs, ks = self.base(Q, head), self.base(K, kv)
        rows, limits = self._rows(row0)
        top = [b.var(FLOOR, "top") for _ in range(tile)]
        total = [b.var(0.0, "total") for _ in range(tile)]
        first, stop = self._key_range(row0)
        with b.loop(stop, first, step=self.block, name="k0") as k0, self.em.scope():
            (acc,) = self._products([(Q, qs, K, ks)], row0, k0)
            keys = [b.let(k0 + self._x(j), "key") for j in range(tile)]
            for i, (low, high) in enumerate(limits):
                seen = [b.let((key >= low) & (key < high), "seen") for key in keys]
                s = [
                    b.let(select(ok, self.score(b.let(x, "product"))[0], HIDDEN), "s")
                    for ok, x in zip(seen, acc[i])
                ]
                new: Expr = top[i]
                for x in s:
                    new = b.let(maximum(new, x), "new")
                fade = math.exp(b, b.let(top[i] - new, "fall"))
                b.assign(total[i], total[i] * fade)
                for x in s:
                    b.assign(total[i], total[i] + math.exp(b, b.let(x - new, "gap")))
                b.assign(top[i], new)
        for i in range(tile):
            at = b.let(self._y(i) * side + self.tx, "at")
            b.store(tops, at, top[i])
            b.store(totals, at, total[i])
        b.barrier()
        with b.when(self.tx < 1), self.em.scope():
            for i, row in enumerate(rows):
                with b.when(row < self.t), self.em.scope():
                    lse = self._meet(tops, totals, b.let(self._y(i) * side, "at"))
                    self.store((self.bi, head, self.em.axis(row, self.t)), lse)

    def _meet(self, tops: ir.Array, totals: ir.Array, at: Expr) -> Expr:
        """The log-sum-exp of a row, from what its threads found."""
        b = self.b
        top, total = b.var(FLOOR, "top"), b.var(0.0, "total")
        with b.loop(self.side, name="i") as i:
            b.assign(top, maximum(top, load(tops, at + i)))
        with b.loop(self.side, name="i") as i:
            fade = math.exp(b, b.let(load(tops, at + i) - top, "fall"))
            b.assign(total, fma(load(totals, at + i), fade, total))
        return self.log_sum(top, total)

    def _dq(self, row0: Expr) -> None:
        b = self.b
        ds = self._weights_array("ds")
        head, kv = self.head()
        qs, gs = self.base(Q, head), self.base(G, head)
        ks, vs = self.base(K, kv), self.base(V, kv)
        rows, limits = self._rows(row0)
        sums = self._sums(head, rows)
        dq = self._sums_of_columns()
        first, stop = self._key_range(row0)
        with b.loop(stop, first, step=self.block, name="k0") as k0, self.em.scope():
            acc = self._products([(Q, qs, K, ks), (G, gs, V, vs)], row0, k0)
            self._pair_weights(acc, sums, limits, k0, None, ds)
            b.barrier()
            count = b.let(minimum(self.s - k0, self.block), "count")
            with b.loop(count, name="j") as j:
                xs = self._components(K, self.row(K, ks, k0 + j))
                for i, line in enumerate(dq):
                    w = b.let(load(ds, self._y(i) * self.block + j), "w")
                    for x, var in zip(xs, line):
                        b.assign(var, fma(w, x, var))
        for row, line in zip(rows, dq):
            with b.when(row < self.t), self.em.scope():
                self._write((self.bi, head, self.em.axis(row, self.t)), line)

    def _dkv(self, key0: Expr) -> None:
        b, em = self.b, self.em
        p, ds = self._weights_array("p"), self._weights_array("ds")
        kv_at = b.let(b.group(1), "kv")
        kv = em.axis(kv_at, self.groups)
        ks, vs = self.base(K, kv), self.base(V, kv)
        dk, dv = self._sums_of_columns(), self._sums_of_columns()
        first, stop = self.rows_of(key0, self.block)
        stop = b.let(select(key0 < self.length, stop, 0), "stop_row")
        first = b.let(first - first % self.block, "first_row")
        with b.loop(self.share, name="h") as h, em.scope():
            head = em.axis(kv_at * self.share + h, self.heads)
            qs, gs = self.base(Q, head), self.base(G, head)
            with b.loop(stop, first, step=self.block, name="r0") as r0, em.scope():
                rows, limits = self._rows(r0)
                sums = self._sums(head, rows)
                acc = self._products([(Q, qs, K, ks), (G, gs, V, vs)], r0, key0)
                self._pair_weights(acc, sums, limits, key0, p, ds)
                b.barrier()
                count = b.let(minimum(self.t - r0, self.block), "count")
                with b.loop(count, name="r") as r:
                    at = b.let(r0 + r, "at")
                    spot = b.let(r * self.block, "spot")
                    for i, base, weights, target in ((Q, qs, ds, dk), (G, gs, p, dv)):
                        xs = self._components(i, self.row(i, base, at))
                        for n, line in enumerate(target):
                            w = b.let(load(weights, spot + self._y(n)), "w")
                            for x, var in zip(xs, line):
                                b.assign(var, fma(w, x, var))
        for n in range(self.tile):
            key = b.let(key0 + self._y(n), "key")
            with b.when(key < self.s), em.scope():
                for part, target in enumerate((dk, dv)):
                    self._write((affine.number(part), self.bi, kv, em.axis(key, self.s)), target[n])

    def _write(self, index: tuple[affine.Affine, ...], line: Sequence[ir.Var]) -> None:
        b, em = self.b, self.em
        for c, var in zip(self.columns, line):
            column = b.let(self.tx + c, "column")
            with b.when(column < as_expr(self.depth)), em.scope():
                self.store((*index, em.axis(column, self.depth)), b.let(var, "y"))
