"""Indexing and assignment against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import weft
from weft.core.errors import DTypeError, ShapeError

X = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
K, J = np.array([3, 0, -1]), np.array([[1], [3]])

KEYS: list[Any] = [
    0, -1, np.int64(2), ..., None, (), slice(None), slice(3, 0, -1), slice(None, None, -2),
    (1, 2, 3), (slice(1, 3), ..., -1), (None, 1, None, ..., None), (..., slice(4, 1, -2)),
    slice(2, 2), slice(10, 20), (slice(None), 2), K, J, (K,), (slice(None), K), (K, K),
    (K, slice(None), K), (slice(None), K, K), (J, K), (J, slice(None), K), (..., K), (K, None, 2),
    (1, K), (slice(1, 3), J), (None, K), (slice(None, None, -1), K[:2], slice(0, 5, 2)), [0, 2],
    np.zeros((0,), np.int64),
]  # fmt: skip
MASKS = [X > 50, X[:, 0, 0] > 30, (slice(None), X[0, :, 0] > 5), (slice(None), X[0] > 10)]


@pytest.mark.parametrize("key", [*KEYS, *MASKS], ids=lambda k: str(k)[:30])
def test_reading(key: Any) -> None:
    want = X[key]
    got = weft.tensor(X)[key]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want)


def test_tensors_as_indices() -> None:
    t = weft.tensor(X)
    np.testing.assert_array_equal(t[weft.tensor(K)].numpy(), X[K])
    np.testing.assert_array_equal(t[t > 50].numpy(), X[X > 50])
    np.testing.assert_array_equal(t[weft.tensor(1)].numpy(), X[1])


@given(st.data())
def test_random_slices(data: st.DataObject) -> None:
    part = st.one_of(st.none(), st.integers(-7, 7))
    step = st.integers(-3, 3).filter(bool)
    key = tuple(
        data.draw(st.builds(slice, part, part, step) | st.integers(-n, n - 1)) for n in X.shape
    )[: data.draw(st.integers(0, 3))]
    np.testing.assert_array_equal(weft.tensor(X)[key].numpy(), X[key])


@pytest.mark.parametrize("key", [*KEYS, *MASKS], ids=lambda k: str(k)[:30])
def test_writing(key: Any) -> None:
    want, got = X.copy(), weft.tensor(X)
    want[key] = -1
    got[key] = -1
    np.testing.assert_array_equal(got.numpy(), want)


def test_writing_values() -> None:
    want, got = X.copy(), weft.tensor(X)
    alias = got
    want[1:3, ::2] = X[0, 0]
    got[1:3, ::2] = weft.tensor(X[0, 0])
    np.testing.assert_array_equal(got.numpy(), want)
    assert alias is got
    view = got[0]
    got[0] = 7
    assert (view.numpy() == 7).all()


def test_take_and_take_along_axis() -> None:
    t = weft.tensor(X)
    np.testing.assert_array_equal(t.take([1, -1], 1).numpy(), X.take([1, -1], 1))
    for axis in (0, 1, 2):
        order = np.argsort(-X, axis)
        want = np.take_along_axis(X, order, axis)
        np.testing.assert_array_equal(t.take_along_axis(weft.tensor(order), axis).numpy(), want)
        np.testing.assert_array_equal(t.gather(axis, order).numpy(), want)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (4, ShapeError, "out of range for axis 0"),
        ((0, 0, 0, 0), ShapeError, "4 indices"),
        ((..., ...), ShapeError, "ellipses"),
        (np.array([9]), ShapeError, "out of range"),
        (np.array([1.5]), DTypeError, "not an integer"),
        (slice(None, None, 0), ShapeError, "step of 0"),
        (True, DTypeError, "boolean array"),
        ("a", DTypeError, "not an integer"),
    ],
)
def test_errors(key: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        weft.tensor(X)[key]


def test_assign_checks_shape_and_dtype() -> None:
    t = weft.zeros((2, 3))
    t.assign(weft.ones((2, 3)))
    assert t.sum().item() == 6
    t.assign(2.0)
    assert t.sum().item() == 12
    with pytest.raises(ShapeError, match="must agree"):
        t.assign(weft.ones((3,)))
    with pytest.raises(ShapeError, match="assignment"):
        t[0] = weft.ones((4,))
