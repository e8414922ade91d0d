"""Running products of floats along the last axis on a CPU.

The state of a product is a mantissa and an exponent (prod_fold), and splitting a number costs more
than the product. So several tiles are first multiplied directly. If every factor and product stays
in the middle of the range, each number is the mantissa times a power of two. The results then have
the same bits as without the shortcut. Otherwise these tiles are split.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from weft.core import dtypes as dt
from weft.kernel import expr as kb
from weft.kernel.expr import Value
from weft.kernel.ir import Expr
from weft.templates.affine import Affine
from weft.templates.rows.folds import Accumulator, State
from weft.templates.rows.product_fold import MAGIC
from weft.templates.scan.rows import ABREAST, RowScan

FACTOR = 7  # factors lie within 2^-FACTOR .. 2^FACTOR: 16 of them multiply to a normal number
PRODUCT = 100  # ... and products of a block so far within 2^-PRODUCT .. 2^PRODUCT


def _within(x: Expr, exponent: int) -> Expr:
    """Returns a condition that is true where 2^-exponent <= |x| < 2^exponent."""
    size = kb.bitcast(x, dt.uint32) & 0x7FFFFFFF
    low = (127 - exponent) << 23
    return kb.binary("lt", size - low, 2 * exponent << 23)


class ProductScan(RowScan):
    """Rows whose tiles are multiplied several at a time."""

    @property
    def abreast(self) -> bool:
        return 2 < self.tile <= 16

    def several(
        self, row: Affine, first: Affine, carry: State | None, run: Accumulator, done: Expr
    ) -> None:
        b, em, tile = self.b, self.em, self.tile
        places = [self.place(row, first + i * tile, tile) for i in range(ABREAST)]
        factors = [b.let(kb.splat(em.value(self.operands[0], at), tile), "x") for at in places]
        mantissa, exponent = (b.let(kb.extract(v, 0), "run") for v in run.state())
        usual = reduce(and_, (_within(x, FACTOR) for x in factors))
        if self.writes:
            running = [self._running(x) for x in factors]
            scale, far = self._scale(exponent, carry)
            totals = [kb.extract(self.ends((x,))[0], 0) for x in running]
            befores = self._befores(mantissa, totals)
            results = self._results(befores, running, carry)
            usual = reduce(and_, (_within(x, PRODUCT) for x in results), usual)
        else:
            (packed,) = self.totals([(x,) for x in factors], self._times)
            befores = self._befores(mantissa, [kb.extract(packed, k) for k in range(ABREAST)])
            far, results = reduce(and_, (_within(x, PRODUCT) for x in befores[1:])), []
        with b.when(b.let(far & kb.not_(kb.any_(kb.not_(usual))), "usual")), em.scope():
            for k, at in enumerate(places if self.writes else ()):
                shown = results[k]
                if self.exclusive:
                    shown = self._before(shown, 1, self._carried(befores[k], carry))
                self.put(at, shown * scale)
            one = tuple(kb.const(v, exponent.type) for v in (1.0, 0.0))
            state = self.combine(one, (befores[-1], exponent))
            run.set(tuple(kb.splat(v, tile) for v in state))
            b.assign(done, True)

    def _befores(self, mantissa: Expr, totals: list[Expr]) -> list[Expr]:
        """The products of the block before each tile and after all."""
        found = [mantissa]
        for total in totals:
            found.append(self.b.let(found[-1] * total, "mantissa"))
        return found

    def _carried(self, before: Expr, carry: State | None) -> Expr:
        """Returns the state before a tile, in every lane."""
        wide = kb.splat(before, self.tile)
        return wide if carry is None else self.b.let(carry[0] * wide, "before")

    def _results(self, befores: list[Expr], running: list[Expr], carry: State | None) -> list[Expr]:
        """The products up to each element."""
        pairs = zip(befores, running)
        return [self.b.let(self._carried(before, carry) * x, "found") for before, x in pairs]

    def _times(self, s: State, t: State) -> State:
        return (self.b.let(s[0] * t[0], "product"),)

    def _running(self, x: Expr) -> Expr:
        """The products within a tile."""
        for by in self.rounds():
            x = self.b.let(self._before(x, by, 1.0) * x, "product")
        return x

    def _before(self, x: Expr, by: int, fill: Value) -> Expr:
        """Each lane has what was `by` lanes before, the first ones `fill`."""
        fill = fill if isinstance(fill, Expr) else kb.const(fill, x.type)
        return kb.shuffle(self.sources(by), x, fill)

    def _scale(self, exponent: Expr, carry: State | None) -> tuple[Expr, Expr]:
        """(2^exponent in every lane, whether it is that): 0 or inf where any product is by it, so
        that results are rounded but once."""
        b = self.b
        e = b.let(exponent if carry is None else kb.extract(carry[1], 0) + exponent, "exponent")
        far = kb.unary("abs", e + 11.0) >= PRODUCT + 141.0  # e <= -252 or 230 <= e
        usual = far | ((e >= -126.0) & (e <= 127.0))
        # The exponent is in the last bits.
        shown = kb.minimum(kb.maximum(e, -127.0), 128.0) + (MAGIC + 127)
        scale = kb.bitcast(kb.bitcast(shown, dt.int32) << 23, dt.float32)
        return b.let(kb.splat(scale, self.tile), "scale"), usual
