"""Matrix times a few vectors in a CPU's matrix registers: bf16 operands, where blocked_amx takes
them for many rows.

The left operand is a tile of 16 rows of w, in their order in memory. The right one's columns are
the rows of x, as pairs of k packed once per group. Swapping the operands changes nothing in an
element's chain: one of unit steps per span (core.order).
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.order import CHUNK, SPAN
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, eq, iota, load, maximum, minimum, not_, select
from weft.kernel.ir import Expr
from weft.templates.operand import Reader
from weft.templates.product.blocked_amx import DEPTH, TILE
from weft.templates.product.operands import Operand
from weft.templates.product.pack import Packer
from weft.templates.product.stream_cpu import Streamer

_NEAR = 1 << 16  # bytes of a band that is prefetched as a whole


def registers(b: Builder) -> tuple[ir.Tile, ir.Tile, ir.Tile]:
    """Returns the tiles of a kernel for sums, for w and for pairs of x. Its segments share them:
    there are eight registers."""
    sums = b.tile("c", dt.float32, TILE, TILE)
    w = b.tile("w", dt.bfloat16, TILE, DEPTH)
    return sums, w, b.tile("x", dt.bfloat16, DEPTH // 2, 2 * TILE)


class TileStreamer(Streamer):
    """Emits the part of the kernel that computes one segment; `tiles` are its `registers`."""

    tiles: tuple[ir.Tile, ir.Tile, ir.Tile]

    def _left(self) -> Reader:
        """x as pairs[k / 2][row][2], zeros up to a whole tile of k."""
        b, p = self.b, self.p
        source, base = self.x.source, self.x.base
        depth = -(-max(p.k, 1) // DEPTH) * DEPTH
        pairs = b.array("pairs", dt.bfloat16, depth * TILE)
        if p.a_k != 1:
            rows = b.array("rows", dt.bfloat16, TILE * depth)
            packer = Packer(b, source, base, rows, depth, TILE, dt.bfloat16)
            packer.tiles((p.a_m, p.a_k), const(p.m), const(p.k), const(p.m - 1), False)
            source, base, step = rows, const(0), depth
        else:
            step = p.a_m
        packer = Packer(b, source, base, pairs, TILE, TILE, dt.bfloat16)
        packer.turned(step, const(p.k), TILE, const(p.m - 1), p.k % DEPTH == 0, 2)
        size = len(p.dots) * TILE * TILE
        self.sums, self.totals = (b.array(n, dt.float32, size) for n in ("sums", "totals"))
        self.edge = b.array("edge", dt.bfloat16, TILE * CHUNK)
        self.c, self.w, self.right = self.tiles
        return Reader(pairs, const(0), 1, 1, dt.float32)

    def _band(self, band: Expr) -> None:
        b, p = self.b, self.p
        n, mask, step = self._own(b.let(band * TILE, "n0"))
        for d, w in enumerate(self.of(Operand)):
            self._dot(d, w.row(b, n))
        with b.loop(self.limit, name="m") as m, self.em.scope():
            at = b.let(iota(TILE) * TILE + m, "at")
            values = [
                b.let(load(self.totals, at + d * TILE * TILE), "sum") for d in range(len(p.dots))
            ]
            self.write(m, n, TILE, values, mask, step)

    def _dot(self, d: int, w: Reader) -> None:
        """totals[d][row of w][row of x]."""
        b, p = self.b, self.p
        b.tile_zero(self.c)
        with b.loop(p.k, step=CHUNK, name="k0") as k0:
            stop = b.let(minimum(k0 + CHUNK, p.k), "stop")
            self._chunk(w, k0, stop)
            ends = eq(stop, p.k) | eq(stop % SPAN, 0)
            with b.when(ends):
                self._join(d, k0 < SPAN)
                b.tile_zero(self.c)

    def _chunk(self, w: Reader, k0: Expr, stop: Expr) -> None:
        b, p = self.b, self.p
        down: Expr = const(TILE * w.s_row)
        if p.k > CHUNK:
            down = b.let(select(stop < p.k, stop, down), "following")
        direct = p.k - p.k % DEPTH if w.s_k == 1 and p.n >= TILE else 0
        if direct:
            end = b.let(minimum(stop, direct), "end")
            with b.loop(end, k0, step=DEPTH, name="k") as k:
                self._ask(w, down, k, k0)
                self._step(w.source, w.at(0, k), w.s_row, k)
        if direct == p.k:
            return
        first = b.let(maximum(k0, direct), "first")
        with b.when(first < stop):
            self._pack(w, first, b.let(stop - first, "count"))
            with b.loop(stop, first, step=DEPTH, name="k") as k:
                self._step(self.edge, k - first, CHUNK, k)

    def _ask(self, w: Reader, down: Expr, k: Expr, first: Expr) -> None:
        """Prefetches a tile's worth of later weights. It takes them from the next band, in its
        order, if L2 easily holds it. Otherwise it takes whole rows of the next stretch, `down` from
        the band's first element."""
        if not self.ahead:
            return
        b, length = self.b, min(self.p.k, CHUNK)
        assert isinstance(w.source, ir.Buffer)
        if TILE * w.s_row * w.source.dtype.itemsize <= _NEAR:
            coming = b.let(w.base + TILE * w.s_row + k * TILE, "coming")
            for at in range(0, TILE * DEPTH, DEPTH):
                b.prefetch(w.source, coming + at)
            return
        rows = -(-TILE // max(length // DEPTH, 1))
        coming = b.let(w.base + down + (k - first) // DEPTH * (rows * w.s_row), "coming")
        for r in range(rows):
            for at in range(0, length, DEPTH):
                b.prefetch(w.source, coming + (r * w.s_row + at))

    def _step(self, source: ir.Buffer | ir.Array, at: Expr, stride: int, k: Expr) -> None:
        b = self.b
        b.tile_load(self.w, source, at, stride)
        b.tile_load(self.right, self.left.source, k * TILE, 2 * TILE)
        b.mma(self.c, self.w, self.right)

    def _pack(self, w: Reader, k: Expr, count: Expr) -> None:
        """edge[row][k], zeros up to a whole tile of k; rows that do not exist repeat the last."""
        b, n = self.b, self.p.n
        base, last = b.let(w.at(0, k), "from"), const(n - 1) if n < TILE else None
        packer = Packer(b, w.source, base, self.edge, CHUNK, TILE, dt.bfloat16)
        packer.tiles((w.s_row, w.s_k), TILE, count, last, False)

    def _join(self, d: int, first: Expr) -> None:
        """Adds a span's sums to the product's."""
        b, size = self.b, TILE * TILE
        b.tile_store(self.sums, const(d * size), TILE, self.c)
        with b.loop((d + 1) * size, d * size, step=TILE, name="row") as at:
            total = b.var(load(self.sums, at, TILE), "total", ir.Type(dt.float32, TILE))
            with b.when(not_(first)):
                b.assign(total, load(self.totals, at, TILE) + total)
            b.store(self.totals, at, total)
