"""How a step is cut, whoever computes it: its batches are parts, its weights are pieces.

Both follow from the work alone, never from how many ranks share it. So do the orders in which
gradients and squares are added, and with them every bit of a run.

A step's gradient is the sum over its parts (`[train] accumulate` of them) by a fixed tree: of n
parts, the first p and the rest are summed apart, p being the largest power of two below n. Ranks
hold runs of parts and send sums of whole subtrees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

PIECE = 1 << 22  # elements: a larger parameter is cut along its first axis
T = TypeVar("T")
Node = tuple[int, int]  # parts first to last (not included) that make a subtree


def joined(node: Node, get: Callable[[Node], T | None], add: Callable[[T, T], T]) -> T:
    """The sum over a subtree of parts: what `get` has of it as a whole (not None for single
    parts), else the sums of its two halves, added."""
    found = get(node)
    if found is not None:
        return found
    left, right = halves(node)
    first = joined(left, get, add)
    return add(first, joined(right, get, add))


def halves(node: Node) -> tuple[Node, Node]:
    """The two subtrees of one of two parts or more."""
    first, last = node
    middle = first + (1 << (last - first - 1).bit_length() - 1)
    return (first, middle), (middle, last)


def subtrees(node: Node, first: int, last: int) -> list[Node]:
    """The largest subtrees of `node` that lie within the parts `first` to `last` (not
    included)."""
    if first <= node[0] and node[1] <= last:
        return [node]
    if node[1] <= first or last <= node[0]:
        return []
    return [found for half in halves(node) for found in subtrees(half, first, last)]


def run_of(rank: int, ranks: int, count: int) -> Node:
    """Which of `count` parts a rank computes: runs of equal length, or one more."""
    return rank * count // ranks, (rank + 1) * count // ranks


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` (not included) of a parameter; its whole where it is small."""

    role: str
    start: int
    stop: int
    shape: tuple[int, ...]  # of the piece

    @property
    def name(self) -> str:
        return f"{self.role}@{self.start}"

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def of(self, array: Any) -> Any:
        """These rows of the parameter's array or tensor."""
        return array[self.start : self.stop] if self.shape else array


def pieces(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> list[Piece]:
    """All parameters (role, shape) in their order, cut where they are large."""
    return [Piece(role, *cut) for role, shape in shapes for cut in rows(shape)]


def rows(shape: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """(start, stop, shape) of each piece of a parameter of this shape."""
    if not shape:
        return [(0, 1, shape)]
    count, inner = shape[0], math.prod(shape[1:])
    step = count if count * inner <= PIECE else max(PIECE // max(inner, 1), 1)
    starts = range(0, count, max(step, 1)) if count else [0]
    return [(a, min(a + step, count), (min(a + step, count) - a, *shape[1:])) for a in starts]


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Which rank updates each piece: runs of about equal size, none empty where there are as many
    pieces as ranks."""
    starts = itertools.accumulate(sizes, initial=0)
    total, found, before = max(sum(sizes), 1), [], 0
    for i, start in zip(range(len(sizes)), starts):
        wanted = min(start * ranks // total, before + (i > 0), ranks - 1)
        before = max(wanted, ranks - (len(sizes) - i), before)
        found.append(before)
    return found


def rounds(of: Sequence[Piece], owner: Sequence[int], ranks: int) -> list[list[list[Piece]]]:
    """[round][rank] -> pieces of that rank that travel together, about PIECE elements: what bounds
    the memory that messages take. Every piece once, in order within its rank."""
    groups: list[list[list[Piece]]] = [[] for _ in range(ranks)]
    for piece, rank in zip(of, owner):
        mine = groups[rank]
        if not mine or sum(p.size for p in mine[-1]) + piece.size > PIECE:
            mine.append([])
        mine[-1].append(piece)
    turns = max(map(len, groups))
    return [[g[i] if i < len(g) else [] for g in groups] for i in range(turns)]
