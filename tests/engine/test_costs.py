"""Whether proposing pays, by what steps took."""

from __future__ import annotations

import numpy as np
import pytest

from weft.engine.costs import ProposalChooser


def played(
    turns: ProposalChooser, steps: int, rate: float, noise: float = 0.02, seed: int = 0
) -> float:
    """The share of steps with proposals, where those give `rate` times the tokens a second."""
    rng, proposed = np.random.default_rng(seed), 0
    for _ in range(steps):
        proposed += turns.proposes
        tokens = 4 if turns.proposes else 1
        seconds = tokens / (rate if turns.proposes else 1.0)
        turns.note(seconds * (1 + noise * rng.standard_normal()), tokens)
    return proposed / steps


@pytest.mark.parametrize("seed", range(4))
def test_what_gives_more_a_second_is_done(seed: int) -> None:
    assert played(ProposalChooser(), 4000, 2.0, seed=seed) > 0.97
    assert played(ProposalChooser(), 4000, 0.7, seed=seed) < 0.1
    assert (
        played(ProposalChooser(), 4000, 1.0, seed=seed) > 0.8
    )  # a text to come may repeat something


def test_another_text_is_noticed() -> None:
    turns = ProposalChooser()
    played(turns, 5000, 0.7)
    assert played(turns, 300, 2.0) > 0.4
    played(turns, 5000, 2.0)
    assert played(turns, 3000, 0.7) < 0.5
