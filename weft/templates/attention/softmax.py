"""The online softmax of attention, in the one order of its sums (weft/core/order.py).

A row's state is the largest score so far, the sum of weights under it and the weighted values
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). Within a span `follow`
and `block_sum` take a block of KEYS scores, each weight being exp(score - maximum); `join` adds a
span to the row's total; `inverse` ends it. A block or span in which a row sees nothing changes
nothing: its weights are exactly 0, its factors exactly 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.core.order import STRANDS
from weft.kernel import math
from weft.kernel.builder import Builder, Expr, bitcast, const, fma, maximum, ne, select
from weft.templates.product.pack import fold_lanes

HIDDEN = -1e30  # the score of a key that a row does not see
FLOOR = -1e29  # a row's first maximum: above HIDDEN, so that hidden keys weigh exactly 0
LOG2E = 1.4426950408889634


def capped(b: Builder, score: Expr, scale: float, softcap: float) -> Expr:
    """score * scale, softly limited to +-softcap when that is not 0."""
    if not softcap:
        return score * scale
    return math.tanh(b, b.let(score * (scale / softcap), "s")) * softcap


def base_two(scale: float, softcap: float) -> float:
    """The factor that turns products into scores in base 2; 0 where more stands between."""
    factor = scale * LOG2E
    return factor if not softcap and factor > 1e-4 else 0.0


def follow(b: Builder, top: Expr, best: Expr) -> tuple[Expr, Expr]:
    """The maximum after a block whose largest score is `best`, and what the sums so far must be
    multiplied by (both bound)."""
    new = b.let(maximum(top, best), "new")
    return new, b.let(math.exp(b, b.let(top - new, "fall")), "fade")


def block_sum(b: Builder, rows: Sequence[Sequence[Expr]]) -> Expr:
    """Each row's weights of one block added up, lane i for rows[i] (a power of two of them). A row
    comes as vectors of weights in ascending order; strand i of STRANDS adds keys i, i + STRANDS,
    ... and strands fold by halves."""
    lanes = rows[0][0].type.lanes
    sums = []
    for row in rows:
        step = max(STRANDS // lanes, 1)
        strands = list(row[:step])
        for i, weights in enumerate(row[step:]):
            strands[i % step] = b.let(strands[i % step] + weights, "strand")
        while step > 1:
            step //= 2
            for i, x in enumerate(strands[step:]):
                strands[i] = b.let(strands[i] + x, "strand")
            del strands[step:]
        sums.append(strands[0])
    return b.let(fold_lanes(b, sums), "added")


def join(b: Builder, top: Expr, span_top: Expr) -> tuple[Expr, Expr, Expr]:
    """The maximum of a row's total (`top`) and a span of it, and what the total's and the span's
    sums must be multiplied by (all bound): x = fma(span's x, by, x * fade)."""
    new = b.let(maximum(top, span_top), "new")
    fade = b.let(math.exp(b, b.let(top - new, "fall")), "fade")
    return new, fade, b.let(math.exp(b, b.let(span_top - new, "gap")), "by")


def joined(total: Expr, span: Expr, fade: Expr, by: Expr) -> Expr:
    """A row's sum (of weights or of weighted values) with a span's, see `join`."""
    return fma(span, by, total * fade)


def seen(b: Builder, total: Expr) -> Expr:
    """Whether the row saw a key (bound). A NaN counts as seen."""
    return b.let(ne(bitcast(total, dt.int32), 0), "some")


def inverse(b: Builder, total: Expr) -> Expr:
    """1 / total, 0 where the row saw no key (bound); `total` is bound."""
    some = seen(b, total)
    one = const(1.0, total.type)
    return b.let(select(some, one / select(some, total, one), 0.0), "inverse")


def log_sum(b: Builder, top: Expr, total: Expr, nothing: float) -> Expr:
    """The row's log-sum-exp (bound), `nothing` where it saw no key; `total` is bound."""
    some = seen(b, total)
    log = b.let(math.log(b, b.let(select(some, total, 1.0), "total")), "log")
    return b.let(select(some, top + log, nothing), "lse")
