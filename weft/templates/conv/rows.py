"""Rows of an image copied into a CPU's scratch memory, with zeros around them."""

from __future__ import annotations

from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load
from weft.kernel.ir import Expr, Type
from weft.ops.codes import FOUR
from weft.templates.conv.sizes import ConvShape
from weft.templates.registers import tail_mask


def window_starts(
    b: Builder, s: ConvShape, row: int, first: Expr, at: list[Expr]
) -> list[tuple[Expr, int]]:
    """Returns the starts of the windows of places `at` of a group's results, each as an expression
    and a constant. The image begins at `first` and has a row every `row` elements."""
    (sh, sw), step = s.stride, s.stride[1] * s.c
    if s.ow * sw * s.c == sh * row or s.ow == 1:  # the same distance everywhere
        step = step if s.ow > 1 else sh * row
        origin = b.let(first + at[0] * step, "window")
        return [(origin, i * step) for i in range(len(at))]
    return [(b.let(first + r // s.ow * (sh * row) + r % s.ow * step, "window"), 0) for r in at]


class PaddedRows:
    """`count` rows of an image of `source` in an array `pixels`, with the padding of `s` on each
    side. Vectors are stored whole, so the last may exceed the end by `beyond`."""

    def __init__(
        self, b: Builder, source: ir.Buffer | ir.Array, s: ConvShape, count: int, lanes: int,
        beyond: int | None = None,
    ) -> None:  # fmt: skip
        self.b, self.source, self.s, self.lanes, self.count = b, source, s, lanes, count
        self.row = s.wide * s.c
        beyond = lanes if beyond is None else beyond
        self.pixels = b.array("pixels", source.dtype, count * self.row + beyond)

    def copy(self, start: Expr, above: Expr) -> None:
        """The rows from number `above` on (negative: of the padding) of the image that begins at
        element `start`."""
        b, s = self.b, self.s
        left, inside = s.padding[1][0] * s.c, s.w * s.c
        with b.loop(self.count, name="r") as r:
            y = b.let(above + r, "y")
            at = b.let(r * self.row, "at")
            with b.when((y >= 0) & (y < s.h)):
                self._fill(at, left, None)
                self._fill(at + left, inside, b.let(start + y * inside, "line"))
                self._fill(at + (left + inside), self.row - left - inside, None)
            with b.otherwise():
                self._fill(at, self.row, None)

    def _fill(self, at: Expr, count: int, source: Expr | None) -> None:
        """Writes `count` elements of the copy from `at` on: zeros, or elements from `source` on. It
        may write beyond them; later stores overwrite that."""
        b, lanes = self.b, self.lanes
        zero = const(0, Type(self.source.dtype, lanes))
        if not count:
            return
        whole = count - count % lanes
        at = b.let(at, "to")
        if whole:
            with b.loop(whole, step=lanes, name="i") as i:
                value = zero if source is None else load(self.source, source + i, lanes)
                b.store(self.pixels, at + i, value)
        if count % lanes:
            value = zero
            if source is not None:
                mask = tail_mask(const(whole), count, lanes)
                value = load(self.source, source + whole, lanes, b.let(mask, "mask"))
            b.store(self.pixels, at + whole, value)


class PaddedCodes(PaddedRows):
    """The same for codes, whose padding is their zero point; in whole words of FOUR, so that
    nothing is stored beyond the end."""

    def __init__(
        self, b: Builder, source: ir.Buffer | ir.Array, s: ConvShape, count: int, lanes: int
    ) -> None:
        super().__init__(b, source, s, count, FOUR * lanes, 0)

    def _fill(self, at: Expr, count: int, source: Expr | None) -> None:
        b, at, done = self.b, self.b.let(at, "to"), 0

        def move(i: Expr | int, lanes: int) -> None:
            fill = const(self.s.zero, Type(self.source.dtype, lanes))
            value = fill if source is None else load(self.source, source + i, lanes)
            b.store(self.pixels, at + i, value)

        wide = self.lanes
        while wide >= FOUR:
            more = (count - done) // wide * wide
            if more == wide:
                move(done, wide)
            elif more:
                with b.loop(done + more, done, step=wide, name="i") as i:
                    move(i, wide)
            done, wide = done + more, wide // 2
