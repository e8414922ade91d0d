"""Host arrays in other float dtypes: the same bits as NumPy's, whatever the size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weft.core.arrays import all_finite
from weft.core.dtypes import bfloat16, float16, float32
from weft.tensor.casting import CHUNK, cast_array

FLOATS = (float32, float16, bfloat16)
PAIRS = [(a, b) for a in FLOATS for b in FLOATS if a is not b]


def _patterns(size: int) -> np.ndarray:
    """Every 16-bit pattern as a bfloat16 or float16, and float32 of all sizes, no NaN."""
    bits = np.arange(size, dtype=np.uint32) * np.uint32(2654435761)
    values = bits.view(np.float32)
    return np.where(np.isnan(values), np.float32(1.5), values)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0].name}-{p[1].name}")
@pytest.mark.parametrize("size", [0, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 12345])
def test_equal_to_numpy(pair, size: int) -> None:
    source, target = pair
    with np.errstate(over="ignore"):
        array = _patterns(size).astype(source.numpy)
        want = array.astype(target.numpy)
    got = cast_array(array, target)
    assert got.dtype == target.numpy and got.shape == array.shape
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_every_narrow_pattern_and_nan() -> None:
    every = np.tile(np.arange(1 << 16, dtype=np.uint16), 1 + CHUNK // (1 << 16))
    for dtype in (float16, bfloat16):
        array = every.view(dtype.numpy)
        got, want = cast_array(array, float32), array.astype(np.float32)
        nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), nan)
        np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def test_shapes_and_views() -> None:
    array = _patterns(600 * 1000).reshape(600, 1000)
    got = cast_array(array.T, bfloat16)
    assert got.shape == (1000, 600)
    np.testing.assert_array_equal(got, array.T.astype(ml_dtypes.bfloat16))
    assert cast_array(array, float32) is array


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_sees_one_bad_value_anywhere(dtype, bad: float) -> None:
    array = np.ones((3, 1 << 17), dtype.numpy)
    array[0, 0] = ml_dtypes.finfo(dtype.numpy).max
    assert all_finite(array) and all_finite(array[:0])
    for at in ((0, 0), (1, 77), (2, -1)):
        marred = array.copy()
        marred[at] = bad
        assert not all_finite(marred)
