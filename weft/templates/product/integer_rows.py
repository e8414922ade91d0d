"""Products of integers with scales in many threads (see integers): x as `quantize` gives it, packed
weights in the order of their checkpoint, both as words of four codes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, load
from weft.kernel.ir import Expr
from weft.ops.quantize import BLOCK, run_of
from weft.templates.product.code_words import ONES, whole
from weft.templates.product.integers import finish
from weft.templates.product.kernel import ProductKernel
from weft.templates.product.operands import Lines
from weft.templates.product.packed_rows import PackedRows, words_at


@dataclass(frozen=True)
class LeftRows:
    """Rows of x: planes of codes, of which a row starts at some index, and scales per block."""

    planes: tuple[ir.Buffer, ...]
    scales: ir.Buffer

    def words(self, b: Builder, start: Expr, k: Expr) -> list[list[Expr]]:
        """[plane][word] of the block of k."""
        return [words_at(b, plane, start + k, BLOCK) for plane in self.planes]

    def scale(self, b: Builder, start: Expr, k: Expr) -> Expr:
        return b.let(load(self.scales, (start + k) // BLOCK), "sx")


def left_of(call: ProductKernel) -> LeftRows:
    """The left operand of a product of integers."""
    *planes, scales = (call.em.buffers[id(x)] for x in call.p.a.stored)
    return LeftRows(tuple(planes), scales)


def add_block(
    b: Builder, left: LeftRows, starts: Sequence[Expr], k: Expr,
    rights: Sequence[Sequence[Lines]], accs: Sequence[Sequence[Sequence[ir.Var]]],
) -> None:  # fmt: skip
    """Adds the products of the block of k: of the rows of x that start at `starts` with those of
    each dot, to accs[dot][row of w][row of x]."""
    rows = [_Row(b, w, k, line) for dot, lines in zip(rights, accs) for w, line in zip(dot, lines)]
    for i, start in enumerate(starts):
        planes, scale = left.words(b, start, k), left.scale(b, start, k)
        sums: dict[tuple[int, int], Expr] = {}
        for row in rows:
            row.add(b, i, planes, scale, sums)


class _Row:
    """A block of a row of w, and where its products go."""

    def __init__(self, b: Builder, w: Lines, k: Expr, accs: Sequence[ir.Var]) -> None:
        assert isinstance(w, PackedRows)
        self.fours, self.accs, run = w.fours(b, k), accs, run_of(w.form, w.k)
        self.runs = []
        for first in range(0, BLOCK, run):
            at = b.let(k + first, "k") if first else k
            words = slice(first // 4, (first + run) // 4)
            self.runs.append((words, w.numbers(b, at), w.taken(b, at)))

    def add(
        self, b: Builder, i: int, planes: list[list[Expr]], scale: Expr,
        sums: dict[tuple[int, int], Expr],
    ) -> None:  # fmt: skip
        """Its products with row i of x; `sums` are of that row's codes, by the words of a run."""
        for words, beside, taken in self.runs:
            xs = [plane[words] for plane in planes]
            total, of_x = whole(b, xs, self.fours[words]), None
            key = words.start, words.stop
            if (taken is not None or "lows" in beside) and key not in sums:
                sums[key] = whole(b, xs, [ONES] * len(xs[0]))
            if taken is not None:
                total = b.let(total + sums[key] * taken, "int")
            if "lows" in beside:
                of_x = b.let(cast(sums[key], dt.float32) * scale, "total")
            finish(b, self.accs[i], total, scale, beside, of_x)
