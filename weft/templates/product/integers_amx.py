"""Integers with scales times packed weights in a CPU's matrix registers (Intel AMX).

Works as blocked_integers does, but a run's products of 16 rows and 16 columns are one instruction
(two, for two planes of x). Their sums go through scratch to the vectors that scale and add them, in
the same order: sums of integers are exact, so the bits are those of blocked_integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK
from weft.kernel import ir
from weft.kernel.expr import bitcast, const, load, minimum, splat
from weft.kernel.ir import Expr
from weft.ops.quantize import BLOCK, STEP, run_of
from weft.templates.emit import Emitter
from weft.templates.product.blocked_amx import TILE
from weft.templates.product.blocked_integers import IntegerMatmul
from weft.templates.product.cpu_plan import PACKED_ROWS, CpuPlan, shared_panels
from weft.templates.product.integers import Way, finish, taken_of
from weft.templates.product.problem import MatmulProblem

AHEAD = 2  # runs whose products are under way while one is added: they wait for memory
_COLUMNS = 128  # most columns whose panels share one count of the rows' codes


def suits(p: MatmulProblem, caps: Caps) -> bool:
    """True if the target has matrix registers for bytes, and every run fills half of their depth:
    with less, adding its sums takes longer than what they save."""
    unit = "mma_int8" in caps.features and caps.lanes == TILE
    return unit and all(b.form is not None and run_of(b.form, p.k) == BLOCK for b in p.bs)


def plan_of(p: MatmulProblem, caps: Caps, config: Mapping[str, Any]) -> CpuPlan:
    """A tile of 16 rows and one vector of columns; `config` may set mb and panels."""
    rows = -(-p.m // -(-p.m // PACKED_ROWS))
    mb = config.get("mb", -(-rows // TILE) * TILE)
    columns, blocks = -(-p.n // TILE), -(-p.m // mb) * max(p.batches, 1)
    most = max(_COLUMNS // (TILE * len(p.dots)), 1)
    panels = config.get("panels", shared_panels(columns, most, blocks, TILE, caps.cores))
    return CpuPlan("whole", TILE, TILE, 1, CHUNK, mb, panels, False)


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Column panels of a group."""
    return [{"panels": panels} for panels in (2, 4, 8, 16)]


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> ir.Kernel:
    """The kernel of a dot group whose operands are integers with scales."""
    return _Tiled(em, p, plan_of(p, em.caps, config)).kernel()


class _Tiled(IntegerMatmul):
    """The panel holds bytes; planes of x stay apart."""

    def _setup(self) -> None:
        super()._setup()
        b, fours = self.b, self.run // 4
        self.edges = [b.array("edge", dt.int8, TILE * self.kc) for _ in self.planes]
        self.ints = [b.array("ints", dt.int32, self.runs * TILE * TILE) for _ in self.planes]
        self.of_x = b.tile("x", dt.int8, TILE, self.run)
        self.of_w = b.tile("w", dt.int8, fours, 4 * TILE)
        self.products = [b.tile("c", dt.int32, TILE, TILE) for _ in self.planes]

    def _way(self) -> Way:
        return "signed"

    def _array(self, name: str, narrow: bool, size: int) -> ir.Array:
        return self.b.array(name, dt.int8, size)

    def _put_fours(self, place: Expr, four: Expr) -> None:
        self.b.store(self.panel, place * 4, bitcast(four, dt.int8))

    # -- packing

    def _k_block(self, k0: Expr, klen: Expr) -> None:
        """The rows that no whole tile has are copied first; rows beyond the last repeat it."""
        b = self.b
        if self.bounded or self.p.m % TILE:
            full = b.let(self.count - self.count % TILE, "full")
            with b.when(full < self.count), b.loop(TILE, name="r") as r:
                row = b.let(minimum(full + r, self.count - 1), "row")
                start = b.let(self.x.at(self.m0, k0) + row * self.x.s_row, "from")
                with b.loop(klen, step=BLOCK, name="k") as k:
                    for plane, edge in zip(self.planes, self.edges):
                        b.store(edge, r * self.kc + k, load(plane, start + k, BLOCK))
        super()._k_block(k0, klen)

    # -- computing

    def _accumulate(
        self, row: Expr, at: list[Expr], acc: list[list[ir.Var]], clamped: bool, k0: Expr,
        k1: Expr,
    ) -> None:  # fmt: skip
        b = self.b
        start = b.let(self.x.at(self.m0, self.k0), "a0")
        sources: Sequence[ir.Buffer | ir.Array] = self.planes
        first, stride = b.let(start + row * self.x.s_row, "left_at"), self.x.s_row
        if clamped or len(at) < TILE:
            sources, first, stride = self.edges, const(0), self.kc
        scales = [b.let((start + r * self.x.s_row) // BLOCK, "scale_at") for r in at]
        places = [b.let(r * self.runs, "place") for r in at]
        if not clamped:  # of whole tiles: distances known to the compiler
            scales = [scales[0] + i * (self.x.s_row // BLOCK) for i in range(len(at))]
            places = [places[0] + i * self.runs for i in range(len(at))]
        for v in range(len(acc[0])):
            sums = [line[v] for line in acc]
            ahead = AHEAD * self.run
            with b.loop(minimum(k0 + ahead, k1), k0, step=self.run, name="k") as k:
                self._multiply(v, k, sources, first, stride)
            with b.loop(k1, k0, step=self.run, name="k") as k:
                with b.when(k + ahead < k1):
                    self._multiply(v, b.let(k + ahead, "later"), sources, first, stride)
                self._add(v, k, sums, scales, places)

    def _multiply(
        self, v: int, k: Expr, sources: Sequence[ir.Buffer | ir.Array], first: Expr, stride: int
    ) -> None:
        """The integers of the run from k on and the vector v of columns, into `ints`."""
        b = self.b
        spot = b.let((k // 4 * self.wide + v * TILE) * 4, "spot")
        place = b.let(k // self.run * (TILE * TILE), "place")
        b.tile_load(self.of_w, self.panel, spot, 4 * self.wide)
        for ints, product, source in zip(self.ints, self.products, sources):
            b.tile_load(self.of_x, source, first + k, stride)
            b.tile_zero(product)
            b.mma(product, self.of_x, self.of_w)
            b.tile_store(ints, place, TILE, product)

    def _add(
        self, v: int, k: Expr, sums: list[ir.Var], scales: list[Expr], places: list[Expr]
    ) -> None:
        """Adds the run from k on of the vector v of columns to the sums of each row."""
        b, form = self.b, self._form(v)
        number = b.let(k // self.run, "run")
        beside = b.let(number * self.wide + v * TILE, "beside")
        own = {
            part: b.let(load(self.beside[part], beside, TILE), part)
            for part in (("scales", "lows") if form.shift == "low" else ("scales",))
        }
        zeros = None
        if form.shift == "zero":
            zeros = b.let(load(self.beside["taken"], beside, TILE), "taken")
        less = self.sums.get(1 if zeros is not None else -taken_of(self.caps, form, self.way))
        for i, (var, scale, place) in enumerate(zip(sums, scales, places)):
            total: Expr | None = None
            for ints in self.ints:
                part = load(ints, number * (TILE * TILE) + i * TILE, TILE)
                total = part if total is None else total * STEP + part
            assert total is not None
            if less is not None:
                taken = splat(load(less, place + number), TILE)
                total = total + (taken if zeros is None else taken * zeros)
            of_x = None
            if "lows" in own:
                assert self.totals is not None
                of_x = load(self.totals, place + number)
            finish(b, var, b.let(total, "total"), load(self.sx, scale + k // BLOCK), own, of_x)
