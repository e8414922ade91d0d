"""Matrix times a few vectors in many threads: matvec_wide where the target has subgroups, else the
columns of this module. config: threads; see matvec_wide for more.

With cheap barriers a group splits K among its threads and adds their parts in a shared-memory
tree: along rows of w[N, K] neighbouring threads read neighbouring k, along rows of w[K, N]
neighbouring columns. Where barriers are dear every thread computes one column alone. The order of
additions is fixed and the same for any number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import (
    Builder,
    Expr,
    cast,
    const,
    extract,
    fma,
    load,
    minimum,
)
from weft.kernel.ir import Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product import stream_subgroup
from weft.templates.product.epilogue import Tail, count_flops, row_limit
from weft.templates.product.problem import Segment
from weft.templates.product.stream_subgroup import Rows, Strips, along_k


def build(
    group: Group, segments: tuple[Segment, ...], caps: Caps, config: Mapping[str, Any]
) -> Kernel:
    """The kernel of a matvec group for a target with many threads per group."""
    b = Builder(group.name or "matvec")
    em = Emitter(b, group, caps)
    first = segments[0].problem
    threads = config.get("threads", _threads(caps))
    makers = [_maker(em, caps, s, threads, config) for s in segments]
    rows = min(m.mb for m in makers)
    row_blocks = -(-first.m // rows)
    # Groups of the same weights start together where caches are large enough to share them.
    columns, down = (1, 0) if caps.subgroup and row_blocks > 1 else (0, 1)
    for maker in makers:
        maker.mb, maker.down = rows, down
    batches: Any = max(first.batches, 1)
    if first.batch and group.rows is not None:
        batches = row_limit(group, first.batches // first.batch[0], first.batches)
    size = max(m.shared_size for m in makers)
    sums = b.array("parts", makers[0].acc_type, size, "shared") if size else None
    index = b.let(b.group(columns), "block")
    bi = em.axis(b.group(2), max(first.batches, 1))
    start = 0
    for maker in makers:
        stop = start + maker.groups
        if len(makers) == 1:
            maker.emit(index, bi, sums)
        else:
            inside = index < stop if start == 0 else (index >= start) & (index < stop)
            with b.when(inside), em.scope():
                maker.emit(b.let(index - start, "own"), bi, sums)
        start = stop
    flops = sum(count_flops(s.problem) for s in segments)
    grid = (row_blocks, start, batches) if columns else (start, row_blocks, batches)
    return b.kernel(grid, (threads,), flops, traffic(group))


def _threads(caps: Caps) -> int:
    """Of a group."""
    return stream_subgroup.SUBGROUPS * caps.subgroup if caps.subgroup else min(64, caps.max_threads)


def _maker(
    em: Emitter, caps: Caps, segment: Segment, threads: int, config: Mapping[str, Any]
) -> _Columns | Rows | Strips:
    if not caps.subgroup:
        return _Columns(em, caps, segment, threads, config)
    return (Rows if along_k(segment.problem) else Strips)(em, caps, segment, threads, config)


def candidates(segments: tuple[Segment, ...], caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring, all of one order of additions."""
    if not caps.subgroup:
        return []
    return stream_subgroup.candidates(segments[0].problem, caps)


class _Columns:
    """Emits the part of the kernel that computes one segment."""

    def __init__(
        self, em: Emitter, caps: Caps, segment: Segment, threads: int, config: Mapping[str, Any]
    ) -> None:
        self.em, self.b = em, em.b
        self.p = p = segment.problem
        self.tail = Tail(em, p, segment.outputs)
        self.threads = threads
        integer = not p.dots[0].inputs[0].dtype.is_float
        self.acc_type: DType = dt.int32 if integer else dt.float32
        self.mb, self.down = min(p.m, 4), 1  # rows of x in a group; the grid's axis of such blocks
        self.split = config.get("shared", caps.cheap_barrier)
        along_k = all(p.b_strides(i)[1] == 1 for i in range(len(p.dots)))
        if not self.split:
            self.columns = threads
        elif along_k:
            self.columns = 4
            while self.columns > 1 and self.columns * 2 > threads:
                self.columns //= 2
        else:
            self.columns = max(threads // 4, 1)
        self.along_k = along_k
        self.groups = -(-p.n // self.columns)

    @property
    def shared_size(self) -> int:
        """Elements of the shared array that `emit` wants."""
        if not self.split:
            return 0
        wide = self.columns if self.along_k else 1
        return len(self.p.dots) * self.mb * wide * self.threads

    def emit(self, index: Expr, bi: Affine, sums: ir.Array | None) -> None:
        """The code of group number `index` of this segment, batch entry `bi`."""
        b, p, em = self.b, self.p, self.em
        self.batch = affine.unflatten(bi, p.batch)
        m0 = b.let(b.group(self.down) * self.mb, "m0")
        self.rows = [b.let(m0 + i, "m") for i in range(self.mb)]
        bounded = em.group.rows is not None and not p.batch
        limit = row_limit(em.group, p.m // p.rows[0], p.m) if bounded else const(p.m)
        self.limit = b.let(limit, "limit")
        a_base = em.expr(affine.flatten(self.batch, p.a_batch, p.a.offset))
        self.starts = [b.let(a_base + minimum(r, p.m - 1) * p.a_m, "x") for r in self.rows]
        self.n0 = b.let(index * self.columns, "n0")
        t = b.let(b.thread(0), "t")
        if sums is None:
            n = b.let(self.n0 + t, "n")
            self._alone(n)
        elif self.along_k:
            self._together(sums, t, [const(c) for c in range(self.columns)], t, self.threads)
        else:
            column = b.let(t % self.columns, "column")
            part = b.let(t // self.columns, "part")
            self._together(sums, t, [column], part, self.threads // self.columns)

    # -- the inner product

    def _accumulate(
        self, columns: Sequence[Expr], part: Expr, parts: int
    ) -> list[list[list[ir.Var]]]:
        """acc[dot][row][column] over k in steps of `parts` (quads of them where K allows)."""
        b, p, em = self.b, self.p, self.em
        zero = const(0, Type(self.acc_type))
        acc = [
            [[b.var(zero, "acc", zero.type) for _ in columns] for _ in self.starts] for _ in p.dots
        ]
        bases = []
        for d, view in enumerate(p.bs):
            strides, _, sn = p.b_strides(d)
            base = b.let(em.expr(affine.flatten(self.batch, strides, view.offset)), "base")
            bases.append([b.let(base + minimum(c, p.n - 1) * sn, "w") for c in columns])
        quad = 4 if self.along_k and p.a_k == 1 and p.k % 4 == 0 else 1
        with b.loop(p.k, part * quad, step=parts * quad, name="k") as k:
            xs = [self._read(p.a.node, s + k * p.a_k, quad) for s in self.starts]
            for d, starts in enumerate(bases):
                sk = p.b_strides(d)[1]
                for c, start in enumerate(starts):
                    w = self._read(p.bs[d].node, start + k * sk, quad)
                    for i, x in enumerate(xs):
                        var = acc[d][i][c]
                        for t in range(quad):
                            b.assign(var, self._multiply(x[t], w[t], var))
        return acc

    def _read(self, node: Any, index: Expr, lanes: int) -> list[Expr]:
        b = self.b
        value = b.let(cast(load(self.em.buffers[id(node)], index, lanes), self.acc_type), "v")
        return [b.let(extract(value, t), "e") for t in range(lanes)]

    def _multiply(self, x: Expr, y: Expr, acc: ir.Var) -> Expr:
        return acc + x * y if self.acc_type == dt.int32 else fma(x, y, acc)

    # -- one thread per column

    def _alone(self, n: Expr) -> None:
        b, p = self.b, self.p
        with b.when(n < p.n), self.em.scope():
            acc = self._accumulate([n], const(0), 1)
            for i, m in enumerate(self.rows):
                self._write(m, n, [acc[d][i][0] for d in range(len(p.dots))])

    def _write(self, m: Expr, n: Expr, values: Sequence[Expr]) -> None:
        em = self.em
        with self.b.when(m < self.limit), em.scope():
            self.tail.position(self.batch, em.axis(m, self.p.m))
            self.tail.write(n, 1, None, values)

    # -- a group per few columns

    def _together(
        self, sums: ir.Array, t: Expr, columns: Sequence[Expr], part: Expr, parts: int
    ) -> None:
        """Partial sums meet in shared memory: parts[value][thread], halved until one is left."""
        b, threads = self.b, self.threads
        spots = [b.let(self.n0 + c, "n") for c in columns]
        acc = self._accumulate(spots, part, parts)
        flat = [v for tile in acc for line in tile for v in line]
        for i, var in enumerate(flat):
            b.store(sums, t + i * threads, var)
        stride = threads // parts  # threads whose parts belong to different columns
        b.barrier()
        half = parts // 2
        while half:
            with b.when(t < half * stride):
                for i in range(len(flat)):
                    at = b.let(t + i * threads, "at")
                    total = load(sums, at) + load(sums, at + half * stride)
                    b.store(sums, at, total)
            b.barrier()
            half //= 2
        count = self.mb * self.columns
        with b.when(t < count), self.em.scope():
            self._collect(sums, t, count, len(columns))

    def _collect(self, sums: ir.Array, t: Expr, count: int, wide: int) -> None:
        """Thread t writes value number t of the group's rows x columns."""
        b, p, threads = self.b, self.p, self.threads
        row = b.let(t // self.columns, "row")
        column = b.let(t % self.columns, "column")
        n = b.let(self.n0 + column, "n")
        values = []
        for d in range(len(p.dots)):
            if wide == 1:
                at = (row + d * self.mb) * threads + column
            else:
                at = (row * wide + column + d * self.mb * wide) * threads
            values.append(b.let(load(sums, at), "value"))
        m = b.let(self.rows[0] + row, "m")
        with b.when(n < p.n), self.em.scope():
            self._write(m, n, values)
