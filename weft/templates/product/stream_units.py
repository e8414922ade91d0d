"""Matrix times a few vectors in a GPU's matrix units, where blocked_units takes 16-bit operands for
many rows: its blocks with a tile's rows, so that w comes through shared memory well ahead of use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.ir import Expr
from weft.templates.emit import Emitter
from weft.templates.product.blocked_units import TILE, Plan, Units
from weft.templates.product.call import Part
from weft.templates.product.pipeline import ASYNC
from weft.templates.product.problem import Problem, Segment

SUBGROUPS = 4  # subgroups per group, each with a tile's columns
_DEPTHS = (128, 64, 32, 16)


def plan_of(ps: list[Problem], caps: Caps, config: Mapping[str, Any]) -> Plan:
    """The deepest blocks with which all the problems of a launch fit shared memory. Raises
    CompileError where none do."""
    most = 3 if ASYNC in caps.features else 2
    for depth in _DEPTHS if "bk" not in config else (config["bk"],):
        for ring in range(config.get("ring", most), 1, -1):
            plan = Plan(TILE, SUBGROUPS * TILE, depth, ring, 1, SUBGROUPS)
            if sum(plan.shared(p, caps) for p in ps) <= caps.shared_bytes:
                return plan
    raise CompileError(f"{len(ps)} products in one launch do not fit {caps.shared_bytes} bytes")


def candidates(caps: Caps) -> list[dict[str, Any]]:
    """Configurations worth measuring, all of one order of additions."""
    return [{"bk": depth} for depth in _DEPTHS]


class UnitStreamer(Part, Units):
    """Emits the part of the kernel that computes one segment."""

    def __init__(self, em: Emitter, segment: Segment, plan: Plan) -> None:
        super().__init__(em, segment.problem, segment.outputs, plan)
        self.groups, self.down = -(-self.p.n // plan.columns), -(-self.p.m // TILE)

    def emit(self, index: Expr, rows: Expr, entry: Expr, sums: ir.Array | None) -> None:
        b = self.b
        self.enter(entry)
        self.m0 = b.let(rows * TILE, "m0")
        self.n0 = b.let(index * self.columns, "n0")
        self.body()
