"""Turning 16 rows of memory, for a CPU with vectors of 16 lanes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import load, shuffle
from weft.kernel.ir import Expr
from weft.templates.operand import widen


def transposed_16(b: Builder, source: ir.Buffer, starts: Sequence[Expr]) -> list[Expr]:
    """Sixteen f32 vectors (bound), vector i of elements starts[0] + i, starts[1] + i, ...

    Four rows at a time are loaded into the quarters of a vector, so that only squares of 4 x 4
    items are left to turn: half the shuffles of a butterfly (`transpose_block`). An item is
    32 bits, two elements of a narrow dtype.
    """
    width = 4 // source.dtype.itemsize
    found = []
    for c in range(0, 16, 4 * width):
        rows = [_quarters(b, source, starts[r::4], c, 4 * width) for r in range(4)]
        for items in _turn_quarters(b, rows, width):
            for i in range(width):
                found.append(b.let(widen(items, width, i, dt.float32), "k"))
    return found


def _quarters(
    b: Builder, source: ir.Buffer, starts: Sequence[Expr], first: int, lanes: int
) -> Expr:
    """`lanes` elements from each of four places, side by side."""
    parts = [b.let(load(source, at + first, lanes), "k") for at in starts]
    pairs = [shuffle(range(2 * lanes), *parts[i : i + 2]) for i in (0, 2)]
    return b.let(shuffle(range(4 * lanes), *[b.let(x, "k") for x in pairs]), "k")


def _turn_quarters(b: Builder, rows: Sequence[Expr], width: int) -> list[Expr]:
    """Four vectors, each quarter of them a square of 4 x 4 items of `width` lanes that is
    transposed on its own."""

    def mix(x: Expr, y: Expr, picks: tuple[int, ...]) -> Expr:
        items = [q + (p if p < 4 else p + 12) for q in range(0, 16, 4) for p in picks]
        return b.let(shuffle([i * width + w for i in items for w in range(width)], x, y), "t")

    (x, y), (z, w) = ([mix(rows[i], rows[i + 1], p) for i in (0, 2)] for p in _HALVES)
    return [mix(*pair, picks) for pair in ((x, y), (z, w)) for picks in _PAIRS]


_HALVES = ((0, 4, 1, 5), (2, 6, 3, 7))  # rows of two squares: items 0 and 1, items 2 and 3
_PAIRS = ((0, 1, 4, 5), (2, 3, 6, 7))
