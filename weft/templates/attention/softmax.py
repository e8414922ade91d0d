"""The online softmax of attention, in the one order of its sums (weft/core/order.py).

A row's state is the largest score so far, the sum of weights under it and the weighted values
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). Within a span `follow`
and `fold_strands` take a block of KEYS scores, whose weights are exp(score - maximum); `join` adds
a span to the row's total; `inverse` ends it. A block or span in which a row sees nothing changes
nothing: its weights are exactly 0, its factors exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.order import CHUNK, SPAN
from weft.core.records import dataclass
from weft.kernel import ir, math
from weft.kernel.builder import Builder
from weft.kernel.expr import bitcast, const, fma, iota, load, maximum, ne, select, splat
from weft.kernel.ir import F32, Expr, Type
from weft.templates.registers import fold_lanes

HIDDEN = -1e30  # the score of a key that a row does not see
FLOOR = -1e29  # a row's first maximum: above HIDDEN, so that hidden keys weigh exactly 0
LOG2E = 1.4426950408889634

Exp = Callable[[Builder, Expr], Expr]


def capped(b: Builder, score: Expr, scale: float, softcap: float) -> Expr:
    """score * scale, softly limited to +-softcap when that is not 0."""
    if not softcap:
        return score * scale
    return math.tanh(b, b.let(score * (scale / softcap), "s")) * softcap


def base_two(scale: float, softcap: float) -> float:
    """Returns the factor that turns products into scores in base 2, or 0 where base 2 cannot be
    used (a softcap, or a tiny factor)."""
    factor = scale * LOG2E
    return factor if not softcap and factor > 1e-4 else 0.0


def follow(b: Builder, top: Expr, best: Expr, exp: Exp = math.exp) -> tuple[Expr, Expr]:
    """The maximum after a block whose largest score is `best`, and what the sums so far must be
    multiplied by (both bound). `exp` is that of the kernel's scores: another where they are in
    base 2."""
    new = b.let(maximum(top, best), "new")
    return new, b.let(exp(b, b.let(top - new, "fall")), "fade")


def fold_strands(b: Builder, rows: Sequence[Sequence[Expr]]) -> Expr:
    """Each row's weights of one block added up (bound), lane i for rows[i] (a power of two of
    them). A row comes as its STRANDS partial sums, strand i of keys i, i + STRANDS, ..., in one or
    more vectors; they fold by halves."""
    sums = []
    for row in rows:
        strands = list(row)
        while len(strands) > 1:
            half = len(strands) // 2
            pairs = zip(strands[:half], strands[half:], strict=True)
            strands = [b.let(x + y, "strand") for x, y in pairs]
        sums.append(b.let(strands[0], "strand"))
    return b.let(fold_lanes(b, sums), "added")


def product(b: Builder, depth: int, chain: Callable[[range], Sequence[Expr]]) -> list[Expr]:
    """Sums over `depth` in the order of products: chain(part of it) gives, bound, sums of fused
    multiply-adds from zero in ascending order; chunks of a span and then spans are added up."""

    def add(sums: Sequence[Expr] | None, more: Sequence[Expr]) -> list[Expr]:
        if sums is None:
            return list(more)
        return [b.let(x + y, "sum") for x, y in zip(sums, more, strict=True)]

    total = None
    for start in range(0, depth, SPAN):
        end, span = min(start + SPAN, depth), None
        for k in range(start, end, CHUNK):
            span = add(span, chain(range(k, min(k + CHUNK, end))))
        assert span is not None
        total = add(total, span)
    assert total is not None
    return total


def join(b: Builder, top: Expr, span_top: Expr, exp: Exp = math.exp) -> tuple[Expr, Expr, Expr]:
    """The maximum of a row's total (`top`) and a span of it, and what the total's and the span's
    sums must be multiplied by (all bound): x = fma(span's x, by, x * fade)."""
    span_top = b.let(span_top, "top")
    new, fade = follow(b, b.let(top, "top"), span_top, exp)
    return new, fade, b.let(exp(b, b.let(span_top - new, "gap")), "by")


def joined(total: Expr, span: Expr, fade: Expr, by: Expr) -> Expr:
    """A row's sum (of weights or of weighted values) with a span's, see `join`."""
    return fma(span, by, total * fade)


def seen(b: Builder, total: Expr) -> Expr:
    """Returns a condition that is true if the row saw a key (bound). A NaN counts as seen."""
    return b.let(ne(bitcast(total, dt.int32), 0), "some")


def inverse(b: Builder, total: Expr) -> Expr:
    """1 / total, 0 where the row saw no key (bound); `total` is bound."""
    some = seen(b, total)
    one = const(1.0, total.type)
    return b.let(select(some, one / select(some, total, one), 0.0), "inverse")


def with_sink(b: Builder, total: Expr, top: Expr, sink: Expr) -> Expr:
    """A row's total with the weight of one more score (bound). It is last in the order of sums."""
    return b.let(total + math.exp(b, b.let(sink - top, "rise")), "whole")


def log_sum(b: Builder, top: Expr, total: Expr, nothing: float) -> Expr:
    """The row's log-sum-exp (bound), `nothing` where it saw no key; `total` is bound."""
    some = seen(b, total)
    log = b.let(math.log(b, b.let(select(some, total, 1.0), "total")), "log")
    return b.let(select(some, top + log, nothing), "lse")


@dataclass(frozen=True)
class SoftmaxState:
    """The state of rows in a CPU's scratch: weighted values, `wide` columns in vectors of `lanes`,
    maxima, and sums of weights."""

    b: Builder
    o: ir.Array
    top: ir.Array
    total: ir.Array
    wide: int
    lanes: int

    @classmethod
    def of(cls, b: Builder, rows: int, wide: int, lanes: int) -> SoftmaxState:
        sizes = {"o": max(rows * wide, 1), "top": rows, "total": rows}
        o, top, total = (b.array(n, dt.float32, size) for n, size in sizes.items())
        return cls(b, o, top, total, wide, lanes)

    def clear(self, rows: Expr) -> None:
        """The first `rows` rows have seen nothing."""
        b, zero = self.b, const(0.0, Type(dt.float32, self.lanes))
        with b.loop(rows, name="r") as r:
            b.store(self.top, r, const(FLOOR, F32))
            b.store(self.total, r, const(0.0, F32))
            with b.loop(self.wide, step=self.lanes, name="c") as c:
                b.store(self.o, r * self.wide + c, zero)

    def join(self, span: SoftmaxState, rows: Expr, exp: Exp = math.exp) -> None:
        """A span joins the totals of the first `rows` rows and is as if it had seen nothing."""
        b, lanes = self.b, self.lanes
        with b.loop(rows, name="r") as r:
            new, fade, by = join(b, load(self.top, r), load(span.top, r), exp)
            b.store(self.top, r, new)
            total = joined(load(self.total, r), load(span.total, r), fade, by)
            b.store(self.total, r, total)
            fade, by = (b.let(splat(x, lanes), "by") for x in (fade, by))
            with b.loop(self.wide, step=lanes, name="c") as c:
                at = b.let(r * self.wide + c, "at")
                old = load(self.o, at, lanes)
                b.store(self.o, at, joined(old, load(span.o, at, lanes), fade, by))
        span.clear(rows)

    def write(
        self, rows: Expr, depth: int, whole: Callable[[Expr, Expr, Expr], Expr],
        out: Callable[[Expr, int, Expr, Expr | None], None],
    ) -> None:  # fmt: skip
        """out(row, first column, values, mask) for every vector of `depth` columns of the rows;
        whole(row, top, total) is the total that values are divided by."""
        b, lanes = self.b, self.lanes
        tail = b.let(iota(lanes) < depth % lanes, "tail") if depth % lanes else None
        with b.loop(rows, name="r") as r:
            total = whole(r, load(self.top, r), b.let(load(self.total, r), "total"))
            by = b.let(splat(inverse(b, total), lanes), "by")
            for c in range(0, depth, lanes):
                value = b.let(load(self.o, r * self.wide + c, lanes) * by, "y")
                out(r, c, value, tail if c + lanes > depth else None)
