"""A product's sums in the one order of core/order: chunks of K, spans of chunks, the product."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core.order import CHUNK, SPAN
from weft.kernel.builder import Builder
from weft.kernel.expr import const, eq, minimum
from weft.kernel.ir import Expr, Type


def nested(values: Iterable[Any], lengths: Sequence[int]) -> list[Any]:
    """Returns the values as nested lists with the given lengths, the outermost first."""
    left = iter(values)
    if len(lengths) == 1:
        return [next(left) for _ in range(lengths[0])]
    return [nested(left, lengths[1:]) for _ in range(lengths[0])]


class ChunkSums:
    """Accumulators of one chunk, nested lists of `lengths`, and behind them running sums of the
    span and of the product where K has several chunks or spans. The chain of a chunk goes through
    `acc`; `result` holds the product once everything has joined. Integers are exact in any order:
    they have one chain only."""

    def __init__(self, b: Builder, k: int, type_: Type, *lengths: int) -> None:
        self.b, self.k, self.lengths = b, k, lengths
        zero = const(0, type_)
        self.flat = [b.var(zero, "acc", type_) for _ in range(math.prod(lengths))]
        cuts = [n for n in (CHUNK, SPAN) if k > n] if type_.dtype.is_float else []
        # The first sum joins -0, which leaves every value as it is.
        nothing = const(-0.0, type_)
        self.levels = [(n, [b.var(nothing, "sum", type_) for _ in self.flat]) for n in cuts]

    @property
    def acc(self) -> list[Any]:
        return nested(self.flat, self.lengths)

    @property
    def result(self) -> list[Any]:
        return nested(self.levels[-1][1] if self.levels else self.flat, self.lengths)

    def after(self, done: Expr) -> None:
        """Joins what ends at k = `done`, a multiple of what one step takes of a chunk."""
        for i, (length, _) in enumerate(self.levels):
            with self.b.when(eq(done % length, 0)):
                self._join(i)

    def finish(self) -> None:
        """Joins the last, shorter chunk and span."""
        for i, (length, _) in enumerate(self.levels):
            if self.k % length:
                self._join(i)

    def chunks(self, body: Callable[[Expr, Expr], None]) -> None:
        """body(start, stop) for each chunk of K, joined as it ends."""
        b = self.b
        if not self.levels:
            body(const(0), const(self.k))
            return
        with b.loop(self.k, step=CHUNK, name="k0") as k0:
            stop = b.let(minimum(k0 + CHUNK, self.k), "stop")
            body(k0, stop)
            self._join(0)
            if len(self.levels) > 1:
                with b.when(eq(stop % SPAN, 0)):
                    self._join(1)
        if len(self.levels) > 1 and self.k % SPAN:
            self._join(1)

    def _join(self, i: int) -> None:
        """Adds the sums of level i - 1 (the accumulators: -1) to those of level i."""
        b = self.b
        lower = self.levels[i - 1][1] if i else self.flat
        for low, high in zip(lower, self.levels[i][1]):
            b.assign(high, high + low)
            b.assign(low, const(-0.0 if i else 0.0, low.type))
