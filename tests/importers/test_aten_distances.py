"""Distances of narrow floats and of points that coincide, beside PyTorch's in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from weft.functional import cdist, pdist
from weft.importers.aten import counting, reductions

torch = pytest.importorskip("torch")
POINTS = np.array([[-40000.0, 300.0, 400.0], [10000.0, -300.0, 0.0], [-40000.0, 300.0, 400.0]])


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_differences_and_squares_beyond_float16(p: float) -> None:
    want = torch.cdist(torch.tensor(POINTS), torch.tensor(POINTS), p=p).numpy()
    x = weft.tensor(POINTS.astype(np.float16))
    np.testing.assert_allclose(cdist(x, x, p).numpy().astype(float), want, rtol=1e-3)
    pairs = want[np.triu_indices(3, 1)]
    np.testing.assert_allclose(pdist(x, p).numpy().astype(float), pairs, rtol=1e-3)


def test_the_slope_is_zero_where_points_coincide() -> None:
    x = weft.tensor(POINTS.astype(np.float32), requires_grad=True)
    y = torch.tensor(POINTS, requires_grad=True)
    cdist(x, x).sum().backward()
    torch.cdist(y, y).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("right", [False, True])
def test_nan_is_the_largest_of_sorted_values(right: bool) -> None:
    line = torch.tensor([[1.0, 2.0, 3.0, 3.0], [0.0, 1.0, 1.0, math.inf]])
    values = torch.tensor([[math.nan, 2.0, math.inf], [math.nan, 1.0, -math.inf]])
    expected = torch.searchsorted(line, values, right=right)
    ours = counting.searchsorted(
        weft.tensor(line.numpy()), weft.tensor(values.numpy()), right=right
    )
    assert ours.tolist() == expected.tolist()


def test_differences_of_bools_end() -> None:
    x = weft.tensor(np.array([True, False, True]))
    assert reductions.diff(x, 10**12).shape == (0,)
    want = torch.diff(torch.tensor([True, False, True]), 2).tolist()
    assert reductions.diff(x, 2).tolist() == want
