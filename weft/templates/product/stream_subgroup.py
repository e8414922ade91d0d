"""Matrix times a few vectors on GPUs with subgroups, at memory's speed: loads of 16 bytes, several
under way before the first is used.

Along rows of w[N, K] a subgroup owns a few of them: its threads read neighbouring vectors of k, sum
their own part, and add up by a subgroup's reduction (`Rows`). Along rows of w[K, N] a thread owns
neighbouring columns, threads share K, and their parts meet in shared memory (`Strips`). The order
of additions is fixed and the same for any number of rows of x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import (
    Expr,
    cast,
    const,
    eq,
    extract,
    fma,
    load,
    minimum,
    pack,
    select,
    shuffle,
    splat,
)
from weft.kernel.ir import Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.product.epilogue import Tail, row_limit
from weft.templates.product.pipeline import Operand
from weft.templates.product.problem import Problem, Segment

_QUAD = 4  # lanes of a sum
SUBGROUPS = 4  # of a group


def along_k(p: Problem) -> bool:
    """Whether every dot's weights lie row by row, w[N, K]."""
    return all(p.b_strides(i)[1] == 1 for i in range(len(p.dots)))


def candidates(p: Problem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring, all of one order of additions."""
    base, found = SUBGROUPS * caps.subgroup, []
    for ahead in (2, 4, 8):
        if along_k(p):
            sizes = [(base * k // 2, n) for k in (1, 2, 4) for n in (1, 2, 4)]
            found += [{"threads": t, "each": n, "ahead": ahead} for t, n in sizes]
        else:
            side = _side(p)
            sizes = [(base * k, side * k) for k in (1, 2, 4)]
            found += [{"threads": t, "side": n, "ahead": ahead} for t, n in sizes]
    return [config for config in found if config["threads"] <= caps.max_threads]


def _side(p: Problem) -> int:
    """Threads along a strip."""
    return 8 if p.n >= 8192 else 4


class _Wide:
    """What both layouts share: the rows of x at hand, and vectors of k or of columns."""

    def __init__(
        self, em: Emitter, caps: Caps, segment: Segment, config: Mapping[str, Any]
    ) -> None:
        self.em, self.b, self.caps = em, em.b, caps
        self.p = p = segment.problem
        self.tail = Tail(em, p, segment.outputs)
        integer = not p.dots[0].inputs[0].dtype.is_float
        self.acc_type: DType = dt.int32 if integer else dt.float32
        self.mb = min(p.m, config.get("rows", 4))  # rows of x in a group
        self.down = 1  # the grid's axis of such blocks of rows
        self.ahead = config.get("ahead", 4)

    def _begin(self, bi: Affine) -> None:
        b, p, em = self.b, self.p, self.em
        self.batch = affine.unflatten(bi, p.batch)
        self.m0 = m0 = b.let(b.group(self.down) * self.mb, "m0")
        bounded = em.group.rows is not None and not p.batch
        limit = row_limit(em.group, p.m // p.rows[0], p.m) if bounded else const(p.m)
        self.limit = b.let(limit, "limit")
        base = em.expr(affine.flatten(self.batch, p.a_batch, p.a.offset))
        self.starts = [b.let(base + minimum(m0 + i, p.m - 1) * p.a_m, "x") for i in range(self.mb)]

    def _base(self, i: int) -> Expr:
        strides, _, _ = self.p.b_strides(i)
        index = affine.flatten(self.batch, strides, self.p.bs[i].offset)
        return self.b.let(self.em.expr(index), "base")

    def _lanes(self, items: int, bk: int) -> int:
        """Neighbours that one load of every dot's weights may take."""
        p, found = self.p, []
        for i, view in enumerate(p.bs):
            strides, s_k, s_n = p.b_strides(i)
            known = (*strides, view.offset)
            buffer = self.em.buffers[id(view.node)]
            found.append(Operand(buffer, const(0), s_n, s_k, p.n, p.k, known).lanes(items, bk))
        return min(found)

    def _weights(self, i: int, index: Expr, lanes: int) -> Expr:
        return self.b.let(load(self.em.buffers[id(self.p.bs[i].node)], index, lanes), "w")

    def _left(self, start: Expr, k: Expr, lanes: int) -> Expr:
        """x[k .. k + lanes - 1] of the row that starts at `start`, as it lies in memory."""
        b, p = self.b, self.p
        source = self.em.buffers[id(p.a.node)]
        if p.a_k == 1:
            return b.let(load(source, start + k, lanes), "x")
        first = b.let(start + k * p.a_k, "at")
        return b.let(pack(*(load(source, first + t * p.a_k) for t in range(lanes))), "x")

    def _add(self, acc: ir.Var, x: Expr, y: Expr) -> None:
        exact = self.acc_type == dt.int32
        self.b.assign(acc, acc + x * y if exact else fma(x, y, acc))

    def _sum(self, lanes: int) -> ir.Var:
        type_ = Type(self.acc_type, lanes)
        return self.b.var(const(0, type_), "acc", type_)

    def _wide(self, x: Expr) -> Expr:
        return self.b.let(cast(x, self.acc_type), "wide")

    def _write(self, m: Expr, n: Expr, values: Sequence[Expr]) -> None:
        self.tail.position(self.batch, self.em.axis(m, self.p.m))
        self.tail.write(n, 1, None, values)


class Rows(_Wide):
    """w[N, K]: `each` rows of w per subgroup. config: threads, rows (of x), each, ahead."""

    def __init__(
        self, em: Emitter, caps: Caps, segment: Segment, threads: int, config: Mapping[str, Any]
    ) -> None:
        super().__init__(em, caps, segment, config)
        p, self.wave = self.p, caps.subgroup
        # More rows of w share what is read of x where there is much of either.
        several = 2 if (self.mb > 1 or p.n >= 1 << 14) and len(p.dots) == 1 else 1
        self.each = config.get("each", several)
        self.columns = threads // self.wave * self.each
        self.groups = -(-p.n // self.columns)
        self.lanes = self._lanes(1, p.k)
        self.shared_size = 0

    def emit(self, index: Expr, bi: Affine, sums: ir.Array | None) -> None:
        """The code of group number `index` of this segment, batch entry `bi`."""
        b, p = self.b, self.p
        self._begin(bi)
        t = b.let(b.thread(0), "t")
        lane = b.let(t % self.wave, "lane")
        n0 = b.let(index * self.columns + t // self.wave * self.each, "n0")
        self.ws = []
        for d in range(len(p.dots)):
            base, sn = self._base(d), p.b_strides(d)[2]
            line = [minimum(n0 + c, p.n - 1) * sn for c in range(self.each)]
            self.ws.append([b.let(base + at, "row") for at in line])
        lanes = min(self.lanes, _QUAD)
        self.acc = [
            [[self._sum(lanes) for _ in range(self.mb)] for _ in range(self.each)] for _ in p.dots
        ]
        self._accumulate(b.let(lane * self.lanes, "own"))
        self._results(lane, n0)

    def _accumulate(self, own: Expr) -> None:
        """The thread's vectors of k: `ahead` of them asked for at a time, the rest at the end."""
        b, p = self.b, self.p
        step = self.wave * self.lanes
        whole = p.k - p.k % (step * self.ahead)
        if whole:
            with b.loop(whole, step=step * self.ahead, name="k") as k:
                self._vectors([b.let(own + k + u * step, "k") for u in range(self.ahead)])
        full = (p.k - whole) // step
        if full:
            self._vectors([b.let(own + (whole + u * step), "k") for u in range(full)])
        if p.k % step:
            k = b.let(own + (whole + full * step), "k")
            with b.when(k < p.k):
                self._vectors([k])

    def _vectors(self, places: Sequence[Expr]) -> None:
        loaded = [
            [
                [self._weights(d, row + k, self.lanes) for row in rows]
                for d, rows in enumerate(self.ws)
            ]
            for k in places
        ]
        lefts = [[self._left(s, k, self.lanes) for s in self.starts] for k in places]
        for weights, xs in zip(loaded, lefts):
            xs = [self._wide(x) for x in xs]
            for rows, acc in zip(weights, self.acc):
                for w, line in zip(rows, acc):
                    wide = self._wide(w)
                    for x, var in zip(xs, line):
                        for first in range(0, self.lanes, _QUAD):
                            self._add(var, self._quad(x, first), self._quad(wide, first))

    def _quad(self, x: Expr, first: int) -> Expr:
        if x.type.lanes <= _QUAD:
            return x
        return shuffle(range(first, first + _QUAD), x)

    def _results(self, lane: Expr, n0: Expr) -> None:
        """Every thread learns all sums; the first few write one each."""
        b, p = self.b, self.p
        values: list[Expr] = []
        for acc in self.acc:
            totals = [self._total(var) for line in acc for var in line]
            value = totals[0]
            for j, total in enumerate(totals[1:], 1):
                value = select(eq(lane, j), total, value)
            values.append(b.let(value, "value"))
        m, n = b.let(self.m0 + lane % self.mb, "m"), b.let(n0 + lane // self.mb, "n")
        inside = (lane < self.mb * self.each) & (n < p.n) & (m < self.limit)
        with b.when(inside), self.em.scope():
            self._write(m, n, values)

    def _total(self, acc: ir.Var) -> Expr:
        """The sum over lanes and threads, in every thread."""
        value: Expr = acc
        while value.type.lanes > 1:
            half = value.type.lanes // 2
            parts = shuffle(range(half), value), shuffle(range(half, 2 * half), value)
            if half == 1:
                parts = extract(value, 0), extract(value, 1)
            value = self.b.let(parts[0] + parts[1], "half")
        return self.b.let(ir.Collective("subgroup_add", (value,), value.type), "total")


class Strips(_Wide):
    """w[K, N]: a strip of columns per group, K shared among its threads. config: threads, rows (of
    x), side (threads along a strip), ahead."""

    def __init__(
        self, em: Emitter, caps: Caps, segment: Segment, threads: int, config: Mapping[str, Any]
    ) -> None:
        super().__init__(em, caps, segment, config)
        p, self.threads = self.p, threads
        self.lanes = self._lanes(p.n, 1)
        self.side = config.get("side", _side(p))
        self.columns = self.side * self.lanes
        self.parts = threads // self.side
        self.groups = -(-p.n // self.columns)
        while self.mb > 1 and self.shared_size * 4 > caps.shared_bytes:
            self.mb -= 1

    @property
    def shared_size(self) -> int:
        """Elements of the shared array that `emit` wants."""
        return len(self.p.dots) * self.mb * self.parts * self.columns

    def emit(self, index: Expr, bi: Affine, sums: ir.Array | None) -> None:
        """The code of group number `index` of this segment, batch entry `bi`."""
        assert sums is not None
        b, p = self.b, self.p
        self._begin(bi)
        t = b.let(b.thread(0), "t")
        column = b.let(t % self.side * self.lanes, "column")
        part = b.let(t // self.side, "part")
        n0 = b.let(index * self.columns, "n0")
        first = b.let(minimum(n0 + column, p.n - self.lanes), "first")
        self.ws = [
            b.let(self._base(d) + first * p.b_strides(d)[2], "strip") for d in range(len(p.dots))
        ]
        self.acc = [[self._sum(self.lanes) for _ in range(self.mb)] for _ in p.dots]
        self._accumulate(part)
        size = self.parts * self.columns
        at = b.let(part * self.columns + column, "at")
        for j, var in enumerate(v for line in self.acc for v in line):
            b.store(sums, at + j * size, var)
        b.barrier()
        self._results(sums, t, n0)

    def _accumulate(self, part: Expr) -> None:
        b, p = self.b, self.p
        whole = p.k - p.k % (self.parts * self.ahead)
        if whole:
            with b.loop(whole, step=self.parts * self.ahead, name="k") as k:
                self._lines([b.let(part + k + u * self.parts, "k") for u in range(self.ahead)])
        if whole < p.k:
            with b.loop(p.k, part + whole, step=self.parts, name="k") as k:
                self._lines([k])

    def _lines(self, places: Sequence[Expr]) -> None:
        """Rows of w, each times an element of x."""
        p = self.p
        loaded = [
            [self._weights(d, w + k * p.b_strides(d)[1], self.lanes) for d, w in enumerate(self.ws)]
            for k in places
        ]
        lefts = [[self._left(s, k, 1) for s in self.starts] for k in places]
        for weights, xs in zip(loaded, lefts):
            xs = [self._wide(x) for x in xs]
            for w, line in zip(weights, self.acc):
                wide = self._wide(w)
                for x, var in zip(xs, line):
                    self._add(var, splat(x, self.lanes), wide)

    def _results(self, sums: ir.Array, t: Expr, n0: Expr) -> None:
        """Threads add up the parts of one value each, in ascending order."""
        b, p = self.b, self.p
        size, count = self.parts * self.columns, self.mb * self.columns
        with b.loop(count, t, step=self.threads, name="e") as e, self.em.scope():
            row, column = b.let(e // self.columns, "row"), b.let(e % self.columns, "column")
            m, n = b.let(self.m0 + row, "m"), b.let(n0 + column, "n")
            with b.when((m < self.limit) & (n < p.n)), self.em.scope():
                totals = [self._sum(1) for _ in p.dots]
                with b.loop(self.parts, name="part") as part:
                    at = b.let(row * size + part * self.columns + column, "at")
                    for d, total in enumerate(totals):
                        b.assign(total, total + load(sums, at + d * self.mb * size))
                self._write(m, n, [b.let(total, "value") for total in totals])
