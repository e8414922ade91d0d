"""Matrix multiplication by outer products in a CPU's matrix registers (Arm's SME), in f32.

Blocks and panels are those of blocked_cpu. A block of 32 x 32 sums is four tiles. Every k adds the
outer product of a column of the left operand, packed like the right one, and a row of the right. An
element is a chain of fused multiply-adds in ascending k, as everywhere, so sums have the same bits
as with vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.kernel.expr import const, load
from weft.kernel.ir import Expr, Kernel
from weft.templates.emit import Emitter
from weft.templates.product.blocked_cpu import CpuMatmul, Held
from weft.templates.product.cpu_plan import CpuPlan, plan_of
from weft.templates.product.pack import Packer
from weft.templates.product.problem import MatmulProblem, mode

TILE, BLOCK = 16, 32  # rows and columns of one tile of sums; of the four summed together


def suits(p: MatmulProblem, caps: Caps) -> bool:
    """True if the unit takes this problem: there are enough rows for their packing to pay."""
    return "outer16_f32" in caps.features and mode(p, caps) == "f32" and p.m >= TILE


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Numbers of panels that share one packing of the left operand."""
    return [{"panels": panels} for panels in (1, 2, 4, 8)]


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a CPU that adds outer products."""
    return _Outer(em, p, _plan(p, em.caps, config)).kernel()


def _plan(p: MatmulProblem, caps: Caps, config: Mapping[str, Any]) -> CpuPlan:
    shape = {"mr": BLOCK, "nv": BLOCK // caps.lanes, "pack_a": True}
    plan = plan_of(p, caps, {**config, **shape})
    return replace(plan, mr=BLOCK, mb=-(-plan.mb // BLOCK) * BLOCK)


class _Outer(CpuMatmul):
    def _setup(self) -> None:
        super()._setup()
        b, pair = self.b, range(BLOCK // TILE)
        if self.tail.cheap:
            self.staged = b.array("staged", dt.float32, BLOCK * self.wide)
        self.sums = [[b.tile(f"c{i}{j}", dt.float32, TILE, TILE) for j in pair] for i in pair]
        self.lefts = [b.tile(f"a{i}", dt.float32, 1, TILE) for i in pair]
        self.rights = [b.tile(f"b{j}", dt.float32, 1, TILE) for j in pair]

    def _pack_a(self) -> None:
        """left[block of rows][k][row]; rows that do not exist hold anything."""
        b, p = self.b, self.p
        base = b.let(self.x.at(self.m0, self.k0), "a0")
        ragged = self.bounded or p.m % BLOCK
        with b.loop(self.count, step=BLOCK, name="r") as r:
            first = b.let(base + r * p.a_m, "from")
            at = b.let(r * self.kc, "to")
            packer = Packer(
                b, self.x.source, first, self.left, BLOCK, self.plan.lanes, self.acc, at
            )
            left = b.let(self.count - r, "left_rows") if ragged else None
            last = None if left is None else b.let(left - 1, "last")
            if p.a_m == 1:
                packer.columns((p.a_k, 1), self.klen, BLOCK, left)
            elif p.a_k == 1:
                packer.turned(p.a_m, self.klen, BLOCK, last, p.k % self.plan.lanes == 0)
            else:
                packer.scalars((p.a_k, p.a_m), self.klen, BLOCK, (None, last))

    def _tile(self, row: Expr, mr: int, last: Expr | None) -> None:
        b = self.b
        count = const(mr) if last is None else b.let(last + 1 - row, "count")
        for dot in range(len(self.p.dots)):
            self._products(dot, row)
        if self.blocks_k > 1:
            with b.loop(count, name="i") as i, self.em.scope():
                self._join_blocks(b.let(row + i, "r"), b.let(i * self.wide, "here"))
            with b.when(self.kb >= self.blocks_k - 1), self.em.scope():
                self._from_staged(row, count)
            return
        self._from_staged(row, count)

    def _products(self, dot: int, row: Expr) -> None:
        """The sums of one block and one dot over this chunk of K, to `staged`."""
        b = self.b
        cells = [(i, j, tile) for i, line in enumerate(self.sums) for j, tile in enumerate(line)]
        for _, _, tile in cells:
            b.tile_zero(tile)
        start = b.let(row * self.kc, "left_at")
        with b.loop(self.klen, name="k") as k:
            for i, tile in enumerate(self.lefts):
                b.tile_load(tile, self.left, start + k * BLOCK + i * TILE, BLOCK)
            for j, tile in enumerate(self.rights):
                b.tile_load(tile, self.panel, k * self.wide + dot * BLOCK + j * TILE, self.wide)
            for i, j, tile in cells:
                b.mma_tn(tile, self.lefts[i], self.rights[j])
        for i, j, tile in cells:
            at = i * TILE * self.wide + dot * BLOCK + j * TILE
            b.tile_store(self.staged, const(at), self.wide, tile)

    def _join_blocks(self, row: Expr, here: Expr) -> None:
        """Adds a row's chunk, which is staged, to the chunks and spans before it."""
        b, lanes = self.b, self.plan.lanes
        for j in range(self.wide // lanes):
            var = b.var(load(self.staged, here + j * lanes, lanes), "sum")
            held: list[Held] = [(var, row, j)]
            self._begin(held)
            if self.spans > 1:
                with b.when((self.kb >= self.per_span) & self._span_ends()):
                    self._join(held, self.total)
            with b.when(self.kb < self.blocks_k - 1):
                self._keep(held)
            with b.otherwise():
                b.store(self.staged, here + j * lanes, var)
