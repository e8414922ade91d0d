"""A product's sums in the one order of core/order: chunks of K, spans of chunks, the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.core.order import CHUNK, SPAN
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, eq, minimum
from weft.kernel.ir import Expr


class Sums:
    """Accumulators of one chunk, and behind them running sums of the span and of the product where
    K has several chunks or spans. `acc` are the variables that the chain of a chunk goes through;
    `result` hold the product once everything has joined. Integers are exact in any order: they
    have one chain only."""

    def __init__(self, b: Builder, k: int, acc: Sequence[ir.Var]) -> None:
        self.b, self.k = b, k
        exact = not acc[0].type.dtype.is_float
        lengths = [] if exact else [n for n in (CHUNK, SPAN) if k > n]
        # The first sum joins -0, which leaves every value as it is.
        self.levels = [
            (n, [b.var(const(-0.0, v.type), "sum", v.type) for v in acc]) for n in lengths
        ]
        self.acc = list(acc)

    @property
    def result(self) -> list[ir.Var]:
        return self.levels[-1][1] if self.levels else self.acc

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
        lower = self.levels[i - 1][1] if i else self.acc
        for low, high in zip(lower, self.levels[i][1]):
            b.assign(high, high + low)
            b.assign(low, const(-0.0 if i else 0.0, low.type))
