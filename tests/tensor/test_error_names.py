"""An error names the function that the user called, not the one that it is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from weft.core.errors import ShapeError

AXES = [
    "sum",
    "mean",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "prod",
    "std",
    "var",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "sort",
    "argsort",
    "softmax",
    "log_softmax",
    "count_nonzero",
    "logsumexp",
    "median",
    "norm",
    "diff",
]


def doors(name: str) -> list[Callable[..., object]]:
    """The method and the functions of a name."""
    homes = (weft.Tensor, weft, weft.functional)
    return [f for home in homes if (f := getattr(home, name, None)) is not None]


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1,)])
def test_an_axis_that_is_not_there(name: str, shape: tuple[int, ...]) -> None:
    for door in doors(name):
        with pytest.raises(ShapeError) as caught:
            door(weft.tensor(np.ones(shape, np.float32)), axis=7)
        assert str(caught.value).startswith(f"{name}: axis 7 "), door


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0])
def test_no_elements(name: str, axis: int | None) -> None:
    for door in doors(name):
        with pytest.raises(ShapeError) as caught:
            door(weft.tensor(np.ones((0, 3), np.float32)), axis=axis)
        assert str(caught.value).startswith(f"{name}: no elements along axes [0"), door


@pytest.mark.parametrize("name", ["max", "argmin"])
def test_none_over_which_nothing_is_asked(name: str) -> None:
    assert getattr(weft.tensor(np.ones((0, 3), np.float32)), name)(axis=1).shape == (0,)
