"""What names axes, sizes and shifts: integers of any kind, alone or in a sequence, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.errors import WeftError

X = weft.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
F = weft.functional

AXES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda a: weft.sum(X, axis=a),
    "max": lambda a: X.max(axis=a),
    "mean": lambda a: X.mean(axis=a),
    "var": lambda a: X.var(axis=a),
    "all": lambda a: (X > 0).all(axis=a),
    "prod": lambda a: X.prod(axis=a),
    "count_nonzero": lambda a: weft.count_nonzero(X, axis=a),
    "normalize": lambda a: F.normalize(X, a),
    "flip": lambda a: weft.flip(X, axis=a),
    "roll": lambda a: weft.roll(X, 1, axis=a),
    "squeeze": lambda a: weft.squeeze(X.reshape(1, 2, 3), axis=a),
    "expand_dims": lambda a: weft.expand_dims(X, axis=a),
    "moveaxis": lambda a: weft.moveaxis(X, a, a),
}
AXIS: dict[str, Callable[[Any], Any]] = {
    "concat": lambda a: weft.concat([X, X], axis=a),
    "concat of one": lambda a: weft.concat([X], axis=a),
    "stack": lambda a: weft.stack([X, X], axis=a),
    "argmax": lambda a: X.argmax(axis=a),
    "softmax": lambda a: X.softmax(a),
    "cumsum": lambda a: X.cumsum(a),
    "sort": lambda a: weft.sort(X, axis=a),
}
SIZES: dict[str, Callable[[Any], Any]] = {
    "roll by": lambda n: weft.roll(X, n, axis=0),
    "tile": lambda n: weft.tile(X, n),
    "zeros": weft.zeros,
    "repeat_interleave": lambda n: X.repeat_interleave(n, 0),
    "split": lambda n: X.split(n),
    "narrow": lambda n: X.narrow(0, n, n),
    "stride": lambda n: F.max_pool2d(X.reshape(1, 1, 2, 3), 1, stride=n),
}
NO_INTEGERS = (
    weft.zeros((0,)), weft.tensor([0]), np.zeros(0), np.zeros((1, 1), np.int64), "", "0", b"\x00",
    {}, {0: 1}, set(), {0}, iter([0]), True, [True], [0.0], 0.0, np.float64(0), [[0]], [None],
)  # fmt: skip


@pytest.mark.parametrize("name", [*AXES, *AXIS, *SIZES])
def test_only_integers_are_taken(name: str) -> None:
    taken = []
    for bad in NO_INTEGERS:
        try:
            taken.append((bad, (AXES | AXIS | SIZES)[name](bad)))
        except WeftError:
            continue
    assert not taken


@pytest.mark.parametrize("name", [*AXES, *AXIS])
def test_integers_of_numpy_name_an_axis_too(name: str) -> None:
    call = (AXES | AXIS)[name]
    for given in (np.int64(0), np.int8(0), np.uint32(0)):
        assert_same(call(given), call(0))


@pytest.mark.parametrize("name", AXES)
def test_sequences_name_axes(name: str) -> None:
    for given in ([0], (np.int64(0),), range(1), np.array([0])):
        assert_same(AXES[name](given), AXES[name](0))


def test_sequences_are_sizes() -> None:
    for given in ([2, 1], (np.int64(2), 1), np.array([2, 1])):
        assert weft.zeros(given).shape == (2, 1)
        assert weft.tile(X, given).shape == (4, 3)
        assert X.reshape([3, np.int32(2)]).shape == (3, 2)
        assert F.max_pool2d(X.reshape(1, 1, 2, 3), given).shape == (1, 1, 1, 3)


def test_pieces_of_numpys_sizes() -> None:
    for given in (2, np.int64(2), [2, 1], np.array([2, 1])):
        assert [p.shape for p in X.split(given, 1)] == [(2, 2), (2, 1)]
    assert weft.repeat(X, np.int64(2), axis=0).shape == (4, 3)
    assert X.narrow(1, np.int64(1), np.int64(2)).shape == (2, 2)


def assert_same(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want.numpy())
