"""How a GPU's threads share out memory: 16 bytes at a time, rows by subgroups or by groups."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.caps import Caps
from weft.graph.ir import Node

WORD = 16  # bytes that a thread moves at once
ROW_THREADS = 128  # threads to a group that holds several short rows
STREAM = 4  # vectors asked for together where a row is longer than the registers
_OWN = 32  # values of a row per thread up to which a subgroup keeps the row to itself
_SHARED = 16  # values per thread that groups aim at, up to _MOST threads
_MOST = 512


def vector_lanes(caps: Caps, n: int, nodes: Iterable[Node]) -> int:
    """Elements of a row of n to move at once: a power of two that divides n, 16 bytes of the widest
    dtype among `nodes` at most (four elements where the target has no wider vectors)."""
    lanes = WORD // max((x.dtype.itemsize for x in nodes), default=4)
    lanes = min(lanes, 8) if caps.subgroup else min(lanes, caps.lanes)
    while n % lanes:
        lanes //= 2
    return lanes


def row_threads(caps: Caps, n: int, lanes: int) -> int:
    """How many threads share a row of n elements, in vectors of `lanes`: a power of two, by the
    length alone."""
    vectors, width = -(-n // lanes), caps.subgroup
    if width and n <= _OWN * width and vectors <= _OWN // lanes * width:
        return min(width, _power(vectors))
    limit = min(_MOST if width else 256, caps.max_threads)
    return min(limit, max(width, 16, _power(-(-n // _SHARED))))


def _power(n: int) -> int:
    """The least power of two from n on."""
    return 1 << max(n - 1, 0).bit_length()
