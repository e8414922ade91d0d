"""How a step is cut: by the work alone, so that the number of ranks cannot be seen in a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from weft.training import parts


def tree(node: parts.Node, known: dict[parts.Node, Any] | None = None) -> Any:
    """The order of a sum, as nested pairs."""

    def get(n: parts.Node) -> Any:
        return n[0] if n[1] - n[0] == 1 else None

    return parts.joined(node, get if known is None else known.get, lambda a, b: (a, b))


def test_the_tree_of_parts() -> None:
    assert tree((0, 1)) == 0
    assert tree((0, 3)) == ((0, 1), 2)
    assert tree((0, 4)) == ((0, 1), (2, 3))
    assert tree((0, 7)) == (((0, 1), (2, 3)), ((4, 5), 6))


@settings(deadline=None)
@given(count=st.integers(1, 200), ranks=st.integers(1, 16))
def test_any_number_of_ranks_adds_in_one_order(count: int, ranks: int) -> None:
    ranks = min(ranks, count)
    known: dict[parts.Node, Any] = {}
    whole = (0, count)
    for rank in range(ranks):
        first, last = parts.run_of(rank, ranks, count)
        assert last > first
        for node in parts.subtrees(whole, first, last):
            assert first <= node[0] < node[1] <= last and node not in known
            known[node] = tree(node)
    assert sum(b - a for a, b in known) == count
    assert tree(whole, known) == tree(whole)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 64])
def test_powers_of_two_send_one_sum_each(count: int) -> None:
    for ranks in (1, 2, 4, 8):
        for rank in range(min(ranks, count)):
            first, last = parts.run_of(rank, min(ranks, count), count)
            assert len(parts.subtrees((0, count), first, last)) == 1


SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=20)


@settings(deadline=None)
@given(shapes=SHAPES, limit=st.integers(1, 50), ranks=st.integers(1, 8))
def test_pieces_cover_every_parameter_once(
    shapes: list[tuple[int, ...]], limit: int, ranks: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PIECE", limit)
        named = [(str(i), shape) for i, shape in enumerate(shapes)]
        made = parts.pieces(named)
        seen = {role: np.zeros(shape, np.int64) for role, shape in named}
        for piece in made:
            view = piece.of(seen[piece.role])
            assert view.shape == piece.shape and view.size == piece.size
            view[...] += 1
            rows = piece.shape[0] if piece.shape else 1
            assert piece.size <= limit or rows == 1
        assert all((s == 1).all() for s in seen.values())
        ranks = min(ranks, len(made))
        owner = parts.owners([p.size for p in made], ranks)
        assert sorted(set(owner)) == list(range(ranks)) and owner == sorted(owner)
        turns = parts.rounds(made, owner, ranks)
        for rank in range(ranks):
            in_turn = [p for turn in turns for p in turn[rank]]
            assert in_turn == [p for p, r in zip(made, owner) if r == rank]


def test_owners_have_about_as_much() -> None:
    sizes = [1000] * 100
    held = np.bincount(parts.owners(sizes, 4))
    assert held.tolist() == [25, 25, 25, 25]
