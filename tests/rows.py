"""Tables of which the default suite plays some rows, and the slow tests all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(every: Iterable[Any], *quick: Any) -> list[Any]:
    """The values of a parameter; those that are not `quick` are slow. Tuples are rows of several
    parameters."""
    values = list(every)
    assert all(row in values for row in quick), quick
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=[] if row in quick else [pytest.mark.slow],
        )
        for row in values
    ]
