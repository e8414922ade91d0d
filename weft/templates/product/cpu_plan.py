"""Tiles and blocks of a product on a CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK, SPAN
from weft.core.records import dataclass
from weft.kernel.expr import minimum
from weft.kernel.ir import Expr
from weft.templates.product.integers import way_of
from weft.templates.product.problem import MatmulProblem, mode


@dataclass(frozen=True)
class CpuPlan:
    """Tile and block sizes. `mode` is "f32", "dot2" (bf16 pairs), "mma" (bf16 pairs in matrix
    registers, see blocked_amx) or "i32" (exact integers). A group has `panels` column panels. `kc`
    is the K block (one or two chunks of core/order; for matrix registers a part of a span), and
    `mb` the row block."""

    mode: str
    lanes: int
    mr: int
    nv: int  # vectors per dot in a panel
    kc: int
    mb: int
    panels: int
    pack_a: bool

    @property
    def nr(self) -> int:
        return self.nv * self.lanes

    def band(self, n: Expr, columns: int) -> Expr:
        """The first row of w of the band at column n; of the last band, for columns beyond it."""
        last = (columns - 1) // self.lanes * self.lanes
        return minimum(n, last) if columns % self.nr else n

    @property
    def pair(self) -> int:
        """The number of k that are adjacent in the panel."""
        return 2 if self.mode in ("dot2", "mma") else 1


# Sizes, in rows of A:
FIRST_CACHE = 32 << 10  # bytes
ROWS = 1024  # most rows of one group: more rows share the cost of packing its panels
PACKED_ROWS = 576  # the same where rows are packed: 576 KiB with a chunk of K, which L2 keeps
LEAST_ROWS = 32  # fewest rows of a block cut only to keep cores busy: fewer do not pay for a panel
TALL = 1024  # rows from which a block of them, or a kernel by whole rows, pays for its packing
# and columns:
BROAD = 256  # columns from which enough panels read A for its packing to pay
SHARED = 512  # most columns whose panels share one packing of A
PACKING = 24  # columns whose products take as long as packing the A they meet
# Cycles per element of an operand:
# cycles to put an element into a panel: copied; transposed in registers on the way
COPY, TURN = 0.5, 0.65
READ = 0.25  # cost of reading a row again for its norm
LATE = 0.1  # share of a group's time that cores wait for the last one
# Share of the peak that a tile of this many vectors per row reaches while its panel is in L2.
_SHARE = {1: 0.6, 2: 0.85, 3: 0.95}
_TILES = {  # vectors per row of the tile -> rows; accumulators and operands fit the registers
    32: {1: 12, 2: 12, 3: 8, 4: 6},
    16: {1: 8, 2: 6, 3: 4, 4: 3},
}


def plan_of(p: MatmulProblem, caps: Caps, config: Mapping[str, Any]) -> CpuPlan:
    """Default sizes for these Caps; `config` may set nv, mr, mb, panels and pack_a."""
    kind = mode(p, caps)
    pack_a = packs_left(p, kind, caps, config)
    mr, nv = register_tile(p, caps, pack_a, config)
    mb = config.get("mb", row_block(p, caps, mr, nv, pack_a))
    blocks = -(-p.m // mb) * max(p.batches, 1)
    columns = nv * caps.lanes
    most = max(min(-(-p.n // columns), SHARED // (columns * len(p.dots))), 1)
    many = shared_panels(-(-p.n // columns), most, blocks, columns, caps.cores)
    panels = config.get("panels", many if pack_a else 1)
    kc = k_block(p, kind, columns * len(p.dots), pack_a)
    return CpuPlan(kind, caps.lanes, mr, nv, kc, mb, panels, pack_a)


def packs_left(p: MatmulProblem, kind: str, caps: Caps, config: Mapping[str, Any]) -> bool:
    """True if the left operand is copied into scratch. That is so where rows cannot be read in
    place, and where reading many rows in place for every panel costs more."""
    if kind == "whole":
        return way_of(caps, len(p.a.stored) - 1) == "pairs"
    if kind != "dot2" and (p.a.dtype != dt.float32 or p.a_k != 1):
        return True
    tall = (
        p.m >= TALL and BROAD <= p.n <= 2 * p.k
    )  # wider: the block of A is packed again and again
    return bool(config.get("pack_a", kind == "f32" and tall and p.batches <= 1))


def register_tile(
    p: MatmulProblem, caps: Caps, pack_a: bool, config: Mapping[str, Any]
) -> tuple[int, int]:
    """(rows, vectors per dot) of the accumulators that one sweep along k fills."""
    nv = config.get("nv", _widest(p, caps))
    if not pack_a and "nv" not in config:
        nv = min(range(nv, 0, -1), key=lambda n: least(p, caps, n)[0])
    return min(config.get("mr", _rows(p, caps, nv)), p.m), nv


def k_block(p: MatmulProblem, kind: str, columns: int, pack_a: bool) -> int:
    """K of a panel that is packed at once: two chunks where these lie in a first cache."""
    two = kind == "f32" and not pack_a and p.k > CHUNK and 8 * CHUNK * columns <= FIRST_CACHE
    return 2 * CHUNK if two else CHUNK


def row_block(p: MatmulProblem, caps: Caps, mr: int, nv: int, pack_a: bool) -> int:
    """Rows that one group sweeps, in whole tiles."""
    if pack_a:
        blocks = -(-p.m // PACKED_ROWS)
        blocks = -(-blocks // caps.cores) * caps.cores if blocks > 1 else 1
    else:
        blocks = least(p, caps, nv)[1]
    rows = -(-p.m // blocks)
    return -(-rows // mr) * mr


def least(p: MatmulProblem, caps: Caps, nv: int) -> tuple[float, int]:
    """(cycles per k of the busiest core, blocks of rows that take it so few) with panels of `nv`
    vectors. Each block packs its panels again, and cores that have few groups wait for each
    other."""

    def cost(blocks: int) -> tuple[float, int]:
        rows = min(-(-p.m // (blocks * mr)) * mr, p.m)
        products = rows * columns / (2 * caps.lanes) / _SHARE.get(nv * len(p.dots), 1.0)
        panels = -(-p.n // (nv * caps.lanes)) * max(p.batches, 1)
        turns = -(-panels * -(-p.m // max(rows, 1)) // caps.cores)
        return (turns + LATE) * (products + COPY * columns), blocks

    mr, columns = _rows(p, caps, nv), nv * caps.lanes * len(p.dots)
    fewest, most = -(-p.m // ROWS) or 1, max(p.m // LEAST_ROWS, 1)
    tried = {min(fewest << i, max(most, fewest)) for i in range(caps.cores.bit_length() + 3)}
    return min(cost(blocks) for blocks in tried)


def _widest(p: MatmulProblem, caps: Caps) -> int:
    """Vectors per dot of the widest tile."""
    dots = len(p.dots)
    return max(1, min(4 if caps.registers >= 32 else 2, -(-p.n // caps.lanes) * dots) // dots)


def _rows(p: MatmulProblem, caps: Caps, nv: int) -> int:
    """Rows of a tile of `nv` vectors per dot."""
    if p.a.whole and caps.registers < 32:
        return 4  # its integers fill the registers; sums stay in memory
    return _TILES[32 if caps.registers >= 32 else 16].get(nv * len(p.dots), 4)


def candidates(p: MatmulProblem, caps: Caps) -> list[dict[str, Any]]:
    """Widths of the tile, and the left operand packed or not."""
    widest = 4 if caps.registers >= 32 else 2
    found: list[dict[str, Any]] = [{"nv": nv} for nv in range(1, widest // len(p.dots) + 1)]
    if mode(p, caps) == "f32":  # pairs are read from memory in place
        found += [{"pack_a": True}, {"pack_a": False}]
    return found


def shared_panels(panels: int, most: int, blocks: int, columns: int, cores: int) -> int:
    """Returns how many column panels, at most `most`, share one packing of the left operand. It
    minimises the busiest core's work, where packing costs about as much as PACKING columns."""

    def cost(many: int) -> int:
        rounds = -(-(-(-panels // many) * blocks) // cores)
        return rounds * (many * columns + PACKING)

    return min(range(1, most + 1), key=cost)


def whole_rows(plan: CpuPlan, p: MatmulProblem, caps: Caps) -> CpuPlan:
    """The plan with all panels of the right operand in each group, and as many blocks of rows for
    one core as for another."""
    step = caps.cores // math.gcd(caps.cores, max(p.batches, 1))
    natural = -(-p.m // plan.mb)
    blocks = -(-natural // step) * step
    mb = -(-p.m // (blocks * plan.mr)) * plan.mr
    return replace(plan, mb=mb, panels=-(-p.n // plan.nr))


def pays(plan: CpuPlan, p: MatmulProblem, caps: Caps) -> bool:
    """True if a kernel by whole rows, its norm included, is faster than two. Rows must be many,
    keep every core busy and fit the scratch memory. The additional blocks of rows must not pack the
    right operand too often."""
    whole = whole_rows(plan, p, caps)
    blocks = -(-p.m // whole.mb)
    packed = whole.mb if plan.pack_a else 0
    sums = whole.mb * whole.panels * plan.nr * (1 if p.k <= SPAN else 2)
    room = 4 * (sums + plan.kc * (plan.nr + packed))
    even = blocks * max(p.batches, 1) % caps.cores == 0
    fits = plan.mode == "f32" and p.m >= TALL and even and room <= caps.scratch_bytes // 2
    more = blocks - -(-p.m // plan.mb)
    return fits and more * p.k * TURN <= p.m * READ
