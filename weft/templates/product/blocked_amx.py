"""Matrix multiplication of bf16 operands in a CPU's matrix registers, f32 sums (Intel AMX).

Blocks are those of blocked_cpu. The right operand's panel holds 32 columns of pairs of k. A block
of 32 x 32 sums is four tiles, fed by four tiles of operands per 32 k. The left operand is read in
place when its rows are contiguous along k and there are whole tiles of k and of rows. Otherwise it
is packed (and transposed) first, and edges are filled with zeros or copies of a row.

An output element is one chain over tiles of k in ascending order per span of K (core/order), and
spans are added in ascending order. The unit's sum within a tile does not depend on a row's place in
the tile, so a row's result never depends on M.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.core.order import SPAN
from weft.kernel import ir
from weft.kernel.expr import ceil_div, const, eq, load, not_
from weft.kernel.ir import Expr, Kernel
from weft.templates.emit import Emitter
from weft.templates.product.blocked_cpu import CpuMatmul
from weft.templates.product.cpu_plan import COPY, LATE, TURN, CpuPlan
from weft.templates.product.pack import Packer
from weft.templates.product.problem import MatmulProblem

TILE, DEPTH, BLOCK = 16, 32, 32  # rows and columns of a tile of sums; its k; rows of a block
_KC = 256  # K per block: a panel of that depth (16 KiB) stays in L1
_ROWS = 512  # most rows of A in a block: the block (256 KiB) stays in L2
_PANELS = 4  # most panels in a group, where A is not packed again for the next
# measured cycles to pack an element of A: copied; transposed and interleaved
_COPY_A, _WEAVE_A = 0.35, 0.6
_SUMS = 256  # results to which the unit adds one k per cycle, loads included


def suits(p: MatmulProblem, caps: Caps) -> bool:
    """True if the matrix unit takes this problem: every operand is bf16 in memory, and a dot has at
    least half a tile of k (the choice must not depend on the number of rows)."""
    operands = {v.dtype for v in (p.a, *p.bs)}
    unit = "mma_bf16" in caps.features and caps.lanes == TILE
    return unit and operands == {dt.bfloat16} and p.k >= DEPTH // 2


def plan_of(p: MatmulProblem, caps: Caps, config: Mapping[str, Any]) -> CpuPlan:
    """Block sizes, each overridable by `config`."""
    pack_a = p.a_k != 1 or p.k % DEPTH != 0 or bool(config.get("pack_a"))
    kc = config.get("kc", _KC)
    if SPAN % kc or kc % DEPTH:
        raise CompileError(f"a block of {kc} along K: spans of {SPAN} are made of tiles of {DEPTH}")
    rows, strips = _cut(p, caps, kc, pack_a)
    mb = config.get("mb", rows)
    panels = config.get("panels", _over(_over(p.n, BLOCK), strips))
    mr = TILE if p.m <= TILE else BLOCK
    return CpuPlan("mma", TILE, mr, 2, kc, mb, panels, pack_a)


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Depths of the block of K, column panels of a group, and the left operand packed or not."""
    found: list[dict[str, Any]] = [{"kc": kc} for kc in (128, 512) if kc < p.k]
    return [*found, {"pack_a": True}, *({"panels": panels} for panels in (1, 2, 4, 8))]


def _cut(p: MatmulProblem, caps: Caps, kc: int, pack_a: bool) -> tuple[int, int]:
    """(rows of a block, strips of columns): enough groups for the cores, with the least packing.
    Each strip packs its block of A again, each block its panels of B."""
    of_a = 0.0 if not pack_a else _COPY_A if p.a_k == 1 else _WEAVE_A
    of_b = max(TURN if p.b_strides(i)[1] == 1 else COPY for i in range(len(p.dots)))
    panels, batches = _over(p.n, BLOCK), max(p.batches, 1)
    room = caps.scratch_bytes * 3 // 4
    best, found = math.inf, (BLOCK, panels)
    blocks, most = _over(p.m, _ROWS), _over(p.m, BLOCK)
    while blocks <= most:
        mb = _over(_over(p.m, blocks), BLOCK) * BLOCK
        for per_core in (1, 2, 4):
            strips = _over(per_core * caps.cores, blocks * batches)
            if not pack_a:
                strips = max(strips, _over(panels * len(p.dots), _PANELS))
            strips = min(panels, strips)
            while strips < panels and _scratch(p, mb, kc, _over(panels, strips), pack_a) > room:
                strips += 1
            groups = blocks * strips * batches
            turns = _over(groups, caps.cores)
            idle = turns * caps.cores / groups - 1 + LATE / turns
            cost = (
                of_a * p.m * strips + of_b * p.n * len(p.dots) * blocks + idle * p.m * p.n / _SUMS
            )
            if cost < best:
                best, found = cost, (mb, strips)
        blocks *= 2
    return found


def _over(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def _scratch(p: MatmulProblem, mb: int, kc: int, panels: int, pack_a: bool) -> int:
    wide = BLOCK * len(p.dots)
    sums = 4 * mb * panels * (1 if p.k <= SPAN else 2)
    return wide * (kc * 2 + sums) + (mb * kc * 2 if pack_a else 0)


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a CPU with matrix registers."""
    return _Tiled(em, p, plan_of(p, em.caps, config)).kernel()


class _Tiled(CpuMatmul):
    def _setup(self) -> None:
        super()._setup()
        b, plan = self.b, self.plan
        if not plan.pack_a and (self.bounded or self.p.m % TILE):
            self.edge = b.array("edge", dt.bfloat16, BLOCK * self.kc)
        self.sums = [
            [b.tile(f"c{i}{j}", dt.float32, TILE, TILE) for j in range(2)] for i in range(2)
        ]
        self.lefts = [b.tile(f"a{i}", dt.bfloat16, TILE, DEPTH) for i in range(2)]
        self.rights = [b.tile(f"b{j}", dt.bfloat16, DEPTH // 2, 2 * TILE) for j in range(2)]

    # -- packing

    def _pack_a(self) -> None:
        """left[row][k], contiguous along k; whole tiles of rows and of k are written."""
        b, p = self.b, self.p
        source, base = self.x.source, b.let(self.x.at(self.m0, self.k0), "a0")
        rows = b.let(ceil_div(self.count, BLOCK) * BLOCK, "padded")
        last = b.let(self.count - 1, "last") if self.bounded or p.m % BLOCK else None
        packer = Packer(b, source, base, self.left, self.kc, TILE, dt.bfloat16)
        packer.tiles((p.a_m, p.a_k), rows, self.klen, last, p.k % DEPTH == 0)

    def _edge(self, row: Expr, count: int, last: Expr) -> None:
        """edge[i][k]: `count` rows from `row`, those beyond `last` repeat it."""
        b, p = self.b, self.p
        base = b.let(self.x.at(self.m0 + row, self.k0), "a0")
        packer = Packer(b, self.x.source, base, self.edge, self.kc, TILE, dt.bfloat16)
        packer.tiles((p.a_m, 1), count, self.klen, b.let(last - row, "last"), True)

    # -- computing

    def _tile(self, row: Expr, mr: int, last: Expr | None) -> None:
        b, p, plan = self.b, self.p, self.plan
        tall = 1 if last is None and mr <= TILE else 2
        source: ir.Buffer | ir.Array
        if plan.pack_a:
            source, start, stride = self.left, b.let(row * self.kc, "left_at"), self.kc
        elif last is None and mr % TILE == 0:
            source, stride = self.x.source, p.a_m
            start = b.let(self.x.at(self.m0 + row, self.k0), "left_at")
        else:
            self._edge(row, tall * TILE, row + (mr - 1) if last is None else last)
            source, start, stride = self.edge, const(0), self.kc
        for i in range(len(p.dots)):
            self._multiply_tiles(i, row, tall, source, start, stride)
        if self.blocks_k == 1:
            self._results(row, mr, last)
            return
        if self.spans > 1:
            with b.when(self._span_ends()):
                self._join_spans(row, tall)
        with b.when(eq(self.kb, self.blocks_k - 1)), self.em.scope():
            self._results(row, mr, last)

    def _join_spans(self, row: Expr, tall: int) -> None:
        """Adds the sums of the span that ends, which are staged, to the product's: `staged` then
        holds these too."""
        b, lanes = self.b, self.plan.lanes
        with b.loop(tall * TILE, name="i") as i, b.loop(self.wide // lanes, name="j") as j:
            at = b.let((self.jp * self.plan.mb + row + i) * self.wide + j * lanes, "at")
            here = b.let(i * self.wide + j * lanes, "here")
            total = b.var(load(self.staged, here, lanes), "total")
            with b.when(self.kb >= self.per_span):
                b.assign(total, load(self.total, at, lanes) + total)
            b.store(self.total, at, total)
            b.store(self.staged, here, total)

    def _results(self, row: Expr, mr: int, last: Expr | None) -> None:
        count = const(mr) if last is None else self.b.let(last + 1 - row, "count")
        self._from_staged(row, count)

    def _multiply_tiles(
        self, dot: int, row: Expr, tall: int, source: ir.Buffer | ir.Array, start: Expr, stride: int
    ) -> None:
        """The sums of one block and one dot, over this block of K: into `partial`, or into
        `staged` where the span ends."""
        b = self.b
        cells = [(i, j) for i in range(tall) for j in range(2)]
        if self.blocks_k > 1:
            inside = self.kb % self.per_span if self.spans > 1 else self.kb
            with b.when(inside > 0):
                for i, j in cells:
                    at = self._partial_at(row + i * TILE, dot * 2 + j)
                    b.tile_load(self.sums[i][j], self.partial, at, self.wide)
            with b.otherwise():
                self._clear(cells)
        else:
            self._clear(cells)
        wide = 2 * self.wide  # distance between pairs of k
        with b.loop(self.klen, step=DEPTH, name="k") as k:
            at = b.let(k * self.wide + dot * 4 * TILE, "panel_at")
            for j in range(2):
                b.tile_load(self.rights[j], self.panel, at + j * 2 * TILE, wide)
            for i in range(tall):
                b.tile_load(self.lefts[i], source, start + k + i * TILE * stride, stride)
                for j in range(2):
                    b.mma(self.sums[i][j], self.lefts[i], self.rights[j])
        if self.blocks_k == 1:
            self._stage(dot, cells)
            return
        with b.when(not_(self._span_ends())):
            for i, j in cells:
                at = self._partial_at(row + i * TILE, dot * 2 + j)
                b.tile_store(self.partial, at, self.wide, self.sums[i][j])
        with b.otherwise():
            self._stage(dot, cells)

    def _clear(self, cells: list[tuple[int, int]]) -> None:
        for i, j in cells:
            self.b.tile_zero(self.sums[i][j])

    def _stage(self, dot: int, cells: list[tuple[int, int]]) -> None:
        for i, j in cells:
            at = i * TILE * self.wide + (dot * 2 + j) * TILE
            self.b.tile_store(self.staged, const(at), self.wide, self.sums[i][j])
