"""Attention of bf16 operands in a CPU's matrix registers, f32 sums (Intel AMX).

As `forward_vector`, but 32 query rows at a time: scores are four tiles that leave through memory,
become weights there, and the weights, rounded to bf16, meet the values in tiles again. Keys are
packed as pairs of components, values as pairs of keys, as the unit reads its right operand. A row
of a tile does not depend on the others, so it keeps the order of sums.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.kernel import math
from weft.kernel.expr import cast, const, fma, load, maximum, minimum
from weft.kernel.ir import I32, Expr
from weft.templates.attention.forward import ForwardKernel
from weft.templates.attention.forward_vector import VectorForward
from weft.templates.attention.softmax import HIDDEN, LOG2E, Exp, base_two, capped
from weft.templates.attention.tile import MR, ScoreRows
from weft.templates.operand import Reader
from weft.templates.product.pack import Packer

TILE, BLOCK = 16, 32  # rows and columns of one tile of sums; of the four summed together


def in_tiles(call: ForwardKernel) -> bool:
    """True if the matrix registers can take a call: its operands are bf16 with contiguous
    components."""
    narrow = all(x.dtype == dt.bfloat16 and x.strides[-1] == 1 for x in call.views)
    unit = "mma_bf16" in call.caps.features and call.caps.lanes == TILE
    return narrow and unit and call.depth >= TILE and not call.statistics


class AmxForward(VectorForward):
    """One thread with matrix registers."""

    tile = step = BLOCK
    exp: Exp = staticmethod(math.exp2_below)

    def _arrays(self, rows: int) -> None:
        b, keys = self.b, self.keys
        self.deep = -(-self.depth // BLOCK) * BLOCK  # D padded to whole tiles of k
        self.qs = b.array("q", dt.bfloat16, rows * self.deep)
        self.kt = b.array("kt", dt.bfloat16, self.deep * keys)
        self.vs = b.array("v", dt.bfloat16, keys * self.wide)
        s = b.array("s", dt.float32, BLOCK * keys)
        self.scores = ScoreRows(b, s, keys, self.lanes)
        self.p = b.array("p", dt.bfloat16, BLOCK * keys)
        self.factor = base_two(self.scale, self.softcap)
        pair = range(2)
        self.sums = [[b.tile("c", dt.float32, TILE, TILE) for _ in pair] for _ in pair]
        self.lefts = [b.tile("a", dt.bfloat16, TILE, BLOCK) for _ in pair]
        self.rights = [b.tile("b", dt.bfloat16, TILE, BLOCK) for _ in pair]

    def _pack_rows(self) -> None:
        b, query = self.b, self.query
        whole = self.depth % BLOCK == 0
        packer = Packer(b, query.source, query.base, self.qs, self.deep, BLOCK, dt.bfloat16)
        packer.rows(query.s_row, self.held, const(self.depth), whole, self.last)

    def take_keys(self, count: Expr, k: Reader, v: Reader | None = None) -> None:
        b, lanes = self.b, self.lanes
        assert v is not None
        last = b.let(count - 1, "last_key")
        whole = self.depth % BLOCK == 0
        pack = Packer(b, k.source, k.base, self.kt, self.keys, lanes, dt.bfloat16)
        pack.turned(k.s_row, const(self.depth), self.keys, last, whole, 2)
        pack = Packer(b, v.source, v.base, self.vs, self.wide, lanes, dt.bfloat16)
        limit = None if self.depth == self.wide else const(self.depth)
        pack.columns((v.s_row, 1), count, self.wide, limit, 2, False)

    def sweep(self, k0: Expr, count: Expr) -> None:
        b = self.b
        with b.loop(self.count, step=BLOCK, name="r") as r:
            near, far = b.var(1 << 30, "near", I32), b.var(0, "far", I32)
            with b.loop(minimum(r + BLOCK, self.count), r, name="row") as row:
                low, high = self.limits(row)
                b.assign(near, minimum(near, low))
                b.assign(far, maximum(far, high))
            with b.when((far > k0) & (near < k0 + count)):
                self._tile_products(r)
                with b.loop(BLOCK, step=MR, name="i") as i:
                    at = [b.let(minimum(r + i + m, self.last), "row") for m in range(MR)]
                    bounds = [self.limits(row) for row in at]
                    self._tile_weights(k0, b.let(r + i, "first"), i, bounds)
                self._tile_values(r, b.let(minimum(far - k0, count), "seen"))

    # -- one block of 32 rows

    def _tile_products(self, r: Expr) -> None:
        """s = q . k for the block, not scaled yet."""
        b, keys = self.b, self.keys
        with b.loop(keys, step=BLOCK, name="c") as c:
            for line in self.sums:
                for tile in line:
                    b.tile_zero(tile)
            with b.loop(self.deep, step=BLOCK, name="d") as d:
                for j, right in enumerate(self.rights):
                    b.tile_load(right, self.kt, d * keys + (c + j * TILE) * 2, 2 * keys)
                for i, left in enumerate(self.lefts):
                    b.tile_load(left, self.qs, (r + i * TILE) * self.deep + d, self.deep)
                    for tile, right in zip(self.sums[i], self.rights):
                        b.mma(tile, left, right)
            for i, line in enumerate(self.sums):
                for j, tile in enumerate(line):
                    b.tile_store(self.scores.s, c + (i * TILE * keys + j * TILE), keys, tile)

    def _tile_weights(self, k0: Expr, row: Expr, i: Expr, bounds: list[tuple[Expr, Expr]]) -> None:
        """Scores of rows `row` .. (i .. of the block) become weights; what they summed fades."""
        b, keys, scores = self.b, self.keys, self.scores
        base = b.let(i * keys, "base")
        end = b.let(k0 + keys, "end")
        cut = [b.let((low > k0) | (high < end), "cut") for low, high in bounds]
        if self.factor:
            with b.when((cut[0] | cut[1]) | (cut[2] | cut[3])):
                scores.hide(base, keys, k0, bounds, HIDDEN / min(self.factor, 1.0))
        else:
            scores.hide(base, keys, k0, bounds, HIDDEN, self._score)
        fade = scores.weigh(
            self.span, row, base, MR, keys, self.factor or 1.0, self._weight, self.exp
        )
        for m, by in enumerate(scores.spread(fade, MR, "fade")):
            self._fade(b.let(row + m, "row"), by)

    def _weight(self, at: Expr, top: Expr) -> Expr:
        """A vector of weights (bound), stored rounded."""
        b, s = self.b, load(self.scores.s, at, self.lanes)
        gap = b.let(fma(s, self.factor, -top) if self.factor else s - top, "gap")
        p = b.let(fma(gap, 0.0, self.exp(b, gap)), "p")  # NaN stays NaN
        b.store(self.p, at, cast(p, dt.bfloat16))
        return p

    def _fade(self, row: Expr, by: Expr) -> None:
        """A row's sums of values times the vector `by`."""
        b, lanes, o = self.b, self.lanes, self.span.o
        with b.loop(self.wide, step=lanes, name="c") as c:
            at = b.let(row * self.wide + c, "at")
            b.store(o, at, load(o, at, lanes) * by)

    def _score(self, s: Expr) -> Expr:
        return capped(self.b, s, self.scale, self.softcap) * LOG2E

    def _tile_values(self, r: Expr, seen: Expr) -> None:
        """o += p . v for the keys seen."""
        b, keys, wide, o = self.b, self.keys, self.wide, self.span.o
        for c in range(0, wide, BLOCK):
            across = range(min(2, (wide - c) // TILE))
            cells = [(i, j) for i in range(2) for j in across]
            for i, j in cells:
                at = (r + i * TILE) * wide + (c + j * TILE)
                b.tile_load(self.sums[i][j], o, at, wide)
            with b.loop(seen, step=BLOCK, name="k") as k:
                for j in across:
                    b.tile_load(self.rights[j], self.vs, k * wide + (c + j * TILE) * 2, 2 * wide)
                for i, left in enumerate(self.lefts):
                    b.tile_load(left, self.p, k + i * TILE * keys, keys)
                    for j in across:
                        b.mma(self.sums[i][j], left, self.rights[j])
            for i, j in cells:
                at = (r + i * TILE) * wide + (c + j * TILE)
                b.tile_store(o, at, wide, self.sums[i][j])
