"""Matrix multiplication without barriers, for targets where these are dear (software rasterisers):
every thread keeps a 4 x 4 tile of accumulators and reads its rows and columns itself, four elements
at a time where they are contiguous. An element's sum takes the one order of core/order, so a row's
result does not depend on M.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import as_expr, cast, ceil_div, const, extract, fma, load, minimum
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Tail, count_flops, row_limit
from weft.templates.product.problem import Problem, View
from weft.templates.product.sums import Sums

TILE = 4  # rows and columns per thread


def build(group: Group, p: Problem, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group; config: side (threads along either side of a group)."""
    return _Direct(group, p, caps, config).kernel()


def candidates(p: Problem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring."""
    return [{"side": side} for side in (4, 8, 16) if side * side <= caps.max_threads]


class _Direct:
    def __init__(self, group: Group, p: Problem, caps: Caps, config: Mapping[str, Any]) -> None:
        self.group, self.p = group, p
        self.b = b = Builder(group.name or "matmul")
        self.em = em = Emitter(b, group, caps)
        self.tail = Tail(em, p, group.outputs)
        integer = not p.dots[0].inputs[0].dtype.is_float
        self.acc_type: DType = dt.int32 if integer else dt.float32
        self.side = config.get("side", 8)
        self.block = self.side * TILE

    def kernel(self) -> Kernel:
        b, p, em = self.b, self.p, self.em
        bounded = self.group.rows is not None
        batches: Any = max(p.batches, 1)
        if p.batch and bounded:
            batches = row_limit(self.group, p.batches // p.batch[0], p.batches)
        grid = (ceil_div(p.n, self.block), ceil_div(self._limit(), self.block), batches)
        self.batch = affine.unflatten(em.axis(b.group(2), max(p.batches, 1)), p.batch)
        self.tx, self.ty = b.let(b.thread(0), "tx"), b.let(b.thread(1), "ty")
        self.m0 = b.let(b.group(1) * self.block, "m0")
        self.n0 = b.let(b.group(0) * self.block, "n0")
        zero = const(0, Type(self.acc_type))
        self.acc = [
            [[b.var(zero, "acc", zero.type) for _ in range(TILE)] for _ in range(TILE)]
            for _ in p.dots
        ]
        self.a_base = self._base(p.a, p.a_batch)
        self.b_base = [self._base(v, p.b_strides(i)[0]) for i, v in enumerate(p.bs)]
        sums = Sums(b, p.k, [var for tile in self.acc for line in tile for var in line])
        self._multiply_all(sums)
        result = iter(sums.result)
        self.acc = [[[next(result) for _ in line] for line in tile] for tile in self.acc]
        self._finish()
        threads = (self.side, self.side)
        return b.kernel(grid, threads, count_flops(p), traffic(self.group))

    def _limit(self) -> Expr:
        p = self.p
        if self.group.rows is None or p.batch:
            return const(p.m)
        return row_limit(self.group, p.m // p.rows[0], p.m)

    def _base(self, view: View, strides: tuple[int, ...]) -> Expr:
        return self.b.let(self.em.expr(affine.flatten(self.batch, strides, view.offset)), "base")

    def _multiply(self, x: Expr, y: Expr, acc: ir.Var) -> Expr:
        return acc + x * y if self.acc_type == dt.int32 else fma(x, y, acc)

    def _outer(self, xs: Sequence[Expr], ys: Sequence[Expr], acc: list[list[ir.Var]]) -> None:
        for x, line in zip(xs, acc):
            for y, var in zip(ys, line):
                self.b.assign(var, self._multiply(x, y, var))

    def _multiply_all(self, sums: Sums) -> None:
        p = self.p
        rows = self._starts(self.a_base, p.a_m, self._row, p.m)
        columns = []
        for d in range(len(p.dots)):
            sn = p.b_strides(d)[2]
            columns.append(self._starts(self.b_base[d], sn, self._column, p.n))
        sums.chunks(lambda start, stop: self._chunk(rows, columns, start, stop))

    def _chunk(
        self, rows: Sequence[Expr], columns: Sequence[Sequence[Expr]], start: Expr, stop: Expr
    ) -> None:
        b, p = self.b, self.p
        whole = stop if p.k % 4 == 0 else b.let(stop - stop % 4, "whole")
        with b.loop(whole, start, step=4, name="k") as k:
            self._quad(rows, columns, k)
        if p.k % 4:
            with b.loop(stop, whole, name="k") as k:
                xs = [self._read(p.a, r + k * p.a_k) for r in rows]
                for d, (starts, acc) in enumerate(zip(columns, self.acc)):
                    sk = p.b_strides(d)[1]
                    ys = [self._read(p.bs[d], c + k * sk) for c in starts]
                    self._outer(xs, ys, acc)

    def _starts(
        self, base: Expr, stride: int, item: Callable[[int], Expr], items: int
    ) -> list[Expr]:
        """Where this thread's rows (or columns) start; those that do not exist repeat others, and
        where tiles divide the items a tile stays whole."""
        b = self.b
        if items % TILE == 0:
            first = b.let(minimum(item(0), items - TILE), "first")
            return [b.let(base + (first + i) * stride, "start") for i in range(TILE)]
        return [b.let(base + minimum(item(i), items - 1) * stride, "start") for i in range(TILE)]

    def _read(self, view: View, index: Expr, lanes: int = 1) -> Expr:
        value = cast(load(self.em.buffers[id(view.node)], index, lanes), self.acc_type)
        return self.b.let(value, "v")

    def _quad(self, rows: Sequence[Expr], columns: Sequence[Sequence[Expr]], k: Expr) -> None:
        """Four steps of k: items[i][t] is element k + t of row (or column) i."""
        p = self.p
        xs = self._four(p.a, rows, k, p.a_k, p.a_m, p.m)
        for d, (starts, acc) in enumerate(zip(columns, self.acc)):
            _, sk, sn = p.b_strides(d)
            ys = self._four(p.bs[d], starts, k, sk, sn, p.n)
            for t in range(4):
                self._outer([x[t] for x in xs], [y[t] for y in ys], acc)

    def _four(
        self, view: View, starts: Sequence[Expr], k: Expr, sk: int, si: int, items: int
    ) -> list[list[Expr]]:
        b = self.b
        if sk == 1:
            quads = [self._read(view, s + k, 4) for s in starts]
            return [[b.let(extract(q, t), "e") for t in range(4)] for q in quads]
        if si == 1 and items % TILE == 0:
            quads = [self._read(view, starts[0] + (k + t) * sk, TILE) for t in range(4)]
            return [[b.let(extract(q, i), "e") for q in quads] for i in range(TILE)]
        return [[self._read(view, s + (k + t) * sk) for t in range(4)] for s in starts]

    # -- results

    def _row(self, i: int) -> Expr:
        """Row i of this thread's tile."""
        return self.m0 + self.ty * TILE + i

    def _column(self, j: int) -> Expr:
        return self.n0 + self.tx * TILE + j

    def _finish(self) -> None:
        """Short epilogues are written out per element; others run once in a loop over them."""
        b = self.b
        limit = b.let(self._limit(), "limit")
        if self.tail.cheap:
            for i in range(TILE):
                m = b.let(self._row(i), "m")
                with b.when(m < limit), self.em.scope():
                    for j in range(TILE):
                        self._element(m, self._column(j), lambda d, i=i, j=j: self.acc[d][i][j])  # type: ignore[misc]
            return
        size = TILE * TILE
        kept = b.array("kept", self.acc_type, size * len(self.acc))
        for d, tile in enumerate(self.acc):
            for i, line in enumerate(tile):
                for j, var in enumerate(line):
                    b.store(kept, d * size + i * TILE + j, var)
        with b.loop(TILE, name="i") as ti, self.em.scope():
            m = b.let(self.m0 + self.ty * TILE + ti, "m")
            with b.when(m < limit), b.loop(TILE, name="j") as tj, self.em.scope():
                n = self.n0 + self.tx * TILE + tj
                at = b.let(ti * TILE + tj, "at")
                self._element(m, n, lambda d: b.let(load(kept, at + d * size), "acc"))

    def _element(self, m: Expr, n: Expr, value: Callable[[int], Expr]) -> None:
        b, p, em = self.b, self.p, self.em
        n = b.let(n, "n")
        with b.when(n < as_expr(p.n)), em.scope():
            self.tail.position(self.batch, em.axis(m, p.m))
            self.tail.write(n, 1, None, [value(d) for d in range(len(p.dots))])
