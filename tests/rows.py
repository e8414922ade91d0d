"""Tables of which the default suite plays some rows, and the slow tests all."""

from __future__ import annotations

import itertools
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


def covering(*axes: Iterable[Any]) -> list[Any]:
    """Every combination of the axes' values. As many as the longest axis has are quick, and have
    every value of every axis among them."""
    values = [list(axis) for axis in axes]
    quick = {tuple(i % len(v) for v in values) for i in range(max(map(len, values)))}
    return [
        pytest.param(
            *(v[i] for v, i in zip(values, at)), marks=() if at in quick else pytest.mark.slow
        )
        for at in itertools.product(*(range(len(v)) for v in values))
    ]
