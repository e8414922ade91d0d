"""scatter: scatter_add and update of rows, deterministic and without atomics.

The owner of a destination scans the indices in order, so equal indices add up in their order. An
update in place only visits the rows it replaces.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import I32, Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import (
    Space,
    bounded_rows,
    kernel_name,
    probe,
    traffic,
    useful_lanes,
    vector_loop,
)  # fmt: skip
from weft.templates.registry import template
from weft.templates.rows.folds import sum_fold
from weft.templates.scatter_columns import scan_columns
from weft.templates.view import Index

CHUNK = 8192  # elements that one group writes on a CPU
BLOCK = 1 << 16  # elements that one group accumulates in scratch memory
OWN = 16  # columns that a GPU thread adds up in registers
LOOK = 16  # indices that it compares before it branches


@template("scatter")
def build_scatter(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a scatter_add or update node. `group.rows` bounds the rows of
    the index."""
    plan = Scatter(group, caps)
    if plan.anchor.op == "update" and group.in_place:
        return _replace_cpu(plan) if caps.is_cpu else _replace_gpu(plan)
    if not caps.is_cpu:
        return _scan_gpu(plan)
    return scan_columns(plan) if plan.own else _scan_cpu(plan)


class Scatter:
    """x[V, *rest] with rows idx[R] joined by rows[R, *rest], or element by element with
    idx[R, *rest]; `space` covers the axes of `rows`."""

    def __init__(self, group: Group, caps: Caps) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        self.x, self.idx, self.rows = group.anchor.inputs
        (self.out,) = group.outputs
        if self.out.size != self.anchor.size or self.out.dtype != self.anchor.dtype:
            raise CompileError(f"{self.out!r} cannot be the output of {self.anchor!r}")
        self.own = len(self.idx.shape) > 1  # each column has an index of its own
        kinds = [0] + [1] * (len(self.rows.shape) - 1)
        self.space: Space = probe(group, caps, self.rows.shape, self._probed, kinds)
        self.columns = [d for d, (a, _) in zip(self.space.dims, self.space.spans) if a > 0]
        self.width = math.prod(self.columns)
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)
        self.count = bounded_rows(group, self.idx.shape[0])

    def _probed(self, em: Emitter, at: Index) -> None:
        em.value(self.rows, at)
        em.value(self.idx, at if self.own else at[:1])

    def at(self, row: Affine, columns: Sequence[Affine]) -> tuple[Affine, ...]:
        """The index of a row (of x or of the joined rows) at column loop coordinates."""
        spans = self.space.spans
        has_row = bool(spans) and spans[0][0] == 0
        coords = [affine.ZERO, *columns] if has_row else list(columns)
        return (row, *self.space.index(coords)[1:])

    def target(self, r: Affine, columns: Sequence[Affine] = ()) -> Expr:
        """Returns the row of x that receives the r-th joined row, of these columns where each has
        its own (bound, unchecked)."""
        at = self.at(r, columns) if self.own else (r,)
        return self.b.let(kb.cast(self.em.value(self.idx, at), dt.int32), "target")

    def inside(self, target: Expr) -> Expr:
        return (target >= 0) & (target < self.x.shape[0])

    def put(self, index: Sequence[Affine], value: Expr) -> None:
        """Writes one (vector of) result(s) of the anchor."""
        at = affine.reshape_index(index, self.anchor.shape, self.out.shape)
        self.em.put(self.out, at, value)

    def kernel(self, grid: Expr | int, threads: int = 1) -> Kernel:
        return self.b.kernel((grid,), (threads,), bytes=traffic(self.group))


# -- update in place: visit the replaced rows ---------------------------------------------------


def _replace_cpu(plan: Scatter) -> Kernel:
    b, em = plan.b, plan.em
    *outer, n = plan.columns or [1]
    lanes = useful_lanes(plan.caps, n)
    per = max(1, CHUNK // max(plan.width, 1))
    extent = plan.idx.shape[0]
    low = b.let(b.group(0) * per, "low")
    with b.loop(kb.minimum(low + per, plan.count), low, name="r") as r, em.scope():
        source = em.axis(r, extent)
        target = plan.target(source)
        with b.when(plan.inside(target)), em.scope():
            row = em.axis(target, plan.x.shape[0])

            def inner(coords: Sequence[Affine]) -> None:
                def body(j: Affine) -> None:
                    columns = [*coords, j][: len(plan.columns)]
                    plan.put(plan.at(row, columns), em.value(plan.rows, plan.at(source, columns)))

                vector_loop(em, 0, n, n, body, lanes)

            if outer:
                with b.loop(math.prod(outer), name="k") as k, em.scope():
                    inner(affine.unflatten(em.axis(k, math.prod(outer)), outer))
            else:
                inner(())
    return plan.kernel(kb.ceil_div(plan.count, per))


def _replace_gpu(plan: Scatter) -> Kernel:
    b, em = plan.b, plan.em
    columns = plan.columns or [1]
    lanes = 4 if plan.caps.lanes >= 4 and columns[-1] % 4 == 0 and plan.space.unit_inner else 1
    threads = min(256, plan.caps.max_threads)
    per = plan.width // lanes
    total = plan.count * per
    at = b.let(b.group(0) * threads + b.thread(0), "at")
    with b.when(at < total), em.scope():
        source, part = affine.divide(em.axis(at, plan.idx.shape[0] * per), per)
        coords = affine.unflatten(part * lanes + em.lane(lanes), columns)[: len(plan.columns)]
        target = plan.target(source)
        with b.when(plan.inside(target)), em.scope():
            row = em.axis(target, plan.x.shape[0])
            plan.put(plan.at(row, coords), em.value(plan.rows, plan.at(source, coords)))
    return plan.kernel(kb.ceil_div(total, threads), threads)


# -- the general case: every destination scans the indices --------------------------------------


def _scan_cpu(plan: Scatter) -> Kernel:
    """A group owns a block of rows (or a part of one), accumulates them in scratch memory and
    writes them once."""
    b, em, fold = plan.b, plan.em, sum_fold(dt.compute_dtype(plan.x.dtype))
    adds = plan.anchor.op == "scatter_add"
    kind = fold.dtypes[0] if adds else dt.compute_dtype(plan.x.dtype)
    total, width = plan.x.shape[0], max(plan.width, 1)
    lanes = useful_lanes(plan.caps, width)
    part = width if width <= BLOCK else BLOCK // 2
    parts = -(-width // part)
    block = max(1, min(total, BLOCK // part, -(-total // (2 * plan.caps.cores))))
    stride = -(-part // lanes) * lanes
    sums = b.array("sums", kind, block * stride)
    blocks = -(-total // block)
    owner, piece = affine.divide(em.axis(b.group(0), blocks * parts), parts)
    first = b.let(em.expr(owner * block), "first")
    rows = b.let(kb.minimum(block, total - first), "rows")
    start = piece * part
    stop: Expr | int = part
    if width % part:
        stop = b.let(kb.minimum(part, width - em.expr(start)), "stop")

    def columns(j: Affine) -> tuple[Affine, ...]:
        return affine.unflatten(start + j, plan.columns or [1])[: len(plan.columns)]

    def walk(local: Affine, visit: Any) -> None:
        vector_loop(em, 0, stop, part, lambda j: visit(local * stride + j, columns(j)), lanes)

    with b.loop(rows, name="v") as v, em.scope():
        local = em.axis(v, block)
        row = em.axis(first + v, total)

        def begin(at: Affine, cols: tuple[Affine, ...]) -> None:
            value = kb.cast(em.value(plan.x, plan.at(row, cols)), kind)
            b.store(sums, em.address(at), kb.splat(value, at.lanes))

        walk(local, begin)
    with b.loop(plan.count, name="r") as r, em.scope():
        source = em.axis(r, plan.idx.shape[0])
        mine = b.let(plan.target(source) - first, "mine")
        with b.when((mine >= 0) & (mine < rows)), em.scope():
            local = em.axis(mine, block)

            def join(at: Affine, cols: tuple[Affine, ...]) -> None:
                value = kb.cast(em.value(plan.rows, plan.at(source, cols)), kind)
                value = kb.splat(value, at.lanes)
                if adds:
                    value = kb.load(sums, em.address(at), at.lanes) + value
                b.store(sums, em.address(at), value)

            walk(local, join)
    with b.loop(rows, name="w") as w, em.scope():
        local = em.axis(w, block)
        row = em.axis(first + w, total)

        def end(at: Affine, cols: tuple[Affine, ...]) -> None:
            plan.put(plan.at(row, cols), kb.load(sums, em.address(at), at.lanes))

        walk(local, end)
    return plan.kernel(blocks * parts)


def _scan_gpu(plan: Scatter) -> Kernel:
    """A thread owns some columns of a row of the result, so that it looks at the indices once for
    all of them; neighbours own neighbouring columns."""
    b, em, fold = plan.b, plan.em, sum_fold(dt.compute_dtype(plan.x.dtype))
    adds = plan.anchor.op == "scatter_add"
    kind = fold.dtypes[0] if adds else dt.compute_dtype(plan.x.dtype)
    columns = plan.columns or [1]
    own = next(n for n in (OWN, OWN // 2, OWN // 4, 2, 1) if plan.width % n == 0)
    own = 1 if plan.own else own
    stripes = plan.width // own
    total = plan.x.shape[0] * stripes
    threads = min(256, plan.caps.max_threads)
    at = b.let(b.group(0) * threads + b.thread(0), "at")
    with b.when(at < total), em.scope():
        row, part = affine.divide(em.axis(at, total), stripes)
        mine = em.expr(row)
        owned = [
            affine.unflatten(part + k * stripes, columns)[: len(plan.columns)] for k in range(own)
        ]
        accs = [
            b.var(kb.cast(em.value(plan.x, plan.at(row, coords)), kind), "acc") for coords in owned
        ]
        with _met(plan, mine, owned[0]) as source:
            for acc, coords in zip(accs, owned):
                value = kb.cast(em.value(plan.rows, plan.at(source, coords)), kind)
                b.assign(acc, acc + value if adds else value)
        for acc, coords in zip(accs, owned):
            plan.put(plan.at(row, coords), b.let(acc, "out"))
    return plan.kernel(kb.ceil_div(total, threads), threads)


@contextlib.contextmanager
def _met(plan: Scatter, mine: Expr, columns: Sequence[Affine]) -> Iterator[Affine]:
    """A loop over the joined rows that go to row `mine`, in their order, of columns that have
    their own index; its body is what the
    caller emits meanwhile. Some indices are compared before the next branch, since rasterisers in
    software run what a branch skips."""
    b, em, extent = plan.b, plan.em, plan.idx.shape[0]
    look = next(n for n in (LOOK, LOOK // 2, LOOK // 4, 2, 1) if extent % n == 0)
    stop = plan.count if isinstance(plan.count, int) else b.let(plan.count, "stop")
    with b.loop(stop, step=look, name="r") as r, em.scope():
        first = em.axis(r, extent, look)
        met = [kb.eq(plan.target(first + k, columns), mine) for k in range(look)]
        if not isinstance(stop, int):
            left = b.let(stop - r, "left")
            met = [m & (left > k) for k, m in enumerate(met)]
        met = [b.let(m, "met") for m in met]
        found = functools.reduce(operator.add, (kb.cast(m, dt.int32) for m in met))
        last = b.var(-1, "last", I32)
        with b.loop(found, name="n"), em.scope():
            at: Expr = kb.const(look - 1)
            for k in range(look - 2, -1, -1):
                at = b.let(kb.select(met[k] & (last < k), k, at), "at")
            b.assign(last, at)
            yield em.axis(r + at, extent)
