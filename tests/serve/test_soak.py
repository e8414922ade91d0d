"""Clients at once, each answer held to what it was alone: seconds of what scripts/soak.py does for
minutes."""

from __future__ import annotations

import sys
from pathlib import Path

from serve_kit import Running, serving

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import soak


def test_answers_among_many_are_those_alone(chatty: Path, server: Running) -> None:
    asked = soak.requests(40, seed=1)
    with serving({"box": str(chatty)}, sequences=1) as running:
        expected = soak.alone(running.url, asked)
    tally = soak.clients(server.url, 12, 3.0, asked, expected)
    assert tally.seen.total() >= 12 and not tally.wrong, tally.wrong[:3]  # each asks once at least


def test_a_difference_is_seen(chatty: Path, server: Running) -> None:
    asked = soak.requests(3, seed=2)
    expected = soak.alone(server.url, asked)
    wrong = [[{**c, "text": c["text"] + "!"} for c in choices] for choices in expected]
    tally = soak.clients(server.url, 2, 0.3, asked, wrong)
    assert len(tally.wrong) == tally.seen["whole"] + tally.seen["stream"] > 0


def test_growth_is_of_medians() -> None:
    samples = [(float(i), 1000 if i < 20 else 2000 + i) for i in range(1, 101)]
    grown, medians = soak.growth(samples)
    assert medians[0] == 1000 and 0.0 < grown < 0.04
