"""Reads the elements of templates' operands, in any memory format, as f32 (int32 for integers)."""

from __future__ import annotations

from dataclasses import field, replace

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import Value, as_expr, bitcast, cast, const, iota, load, shuffle
from weft.kernel.ir import Expr

WORD = 4  # bytes of one item when a square of elements is transposed


@dataclass(frozen=True)
class Reader:
    """Element (row, k) is element base + row * s_row + k * s_k of `source`; a read gives `wide`,
    times the row's scale where there are `scales` (as their element (row, 0))."""

    source: ir.Buffer | ir.Array
    base: Expr
    s_row: int
    s_k: int
    wide: DType
    scales: Reader | None = field(default=None, kw_only=True)

    @property
    def buffer(self) -> ir.Buffer:
        """The source as a buffer; it must not be an array of the kernel."""
        assert isinstance(self.source, ir.Buffer)
        return self.source

    @property
    def item(self) -> int:
        """Neighbours along k in one word of what `words` gives."""
        return max(WORD // self.source.dtype.itemsize, 1)

    def at(self, row: Value, k: Value) -> Expr:
        """The index of an element."""
        return self.base + as_expr(k) * self.s_k + as_expr(row) * self.s_row

    def row(self, b: Builder, row: Value) -> Reader:
        """The same elements from a row on: it is row 0, its start bound."""
        if self.scales is None:
            return replace(self, base=b.let(self.at(row, 0), "row"))
        row = b.let(row, "at")
        base = b.let(self.at(row, 0), "row")
        return replace(self, base=base, scales=self.scales.row(b, row))

    def read(self, row: Value, k: Value, lanes: int = 1, mask: Expr | None = None) -> Expr:
        """`lanes` elements of a row, from k on; 0 where `mask` is false."""
        found = cast(self.words(row, k, lanes, mask), self.wide)
        return found if self.scales is None else found * self.scales.read(row, 0)

    def words(self, row: Value, k: Value, lanes: int, mask: Expr | None = None) -> Expr:
        """The same, neither widened yet (see `widen`) nor scaled."""
        index = self.at(row, k)
        if self.s_k != 1 and lanes > 1:
            index = iota(lanes) * self.s_k + index
        return load(self.source, index, lanes, mask)


def widen(words: Expr, item: int, u: int, wide: DType) -> Expr:
    """Element u of each word of `item` elements (one vector lane per word), as `wide`."""
    dtype, lanes = words.type.dtype, words.type.lanes // item
    if item == 1:
        return cast(words, wide)
    if dtype == dt.bfloat16:  # the upper half of an f32
        bits = bitcast(words, dt.uint32)
        return bitcast(bits << 16 if u == 0 else bits & const(0xFFFF0000, bits.type), wide)
    if dtype.kind in ("int", "uint") and lanes > 1:
        size = 8 * dtype.itemsize
        whole = bitcast(words, dt.int32 if dtype.kind == "int" else dt.uint32)
        return cast((whole << (32 - size * (u + 1))) >> (32 - size), wide)
    return cast(shuffle(range(u, lanes * item, item), words), wide)
