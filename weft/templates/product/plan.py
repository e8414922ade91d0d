"""Tiles and blocks of a product on a CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.templates.product.problem import Problem


@dataclass(frozen=True)
class Plan:
    """Tile and block sizes. `mode` is "f32", "dot2" (bf16 pairs), "mma" (bf16 pairs in matrix
    registers, see matmul_tiles) or "i32" (exact integers); `panels` column panels per group; `kc`
    is the K block, `mb` the row block."""

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

    @property
    def pair(self) -> int:
        """How many k stand side by side in the panel."""
        return 2 if self.mode in ("dot2", "mma") else 1


ROWS = 1024  # of A that one group sweeps at most: the more, the less its packing weighs
PACKED_ROWS = 576  # the same, where the rows are packed
PANEL = 32 << 10  # bytes of a column panel that L1 keeps
PACKING = 24
TALL = 1024  # rows from which on a block of them is worth its own packing
PACK, READ = 0.65, 0.25  # cycles an element: to pack B; to read rows again for their norm
_TILES = {  # vectors per row of the tile -> rows, so that accumulators and operands fit registers
    32: {1: 12, 2: 12, 3: 8, 4: 6},
    16: {1: 8, 2: 6, 3: 4, 4: 3},
}


def plan_of(p: Problem, caps: Caps, config: Mapping[str, Any]) -> Plan:
    """Default sizes for these Caps, each overridable by `config`."""
    lanes, big = caps.lanes, caps.registers >= 32
    operands = {v.dtype for v in (p.a, *p.bs)}
    if not p.dots[0].inputs[0].dtype.is_float:
        mode = "i32"
    elif (
        operands == {dt.bfloat16}
        and {"dot2_bf16", "dot2_fast"} <= caps.features
        and p.a_k == 1
        and p.k % 2 == 0
    ):
        mode = "dot2"
    else:
        mode = "f32"
    dots = len(p.dots)
    want = 4 * caps.cores  # groups, so that cores share evenly
    vectors = min(4 if big else 2, -(-p.n // lanes) * dots)
    nv = max(1, vectors // dots)
    must = mode != "dot2" and (p.a.dtype != dt.float32 or p.a_k != 1)
    tall = p.m >= TALL and 256 <= p.n <= 2 * p.k  # wider: the block of A is packed again and again
    pays = mode == "f32" and tall and p.batches <= 1
    pack_a = must or bool(config.get("pack_a", pays))
    while nv > 2 and _panels(p, nv * lanes) < want and not pack_a:
        nv -= 1  # narrower panels rather than row blocks: each block packs its panel again
    nv = config.get("nv", nv)
    mr = config.get("mr", _TILES[32 if big else 16].get(nv * dots, 4))
    mr = min(mr, p.m)
    depth = 512
    if pack_a:  # then a panel stays in L1, and a block of A with its partial sums in L2
        depth = PANEL // (4 * nv * dots * lanes) // (2 * lanes) * 2 * lanes
    kc = config.get("kc", split(p.k, max(depth, 2 * lanes), 2 * lanes))
    panels = _panels(p, nv * lanes)
    blocks = max(1, -(-want // panels))
    if pack_a:
        blocks = -(-p.m // PACKED_ROWS)
        blocks = -(-blocks // caps.cores) * caps.cores if blocks > 1 else 1
    rows = min(ROWS, max(-(-p.m // blocks), 32))
    mb = config.get("mb", -(-min(rows, p.m) // mr) * mr)
    blocks = -(-p.m // mb) * max(p.batches, 1)
    many = _shared(-(-p.n // (nv * lanes)), blocks, nv * lanes, caps.cores) if pack_a else 1
    return Plan(mode, lanes, mr, nv, kc, mb, config.get("panels", many), pack_a)


def candidates(p: Problem, caps: Caps) -> list[dict[str, Any]]:
    """Widths of the tile, depths of the block of K, and the left operand packed or not."""
    widest = 4 if caps.registers >= 32 else 2
    found: list[dict[str, Any]] = [{"nv": nv} for nv in range(1, widest // len(p.dots) + 1)]
    if plan_of(p, caps, {}).mode == "f32":  # pairs are read as they lie in memory
        found += [{"pack_a": True}, {"pack_a": False}]
    return found + [
        {"kc": kc} for kc in (128, 256, 1024) if kc < p.k and kc % (2 * caps.lanes) == 0
    ]


def _panels(p: Problem, columns: int) -> int:
    return -(-p.n // columns) * max(p.batches, 1)


def _shared(panels: int, blocks: int, columns: int, cores: int) -> int:
    """How many column panels share one packing of the left operand: what the busiest core does is
    least, where packing costs about as much as PACKING columns do."""

    def cost(many: int) -> int:
        rounds = -(-(-(-panels // many) * blocks) // cores)
        return rounds * (many * columns + PACKING)

    return min(range(1, min(panels, 8) + 1), key=cost)


def split(total: int, limit: int, multiple: int) -> int:
    """Equal parts of at most about `limit`, rounded up to `multiple`."""
    parts = max(1, -(-total // limit))
    size = -(-total // parts)
    return -(-size // multiple) * multiple


def whole_rows(plan: Plan, p: Problem, caps: Caps) -> Plan:
    """The plan with all panels of the right operand in each group, and as many blocks of rows for
    one core as for another."""
    step = caps.cores // math.gcd(caps.cores, max(p.batches, 1))
    natural = -(-p.m // plan.mb)
    blocks = -(-natural // step) * step
    mb = -(-p.m // (blocks * plan.mr)) * plan.mr
    return replace(plan, mb=mb, panels=-(-p.n // plan.nr))


def pays(plan: Plan, p: Problem, caps: Caps) -> bool:
    """Whether a kernel by whole rows, its norm included, is faster than two: rows are many, keep
    every core at work and fit the scratch memory, and more blocks of them do not pack the right
    operand too often."""
    whole = whole_rows(plan, p, caps)
    blocks = -(-p.m // whole.mb)
    packed = whole.mb if plan.pack_a else 0
    room = 4 * (whole.mb * whole.panels * plan.nr + plan.kc * (plan.nr + packed))
    even = blocks * max(p.batches, 1) % caps.cores == 0
    fits = plan.mode == "f32" and p.m >= TALL and even and room <= caps.scratch_bytes // 2
    more = blocks - -(-p.m // plan.mb)
    return fits and more * p.k * PACK <= p.m * READ
