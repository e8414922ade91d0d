"""Attention in the matrix units of GPUs, with an online softmax; no matrix of scores exists.

A group takes a block of query rows of one head, a subgroup 16 or 32 of them. Blocks of keys and of
values pass through shared memory, one being fetched while the other is multiplied. Scores leave
the units through shared memory, threads turn them into weights (one or a few threads to a row, in
base 2: Dao, "FlashAttention-2", 2023), and the rows' sums stay in the units, rescaled there.

Blocks of keys start at multiples of their size and a block in which a row sees nothing leaves it
unchanged bit for bit, so a row's result does not depend on the rows around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
    binary,
    bitcast,
    cast,
    const,
    fma,
    iota,
    load,
    maximum,
    minimum,
    ne,
    select,
    splat,
)
from weft.kernel.ir import F32, Type
from weft.templates.attention_flash import FLOOR, HIDDEN, capped
from weft.templates.matmul_pack import fold_lanes
from weft.templates.matmul_view import View

SIDE = 16  # rows and columns of a tile
WORD = 8  # elements that a thread moves at once: 16 bytes
LOG2E = 1.4426950408889634
_FEATURES = {dt.bfloat16: "mma16_bf16", dt.float16: "mma16_f16"}
# (rows of a subgroup, subgroups, keys of a block), the quickest first
_SHAPES = ((32, 4, 64), (32, 4, 32), (32, 2, 64), (32, 2, 32), (16, 4, 32), (16, 2, 32))
_REGISTERS = 180  # of a thread, for tiles and what is being fetched


@dataclass(frozen=True)
class Plan:
    """`rows` query rows per group, `per_wave` of them per subgroup; `keys` per block; `wide` is D
    padded to whole tiles."""

    rows: int
    per_wave: int
    keys: int
    threads: int
    wide: int

    @property
    def ld(self) -> int:
        """Elements from row to row of staged operands: rows start in different banks."""
        return self.wide + WORD

    @property
    def parts(self) -> int:
        """Threads to a row."""
        return self.threads // self.rows

    def shared_bytes(self) -> int:
        operands = 2 * (self.rows + 2 * self.keys) * self.ld
        return operands + self.rows * (4 * (self.keys + 4) + 2 * (self.keys + WORD) + 4)

    def registers(self, width: int) -> int:
        tiles = self.per_wave * (self.wide + self.keys) // width
        return tiles + self.keys * self.wide // (2 * self.threads)


def plan_of(
    dtype: DType, depth: int, views: Sequence[View], caps: Caps, config: Mapping[str, Any]
) -> Plan | None:
    """The blocks for these operands (components last), or None where the units do not take them:
    another dtype, components apart, an odd depth, too little shared memory. Nothing here depends
    on how many rows there are."""
    if _FEATURES.get(dtype, "") not in caps.features or depth % WORD or not config.get("units", 1):
        return None
    if any(v.strides[-1] != 1 or v.dtype != dtype for v in views):
        return None
    wide, width = -(-depth // SIDE) * SIDE, caps.subgroup
    shapes = [tuple(config["shape"])] if "shape" in config else _SHAPES
    for per_wave, waves, keys in shapes:
        plan = Plan(per_wave * waves, per_wave, keys, waves * width, wide)
        fits = plan.shared_bytes() <= caps.shared_bytes and plan.threads <= caps.max_threads
        if fits and plan.registers(width) <= _REGISTERS:
            return plan
    return None


@dataclass(frozen=True)
class Operand:
    """A head of q, k or v: its row r starts at element base + r * step (base bound)."""

    buffer: ir.Buffer
    base: Expr
    step: int


class Units:
    """Emits the parts of a kernel in matrix units. Without values only the rows' maxima and sums
    are computed."""

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
    ) -> None:
        self.b, self.caps, self.plan, self.dtype, self.depth = b, caps, plan, dtype, depth
        self.scale, self.softcap = scale, softcap
        # Scores in base 2: scale and logarithm in one factor, where nothing stands between.
        self.factor = scale * LOG2E if not softcap and scale * LOG2E > 1e-4 else 0.0
        rows, keys, ld = plan.rows, plan.keys, plan.ld
        self.q = b.array("q", dtype, rows * ld, "shared")
        self.k = b.array("k", dtype, keys * ld, "shared")
        self.s_ld = keys + 4
        self.s = b.array("s", dt.float32, rows * self.s_ld, "shared")
        steps = range(plan.per_wave // SIDE)
        self.a = [b.tile("a", dtype, SIDE, SIDE) for _ in steps]
        self.key = b.tile("key", dtype, SIDE, SIDE)
        self.scores = [
            [b.tile("score", dt.float32, SIDE, SIDE) for _ in range(keys // SIDE)] for _ in steps
        ]
        self.fetched = b.array("fetched", dtype, -(-keys * self._words // plan.threads) * WORD)
        self.sums: list[list[ir.Tile]] = []
        if values:
            self.p_ld = keys + WORD
            self.v = b.array("v", dtype, keys * ld, "shared")
            self.p = b.array("p", dtype, rows * self.p_ld, "shared")
            self.fade = b.array("fade", dt.float32, rows, "shared")
            self.value = b.tile("value", dtype, SIDE, SIDE)
            columns = range(plan.wide // SIDE)
            self.sums = [[b.tile("sum", dt.float32, SIDE, SIDE) for _ in columns] for _ in steps]
        t = self.t = b.let(b.thread(0), "t")
        self.first = b.let(t // caps.subgroup * plan.per_wave, "first")  # row of the subgroup
        self.row = b.let(t // plan.parts, "row")  # row whose softmax this thread does,
        self.part = b.let(t % plan.parts, "part")  # and which part of it
        self.top, self.total = b.var(FLOOR, "top"), b.var(0.0, "total")
        for tile in (x for line in self.sums for x in line):
            b.tile_zero(tile)

    @property
    def _words(self) -> int:
        """Vectors in a row of an operand, padding included."""
        return self.plan.wide // WORD

    # -- moving blocks

    def take_rows(self, source: Operand, first: Expr, last: Expr) -> None:
        """Query rows first .. to shared memory; those beyond `last` repeat it."""
        self._move(source, first, last, self.plan.rows, None, self.q)

    def _fetch(self, source: Operand, first: Expr, last: Expr) -> None:
        """A block of keys (or values) on its way to registers; rows beyond `last` repeat it."""
        self._move(source, first, last, self.plan.keys, self.fetched, None)

    def _move(
        self, source: Operand, first: Expr, last: Expr, rows: int,
        kept: ir.Array | None, target: ir.Array | None,
    ) -> None:  # fmt: skip
        b = self.b
        first = b.let(first, "first")
        for u, (row, column, inside) in enumerate(self._places(rows)):
            at = minimum(first + row, last) * source.step
            value = load(source.buffer, source.base + at + self._real(column), WORD)
            if kept is not None:
                b.store(kept, u * WORD, value)
                continue
            assert target is not None
            if self.depth < self.plan.wide:  # products see zeros in the padding
                zero = const(0.0, Type(self.dtype, WORD))
                value = select(splat(column < self.depth, WORD), value, zero)
            with b.when(inside) if inside is not None else nullcontext():
                b.store(target, row * self.plan.ld + column, value)

    def _real(self, column: Expr) -> Expr:
        """The column, or another that exists."""
        padded = self.depth < self.plan.wide
        return minimum(column, self.depth - WORD) if padded else column

    def _places(self, rows: int) -> list[tuple[Expr, Expr, Expr | None]]:
        """Row, column and whether they exist, of the vectors that this thread moves of a block."""
        b, threads, words = self.b, self.plan.threads, self._words
        places = []
        for start in range(0, rows * words, threads):
            v = b.let(self.t + start, "v")
            inside = None if start + threads <= rows * words else b.let(v < rows * words, "inside")
            row = b.let(v // words, "row")
            places.append((row, b.let(v % words * WORD, "column"), inside))
        return places

    def _keep(self, target: ir.Array) -> None:
        """What was fetched, to shared memory."""
        b = self.b
        for u, (row, column, inside) in enumerate(self._places(self.plan.keys)):
            with b.when(inside) if inside is not None else nullcontext():
                b.store(target, row * self.plan.ld + column, load(self.fetched, u * WORD, WORD))

    # -- a sweep over keys

    def sweep(
        self, k: Operand, v: Operand | None, start: Expr, stop: Expr, low: Expr, high: Expr
    ) -> None:
        """The rows meet keys start .. stop (bound, the same in every thread); this thread's row
        sees low .. high of them."""
        b, keys = self.b, self.plan.keys
        begin = b.let(start - start % keys, "begin")
        last = b.let(maximum(stop - 1, 0), "last_key")
        self._fetch(k, begin, last)
        with b.loop(stop, begin, step=keys, name="k0") as k0:
            self._keep(self.k)
            b.barrier()
            if v is not None:
                self._fetch(v, k0, last)
            self._products()
            if v is not None:
                self._keep(self.v)
            b.barrier()
            self._fetch(k, k0 + keys, last)
            self._weigh(k0, low, high, v is not None)
            b.barrier()
            if v is not None:
                self._add_values()

    def _products(self) -> None:
        """s = q . k for the block, through the units."""
        b, plan = self.b, self.plan
        for tile in (x for line in self.scores for x in line):
            b.tile_zero(tile)
        for d in range(0, plan.wide, SIDE):
            for m, a in enumerate(self.a):
                b.tile_load(a, self.q, (self.first + m * SIDE) * plan.ld + d, plan.ld)
            for n in range(plan.keys // SIDE):
                b.tile_load(self.key, self.k, const(n * SIDE * plan.ld + d), plan.ld)
                for a, line in zip(self.a, self.scores):
                    b.mma_nt(line[n], a, self.key)
        for m, line in enumerate(self.scores):
            for n, tile in enumerate(line):
                at = (self.first + m * SIDE) * self.s_ld + n * SIDE
                b.tile_store(self.s, at, self.s_ld, tile)

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

    def _add_values(self) -> None:
        """The rows' sums fade, then take p . v."""
        b, plan = self.b, self.plan
        self._rescale()
        for j in range(0, plan.keys, SIDE):
            for m, a in enumerate(self.a):
                b.tile_load(a, self.p, (self.first + m * SIDE) * self.p_ld + j, self.p_ld)
            for n in range(plan.wide // SIDE):
                b.tile_load(self.value, self.v, const(j * plan.ld + n * SIDE), plan.ld)
                for a, line in zip(self.a, self.sums):
                    b.mma(line[n], a, self.value)

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

    def _some(self, total: Expr) -> Expr:
        """Whether the row saw a key: NaN is not nothing."""
        return self.b.let(ne(bitcast(total, dt.int32) & 0x7FFFFFFF, 0), "some")

    def log_sum(self) -> tuple[Expr, Expr]:
        """The row's natural log-sum-exp, and whether it saw a key (both bound)."""
        b = self.b
        total = self.whole_total()
        some = self._some(total)
        log = b.let(math.log(b, b.let(select(some, total, 1.0), "total")), "log")
        return b.let(fma(self.top, 1.0 / LOG2E, log), "lse"), some

    def finish(self, write: Callable[[Expr, Expr, Expr], None]) -> None:
        """write(row of the block, column (a multiple of 8), 8 values) for everything; rows and
        columns that do not exist included."""
        b, plan = self.b, self.plan
        total = self.whole_total()
        some = self._some(total)
        inverse = select(some, binary("div", const(1.0, F32), select(some, total, 1.0)), 0.0)
        b.barrier()
        with b.when(self.part < 1):
            b.store(self.fade, self.row, inverse)
        b.barrier()
        self._rescale()
        for c0 in range(0, plan.wide, plan.keys):
            width = min(plan.keys, plan.wide - c0)
            if c0:
                b.barrier()
            for m, line in enumerate(self.sums):
                for n in range(width // SIDE):
                    at = (self.first + m * SIDE) * self.s_ld + n * SIDE
                    b.tile_store(self.s, at, self.s_ld, line[c0 // SIDE + n])
            b.barrier()
            words = plan.rows * width // WORD
            with b.loop(words, self.t, plan.threads, name="v") as v:
                row = b.let(v // (width // WORD), "row")
                column = b.let(v % (width // WORD) * WORD, "column")
                value = b.let(load(self.s, row * self.s_ld + column, WORD), "y")
                write(row, b.let(column + c0, "column"), value)
