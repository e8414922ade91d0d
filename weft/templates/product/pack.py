"""Copying operand blocks into scratch, in the order that the register tiles read them.

A panel keeps its minor axis contiguous. Where the source is contiguous along the major axis
instead (a weight w[N, K] read as its transpose), square blocks are turned in registers by
two-source shuffles, log2(lanes) of them per vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import (
    Value,
    as_expr,
    cast,
    ceil_div,
    const,
    iota,
    load,
    minimum,
    splat,
)
from weft.kernel.ir import Expr
from weft.templates.registers import interleave, tail_mask, transpose_block


@dataclass(frozen=True)
class Packer:
    """One copy: from `source` at element `base` (bound) to `target` rows of `ld` elements, from
    element `at`, converted to `dtype` in vectors of `lanes`."""

    b: Builder
    source: ir.Buffer | ir.Array
    base: Expr
    target: ir.Array
    ld: int
    lanes: int
    dtype: DType
    at: Value = 0

    def _load(self, index: Expr, lanes: int, mask: Expr | None = None) -> Expr:
        return cast(load(self.source, index, lanes, mask), self.dtype)

    def _chunks(
        self, count: Value, step: int, whole: bool, body: Callable[[Expr, Expr | None], None]
    ) -> None:
        """body(position, mask) over range(0, count, step): whole chunks unmasked, then one masked
        chunk for what is left; `whole` promises that nothing is."""
        b = self.b
        count = b.let(count, "count")
        if whole:
            with b.loop(count, step=step, name="c") as c:
                body(c, None)
            return
        full = b.let(count - count % step, "full")
        with b.loop(full, step=step, name="c") as c:
            body(c, None)
        with b.when(full < count):
            body(full, b.let(tail_mask(full, count, step), "mask"))

    def left(self, strides: tuple[int, int], rows: Expr, cols: Expr, whole: bool) -> None:
        """Packs a left operand: rows of `ld` elements, of which `cols` are used; `whole` promises
        that these are whole vectors."""
        if strides[1] == 1:
            self.rows(strides[0], rows, cols, whole)
        elif strides[0] == 1:
            self.turned(strides[1], rows, self.ld, self.b.let(cols - 1, "last"), False)
        else:
            self.scalars(strides, rows, cols)

    def right(
        self, strides: tuple[int, int], rows: Expr, cols: int, limit: Expr | None, pair: int,
        even: bool, whole: bool,
    ) -> None:  # fmt: skip
        """Packs a panel of a right operand, as `columns` does where rows are contiguous (then
        `even` is its `whole`), else as `turned` does."""
        if strides[0] != 1 and (strides[1] == 1 or pair == 2):
            self.columns(strides, rows, cols, limit, pair, even)
            return
        last = None if limit is None else self.b.let(limit - 1, "last")
        if strides[0] == 1:
            self.turned(strides[1], rows, cols, last, whole, pair)
        else:
            self.scalars(strides, rows, cols, (None, last))

    def rows(
        self, stride: int, rows: Value, cols: Value, whole: bool, last: Expr | None = None
    ) -> None:
        """target[r, c] = source[r * stride + c]: contiguous along c in both; rows beyond `last`
        repeat it."""
        b = self.b
        with b.loop(rows, name="r") as r:
            at = r if last is None else minimum(r, last)
            row = b.let(self.base + at * stride, "row")

            def copy(c: Expr, mask: Expr | None) -> None:
                value = self._load(row + c, self.lanes, mask)
                b.store(self.target, r * self.ld + c + self.at, value)

            self._chunks(cols, self.lanes, whole, copy)

    def columns(
        self, strides: tuple[int, int], rows: Value, cols: int, limit: Expr | None, pair: int = 1,
        whole: bool = True, apart: int = 1,
    ) -> None:  # fmt: skip
        """Packs a fixed number of columns, as `rows` does; those at or beyond `limit` become 0.

        Column c, the first of a vector, is c * `apart` from the first of all. With `pair` = 2,
        pairs of rows are interleaved: target[2r, 2c], target[2r, 2c + 1] = source[2r, c], source[2r
        + 1, c]. Rows up to the next multiple of 2 * lanes then become 0 unless all are `whole`.
        """
        b, n = self.b, self.lanes
        starts = range(0, cols, n)
        masks = [None if limit is None else b.let(tail_mask(const(c), limit, n)) for c in starts]

        def put(r: Expr, below: Expr | None) -> None:
            for c, mask in zip(starts, masks):
                lines = [self._strided(r + u, c * apart, strides, mask, below) for u in range(pair)]
                value = lines[0] if pair == 1 else interleave(b, *lines)
                b.store(self.target, r * self.ld + (pair * c + self.at), value)

        rows = as_expr(rows)
        even = rows if whole else b.let(rows - rows % pair, "even")
        with b.loop(even, step=pair, name="r") as r:
            put(r, None)
        if not whole:
            padded = b.let(ceil_div(rows, 2 * n) * (2 * n), "padded")
            with b.loop(padded, even, step=pair, name="r") as r:
                put(r, rows)

    def _strided(
        self, r: Expr, c: Value, strides: tuple[int, int], mask: Expr | None, rows: Expr | None
    ) -> Expr:
        """A vector of row r from column c, bound; zeros where r is not below `rows`."""
        n, (sr, sc) = self.lanes, strides
        r = self.b.let(r, "r")
        first = self.base + r * sr
        index = iota(n) * sc + (first + c * sc) if sc != 1 else first + c
        if rows is not None:
            exists = splat(r < rows, n)
            mask = exists if mask is None else mask & exists
        return self.b.let(self._load(index, n, mask), "x")

    def woven(self, stride: int, rows: Value, cols: Expr, limit: Expr | None, whole: bool) -> None:
        """target[i, j] = source[i + j * stride], `lanes` rows by 2 * lanes columns at a time: pairs
        of source rows are woven together, then turned. Rows are written up to a multiple of lanes,
        zeros from `limit` on; columns up to a multiple of 2 * lanes, zeros from `cols` on (there
        are none when all are `whole`)."""
        b, n = self.b, self.lanes

        def band(c: Expr, tail: Expr | None) -> None:
            below = None if tail is None else cols
            with b.loop(rows, step=n, name="i") as i:
                mask = None if limit is None else b.let(tail_mask(i, limit, n), "mask")
                woven = []
                for t in range(0, 2 * n, 2):
                    x, y = (self._strided(c + (t + u), i, (stride, 1), mask, below) for u in (0, 1))
                    woven.append(b.let(interleave(b, x, y), "woven"))
                for t, v in enumerate(transpose_block(b, woven, 2)):
                    b.store(self.target, (i + t) * self.ld + c + self.at, v)

        self._chunks(cols, 2 * n, whole, band)

    def turned(
        self, stride: int, major: Value, minor: int, last: Expr | None, whole: bool, pair: int = 1
    ) -> None:
        """target[i, j] = source[i + j * stride]: the source is contiguous along the target's major
        axis, so blocks are transposed in registers.

        `minor` is a multiple of `lanes`; source rows j beyond `last` repeat row `last` (their
        content is not used). Major rows are written in whole blocks: up to lanes - 1 beyond
        `major` hold zeros. With `pair` = 2 items are pairs of elements along the source's
        contiguous axis, target[i / 2, 2 j ..].
        """
        b, n = self.b, self.lanes
        with b.loop(minor, step=n, name="j") as j:
            starts = []
            for t in range(n):
                at = j + t if last is None else minimum(j + t, last)
                starts.append(b.let(self.base + at * stride, "src"))

            def turn(c: Expr, mask: Expr | None) -> None:
                block = [b.let(self._load(s + c, n * pair, mask), "v") for s in starts]
                for t, v in enumerate(transpose_block(b, block, pair)):
                    index = c * self.ld + j * pair + (t * pair * self.ld + self.at)
                    b.store(self.target, index, v)

            self._chunks(major, n * pair, whole, turn)

    def tiles(
        self, strides: tuple[int, int], rows: Value, cols: Expr, last: Expr | None, whole: bool
    ) -> None:
        """Packs target[i, j] = source[i * strides[0] + j * strides[1]] for matrix registers.

        Their tiles are `lanes` by 2 * lanes. Columns from `cols` on, up to whole tiles, are 0 (if
        all are `whole`, there are none). Rows beyond `last` (None: there are none) hold arbitrary
        values.
        """
        n = self.lanes
        if strides[1] == 1:
            replace(self, lanes=2 * n).rows(strides[0], rows, cols, whole, last)
        elif strides[0] == 1:
            limit = None if last is None else self.b.let(last + 1, "limit")
            self.woven(strides[1], rows, cols, limit, whole)
        else:
            padded = self.b.let(ceil_div(cols, 2 * n) * (2 * n), "padded")
            self.scalars(strides, rows, padded, (last, None), cols)

    def scalars(
        self, strides: tuple[int, int], major: Value, minor: Value,
        last: tuple[Expr | None, Expr | None] = (None, None), cols: Expr | None = None,
    ) -> None:  # fmt: skip
        """target[i, j] = source[i * strides[0] + j * strides[1]], one by one; what is beyond `last`
        repeats it, columns from `cols` on become 0."""
        b = self.b
        with b.loop(major, name="i") as i, b.loop(minor, name="j") as j:
            near = [x if end is None else minimum(x, end) for x, end in zip((i, j), last)]
            index = self.base + near[0] * strides[0] + near[1] * strides[1]
            value = self._load(index, 1, None if cols is None else j < cols)
            b.store(self.target, i * self.ld + j + self.at, value)
