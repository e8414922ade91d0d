"""Integers with scales times packed weights in many threads, for many rows (see integers).

Works as blocked_threads does, with words of four codes, and with the scales, zeros and lows of a
run next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const
from weft.kernel.ir import Expr, Kernel, Type
from weft.ops.quantize import BLOCK, STEP, run_of
from weft.templates.emit import Emitter
from weft.templates.product import blocked_threads
from weft.templates.product.blocked_threads import DirectTiles, SharedTiles
from weft.templates.product.blocks import choose, variants
from weft.templates.product.code_words import ONES, dot
from weft.templates.product.integer_rows import add_block, left_of
from weft.templates.product.integers import finish
from weft.templates.product.operands import Lines, Operand
from weft.templates.product.packed_rows import PackedRows, words_at
from weft.templates.product.pipeline import ASYNC, SharedStage, pitch
from weft.templates.product.problem import MatmulProblem

_FOURS = BLOCK // 4  # words per block


@dataclass(frozen=True)
class WordPlan(blocked_threads.ThreadPlan):
    def shared(self, p: MatmulProblem, caps: Caps) -> int:
        planes, runs = len(p.a.stored) - 1, self.bk // _run(p)
        left = (self.bk // 4 * planes + self.bk // BLOCK) * pitch(self.rows, dt.float32)
        beside = sum(1 + (v.form is not None and v.form.shift != "none") for v in p.bs)
        right = (self.bk // 4 * len(p.bs) + runs * beside) * pitch(self.columns, dt.float32)
        return self.ring * (left + right) * dt.float32.itemsize

    def misfit(self) -> str | None:
        return f"a depth is whole blocks of {BLOCK}" if self.bk % BLOCK else super().misfit()


def _run(p: MatmulProblem) -> int:
    """Returns the number of k that share scales; all dots of a group have the same."""
    form = p.bs[0].form
    assert form is not None
    return run_of(form, p.k)


def plans(p: MatmulProblem, caps: Caps) -> list[WordPlan]:
    """Blocks worth having on the target, the largest first; each fits, except perhaps the last."""
    sizes = [(64, 64, 4, 4), (32, 32, 4, 4)]
    # otherwise there are too few registers
    if caps.subgroup and len(p.dots) == 1 and len(p.a.stored) == 2:
        sizes.insert(0, (64, 128, 4, 8))
    found: list[WordPlan] = []
    for rows, columns, tm, tn in sizes:
        depths = [WordPlan(rows, columns, bk, 2, tm, tn) for bk in (2 * BLOCK, BLOCK)]
        found += [plan for plan in depths if plan.problem(p, caps) is None][:1]
    return found or [WordPlan(32, 32, BLOCK, 2, 4, 4)]


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring."""
    if caps.cheap_barrier:
        return variants(plans(p, caps), p, caps, (BLOCK, 2 * BLOCK))
    return blocked_threads.candidates(p, caps)


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group; config as that of blocked_threads."""
    if em.caps.cheap_barrier:
        return WordTiles(em, p, choose(plans(p, em.caps), p, em.caps, config)).kernel()
    return IntegerTiles(em, p, config.get("side", 8)).kernel()


class IntegerTiles(DirectTiles):
    """Tiles for targets with expensive barriers: every thread reads its rows itself."""

    def _chunk(self, acc: list[Any], start: Expr, stop: Expr) -> None:
        left, accs = left_of(self), [list(zip(*tile)) for tile in acc]
        starts = [line.base for line in self.left_lines if isinstance(line, Operand)]
        with self.b.loop(stop, start, step=BLOCK, name="k") as k:
            add_block(self.b, left, starts, k, self.right_lines, accs)


@dataclass(frozen=True)
class Made:
    """Elements that are worked out (Lines), `count` together: `found` gives them for a row, as
    `row` binds it, and a k."""

    items: int
    k: int
    dtype: DType
    count: int
    unit: int  # number of k per element
    row: Callable[[Builder, Expr], Any]
    found: Callable[[Any, Expr], list[Expr]]
    of: Any = None
    along_k = True

    def lanes(self, items: int, bk: int) -> int:
        return self.count

    def line(self, b: Builder, item: Expr, name: str = "start") -> Made:
        return replace(self, of=self.row(b, item))

    def parts(self, b: Builder, k: Expr, count: int) -> list[Expr]:
        return self.found(self.of, b.let(b.let(k, "at_k") * self.unit, "k"))


class WordTiles(SharedTiles):
    """Tiles through shared memory: words [k / 4][row] and [k / 4][column], and the numbers of
    runs."""

    def arriving(self) -> list[SharedStage]:
        p, b, x = self.p, self.b, self.x
        self.pace = _run(p)
        self.ways: list[SharedStage] = []
        left = left_of(self)
        self.planes = [self._left(plane) for plane in left.planes]
        base, known = b.let(x.base // BLOCK, "base"), tuple(n // BLOCK for n in x.known)
        blocks = Operand(
            left.scales, base, x.s_row // BLOCK, 1, dt.float32, x.items, p.k // BLOCK, known
        )
        self.sx = self._way("sx", blocks, dt.float32, (self.m0, self.plan.rows), BLOCK)
        self.beside = [self._packed(w) for w in self.of(PackedRows)]
        return self.ways

    def _left(self, plane: ir.Buffer) -> int:
        b, x = self.b, self.x

        def start(b: Builder, row: Expr) -> Expr:
            return b.let(x.at(row, 0), "start")

        def words(at: Expr, k: Expr) -> list[Expr]:
            return words_at(b, plane, at + k, BLOCK)

        made = Made(x.items, self.p.k // 4, dt.int32, _FOURS, 4, start, words)
        return self._way("left", made, dt.int32, (self.m0, self.plan.rows), 4)

    def _packed(self, w: PackedRows) -> dict[str, int]:
        """Returns the stages of words and of a run's scales, lows and zeros, by name."""
        b, p, run = self.b, self.p, self.pace

        def way(
            name: str, unit: int, count: int, dtype: DType, found: Callable[..., list[Expr]]
        ) -> int:
            made = Made(p.n, p.k // unit, dtype, count, unit, w.line, found)
            return self._way(name, made, dtype, (self.n0, self.plan.columns), unit)

        found = {"words": way("right", 4, _FOURS, dt.int32, lambda row, k: row.fours(b, k))}
        for part in ("scales", "lows")[: 1 + (w.form.shift == "low")]:

            def number(row: PackedRows, k: Expr, part: str = part) -> list[Expr]:
                return [row.numbers(b, k)[part]]

            found[part] = way(part, run, 1, dt.float32, number)
        if w.form.shift == "zero":
            found["taken"] = way("taken", run, 1, dt.int32, lambda row, k: [row.taken(b, k)])
        return found

    def _way(
        self, name: str, source: Lines, dtype: DType, items: tuple[Expr, int], unit: int
    ) -> int:
        """The number of a new way to shared memory."""
        block = (items[1], self.plan.bk // unit, self.plan.ring)
        team, copies = (self.flat, self.threads[0]), ASYNC in self.caps.features
        stage = SharedStage(self.b, name, source, items[0], block, True, dtype, team, copies, unit)
        self.ways.append(stage)
        return len(self.ways) - 1

    def step_k(
        self, acc: list[Any], stages: Sequence[SharedStage], bases: Sequence[Expr], k: Expr
    ) -> None:
        """The run from k on: its integers first, which meet the scales."""
        b, type_ = self.b, Type(dt.int32, self.lanes)

        def columns(way: int, at: Expr) -> list[Expr]:
            return self.right(stages[way], bases[way], at)

        ints = [[[b.var(const(0, type_), "int", type_) for _ in r] for r in tile] for tile in acc]
        rights = self.of(PackedRows)
        taken = [self._taken(w, own, columns, k) for w, own in zip(rights, self.beside)]
        some = any(t is not None for t in taken) or any("lows" in own for own in self.beside)
        sums = [b.var(0, "sum", Type(dt.int32)) for _ in range(self.tm if some else 0)]
        each = [*sums, *(var for tile in ints for line in tile for var in line)]
        for i, plane in enumerate(self.planes):
            for var in each if i else []:
                b.assign(var, var * STEP)
            for g in range(self.pace // 4):
                at = b.let(k // 4 + g, "at")
                xs = self.left(stages[plane], bases[plane], at)
                for var, x in zip(sums, xs):
                    b.assign(var, dot(var, ONES, x))
                for tile, own in zip(ints, self.beside):
                    ys = columns(own["words"], at)
                    for x, line in zip(xs, tile):
                        for y, var in zip(ys, line):
                            b.assign(var, dot(var, y, x))
        scales = self.left(stages[self.sx], bases[self.sx], k // BLOCK)
        of_x = [b.let(cast(v, dt.float32) * sx, "total") for v, sx in zip(sums, scales)]
        for tile, own, less, total in zip(acc, self.beside, taken, ints):
            found = [p for p in ("scales", "lows") if p in own]
            beside = {p: columns(own[p], k // self.pace) for p in found}
            for i, line in enumerate(tile):
                for c, var in enumerate(line):
                    value: Expr = total[i][c]
                    if less is not None:
                        value = b.let(value + sums[i] * less[c], "int")
                    at_c: dict[str, Expr] = {p: v[c] for p, v in beside.items()}
                    finish(b, var, value, scales[i], at_c, of_x[i] if sums else None)

    def _taken(
        self, w: PackedRows, own: Mapping[str, int],
        columns: Callable[[int, Expr], list[Expr]], k: Expr,
    ) -> list[Expr] | None:  # fmt: skip
        """Returns the factors of the sums of x, per vector of columns, or None."""
        if "taken" in own:
            return columns(own["taken"], k // self.pace)
        const_ = w.taken(self.b, k)
        return None if const_ is None else [const_] * (self.tn // self.lanes)
