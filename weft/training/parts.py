"""The division of a step into batches (parts) and weights (pieces), independent of who computes it.

The number of ranks never affects the division, nor the orders in which gradients and squares are
added. So it never affects the bits of a run.

A step's gradient is the sum over its parts (`[train] accumulate` of them) by a fixed tree. The
first p of n parts and the rest are summed separately; p is the largest power of two below n. Ranks
hold runs of parts and send sums of whole subtrees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

PIECE = 1 << 22  # elements; a larger parameter is cut along its first axis
T = TypeVar("T")
Node = tuple[int, int]  # a subtree: parts first to last (not included)


def joined(node: Node, get: Callable[[Node], T | None], add: Callable[[T, T], T]) -> T:
    """Returns the sum over a subtree of parts: `get` of the whole if it is not None (it never is
    for single parts), else the sum of the two halves."""
    found = get(node)
    if found is not None:
        return found
    left, right = halves(node)
    first = joined(left, get, add)
    return add(first, joined(right, get, add))


def halves(node: Node) -> tuple[Node, Node]:
    """Returns the two subtrees of a subtree with two parts or more."""
    first, last = node
    middle = first + (1 << (last - first - 1).bit_length() - 1)
    return (first, middle), (middle, last)


def subtrees(node: Node, first: int, last: int) -> list[Node]:
    """Returns the largest subtrees of `node` within the parts `first` to `last` (not included)."""
    if first <= node[0] and node[1] <= last:
        return [node]
    if node[1] <= first or last <= node[0]:
        return []
    return [found for half in halves(node) for found in subtrees(half, first, last)]


def run_of(rank: int, ranks: int, count: int) -> Node:
    """Returns the parts that a rank computes, out of `count`: runs of equal length or one more."""
    return rank * count // ranks, (rank + 1) * count // ranks


@dataclass(frozen=True)
class ParamSlice:
    """Rows `start` to `stop` (not included) of a parameter, or all of a small one."""

    role: str
    start: int
    stop: int
    shape: tuple[int, ...]  # shape of the piece

    @property
    def name(self) -> str:
        return f"{self.role}@{self.start}"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def of(self, array: Any) -> Any:
        """Returns these rows of the parameter's array or tensor."""
        return array[self.start : self.stop] if self.shape else array


def pieces(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> list[ParamSlice]:
    """Returns all parameters (role, shape) in order, the large ones cut into pieces."""
    return [ParamSlice(role, *cut) for role, shape in shapes for cut in rows(shape)]


def rows(shape: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Returns (start, stop, shape) of each piece of a parameter of this shape."""
    if not shape:
        return [(0, 1, shape)]
    count, inner = shape[0], math.prod(shape[1:])
    step = count if count * inner <= PIECE else max(PIECE // max(inner, 1), 1)
    starts = range(0, count, max(step, 1)) if count else [0]
    return [(a, min(a + step, count), (min(a + step, count) - a, *shape[1:])) for a in starts]


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Returns the rank that updates each piece: runs of about equal size, none empty if there are
    as many pieces as ranks."""
    starts = itertools.accumulate(sizes, initial=0)
    total, found, before = max(sum(sizes), 1), [], 0
    for i, start in zip(range(len(sizes)), starts):
        wanted = min(start * ranks // total, before + (i > 0), ranks - 1)
        before = max(wanted, ranks - (len(sizes) - i), before)
        found.append(before)
    return found


def rounds(
    of: Sequence[ParamSlice], owner: Sequence[int], ranks: int
) -> list[list[list[ParamSlice]]]:
    """Returns [round][rank] -> the pieces in one message of that rank. A message has about PIECE
    elements, which bounds its memory. Every piece occurs once, in order within its rank."""
    groups: list[list[list[ParamSlice]]] = [[] for _ in range(ranks)]
    for piece, rank in zip(of, owner):
        mine = groups[rank]
        if not mine or sum(p.size for p in mine[-1]) + piece.size > PIECE:
            mine.append([])
        mine[-1].append(piece)
    turns = max(map(len, groups))
    return [[g[i] if i < len(g) else [] for g in groups] for i in range(turns)]
