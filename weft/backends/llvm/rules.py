"""The table of rules of each kind of target: the shared rules, then the target's own.

A difference in a name or a number only is data of the target (target.py, gpu_target.py).
"""

from __future__ import annotations

from weft.backends.llvm import (
    casts,
    dots,
    gpu_copies,
    gpu_threads,
    gpu_tiles,
    lanes,
    memory,
    outer,
    statements,
    tiles,
    values,
)
from weft.kernel import ir
from weft.kernel.rules import Refusal, Rules, Table


def _rules(*own: Table) -> Rules:
    shared = (x.RULES for x in (values, lanes, casts, dots, memory, statements))
    return Rules("the LLVM dialect", *shared, *own)


_NO_UNIT = Refusal("this target has no matrix unit for tiles")

CPU = _rules({ir.Tile: _NO_UNIT, ir.TileOp: _NO_UNIT})  # WebAssembly's too
AMX = _rules(tiles.RULES)
OUTER = _rules(outer.RULES)
AMDGCN = _rules(gpu_threads.RULES, gpu_tiles.RULES)
NVPTX = _rules(gpu_threads.RULES, gpu_tiles.RULES, gpu_copies.RULES)
