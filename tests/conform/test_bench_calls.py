"""`weft bench eager` and `weft bench layers`: what they time. No test compares times."""

from __future__ import annotations

import numpy as np
import pytest

from weft.bench import calls


def _numbers(result):
    parts = result if isinstance(result, list) else [result]
    return [np.asarray(getattr(p, "detach", lambda p=p: p)()) for p in parts]


@pytest.mark.parametrize("case", calls.eager_cases())
def test_all_sides_of_an_eager_case_compute_the_same(case):
    first, *others = [_numbers(call())[0] for call in calls.eager_cases()[case].values()]
    for other in others:
        np.testing.assert_allclose(first, other, rtol=1e-6)


@pytest.mark.slow
def test_layers_have_both_sides_shapes():
    for case, sides in calls.layer_cases(2).items():
        shapes = [[x.shape for x in _numbers(call())] for call in sides.values()]
        assert all(s == shapes[0] for s in shapes), case


def test_a_median_per_side():
    found = calls.run({"nothing": {"a": lambda: None, "b": lambda: None}}, 2, 1e-4, 1e6, "us")
    assert found["nothing"].keys() == {"a_us", "b_us"}
    assert calls.chosen(calls.eager_cases(), ["softmax"]).keys() == {"softmax"}
