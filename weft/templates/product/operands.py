"""Ways to read a product's operands: line by line, a row of the left one or a column of a right
one. Elements lie in memory as such (`Operand`), or are worked out (packed_rows, blocked_words)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel.builder import Builder
from weft.kernel.expr import load
from weft.kernel.ir import Expr
from weft.templates.lanes import WORD
from weft.templates.operand import Reader


class Lines(Protocol):
    """An operand of `items` lines with `k` elements each. `parts` returns elements of `dtype`,
    neighbours along k if `along_k`."""

    @property
    def items(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def along_k(self) -> bool: ...

    def lanes(self, items: int, bk: int) -> int:
        """Returns the number of elements to read at once in a block of (items, bk)."""

    def line(self, b: Builder, item: Expr, name: str = "start") -> Lines:
        """One line; `name` is that of a bound start."""

    def parts(self, b: Builder, k: Expr, count: int) -> Sequence[Expr]:
        """Returns `count` elements of the line from k on: a vector from memory, or one by one."""


@dataclass(frozen=True)
class Operand(Reader):
    """Elements in memory: `items` counts the rows of a left operand or the columns of a right one.
    A common divisor of all of `known` (batch strides, the offset, a pick's step) divides `base`."""

    items: int
    k: int
    known: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        return self.source.dtype

    @property
    def along_k(self) -> bool:
        return self.s_k == 1

    def lanes(self, items: int, bk: int) -> int:
        """Each vector is whole and aligned."""
        if 1 not in (self.s_k, self.s_row):
            return 1
        length, limit = (self.k, bk) if self.along_k else (self.items, items)
        other = self.s_row if self.along_k else self.s_k
        lanes = WORD // self.source.dtype.itemsize
        while lanes > max(limit, 1) or any(n % lanes for n in (length, other, *self.known)):
            lanes //= 2
        return lanes

    def line(self, b: Builder, item: Expr, name: str = "start") -> Operand:
        return replace(self, base=b.let(self.at(item, 0), name))

    def parts(self, b: Builder, k: Expr, count: int) -> list[Expr]:
        return [load(self.source, self.at(0, k), count)]
