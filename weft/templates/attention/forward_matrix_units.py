"""Attention in the matrix units of GPUs (see `forward`).

`matrix_units` moves rows and keys. Threads turn scores into weights, one or a few threads per row,
in base 2 (Dao, "FlashAttention-2", 2023). The rows' sums stay in the units and are
rescaled there.

Blocks of keys start at multiples of their size. A block in which a row sees no key leaves the row
unchanged bit for bit, so its result does not depend on the rows around it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft.core import dtypes as dt
from weft.kernel import ir, math
from weft.kernel.expr import as_expr, cast, const, eq, fma, load, maximum, minimum, select, splat
from weft.kernel.ir import F32, I32, Expr, Type
from weft.templates.attention.forward import ForwardKernel, ForwardWorker
from weft.templates.attention.matrix_units import (
    SIDE,
    WORD,
    MatrixUnitKernel,
    MatrixUnitPlan,
)
from weft.templates.attention.softmax import (
    FLOOR,
    HIDDEN,
    LOG2E,
    base_two,
    capped,
    inverse,
    join,
    joined,
)
from weft.templates.attention.tile import ScoreRows
from weft.templates.registers import fold_lanes


class MatrixUnitForward(MatrixUnitKernel, ForwardWorker):
    """Subgroups with matrix units; `plan` says how large blocks are."""

    def __init__(self, call: ForwardKernel, plan: MatrixUnitPlan) -> None:
        ForwardWorker.__init__(self, call)
        dtype, b = call.node.inputs[0].dtype, call.b
        MatrixUnitKernel.__init__(self, b, call.caps, plan, dtype, call.depth)
        self.rows, self.threads = plan.rows, (plan.threads,)
        self.waves = plan.threads // call.caps.subgroup
        self.scale, self.softcap = call.params["scale"], call.params["softcap"]
        self.factor = base_two(self.scale, self.softcap)
        self.q, self.k = self.staged("q", plan.rows), self.staged("k", plan.keys)
        self.s = b.array("s", dt.float32, plan.rows * self.s_ld, "shared")
        self.lefts = [b.tile("left", dtype, SIDE, SIDE) for _ in range(plan.per_wave // SIDE)]
        self.key = b.tile("key", dtype, SIDE, SIDE)
        self.scores = self.tiles("score", plan.keys)
        self.fetched = self.travelling("fetched")
        if not call.statistics:
            self.v = self.staged("v", plan.keys)
            self.p = b.array("p", dtype, plan.rows * self.p_ld, "shared")
            self.fade = b.array("fade", dt.float32, plan.rows, "shared")
            self.value = b.tile("value", dtype, SIDE, SIDE)
            self.sums = self.tiles("sum", plan.wide)
            self.clear(self.sums)
        self.top, self.total = b.var(FLOOR, "top"), b.var(0.0, "total")
        if call.spans:
            self.by = b.array("by", dt.float32, plan.rows, "shared")
            self.all = self.kept("all")
            self.all_top, self.all_total = b.var(FLOOR, "top"), b.var(0.0, "total")
            with b.loop(self.all.size, step=WORD, name="i") as i:
                b.store(self.all, i, const(0.0, Type(dt.float32, WORD)))
        if not call.one_slot:
            self.meeting = b.array("meeting", dt.int32, 2 * self.waves, "shared")

    # -- rows and what they see

    def hold(self) -> None:
        b, call = self.b, self.call
        self.at = b.let(call.first + self.row, "at")
        self.mine = call.item(self.at)
        self.high = self.mine.high
        self.take(call.queries(), call.first, b.let(call.limit - 1, "last"), self.q)

    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        b, call, row = self.b, self.call, self.mine
        if call.one_slot:
            yield row.slot, *call.range(self.rows)
            return
        first, last = self._range(row.slot, row.slot)
        with b.loop(last + 1, first, name="slot") as slot, self.em.scope():
            here = b.let(eq(row.slot, slot), "here")
            self.high = b.let(select(here, row.high, 0), "high")
            low = b.let(select(here, row.low, call.length), "low")
            yield slot, *self._range(low, self.high)

    def _range(self, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        """The least of `low` and the greatest of `high` over the group."""
        b, waves = self.b, self.waves
        width, t = self.caps.subgroup, self.t
        tops = [b.let(ir.Collective("subgroup_max", (x,), I32), "top") for x in (b.let(-low), high)]
        b.barrier()
        with b.when(eq(t % width, 0)):
            for i, top in enumerate(tops):
                b.store(self.meeting, t // width + i * waves, top)
        b.barrier()
        found = []
        for start in (0, waves):
            most = load(self.meeting, start)
            for k in range(start + 1, start + waves):
                most = maximum(most, load(self.meeting, k))
            found.append(b.let(most, "most"))
        return b.let(-found[0], "least"), found[1]

    # -- a sweep over keys

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        b, keys, row = self.b, self.plan.keys, self.mine
        k, *values = (self.call.source(i, slot) for i in self.call.passing)
        begin = b.let(start - start % keys, "begin")
        last = b.let(maximum(stop - 1, 0), "last_key")
        self.fetch(k(minimum(begin, last)), begin, last, self.fetched)
        with b.loop(stop, begin, step=keys, name="k0") as k0:
            self.keep(self.fetched, self.k)
            b.barrier()
            for v in values:
                self.fetch(v(k0), k0, last, self.fetched)
            self.against(self.scores, self.q, self.k, self.lefts, self.key, self.s)
            if values:
                self.keep(self.fetched, self.v)
            b.barrier()
            after = b.let(k0 + keys, "after")
            self.fetch(k(b.let(minimum(after, last), "key")), after, last, self.fetched)
            self._weigh(k0, row.low, self.high)
            b.barrier()
            if values:
                self._rescale()
                self.add(self.sums, self.p, self.v, self.lefts, self.value)

    def join(self) -> None:
        """The span joins the rows' totals, by natural exponentials, as in `merge`."""
        b = self.b
        top, total = self._state()
        new, fade, by = join(b, self.all_top, top)
        b.assign(self.all_top, new)
        b.assign(self.all_total, joined(self.all_total, total, fade, by))
        b.barrier()
        with b.when(self.part < 1):
            b.store(self.fade, self.row, fade)
            b.store(self.by, self.row, by)

        def add(place: Expr, row: Expr, column: Expr, value: Expr) -> None:
            fade, by = (splat(load(x, row), WORD) for x in (self.fade, self.by))
            old = load(self.all, place, WORD)
            b.store(self.all, place, joined(old, value, fade, by))

        self.each_word(add, lambda *part: self._put(self.sums, self.s, *part), self.s)
        self.clear(self.sums)
        b.assign(self.top, FLOOR)
        b.assign(self.total, 0.0)

    def _state(self) -> tuple[Expr, Expr]:
        """The row's maximum (of natural scores) and total, in all its threads (bound)."""
        return self.b.let(self.top * (1.0 / LOG2E), "top"), self._whole_total()

    def _weigh(self, k0: Expr, low: Expr, high: Expr) -> None:
        """This thread's scores become weights under the row's new maximum."""
        b, count = self.b, self.plan.keys // self.plan.parts
        base = b.let(self.row * self.s_ld + self.part * count, "scores_at")
        first = b.let(k0 + self.part * count, "first_key")
        scores, bounds = ScoreRows(b, self.s, self.s_ld, 4), [(low, high)]
        if self.factor:
            with b.when((low > first) | (high < first + count)):
                scores.hide(base, count, first, bounds, HIDDEN / min(self.factor, 1.0))
        else:
            scores.hide(base, count, first, bounds, HIDDEN, self._score)
        most = b.let(scores.best(base, 1, count), "most")
        for k in self._partners():
            other = ir.Collective("subgroup_xor", (most,), F32, k)
            most = b.let(maximum(most, other), "most")
        new = b.let(maximum(self.top, most * (self.factor or 1.0)), "new")
        fade = b.let(math.exp2_below(b, b.let(self.top - new, "fall")), "fade")
        b.assign(self.top, new)
        self._exponents(base, count, new, fade)

    def _partners(self) -> list[int]:
        """Distances to the threads of the same row."""
        return [1 << i for i in range(self.plan.parts.bit_length() - 1)]

    def _score(self, s: Expr) -> Expr:
        return capped(self.b, s, self.scale, self.softcap) * LOG2E

    def _exponents(self, base: Expr, count: int, new: Expr, fade: Expr) -> None:
        b, values = self.b, not self.call.statistics
        sums = b.var(const(0.0, Type(dt.float32, WORD)), "sums")
        wide = b.let(splat(new, WORD), "wide")
        out = b.let(self.row * self.p_ld + self.part * count, "weights_at") if values else const(0)
        with b.loop(count, step=WORD, name="j") as j:
            s = load(self.s, base + j, WORD)
            gap = fma(s, self.factor, -wide) if self.factor else s - wide
            gap = b.let(gap, "gap")
            p = b.let(math.exp2_below(b, gap), "p")
            b.assign(sums, sums + fma(gap, 0.0, p))  # NaN stays NaN
            if values:
                b.store(self.p, out + j, cast(p, self.dtype))
        b.assign(self.total, fma(self.total, fade, fold_lanes(b, [b.let(sums, "sums")])))
        if values:
            with b.when(self.part < 1):
                b.store(self.fade, self.row, fade)

    def _rescale(self) -> None:
        for m, line in enumerate(self.sums):
            at = self.b.let(self.first + m * SIDE, "fade_at")
            for tile in line:
                self.b.tile_scale(tile, self.fade, at, 1)

    # -- results

    def _whole_total(self) -> Expr:
        """The sum of the row's weights, the same in all its threads (bound)."""
        b = self.b
        total = b.let(self.total, "total")
        for k in self._partners():
            total = b.let(total + ir.Collective("subgroup_xor", (total,), F32, k), "total")
        return total

    def finish(self) -> None:
        b, call = self.b, self.call
        if call.parts or call.statistics:
            state = self._state()
            if call.parts:
                self.leave(self.sums, self.s, self._write)
            with b.when((self.part < 1) & (self.at < call.limit)), self.em.scope():
                call.write_state(call.index(self.at), *state)
            return
        by = inverse(b, b.let(self.all_total, "total") if call.spans else self._whole_total())
        b.barrier()
        with b.when(self.part < 1):
            b.store(self.fade, self.row, by)
        b.barrier()
        if not call.spans:
            self._rescale()
            self.leave(self.sums, self.s, self._write)
            return

        def out(_: Expr, row: Expr, column: Expr, value: Expr) -> None:
            y = b.let(value * splat(load(self.fade, row), WORD), "y")
            self._write(row, column, y)

        self.each_word(out, lambda *_: None, self.all)

    def _write(self, row: Expr, column: Expr, value: Expr) -> None:
        """Eight columns of a row of the block, where both exist."""
        b, em, call = self.b, self.em, self.call
        at = b.let(call.first + row, "at")
        with b.when((at < call.limit) & (column < as_expr(call.depth))), em.scope():
            columns = em.axis(column, call.node.shape[-1] - WORD + 1, WORD) + em.lane(WORD)
            call.write(call.index(at), columns, value)
