"""sort: stable sort or argsort along an axis, any length, NaN last (first when descending).

Rows are sorted as pairs (order key, position), all distinct, so any sorting method is stable and
gives the same bits. CPU: a bottom-up merge sort in scratch memory. GPU: a bitonic network in shared
memory where barriers are cheap and the row fits; else each element counts its predecessors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import expr as kb, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import I32, Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, kernel_name, traffic
from weft.templates.registry import template
from weft.templates.rows.folds import order_key
from weft.templates.view import Index

LAST = 0x7FFFFFFF
Pair = tuple[ir.Array, ir.Array]  # keys and positions


@template("sort")
def build_sort(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a sort node."""
    plan = _Sort(group, caps)
    if caps.is_cpu and 16 * plan.n <= caps.scratch_bytes:
        return _merge(plan)
    if caps.cheap_barrier and not caps.is_cpu and 8 * plan.padded <= caps.shared_bytes:
        return _bitonic(plan)
    return _count(plan)


class _Sort:
    """`rows` independent rows of `n` elements along the sort's axis."""

    def __init__(self, group: Group, caps: Caps) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        (self.x,) = group.anchor.inputs
        (self.out,) = group.outputs
        if self.out.size != self.anchor.size or self.out.dtype != self.anchor.dtype:
            raise CompileError(f"{self.out!r} cannot be the output of {self.anchor!r}")
        self.axis: int = group.anchor.attrs["axis"]
        self.descending = group.anchor.attrs["descending"]
        shape = self.x.shape
        self.n = shape[self.axis]
        self.others = (*shape[: self.axis], *shape[self.axis + 1 :])
        self.rows: int = self.x.size // max(self.n, 1)
        self.padded = 1 << max(self.n - 1, 0).bit_length()
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)

    def wanted(self) -> Expr | int:
        """Returns the number of rows that a run wants (all of them when the sort's axis is the
        bounded one)."""
        if self.group.rows is None or self.axis == 0:
            return self.rows
        shape = self.x.shape
        return bounded_rows(self.group, shape[0]) * (self.rows // shape[0])

    def index(self, row: Affine, i: Affine) -> Index:
        lead = affine.unflatten(row, self.others)
        return (*lead[: self.axis], i, *lead[self.axis :])

    def key(self, row: Affine, i: Affine) -> Expr:
        """The order key of element i (bound)."""
        key = order_key(self.b, self.em.value(self.x, self.index(row, i)))
        return self.b.let(key ^ -1 if self.descending else key, "key")

    def put(self, row: Affine, place: Affine, position: Expr) -> None:
        """Element number `position` of the row belongs at `place`."""
        if self.anchor.attrs["indices"]:
            value = position
        else:
            value = self.em.value(self.x, self.index(row, self.em.axis(position, self.n)))
        at = affine.reshape_index(self.index(row, place), self.anchor.shape, self.out.shape)
        self.em.put(self.out, at, value)

    def kernel(self, grid: Expr | int, threads: int = 1) -> Kernel:
        return self.b.kernel((grid,), (threads,), bytes=traffic(self.group))


# -- CPU: merge sort ----------------------------------------------------------------------------


def _merge(plan: _Sort) -> Kernel:
    b, em, n = plan.b, plan.em, plan.n
    one, two = (
        (b.array(f"keys{k}", dt.int32, n), b.array(f"places{k}", dt.int32, n)) for k in (0, 1)
    )
    per = max(1, 2048 // n)
    low = b.let(b.group(0) * per, "low")
    high = kb.minimum(low + per, plan.wanted())
    with b.loop(high, low, name="row") as r, em.scope():
        row = em.axis(r, plan.rows)
        with b.loop(n, name="i") as i, em.scope():
            b.store(one[0], i, plan.key(row, em.axis(i, n)))
            b.store(one[1], i, i)
        rounds = ((n - 1).bit_length() + 1) // 2  # two passes each: there and back
        with b.loop(rounds, name="round") as k:
            width = b.let(kb.const(1, I32) << (k * 2), "width")
            _pass(b, one, two, width, n)
            _pass(b, two, one, b.let(width * 2, "width"), n)
        with b.loop(n, name="place") as p, em.scope():
            plan.put(row, em.axis(p, n), b.let(kb.load(one[1], p), "position"))
    return plan.kernel(kb.ceil_div(plan.wanted(), per))


def _pass(b: Builder, source: Pair, target: Pair, width: Expr, n: int) -> None:
    """Merges neighbouring runs of `width` from source into target."""
    runs = (n - 1 + width * 2) // (width * 2)
    with b.loop(runs, name="run") as r:
        start = b.let(r * (width * 2), "start")
        middle = b.let(kb.minimum(start + width, n), "middle")
        stop = b.let(kb.minimum(middle + width, n), "stop")
        i, j = b.var(start, "left", I32), b.var(middle, "right", I32)
        with b.loop(stop, start, name="out") as out:
            left, right = b.let(kb.minimum(i, n - 1)), b.let(kb.minimum(j, n - 1))
            a, c = b.let(kb.load(source[0], left)), b.let(kb.load(source[0], right))
            ended = kb.binary("le", stop, j)
            first = kb.binary("lt", i, middle) & (ended | (a <= c))
            take = b.let(first, "take")
            b.store(target[0], out, kb.select(take, a, c))
            b.store(target[1], out, kb.load(source[1], kb.select(take, left, right)))
            b.assign(i, i + kb.cast(take, dt.int32))
            b.assign(j, j + (1 - kb.cast(take, dt.int32)))


# -- GPU: bitonic network -----------------------------------------------------------------------


def _bitonic(plan: _Sort) -> Kernel:
    b, em, n, size = plan.b, plan.em, plan.n, plan.padded
    threads = max(1, min(256, plan.caps.max_threads, size // 2))
    keys = b.array("keys", dt.int32, size, "shared")
    places = b.array("places", dt.int32, size, "shared")
    t = b.let(b.thread(0), "t")
    row = em.axis(b.group(0), plan.rows)
    with b.loop(size, t, threads, name="i") as i:
        b.store(places, i, i)
        with b.when(i < n), em.scope():
            b.store(keys, i, plan.key(row, em.axis(i, n)))
        with b.otherwise():
            b.store(keys, i, LAST)
    stages = size.bit_length() - 1
    with b.loop(stages, name="stage") as stage, b.loop(stage + 1, name="step") as step:
        shift = b.let(stage - step, "shift")
        b.barrier()
        with b.loop(size // 2, t, threads, name="pair") as pair:
            _compare_swap(b, keys, places, pair, shift, stage)
    b.barrier()
    with b.loop(n, t, threads, name="place") as p, em.scope():
        plan.put(row, em.axis(p, n), b.let(kb.load(places, p), "position"))
    return plan.kernel(plan.wanted(), threads)


def _compare_swap(
    b: Builder, keys: ir.Array, places: ir.Array, pair: Expr, shift: Expr, stage: Expr
) -> None:
    """Orders one pair of the network: distance 2^shift, direction by bit stage + 1."""
    distance = b.let(kb.const(1, I32) << shift, "distance")
    block = (pair >> shift) << (shift + 1)
    i = b.let(block + (pair & (distance - 1)), "i")
    j = b.let(i + distance, "j")
    a, c = b.let(kb.load(keys, i), "a"), b.let(kb.load(keys, j), "c")
    p, q = b.let(kb.load(places, i), "p"), b.let(kb.load(places, j), "q")
    after = b.let((c < a) | (kb.eq(a, c) & (q < p)), "after")
    down = kb.ne((i >> (stage + 1)) & 1, 0)
    with b.when(kb.binary("xor", after, down)):
        b.store(keys, i, c)
        b.store(keys, j, a)
        b.store(places, i, q)
        b.store(places, j, p)


# -- anywhere: counting predecessors ------------------------------------------------------------


def _count(plan: _Sort) -> Kernel:
    """One thread per element: its place is the number of elements that come before it."""
    b, em, n = plan.b, plan.em, plan.n
    threads = min(64, plan.caps.max_threads)
    total = plan.wanted() * n
    at = b.let(b.group(0) * threads + b.thread(0), "at")
    with b.when(at < total), em.scope():
        row, i = affine.divide(em.axis(at, plan.rows * n), n)
        mine, here = plan.key(row, i), em.expr(i)
        count = b.var(0, "count", I32)
        with b.loop(n, name="j") as j, em.scope():
            other = plan.key(row, em.axis(j, n))
            earlier = kb.eq(other, mine) & (j < here)
            before = kb.cast((other < mine) | earlier, dt.int32)
            b.assign(count, count + before)
        place = em.axis(b.let(count, "place"), n)
        plan.put(row, place, here)
    return plan.kernel(kb.ceil_div(total, threads), threads)
