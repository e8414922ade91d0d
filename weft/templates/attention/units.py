"""The online softmax of attention in the matrix units of GPUs; no matrix of scores exists.

A group takes a block of rows (`units_tiles` says how they and the keys move). Threads turn scores
into weights, one or a few threads to a row, in base 2 (Dao, "FlashAttention-2", 2023); the rows'
sums stay in the units and are rescaled there.

Blocks of keys start at multiples of their size and a block in which a row sees nothing leaves it
unchanged bit for bit, so a row's result does not depend on the rows around it.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir, math
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, fma, iota, load, maximum, select, splat
from weft.kernel.ir import F32, Expr, Type
from weft.templates.attention.softmax import (
    FLOOR,
    HIDDEN,
    LOG2E,
    base_two,
    capped,
    inverse,
    join,
    joined,
    seen,
)
from weft.templates.attention.units_tiles import SIDE, WORD, Blocks, Plan
from weft.templates.operand import Reader
from weft.templates.registers import fold_lanes


class Softmax(Blocks):
    """Emits the parts of a kernel. Without values only the rows' maxima and sums are computed."""

    def __init__(
        self,
        b: Builder,
        caps: Caps,
        plan: Plan,
        dtype: DType,
        depth: int,
        scale: float,
        softcap: float,
        values: bool = True,
        spans: bool = False,
    ) -> None:
        super().__init__(b, caps, plan, dtype, depth)
        self.scale, self.softcap = scale, softcap
        self.factor = base_two(scale, softcap)
        self.q, self.k = self.staged("q", plan.rows), self.staged("k", plan.keys)
        self.s = b.array("s", dt.float32, plan.rows * self.s_ld, "shared")
        self.lefts = [b.tile("left", dtype, SIDE, SIDE) for _ in range(plan.per_wave // SIDE)]
        self.key = b.tile("key", dtype, SIDE, SIDE)
        self.scores = self.tiles("score", plan.keys)
        self.fetched = self.travelling("fetched")
        if values:
            self.v = self.staged("v", plan.keys)
            self.p = b.array("p", dtype, plan.rows * self.p_ld, "shared")
            self.fade = b.array("fade", dt.float32, plan.rows, "shared")
            self.value = b.tile("value", dtype, SIDE, SIDE)
            self.sums = self.tiles("sum", plan.wide)
            self.clear(self.sums)
        self.top, self.total = b.var(FLOOR, "top"), b.var(0.0, "total")
        self.spans = spans
        if spans:
            self.by = b.array("by", dt.float32, plan.rows, "shared")
            self.all = self.kept("all")
            self.all_top, self.all_total = b.var(FLOOR, "top"), b.var(0.0, "total")
            with b.loop(self.all.size, step=WORD, name="i") as i:
                b.store(self.all, i, const(0.0, Type(dt.float32, WORD)))

    def take_rows(self, source: Reader, first: Expr, last: Expr) -> None:
        """Query rows first .. to shared memory; those beyond `last` repeat it."""
        self.take(source, first, last, self.q)

    # -- a sweep over keys

    def sweep(
        self, k: Reader, v: Reader | None, start: Expr, stop: Expr, low: Expr, high: Expr
    ) -> None:
        """The rows meet keys start .. stop (bound, the same in every thread); this thread's row
        sees low .. high of them."""
        b, keys = self.b, self.plan.keys
        begin = b.let(start - start % keys, "begin")
        last = b.let(maximum(stop - 1, 0), "last_key")
        self.fetch(k, begin, last, self.fetched)
        with b.loop(stop, begin, step=keys, name="k0") as k0:
            self.keep(self.fetched, self.k)
            b.barrier()
            if v is not None:
                self.fetch(v, k0, last, self.fetched)
            self.against(self.scores, self.q, self.k, self.lefts, self.key, self.s)
            if v is not None:
                self.keep(self.fetched, self.v)
            b.barrier()
            self.fetch(k, k0 + keys, last, self.fetched)
            self._weigh(k0, low, high, v is not None)
            b.barrier()
            if v is not None:
                self._rescale()
                self.add(self.sums, self.p, self.v, self.lefts, self.value)

    def join(self) -> None:
        """The span joins the rows' totals, by natural exponentials, as in `merge`."""
        b = self.b
        top, total = self.state()
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

    def state(self) -> tuple[Expr, Expr]:
        """The row's maximum (of natural scores) and total, in all its threads (bound)."""
        return self.b.let(self.top * (1.0 / LOG2E), "top"), self.whole_total()

    def _weigh(self, k0: Expr, low: Expr, high: Expr, values: bool) -> None:
        """This thread's scores become weights under the row's new maximum."""
        b, count = self.b, self.plan.keys // self.plan.parts
        base = b.let(self.row * self.s_ld + self.part * count, "scores_at")
        first = b.let(k0 + self.part * count, "first_key")
        if self.factor:
            with b.when((low > first) | (high < first + count)):
                self._hide(base, first, low, high, HIDDEN / min(self.factor, 1.0), None)
        else:
            self._hide(base, first, low, high, HIDDEN, self._score)
        best = b.var(const(HIDDEN, Type(dt.float32, 4)), "best")
        with b.loop(count, step=4, name="j") as j:
            b.assign(best, maximum(best, load(self.s, base + j, 4)))
        most = b.let(fold_lanes(b, [b.let(best, "best")], "max"), "most")
        for k in self._partners():
            other = ir.Collective("subgroup_xor", (most,), F32, k)
            most = b.let(maximum(most, other), "most")
        new = b.let(maximum(self.top, most * (self.factor or 1.0)), "new")
        fade = b.let(math.exp2_below(b, b.let(self.top - new, "fall")), "fade")
        b.assign(self.top, new)
        self._exponents(base, count, new, fade, values)

    def _partners(self) -> list[int]:
        """Distances to the threads of the same row."""
        return [1 << i for i in range(self.plan.parts.bit_length() - 1)]

    def _score(self, s: Expr) -> Expr:
        return capped(self.b, s, self.scale, self.softcap) * LOG2E

    def _hide(
        self, base: Expr, first: Expr, low: Expr, high: Expr, value: float,
        change: Callable[[Expr], Expr] | None,
    ) -> None:  # fmt: skip
        """Scores that the row does not see become `value`, others change."""
        b, count = self.b, self.plan.keys // self.plan.parts
        lower = b.let(splat(b.let(low - first, "low"), 4), "low")
        upper = b.let(splat(b.let(high - first, "high"), 4), "high")
        with b.loop(count, step=4, name="j") as j:
            key = b.let(splat(j, 4) + iota(4), "key")
            seen = b.let((key >= lower) & (key < upper), "seen")
            at = b.let(base + j, "at")
            s = load(self.s, at, 4)
            s = s if change is None else change(b.let(s, "s"))
            b.store(self.s, at, select(seen, s, value))

    def _exponents(self, base: Expr, count: int, new: Expr, fade: Expr, values: bool) -> None:
        b = self.b
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

    def whole_total(self) -> Expr:
        """The sum of the row's weights, the same in all its threads (bound)."""
        b = self.b
        total = b.let(self.total, "total")
        for k in self._partners():
            total = b.let(total + ir.Collective("subgroup_xor", (total,), F32, k), "total")
        return total

    def log_sum(self) -> tuple[Expr, Expr]:
        """The row's natural log-sum-exp, and whether it saw a key (both bound)."""
        b = self.b
        total = self.whole_total()
        some = seen(b, total)
        log = b.let(math.log(b, b.let(select(some, total, 1.0), "total")), "log")
        return b.let(fma(self.top, 1.0 / LOG2E, log), "lse"), some

    def finish(self, write: Callable[[Expr, Expr, Expr], None]) -> None:
        """write(row of the block, column (a multiple of 8), 8 values) for everything; rows and
        columns that do not exist included."""
        b = self.b
        by = inverse(b, b.let(self.all_total, "total") if self.spans else self.whole_total())
        b.barrier()
        with b.when(self.part < 1):
            b.store(self.fade, self.row, by)
        b.barrier()
        if not self.spans:
            self._rescale()
            self.leave(self.sums, self.s, write)
            return

        def out(_: Expr, row: Expr, column: Expr, value: Expr) -> None:
            write(row, column, b.let(value * splat(load(self.fade, row), WORD), "y"))

        self.each_word(out, lambda *_: None, self.all)
