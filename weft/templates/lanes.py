"""The division of memory between a GPU's threads: 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.caps import Caps
from weft.graph.ir import Node

WORD = 16  # bytes that a thread moves at once
ROW_THREADS = 128  # threads of a group that holds several short rows


def vector_lanes(caps: Caps, n: int, nodes: Iterable[Node]) -> int:
    """Returns the number of elements of a row of n to move at once. It is a power of two that
    divides n: at most 16 bytes of the widest dtype among `nodes`, or four elements where the target
    lacks wider vectors."""
    lanes = WORD // max((x.dtype.itemsize for x in nodes), default=4)
    lanes = min(lanes, 8) if caps.subgroup else min(lanes, caps.lanes)
    while n % lanes:
        lanes //= 2
    return lanes
