"""weft.torch gives what PyTorch gives for the samples of PyTorch's own table of operators."""

from __future__ import annotations

import operators
import pytest

COVERED = [n for n, ops in operators.operators().items() if any(map(operators.counterpart, ops))]


@pytest.mark.parametrize("name", COVERED)
def test_first_samples(name: str) -> None:
    """Two samples of each variant in float32, one in another dtype; no number may be wrong."""
    found = operators.Outcome()
    for op in operators.operators()[name]:
        if operators.counterpart(op) is not None:
            for dtype, most in zip(operators.dtypes(op)[:2], (2, 1)):
                found.add(operators.run(op, dtype, most))
    assert not found.wrong


@pytest.mark.slow
def test_all_samples() -> None:
    found = operators.Outcome()
    for name in COVERED:
        found.add(operators.whole(name))
    assert not found.wrong
    assert found.passed >= 0.997 * found.total, found.refused


def test_the_number_of_names() -> None:
    assert len(COVERED) >= LEAST


LEAST = 564
