"""Matrix times a few vectors on a CPU.

Two layouts of the matrix. w[N, K] contiguous along K (checkpoints): a group streams several rows of
w at once, lanes run along K, one accumulator per row of w and row of x, and a fixed shuffle tree
adds the lanes of several rows together. w[K, N] contiguous along N: lanes run along N and K is
walked in order, a strip of columns per group.

The chain of operations behind one output element is the same whatever the number of rows of x and
whichever rows share a register tile, so results are bit-identical for any batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.builder import (
    Builder,
    Expr,
    cast,
    const,
    fma,
    iota,
    load,
    minimum,
    splat,
)
from weft.kernel.ir import Kernel, Type
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Tail, count_flops, row_limit
from weft.templates.product.pack import Packer, fold_lanes, tail_mask
from weft.templates.product.problem import Problem


@dataclass(frozen=True)
class Segment:
    """Dots of one N whose values meet, and the outputs they feed."""

    problem: Problem
    outputs: tuple[Node, ...]


def build(
    group: Group, segments: tuple[Segment, ...], caps: Caps, config: Mapping[str, Any]
) -> Kernel:
    """The kernel of a matvec group for a CPU."""
    b = Builder(group.name or "matvec")
    em = Emitter(b, group, caps)
    makers = [_Streamer(em, caps, s, config) for s in segments]
    first = segments[0].problem
    batches: Any = max(first.batches, 1)
    if first.batch and group.rows is not None:
        batches = row_limit(group, first.batches // first.batch[0], first.batches)
    index = b.let(b.group(0), "chunk")
    bi = em.axis(b.group(2), max(first.batches, 1))
    start = 0
    for maker in makers:
        stop = start + maker.groups
        if len(makers) == 1:
            maker.emit(index, bi)
        else:
            inside = index < stop if start == 0 else (index >= start) & (index < stop)
            with b.when(inside), em.scope():
                maker.emit(b.let(index - start, "own"), bi)
        start = stop
    flops = sum(count_flops(s.problem) for s in segments)
    return b.kernel((start, 1, batches), (1,), flops, traffic(group))


def candidates(segments: tuple[Segment, ...], caps: Caps) -> list[dict[str, Any]]:
    """Rows (or vectors of columns) of the matrix read at once, how many chunks of them a group
    takes, and how far ahead memory is asked for."""
    n = min(s.problem.n for s in segments)
    across = all(s.problem.b_strides(0)[2] == 1 for s in segments)
    if across:
        wide = [v for v in (1, 2, 4, 8) if v * caps.lanes <= n]
        return [*({"vectors": v} for v in wide), *({"further": f} for f in (0, 4, 16))]
    rows = [r for r in (1, 2, 4, 8) if r <= min(n, caps.lanes)]
    found: list[dict[str, Any]] = [{"rows": r} for r in rows]
    return [*found, *({"ahead": a} for a in (2, 8)), *({"chunks": c} for c in (1, 2, 4, 8))]


class _Streamer:
    """Emits the part of the kernel that computes one segment."""

    def __init__(
        self, em: Emitter, caps: Caps, segment: Segment, config: Mapping[str, Any]
    ) -> None:
        self.em, self.b, self.caps = em, em.b, caps
        self.p = p = segment.problem
        self.tail = Tail(em, p, segment.outputs)
        self.lanes = caps.lanes
        strides = [p.b_strides(i) for i in range(len(p.dots))]
        self.along_n = all(sn == 1 and p.n > 1 for _, _, sn in strides)
        self.mode = self._mode()
        self.acc: DType = dt.int32 if self.mode == "i32" else dt.float32
        self.mb = min(p.m, 4)
        big, dots = caps.registers >= 32, len(p.dots)
        if self.along_n:
            room = (16 if big else 8) // (self.mb * dots)
            self.width = config.get("vectors", self._strip(max(room, 1))) * self.lanes
        else:
            room = (2 if self.mb == 1 else 4 if big else 2) // min(dots, 2)
            rows = max(1, min(room, self.lanes, p.n))
            self.width = config.get("rows", 1 << (rows.bit_length() - 1))
        self.ahead = config.get("ahead", max(self.width, 4))
        self.further = config.get("further", 8)
        chunks = -(-p.n // self.width)
        many = config.get("chunks", 1 if self.along_n else max(1, chunks // (16 * caps.cores)))
        self.per_group = min(many, chunks)
        self.groups = -(-chunks // self.per_group)

    def _mode(self) -> str:
        p = self.p
        if not p.dots[0].inputs[0].dtype.is_float:
            return "i32"
        narrow = {v.dtype for v in (p.a, *p.bs)} == {dt.bfloat16}
        contiguous = p.a_k == 1 and all(p.b_strides(i)[1] == 1 for i in range(len(p.dots)))
        if narrow and contiguous and not self.along_n and "dot2_bf16" in self.caps.features:
            return "dot2"
        return "f32"

    def _strip(self, room: int) -> int:
        """Vectors per strip of columns: wide, but enough strips for every core."""
        vectors = -(-self.p.n // self.lanes)
        while room > 1 and -(-vectors // room) < 4 * self.caps.cores:
            room //= 2
        return room

    # -- one group

    def emit(self, index: Expr, bi: affine.Affine) -> None:
        b, p = self.b, self.p
        self.batch = affine.unflatten(bi, p.batch)
        self.a_base = self._base(p.a.offset, p.a_batch)
        self.b_base = [self._base(v.offset, p.b_strides(i)[0]) for i, v in enumerate(p.bs)]
        self.left, self.start, self.a_m, self.a_k = self._operand()
        bounded = self.em.group.rows is not None and not p.batch
        self.limit: Expr | None = None
        if bounded:
            self.limit = b.let(row_limit(self.em.group, p.m // p.rows[0], p.m), "limit")
        chunks = -(-p.n // self.width)
        if self.per_group == 1:
            self._chunk(index)
            return
        first = b.let(index * self.per_group, "first")
        stop = b.let(minimum(first + self.per_group, chunks), "stop")
        with b.loop(stop, first, name="chunk") as c, self.em.scope():
            self._chunk(c)

    def _base(self, offset: int, strides: tuple[int, ...]) -> Expr:
        return self.b.let(self.em.expr(affine.flatten(self.batch, strides, offset)), "base")

    def _operand(self) -> tuple[ir.Buffer | ir.Array, Expr, int, int]:
        """x as (source, first element, row stride, k stride): in place when it can be read as it
        is, else widened once per group into scratch."""
        b, p = self.b, self.p
        source = self.em.buffers[id(p.a.node)]
        natural = p.a.dtype == self.acc or self.mode == "dot2"
        if natural and (self.along_n or p.a_k == 1):
            return source, self.a_base, p.a_m, p.a_k
        ld = -(-p.k // self.lanes) * self.lanes
        staged = b.array("x", self.acc, p.m * ld)
        packer = Packer(b, source, self.a_base, staged, ld, self.lanes, self.acc)
        if p.a_k == 1:
            packer.rows(p.a_m, const(p.m), const(p.k), p.k % self.lanes == 0)
        else:
            packer.scalars((p.a_m, p.a_k), const(p.m), const(p.k), None)
        return staged, const(0), ld, 1

    def _chunk(self, chunk: Expr) -> None:
        """`width` columns of the output, for all rows."""
        b, p = self.b, self.p
        n0 = b.let(chunk * self.width, "n0")
        if p.m <= self.mb and self.limit is None:
            self._rows([const(i) for i in range(p.m)], n0)
            return
        limit = const(p.m) if self.limit is None else self.limit
        with b.loop(limit, step=self.mb, name="m") as m, self.em.scope():
            self._rows([b.let(m + i, "row") for i in range(self.mb)], n0)

    def _rows(self, rows: Sequence[Expr], n0: Expr) -> None:
        if self.along_n:
            self._along_n(rows, n0)
        else:
            self._along_k(rows, n0)

    def _starts(self, rows: Sequence[Expr]) -> list[Expr]:
        """Where each row of x starts; rows that do not exist repeat the last one."""
        last = self.p.m - 1
        rows = [r if isinstance(r, ir.Const) else minimum(r, last) for r in rows]
        return [self.b.let(self.start + r * self.a_m, "xrow") for r in rows]

    def _store(
        self,
        rows: Sequence[Expr],
        n: Expr,
        lanes: int,
        mask: Expr | None,
        values: Sequence[Sequence[Expr]],
        step: int,
    ) -> None:
        """values[row][dot] for columns n.. of each row that is wanted."""
        em, p = self.em, self.p
        limit = p.m if self.limit is None else self.limit
        for r, accs in zip(rows, values):
            if isinstance(r, ir.Const):
                self.tail.position(self.batch, em.axis(r, p.m))
                self.tail.write(n, lanes, mask, accs, step)
                continue
            with self.b.when(r < limit), em.scope():
                self.tail.position(self.batch, em.axis(r, p.m))
                self.tail.write(n, lanes, mask, accs, step)

    # -- w[N, K]: lanes along K

    def _along_k(self, rows: Sequence[Expr], n0: Expr) -> None:
        b, p, width = self.b, self.p, self.width
        ragged = p.n % width != 0
        n = b.let(minimum(n0, p.n - width), "n") if ragged else n0
        starts = self._starts(rows)
        zero = const(0, Type(self.acc, self.lanes))
        acc = [
            [[b.var(zero, "acc", zero.type) for _ in range(width)] for _ in rows] for _ in p.dots
        ]
        bases = []
        for i in range(len(p.dots)):
            sn = p.b_strides(i)[2]
            bases.append(b.let(self.b_base[i] + n * sn, "w"))
        step = self.lanes * (2 if self.mode == "dot2" else 1)
        line = max(step, 64 // min(v.dtype.itemsize for v in p.bs))  # a cache line of w
        whole = p.k - p.k % line
        if whole:
            with b.loop(whole, step=line, name="k") as k:
                self._prefetch(bases, k)
                for at in range(0, line, step):
                    self._step(starts, bases, acc, b.let(k + at, "k"), step, None)
        for at in range(whole, p.k, step):
            mask = None
            if at + step > p.k:
                mask = b.let(tail_mask(const(at), p.k, step), "tail")
            self._step(starts, bases, acc, const(at), step, mask)
        values = [
            [b.let(fold_lanes(b, acc[d][i]), "dot") for d in range(len(p.dots))]
            for i in range(len(rows))
        ]
        mask = None
        if ragged and width > 1:
            mask = b.let(n + iota(width) >= splat(n0, width), "own")
        self._store(rows, n, width, mask, values, 1 if ragged else width)

    def _prefetch(self, bases: Sequence[Expr], k: Expr) -> None:
        """Asks for what `ahead` rows further down is at this place: rows are too short for the
        hardware to follow several of them (measured: 0.6 of the bandwidth without)."""
        for d, base in enumerate(bases):
            _, sk, sn = self.p.b_strides(d)
            if sk != 1:
                continue
            size = self.p.bs[d].dtype.itemsize
            if self.ahead * sn * size <= 16384:
                further = self.ahead * sn
            else:
                further = 2048 // size  # long rows: far enough in the same row
            source = self.em.buffers[id(self.p.bs[d].node)]
            for r in range(self.width):
                self.b.prefetch(source, base + k + (r * sn + further))

    def _step(
        self,
        starts: Sequence[Expr],
        bases: Sequence[Expr],
        acc: list[list[list[ir.Var]]],
        k: Expr,
        step: int,
        mask: Expr | None,
    ) -> None:
        """One vector of K for every row of x and of w."""
        b, p = self.b, self.p
        xs = [b.let(self._read(self.left, s + k, step, mask), "x") for s in starts]
        for d, base in enumerate(bases):
            _, sk, sn = p.b_strides(d)
            source = self.em.buffers[id(p.bs[d].node)]
            for r in range(self.width):
                if sk == 1:
                    at = base + k + r * sn
                else:
                    at = base + (k + iota(step)) * sk + r * sn
                w = b.let(self._read(source, at, step, mask), "w")
                for i, x in enumerate(xs):
                    var = acc[d][i][r]
                    b.assign(var, self._multiply(x, w, var))

    def _read(self, source: ir.Buffer | ir.Array, at: Expr, lanes: int, mask: Expr | None) -> Expr:
        value = load(source, at, lanes, mask)
        return value if self.mode == "dot2" else cast(value, self.acc)

    def _multiply(self, x: Expr, w: Expr, acc: ir.Var) -> Expr:
        if self.mode == "dot2":
            return ir.Collective("dot2", (acc, x, w), acc.type)
        return acc + x * w if self.mode == "i32" else fma(x, w, acc)

    # -- w[K, N]: lanes along N

    def _along_n(self, rows: Sequence[Expr], n0: Expr) -> None:
        b, p, lanes = self.b, self.p, self.lanes
        vectors = self.width // lanes
        ragged = p.n % self.width != 0
        columns = [b.let(n0 + v * lanes, "n") for v in range(vectors)]
        masks = [b.let(tail_mask(c, p.n, lanes), "cols") if ragged else None for c in columns]
        starts = self._starts(rows)
        zero = const(0, Type(self.acc, lanes))
        acc = [
            [[b.var(zero, "acc", zero.type) for _ in range(vectors)] for _ in rows] for _ in p.dots
        ]
        bases = [b.let(base + n0, "w") for base in self.b_base]
        with b.loop(p.k, name="k") as k:
            xs = []
            for s in starts:
                x = cast(load(self.left, s + k * self.a_k), self.acc)
                xs.append(b.let(splat(x, lanes), "x"))
            for d, base in enumerate(bases):
                sk = p.b_strides(d)[1]
                source = self.em.buffers[id(p.bs[d].node)]
                line = 64 // source.dtype.itemsize
                for c in range(0, self.width, line) if self.further else ():
                    b.prefetch(source, base + (k + self.further) * sk + c)
                for v in range(vectors):
                    at = base + k * sk + v * lanes
                    w = b.let(cast(load(source, at, lanes, masks[v]), self.acc), "w")
                    for i, x in enumerate(xs):
                        var = acc[d][i][v]
                        b.assign(var, self._multiply(x, w, var))
        for v in range(vectors):
            values = [[acc[d][i][v] for d in range(len(p.dots))] for i in range(len(rows))]
            self._store(rows, columns[v], lanes, masks[v], values, lanes)
