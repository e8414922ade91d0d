"""The derivative of attention on a CPU: blocks in scratch and the register tile that all of its
products are: MR rows by a few vectors, a chain of multiply-adds over ascending k.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import KEYS, STRANDS
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import Value, const, extract, iota, load, maximum, minimum, splat
from weft.kernel.ir import Expr, Type
from weft.templates.attention.tile import MR, ScoreRows, add, against
from weft.templates.operand import Reader
from weft.templates.product.pack import Packer

Seen = tuple[list[Expr], list[Expr], Expr, Expr]  # for a tile: low, high, the least, the greatest


@dataclass(frozen=True)
class TileSizes:
    """`rows` rows (whole tiles) against blocks of `keys` columns; `vectors` of columns and `chunk`
    vectors of components per register tile."""

    lanes: int
    rows: int
    keys: int
    vectors: int
    chunk: int


def sizes_of(
    caps: Caps, config: Mapping[str, Any], items: int, others: int, rows: int
) -> TileSizes:
    """Sizes for blocks of at most `rows` of `items` rows against `others` columns."""
    lanes = min(caps.lanes, 16)
    big = caps.registers >= 32
    keys = config.get("keys", KEYS)
    while keys > STRANDS and keys >= 2 * others:
        keys //= 2
    vectors = config.get("vectors", 4 if big else 2)
    while keys % (vectors * lanes):
        vectors //= 2
    rows = -(-min(config.get("rows", rows), items) // MR) * MR
    return TileSizes(lanes, rows, keys, vectors, config.get("chunk", 5 if big else 2))


class BackwardTiles:
    """Emits the parts of a kernel. Blocks of rows are [row][wide], D padded to whole vectors; what
    belongs to pairs is [row][ld]: not a power of two, so that a column's elements fall into
    different cache sets. Turned blocks are [D][keys]."""

    def __init__(self, b: Builder, size: TileSizes, depth: int, columns: int) -> None:
        self.b, self.size, self.depth = b, size, depth
        self.lanes = lanes = size.lanes
        self.wide = -(-depth // lanes) * lanes
        self.ld = columns + lanes
        self.zero = Type(dt.float32, lanes)
        self.low, self.high = (b.array(n, dt.int32, size.rows) for n in ("low", "high"))

    def rows_array(self, name: str, rows: int) -> ir.Array:
        return self.b.array(name, dt.float32, rows * self.wide)

    def pairs_array(self, name: str) -> ScoreRows:
        array = self.b.array(name, dt.float32, self.size.rows * self.ld)
        return ScoreRows(self.b, array, self.ld, self.lanes)

    # -- operands

    def pack(
        self, source: Reader, first: Expr, target: ir.Array, count: Expr, padded: Value
    ) -> None:
        """target = `count` rows of the operand from row `first`, then zeros up to row `padded`;
        zeros beyond D."""
        b, lanes, depth = self.b, self.lanes, const(self.depth)
        base = b.let(source.at(first, 0), "rows")
        packer = Packer(b, source.source, base, target, self.wide, lanes, dt.float32)
        if source.s_k == 1:
            packer.rows(source.s_row, count, depth, self.depth % lanes == 0)
        else:
            if self.wide != self.depth:
                self.clear(target, const(0), count)
            packer.scalars((source.s_row, source.s_k), count, depth)
        self.clear(target, count, padded)

    def clear(self, target: ir.Array, first: Expr, stop: Value) -> None:
        """Zeros in rows first .. stop."""
        with self._vectors(first, stop) as at:
            self.b.store(target, at, const(0.0, self.zero))

    def join(self, x: ir.Array, total: ir.Array, first: Expr, stop: Value) -> None:
        """total += x in rows first .. stop, and x is zero again."""
        with self._vectors(first, stop) as at:
            self.b.store(total, at, load(total, at, self.lanes) + load(x, at, self.lanes))
            self.b.store(x, at, const(0.0, self.zero))

    @contextlib.contextmanager
    def _vectors(self, first: Expr, stop: Value) -> Iterator[Expr]:
        """Every vector of rows first .. stop."""
        b, wide = self.b, self.wide
        with b.loop(stop * wide, first * wide, self.lanes, "at") as at:
            yield at

    def turn(self, source: ir.Array, first: Value, target: ir.Array, at: Value) -> None:
        """A block of keys [key][wide], the first in row `first`, as [D][keys] from element `at`."""
        b, keys = self.b, self.size.keys
        base = b.let(first * self.wide, "row")
        packer = Packer(b, source, base, target, keys, self.lanes, dt.float32, b.let(at))
        packer.turned(self.wide, const(self.wide), keys, None, True)

    # -- which columns rows see

    def limit(self, r: Expr, sees: tuple[Expr, Expr]) -> None:
        """Notes which columns row r sees."""
        self.b.store(self.low, r, sees[0])
        self.b.store(self.high, r, sees[1])

    def seen(self, r: Expr) -> Seen:
        """Returns the keys that rows r .. r + MR see."""
        b = self.b
        low = [b.let(load(self.low, r + i), "low") for i in range(MR)]
        high = [b.let(load(self.high, r + i), "high") for i in range(MR)]
        near = b.let(functools.reduce(minimum, low), "near")
        return low, high, near, b.let(functools.reduce(maximum, high), "far")

    def hide(self, p: ScoreRows, r: Expr, column: Value, first: Expr, seen: Seen) -> None:
        """Columns column .. of p, which are number `first` .., become HIDDEN where a row does not
        see them."""
        low, high, keys = seen[0], seen[1], self.size.keys
        least, last = functools.reduce(minimum, high), functools.reduce(maximum, low)
        with self.b.when((least < first + keys) | (last > first)):
            p.hide(self.b.let(r * self.ld + column, "base"), keys, first, list(zip(low, high)))

    # -- products

    def against(
        self, x: ir.Array, r: Expr, turned: ir.Array, at: Value, column: Value,
        finish: Callable[[int, Expr, Expr, Expr], None],
    ) -> None:  # fmt: skip
        """Rows r .. r + MR of x times the turned block at element `at`: finish(i, column of the
        block, element of p, products) for each vector; `column` is where the block is in p."""
        b, size, wide = self.b, self.size, self.wide
        start = b.let(r * wide, "x0")
        spot = b.let(r * self.ld + column, "p0")

        def left(d: Expr) -> list[Expr]:
            first = b.let(start + d, "at")
            return [load(x, first + i * wide) for i in range(MR)]

        def keep(i: int, c: Expr, value: Expr) -> None:
            finish(i, c, b.let(spot + i * self.ld + c, "at"), b.let(value, "product"))

        against(
            b, MR, self.depth, left, turned, at, size.keys, size.vectors, self.lanes, keep
        )  # fmt: skip

    def add(
        self, weights: ir.Array, start: Expr, row: int, step: int, count: Expr,
        right: ir.Array, first: Expr, target: ir.Array, r: Expr,
    ) -> None:  # fmt: skip
        """target[r + i] += sum over k < count of weights[start + i row + k step] * right[first + k]
        for i < MR."""
        b, lanes, wide = self.b, self.lanes, self.wide
        base = b.let(first * wide, "base")

        def left(k: Expr) -> list[Expr]:
            at = b.let(start + k * step, "at")
            return [load(weights, at + i * row) for i in range(MR)]

        def vectors(k: Expr, columns: range) -> list[Expr]:
            spot = b.let(base + k * wide, "spot")
            return [load(right, spot + v * lanes, lanes) for v in columns]

        add(b, target, r, MR, wide, lanes, self.size.chunk, count, left, vectors)

    def scale_rows(self, x: ir.Array, r: Expr, by: Expr) -> None:
        """Rows r .. r + MR times the lanes of `by`."""
        b = self.b
        for i in range(MR):
            factor = b.let(splat(extract(by, i), self.lanes), "by")
            row = b.let((r + i) * self.wide, "row")
            for c in range(0, self.wide, self.lanes):
                b.store(x, row + c, load(x, row + c, self.lanes) * factor)

    # -- results

    def write(
        self, x: ir.Array, count: Value, factor: float,
        write: Callable[[Expr, int, Expr | None, Expr], None],
    ) -> None:  # fmt: skip
        """write(row, first column, mask, values * factor) for `count` rows of x."""
        b, lanes, depth = self.b, self.lanes, self.depth
        tail = b.let(iota(lanes) < depth % lanes, "tail") if depth % lanes else None
        with b.loop(count, name="r") as r:
            for c in range(0, depth, lanes):
                value = load(x, r * self.wide + c, lanes)
                if factor != 1.0:
                    value = value * factor
                write(r, c, tail if c + lanes > depth else None, b.let(value, "y"))
