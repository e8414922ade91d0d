"""Tables of which the default suite plays some rows, and the slow tests all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def few(every: Iterable[Any], *quick: Any) -> list[Any]:
    """The values of a parameter; those that are not `quick` are slow. Tuples are rows of several
    parameters."""
    values = list(every)
    assert all(row in values for row in quick), quick
    return [
        pytest.param(
            *_tuple(row),
            marks=[] if row in quick else [pytest.mark.slow],
        )
        for row in values
    ]


def by_turns(rows: Iterable[Any], values: Iterable[Any], each: int = 1) -> list[Any]:
    """Every row (values, or a pytest.param) with every value after it. Of those, `each` values of
    a row are as quick as the row is, in turn through the quick rows; the others are slow."""
    found, values, turn = [], list(values), 0
    for row in rows:
        given = row if isinstance(row, ParameterSet) else pytest.param(*_tuple(row))
        quick = {(turn + j) % len(values) for j in range(each)}
        turn += each * all(mark.name != "slow" for mark in given.marks)
        for j, value in enumerate(values):
            marks = given.marks if j in quick else [pytest.mark.slow]
            name = None if given.id is None else f"{given.id}-{value}"
            found.append(pytest.param(*given.values, *_tuple(value), marks=marks, id=name))
    return found


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


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
