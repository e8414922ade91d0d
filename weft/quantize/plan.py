"""A mixed plan: chooses linear layers that get more bits, within a budget for the mean bits.

The loss of a matrix is sum h (w - w')^2 / sum h w^2: the lost share of its output's energy, if the
columns of the input are uncorrelated. Matrices that lose most per bit come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from weft.core.errors import UsageError
from weft.core.packed import dequantized
from weft.quantize.search import Search

Losses = dict[str, float]


def loss(w: np.ndarray, h: np.ndarray | None, search: Search) -> float:
    """Returns the loss of w[N, K] in the form of `search`."""
    weight = np.ones(w.shape[1], np.float32) if h is None else h
    wide = np.asarray(w, np.float32)
    lost = dequantized(search.form, search(w, h)) - wide
    energy = float(np.einsum("nk,nk,k->", wide, wide, weight, dtype=np.float64))
    return float(np.einsum("nk,nk,k->", lost, lost, weight, dtype=np.float64)) / max(energy, 1e-30)


def choose(
    sizes: Mapping[str, int], schemes: Sequence[str], bits: Callable[[str, str], float],
    losses: Mapping[str, Losses], budget: float,
) -> dict[str, str]:  # fmt: skip
    """Returns the plan, role -> scheme. `schemes` go from few bits to many; `bits` gives the bits
    of a role's weights in a scheme; `losses` are by role and scheme. The mean of bits, weighted by
    `sizes`, is at most `budget`. Raises UsageError for a budget below the first scheme's bits."""
    plan = dict.fromkeys(sizes, schemes[0])
    spent = sum(bits(role, schemes[0]) * size for role, size in sizes.items())
    room = budget * sum(sizes.values())
    if not spent <= room:
        raise UsageError(
            f"{schemes[0]} takes {spent / sum(sizes.values()):.3f} bits per weight; "
            f"--bits {budget} is below that"
        )
    steps = [
        ((losses[r][a] - losses[r][b]) / (bits(r, b) - bits(r, a)), r, a, b)
        for r in sizes
        for a, b in pairwise(schemes)
        if bits(r, b) > bits(r, a)
    ]
    for _, role, before, after in sorted(steps, key=lambda s: -s[0]):
        more = (bits(role, after) - bits(role, before)) * sizes[role]
        if plan[role] == before and spent + more <= room:
            plan[role], spent = after, spent + more
    return plan
