"""Integers with scales times packed weights on a CPU, for many rows (see integers).

Works as blocked_cpu does, with a panel of bytes: each 32-bit word holds four codes of a column in
ascending k, unpacked once for all rows of a group. The scales, zeros and lows of a run are kept
next to it as f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.packed import Form
from weft.kernel import ir
from weft.kernel.expr import bitcast, cast, const, load, shuffle, splat
from weft.kernel.ir import Expr, Type
from weft.ops.quantize import BLOCK, STEP, run_of
from weft.templates.emit import Emitter
from weft.templates.product.bands import PackedBands
from weft.templates.product.blocked_cpu import CpuMatmul
from weft.templates.product.code_words import natural, signed
from weft.templates.product.cpu_plan import candidates, plan_of
from weft.templates.product.integers import (
    IntegerBands,
    Way,
    codes_of,
    dot2,
    factors,
    finish,
    halves,
    joined,
    taken_of,
    totals_of,
    way_of,
)
from weft.templates.product.problem import MatmulProblem

__all__ = ["IntegerMatmul", "build", "candidates"]


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> ir.Kernel:
    """The kernel of a dot group whose operands are integers with scales."""
    return IntegerMatmul(em, p, plan_of(p, em.caps, config)).kernel()


class IntegerMatmul(CpuMatmul):
    """The kernel under construction."""

    def _setup(self) -> None:
        p = self.p
        *self.planes, self.sx = (self.em.buffers[id(x)] for x in p.a.stored)
        self.way = self._way()
        self.words = 2 if self.way == "pairs" else 1  # words of the panel that hold four codes
        super()._setup()
        b, plan = self.b, self.plan
        self.weights = [IntegerBands.of(w, self.way) for w in self.of(PackedBands)]
        forms = [w.form for w in self.weights]
        self.run = min(run_of(form, p.k) for form in forms)
        runs = min(plan.kc, p.k) // self.run
        self.beside = {
            name: b.array(name, kind, runs * self.wide)
            for name, kind, wanted in (
                ("scales", dt.float32, True),
                ("lows", dt.float32, any(form.shift == "low" for form in forms)),
                ("taken", dt.int32, any(form.shift == "zero" for form in forms)),
            )
            if wanted
        }
        self.runs = runs
        # Per row and run: its codes' sum, times an offset's factor, and the sum in terms of x.
        known = factors(self.caps, forms, self.way)
        self.sums = {n: b.array("sums", dt.int32, plan.mb * runs) for n in known}
        self.totals = None
        if any(form.shift == "low" for form in forms):
            self.totals = b.array("totals", dt.float32, plan.mb * runs)

    def _way(self) -> Way:
        return way_of(self.caps, len(self.planes))

    def _array(self, name: str, narrow: bool, size: int) -> ir.Array:
        return self.b.array(name, dt.int32, size // 4 * self.words)

    def _put_fours(self, place: Expr, four: Expr) -> None:
        """Stores words of four codes in the panel, from the word `place` on."""
        self.b.store(self.panel, place, four)

    def _k_block(self, k0: Expr, klen: Expr) -> None:
        """Sums of the rows' codes in every run first."""
        if self.sums or self.totals is not None:
            b, k = self.b, self.p.k
            start = b.let(self.x.at(self.m0, k0), "a0")
            step = next(BLOCK * n for n in (8, 4, 2, 1) if k % (BLOCK * n) == 0)
            with b.loop(self.count, name="r") as r, b.loop(klen, step=step, name="k") as at:
                self._count(b.let(start + r * self.x.s_row + at, "from"), step,
                            b.let(r * self.runs + at // self.run, "run"))  # fmt: skip
        super()._k_block(k0, klen)

    def _count(self, first: Expr, step: int, place: Expr) -> None:
        """The sums of the runs of `step` codes from `first` on."""
        b = self.b
        total = totals_of(b, [b.let(load(x, first, step), "codes") for x in self.planes], self.run)
        for less, sums in self.sums.items():
            b.store(sums, place, total * less)
        if self.totals is not None:
            lanes, per = step // self.run, BLOCK // self.run
            scales = b.let(load(self.sx, first // BLOCK, step // BLOCK), "sx")
            each = scales if per == 1 else shuffle([i // per for i in range(lanes)], scales)
            b.store(self.totals, place, cast(total, dt.float32) * each)

    # -- packing

    def _pack_a(self) -> None:
        """left[row][half][k / 4]: both planes joined."""
        b = self.b
        start = b.let(self.x.at(self.m0, self.k0), "a0")
        with b.loop(self.count, name="r") as r, b.loop(self.klen, step=BLOCK, name="k") as k:
            at = b.let(start + r * self.x.s_row + k, "from")
            words = joined(b, *(b.let(load(x, at, BLOCK), "x") for x in self.planes))
            for half, value in enumerate(words):
                b.store(self.left, self._pair(r, half, k), value)

    def _pair(self, row: Expr, half: int, k: Expr) -> Expr:
        return row * (self.kc // 2) + half * (self.kc // 4) + k // 4

    def _unpack(self, w: PackedBands, at: int, n0: Expr) -> None:
        b, lanes = self.b, self.plan.lanes
        weights = self.weights[at // self.plan.nr]
        for c in range(0, self.plan.nr, lanes):
            own = weights.at(b, b.let(self.plan.band(n0 + c, self.p.n), "n"))
            assert isinstance(own, IntegerBands)
            with b.loop(self.klen, step=BLOCK, name="k") as k:
                self._unpack_block(own, at + c, b.let(self.k0 + k, "k"), k)

    def _unpack_block(self, w: IntegerBands, column: int, k: Expr, inside: Expr) -> None:
        """Unpacks the codes of a block, and the scales, zeros and lows of its runs."""
        b = self.b
        place = b.let(inside // 4 * self.words * self.wide + column, "spot")
        words: dict[tuple[str, int], Expr] = {}

        def word(part: str, number: int) -> Expr:
            return w.word(b, words, part, k, number)

        for g, four in enumerate(natural(b, w.form, word)):
            if self.way == "signed":
                four = signed(w.form, four)
            elif w.form.bits == 8 and self.way == "bytes":
                four = bitcast(codes_of(self.caps, w.form, bitcast(four, dt.uint8))[0], dt.int32)
            for i, value in enumerate(halves(b, four) if self.way == "pairs" else [four]):
                self._put_fours(place + (g * self.words + i) * self.wide, value)
        for half in range(0, BLOCK, self.run):
            at = b.let((inside + half) // self.run * self.wide + column, "run")
            own = b.let(k + half, "k") if half else k
            for part, number in w.numbers(b, own).items():
                if part != "zeros":
                    b.store(self.beside[part], at, number)
            if w.form.shift == "zero":
                b.store(self.beside["taken"], at, w.taken(b, own))

    # -- computing

    def _accumulate(
        self, row: Expr, at: list[Expr], acc: list[list[ir.Var]], clamped: bool, k0: Expr,
        k1: Expr,
    ) -> None:  # fmt: skip
        b = self.b
        start = b.let(self.x.at(self.m0, self.k0), "a0")
        rows = [b.let(start + r * self.x.s_row, "arow") for r in at]
        self.looped = clamped or len(self.planes) > 1 or "dot4" not in self.caps.features
        with b.loop(k1, k0, step=BLOCK, name="k") as k:
            for half in range(0, BLOCK, self.run):
                self._run(at, rows, acc, b.let(k + half, "k") if half else k)

    def _run(self, at: list[Expr], rows: list[Expr], acc: list[list[ir.Var]], k: Expr) -> None:
        """Adds the run from k on, within the block of K."""
        b, lanes = self.b, self.plan.lanes
        type_, vectors = Type(dt.int32, lanes), range(len(acc[0]))
        number = b.let(k // self.run, "run")
        beside = b.let(number * self.wide, "beside")
        places = [b.let(r * self.runs + number, "place") for r in at]
        ints = [[b.var(const(0, type_), "int", type_) for _ in vectors] for _ in rows]
        if self.way == "pairs":
            self._take(ints, places, beside)
            self._pairs(at, ints, k)
        for i, x in enumerate(self.planes if self.way == "bytes" else ()):
            for line in ints if i else ():
                for var in line:
                    b.assign(var, var * STEP)
            if i == len(self.planes) - 1:
                self._take(ints, places, beside)
            self._fours(x, rows, ints, k)
        for v in vectors:
            own = {
                part: b.let(load(self.beside[part], beside + v * lanes, lanes), part)
                for part in (("scales", "lows") if self._form(v).shift == "low" else ("scales",))
            }
            for start, place, line, sums in zip(rows, places, ints, acc):
                of_x = None
                if "lows" in own:
                    assert self.totals is not None
                    of_x = load(self.totals, place)
                finish(b, sums[v], line[v], load(self.sx, (start + k) // BLOCK), own, of_x)

    def _take(self, ints: list[list[ir.Var]], places: list[Expr], beside: Expr) -> None:
        """Takes offsets and zeros from the codes."""
        b, lanes = self.b, self.plan.lanes
        for v in range(len(ints[0])):
            form, zeros = self._form(v), None
            if form.shift == "zero":
                zeros = b.let(load(self.beside["taken"], beside + v * lanes, lanes), "taken")
            sums = self.sums.get(1 if zeros is not None else -taken_of(self.caps, form, self.way))
            if sums is None:
                continue
            for place, line in zip(places, ints):
                less = splat(load(sums, place), lanes)
                b.assign(line[v], line[v] + (less if zeros is None else less * zeros))

    def _form(self, vector: int) -> Form:
        return self.weights[vector // self.plan.nv].form

    def _words(self) -> Iterator[Expr | int]:
        """The words of a run. They are written out only for whole tiles of one plane, which that
        makes a little faster: the code of two planes, or of the last rows, would double what LLVM
        has to compile. Where additions are instructions, LLVM would also put those of one sum side
        by side, and their operands do not fit the registers."""
        if not self.looped:
            yield from range(self.run // 4)
            return
        with self.b.loop(self.run // 4, name="g") as g:
            yield g

    def _pairs(self, at: list[Expr], ints: list[list[ir.Var]], k: Expr) -> None:
        """Adds the products of a run with joined planes."""
        b, lanes = self.b, self.plan.lanes
        for g in self._words():
            for half in range(2):
                spot = b.let(((k // 4 + g) * 2 + half) * self.wide, "spot")
                right = [
                    b.let(load(self.panel, spot + v * lanes, lanes), "w")
                    for v in range(len(ints[0]))
                ]
                for row, line in zip(at, ints):
                    x = load(self.left, self._pair(row, half, k) + g)
                    pair = b.let(splat(x, lanes), "x")
                    for var, w in zip(line, right):
                        b.assign(var, dot2(var, w, pair))

    def _fours(self, x: ir.Buffer, rows: list[Expr], ints: list[list[ir.Var]], k: Expr) -> None:
        """Adds the products of a run with one plane of x."""
        b, lanes = self.b, self.plan.lanes
        for g in self._words():
            spot = b.let((k // 4 + g) * self.wide, "spot")
            right = []
            for v in range(len(ints[0])):
                word = load(self.panel, spot + v * lanes, lanes)
                eight = self._form(v).bits == 8
                signed = eight and "dot4_mixed" not in self.caps.features
                kind = dt.int8 if signed else dt.uint8
                right.append((b.let(bitcast(word, kind), "w"), int(signed or not eight)))
            for start, line in zip(rows, ints):
                four = bitcast(load(x, start + (k + 4 * g), 4), dt.int32)
                fours = b.let(bitcast(splat(four, lanes), dt.int8), "x")
                for var, (w, promise) in zip(line, right):
                    b.assign(var, ir.Collective("dot4", (var, w, fours), var.type, promise))
