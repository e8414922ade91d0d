"""Matrix multiplication in many threads: shared-memory tiles, or register tiles without barriers.

With cheap barriers a group stages blocks of both operands in shared memory, [k][row] and
[k][column], and every thread keeps a 4 x 4 tile of accumulators. Where barriers are dear (software
rasterisers) every thread reads its rows and columns itself, four elements at a time where they are
contiguous. Either way an element is one chain of multiply-adds in ascending k, so a row's result
does not depend on M.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import (
    Builder,
    Expr,
    as_expr,
    cast,
    ceil_div,
    const,
    extract,
    fma,
    load,
    minimum,
    select,
)
from weft.kernel.ir import Kernel, Type
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.matmul_tail import Tail, count_flops, row_limit
from weft.templates.matmul_view import Problem, View

TILE = 4  # rows and columns per thread


def build(group: Group, p: Problem, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a target with many threads per group."""
    return _Gpu(group, p, caps, config).kernel()


class _Gpu:
    def __init__(self, group: Group, p: Problem, caps: Caps, config: Mapping[str, Any]) -> None:
        self.group, self.p = group, p
        self.b = b = Builder(group.name or "matmul")
        self.em = em = Emitter(b, group, caps)
        self.tail = Tail(em, p, group.outputs)
        integer = not p.dots[0].inputs[0].dtype.is_float
        self.acc_type: DType = dt.int32 if integer else dt.float32
        side = 16 if caps.max_threads >= 256 else 8
        self.shared = config.get("shared", caps.cheap_barrier)
        self.bk = 16 if caps.shared_bytes >= 4 * 16 * side * TILE * (1 + len(p.dots)) else 8
        self.side = config.get("side", side if self.shared else 8)
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
        self.m0 = b.let(b.group(1) * self.block, "m0")  # type: ignore[operator]
        self.n0 = b.let(b.group(0) * self.block, "n0")  # type: ignore[operator]
        zero = const(0, Type(self.acc_type))
        self.acc = [
            [[b.var(zero, "acc", zero.type) for _ in range(TILE)] for _ in range(TILE)]
            for _ in p.dots
        ]
        self.a_base = self._base(p.a, p.a_batch)
        self.b_base = [self._base(v, p.b_strides(i)[0]) for i, v in enumerate(p.bs)]
        if self.shared:
            self._tiled()
        else:
            self._direct()
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
        return acc + x * y if self.acc_type == dt.int32 else fma(x, y, acc)  # type: ignore[operator]

    # -- shared-memory tiles

    def _tiled(self) -> None:
        b, p, block = self.b, self.p, self.block
        left = b.array("left", self.acc_type, self.bk * block, "shared")
        right = [b.array("right", self.acc_type, self.bk * block, "shared") for _ in p.dots]
        flat = b.let(self.ty * self.side + self.tx, "flat")  # type: ignore[operator]
        with b.loop(p.k, step=self.bk, name="k0") as k0:
            self._stage(left, p.a, self.a_base, p.a_m, p.a_k, self.m0, p.m, k0, flat)
            for i, target in enumerate(right):
                _, sk, sn = p.b_strides(i)
                self._stage(target, p.bs[i], self.b_base[i], sn, sk, self.n0, p.n, k0, flat)
            b.barrier()
            with b.loop(self.bk, name="k") as k:
                row = b.let(k * block, "row")  # type: ignore[operator]
                # rows ty, ty + side, ...: neighbouring threads read neighbouring words
                xs = [b.let(load(left, row + (self.ty + i * self.side)), "x") for i in range(TILE)]  # type: ignore[operator]
                for acc, target in zip(self.acc, right):
                    ys = [
                        b.let(load(target, row + (self.tx + j * self.side)), "y")  # type: ignore[operator]
                        for j in range(TILE)
                    ]
                    self._outer(xs, ys, acc)
            b.barrier()

    def _stage(
        self, target: ir.Array, view: View, base: Expr, s_major: int, s_k: int,
        first: Expr, limit: int, k0: Expr, flat: Expr,
    ) -> None:  # fmt: skip
        """target[k][item] for bk steps of k and `block` items; what does not exist is 0. Threads
        run along whichever axis is contiguous in memory."""
        b, p, block, bk = self.b, self.p, self.block, self.bk
        threads = self.side * self.side
        along_k = s_k == 1 and s_major != 1
        for step in range(0, block * bk, threads):
            e = b.let(flat + step, "e")  # type: ignore[operator]
            if along_k:
                k, item = b.let(e % bk, "k"), b.let(e // bk, "item")  # type: ignore[operator]
            else:
                k, item = b.let(e // block, "k"), b.let(e % block, "item")  # type: ignore[operator]
            at_k, at = b.let(k0 + k, "at_k"), b.let(first + item, "at")  # type: ignore[operator]
            inside = (at_k < p.k) & (at < limit)  # type: ignore[operator]
            index = base + minimum(at, limit - 1) * s_major + minimum(at_k, p.k - 1) * s_k  # type: ignore[operator]
            value = cast(load(self.em.buffers[id(view.node)], index), self.acc_type)
            zero = const(0, Type(self.acc_type))
            b.store(target, k * block + item, select(inside, value, zero))  # type: ignore[operator]

    def _outer(self, xs: Sequence[Expr], ys: Sequence[Expr], acc: list[list[ir.Var]]) -> None:
        for x, line in zip(xs, acc):
            for y, var in zip(ys, line):
                self.b.assign(var, self._multiply(x, y, var))

    # -- register tiles

    def _direct(self) -> None:
        b, p = self.b, self.p
        rows = self._starts(self.a_base, p.a_m, self._row, p.m)
        columns = []
        for d in range(len(p.dots)):
            sn = p.b_strides(d)[2]
            columns.append(self._starts(self.b_base[d], sn, self._column, p.n))
        whole = p.k - p.k % 4
        if whole:
            with b.loop(whole, step=4, name="k") as k:
                self._quad(rows, columns, k)
        if p.k % 4:
            with b.loop(p.k, whole, name="k") as k:
                xs = [self._read(p.a, r + k * p.a_k) for r in rows]  # type: ignore[operator]
                for d, (starts, acc) in enumerate(zip(columns, self.acc)):
                    sk = p.b_strides(d)[1]
                    ys = [self._read(p.bs[d], c + k * sk) for c in starts]  # type: ignore[operator]
                    self._outer(xs, ys, acc)

    def _starts(
        self, base: Expr, stride: int, item: Callable[[int], Expr], items: int
    ) -> list[Expr]:
        """Where this thread's rows (or columns) start; those that do not exist repeat others, and
        where tiles divide the items a tile stays whole."""
        b = self.b
        if items % TILE == 0:
            first = b.let(minimum(item(0), items - TILE), "first")
            return [b.let(base + (first + i) * stride, "start") for i in range(TILE)]  # type: ignore[operator]
        return [
            b.let(base + minimum(item(i), items - 1) * stride, "start")  # type: ignore[operator]
            for i in range(TILE)
        ]

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
            quads = [self._read(view, s + k, 4) for s in starts]  # type: ignore[operator]
            return [[b.let(extract(q, t), "e") for t in range(4)] for q in quads]
        if si == 1 and items % TILE == 0:
            quads = [self._read(view, starts[0] + (k + t) * sk, TILE) for t in range(4)]  # type: ignore[operator]
            return [[b.let(extract(q, i), "e") for q in quads] for i in range(TILE)]
        return [[self._read(view, s + (k + t) * sk) for t in range(4)] for s in starts]  # type: ignore[operator]

    # -- results

    def _row(self, i: int) -> Expr:
        """Row i of this thread's tile."""
        if self.shared:
            return self.m0 + self.ty + i * self.side  # type: ignore[operator]
        return self.m0 + self.ty * TILE + i  # type: ignore[operator]

    def _column(self, j: int) -> Expr:
        if self.shared:
            return self.n0 + self.tx + j * self.side  # type: ignore[operator]
        return self.n0 + self.tx * TILE + j  # type: ignore[operator]

    def _finish(self) -> None:
        """Short epilogues are written out per element; others run once in a loop over them."""
        b = self.b
        limit = b.let(self._limit(), "limit")
        if self.tail.cheap:
            for i in range(TILE):
                m = b.let(self._row(i), "m")
                with b.when(m < limit), self.em.scope():  # type: ignore[operator]
                    for j in range(TILE):
                        self._element(m, self._column(j), lambda d, i=i, j=j: self.acc[d][i][j])  # type: ignore[misc]
            return
        size = TILE * TILE
        kept = b.array("kept", self.acc_type, size * len(self.acc))
        for d, tile in enumerate(self.acc):
            for i, line in enumerate(tile):
                for j, var in enumerate(line):
                    b.store(kept, d * size + i * TILE + j, var)
        step = self.side if self.shared else 1
        scale = 1 if self.shared else TILE
        with b.loop(TILE, name="i") as ti, self.em.scope():
            m = b.let(self.m0 + self.ty * scale + ti * step, "m")  # type: ignore[operator]
            with b.when(m < limit), b.loop(TILE, name="j") as tj, self.em.scope():  # type: ignore[operator]
                n = self.n0 + self.tx * scale + tj * step  # type: ignore[operator]
                at = b.let(ti * TILE + tj, "at")  # type: ignore[operator]
                self._element(m, n, lambda d: b.let(load(kept, at + d * size), "acc"))  # type: ignore[operator]

    def _element(self, m: Expr, n: Expr, value: Callable[[int], Expr]) -> None:
        b, p, em = self.b, self.p, self.em
        n = b.let(n, "n")
        with b.when(n < as_expr(p.n)), em.scope():  # type: ignore[operator]
            self.tail.position(self.batch, em.axis(m, p.m))
            self.tail.write(n, 1, None, [value(d) for d in range(len(p.dots))])
