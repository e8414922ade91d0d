"""Attention in a CPU's registers: tiles of a few rows by a few vectors of columns.

Scores run along columns (`against`), are hidden where rows do not see them and become weights in
scratch (`ScoreRows`), and weights multiply rows of components (`add`). The forward, decoding and
backward kernels consist of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from weft.core import dtypes as dt
from weft.core.order import STRANDS
from weft.core.records import dataclass
from weft.kernel import ir, math
from weft.kernel.builder import Builder
from weft.kernel.expr import Value, const, extract, fma, iota, load, maximum, select, splat
from weft.kernel.ir import Expr, Type
from weft.templates.attention.softmax import (
    HIDDEN,
    Exp,
    SoftmaxState,
    fold_strands,
    follow,
    product,
)
from weft.templates.registers import fold_lanes

MR = 4  # rows of a tile

Left = Callable[[Expr], Sequence[Expr]]  # k -> an element of each row
Right = Callable[[Expr, range], Sequence[Expr]]  # k, range of vectors -> those vectors


def _multiply(
    b: Builder, acc: Sequence[Sequence[ir.Var]], k: Expr, left: Left, right: Sequence[Expr]
) -> None:
    """acc[i][v] += left(k)[i] * right[v]."""
    ys = [b.let(y, "y") for y in right]
    for value, line in zip(left(k), acc):
        x = b.let(splat(value, ys[0].type.lanes), "x")
        for var, y in zip(line, ys):
            b.assign(var, fma(x, y, var))


def against(
    b: Builder, rows: int, depth: int, left: Left, turned: ir.Array, at: Value, columns: int,
    vectors: int, lanes: int, finish: Callable[[int, Expr, Expr], None],
) -> None:  # fmt: skip
    """finish(row, first column, products) for `rows` rows times a turned block [depth][columns]
    from element `at` on, a vector at a time, `vectors` of them at once."""
    zero = const(0.0, Type(dt.float32, lanes))
    with b.loop(columns, step=vectors * lanes, name="c") as c:
        start = b.let(at + c, "block")

        def sums(part: range) -> list[ir.Var]:
            acc = [[b.var(zero, "acc", zero.type) for _ in range(vectors)] for _ in range(rows)]
            with b.loop(part.stop, part.start, name="d") as d:
                spot = b.let(d * columns + start, "spot")
                ys = [load(turned, spot + v * lanes, lanes) for v in range(vectors)]
                _multiply(b, acc, d, left, ys)
            return [var for line in acc for var in line]

        for i, value in enumerate(product(b, depth, sums)):
            finish(i // vectors, b.let(c + i % vectors * lanes, "column"), value)


def add(
    b: Builder, target: ir.Array, row: Expr, rows: int, wide: int, lanes: int, most: int,
    count: Expr, left: Left, right: Right, fades: Sequence[Expr] | None = None,
) -> None:  # fmt: skip
    """Rows row .. row + rows of target[..., wide] times `fades` (vectors), then += left(k) times
    right(k) for k < count, at most `most` vectors at once."""
    count_all = wide // lanes
    parts = -(-count_all // most)
    for part in range(parts):
        columns = range(count_all * part // parts, count_all * (part + 1) // parts)
        first = b.let(row * wide, "o")
        spots = [[i * wide + v * lanes for v in columns] for i in range(rows)]
        acc = []
        for i, line in enumerate(spots):
            old = [load(target, first + spot, lanes) for spot in line]
            acc.append([b.var(x if fades is None else x * fades[i], "acc") for x in old])
        with b.loop(count, name="k") as k:
            _multiply(b, acc, k, left, right(k, columns))
        for spot, var in zip(chain(*spots), chain(*acc)):
            b.store(target, first + spot, var)


@dataclass(frozen=True)
class ScoreRows:
    """Rows of scores in scratch or shared memory, `ld` elements apart, taken in vectors of `lanes`.
    `base` is where the first of the rows begins."""

    b: Builder
    s: ir.Array
    ld: int
    lanes: int

    def hide(
        self, base: Expr, columns: int, first: Expr, bounds: Sequence[tuple[Expr, Expr]],
        value: float = HIDDEN, change: Callable[[Expr], Expr] | None = None,
    ) -> None:  # fmt: skip
        """Scores of `columns` columns, number `first` .., become `value` where a row does not see
        them (from the first of its bounds up to the second); others change."""
        b, lanes = self.b, self.lanes
        with b.loop(columns, step=lanes, name="c") as c:
            key = b.let(splat(first + c, lanes) + iota(lanes), "key")
            for i, (low, high) in enumerate(bounds):
                seen = (key >= splat(low, lanes)) & (key < splat(high, lanes))
                at = b.let(base + c + i * self.ld, "at")
                s = load(self.s, at, lanes)
                s = s if change is None else change(b.let(s, "s"))
                b.store(self.s, at, select(seen, s, value))

    def best(self, base: Expr, rows: int, stop: Value, start: Value = 0) -> Expr:
        """A lane per row (a power of two of them): its largest score in columns start .. stop."""
        b, lanes = self.b, self.lanes
        floor = const(HIDDEN, Type(dt.float32, lanes))
        tops = [b.var(floor, "top") for _ in range(rows)]
        with b.loop(stop, start, lanes, "c") as c:
            for i, var in enumerate(tops):
                b.assign(var, maximum(var, load(self.s, base + c + i * self.ld, lanes)))
        return fold_lanes(b, tops, "max")

    def sums(
        self, base: Expr, rows: int, stop: Value, term: Callable[[int, Expr, ir.Var], Expr],
        start: Value = 0,
    ) -> Expr:  # fmt: skip
        """A lane per row: sums over columns start .. stop, strand by strand (bound); term(row,
        element, sum so far) is the new sum."""
        b, lanes = self.b, self.lanes
        zero, steps = const(0.0, Type(dt.float32, lanes)), range(0, STRANDS, lanes)
        strands = [[b.var(zero, "strand") for _ in steps] for _ in range(rows)]
        with b.loop(stop, start, STRANDS, "c") as c:
            for i, line in enumerate(strands):
                for step, var in zip(steps, line):
                    at = b.let(base + c + (i * self.ld + step), "at")
                    b.assign(var, term(i, at, var))
        return fold_strands(b, strands)

    def spread(self, values: Expr, rows: int, name: str) -> list[Expr]:
        """A vector (bound) of each row's lane."""
        return [self.b.let(splat(extract(values, i), self.lanes), name) for i in range(rows)]

    def weigh(
        self, state: SoftmaxState, row: Expr, base: Expr, rows: int, stop: Value,
        factor: float = 1.0,
        weight: Callable[[Expr, Expr], Expr] | None = None, exp: Exp = math.exp,
    ) -> Expr:  # fmt: skip
        """Turns a block of scores of rows `row` .. into weights, by weight(element, maximum) if
        given. Updates the maxima (of scores times `factor`) and the totals. Returns the factor by
        which the rows' sums must be multiplied, a lane per row."""
        b = self.b
        best = self.best(base, rows, stop)
        best = best if factor == 1.0 else best * factor
        new, fade = follow(b, b.let(load(state.top, row, rows), "old"), best, exp)
        b.store(state.top, row, new)
        tops = self.spread(new, rows, "top")

        def term(i: int, at: Expr, total: ir.Var) -> Expr:
            return total + (weight or self.weight)(at, tops[i])

        added = self.sums(base, rows, stop, term)
        b.store(state.total, row, fma(load(state.total, row, rows), fade, added))
        return fade

    def weight(self, at: Expr, top: Expr) -> Expr:
        """The vector of scores there becomes weights under the maximum (bound)."""
        b = self.b
        p = b.let(math.exp(b, b.let(load(self.s, at, self.lanes) - top, "gap")), "p")
        b.store(self.s, at, p)
        return p
