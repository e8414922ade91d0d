"""Packed weights against the formats' own packages and plain arithmetic."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weft.core.errors import DTypeError, ShapeError
from weft.core.packed import TABLES, Form, codes_of, dequantized, pack, packed_codes, unpack


def test_e4m3_is_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(np.float32(TABLES["e4m3"]), wanted, equal_nan=True)


def test_e2m1_is_ml_dtypes() -> None:
    codes = np.arange(16, dtype=np.uint8)
    wanted = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(np.float32(TABLES["e2m1"]), wanted)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_codes_come_back(bits: int) -> None:
    form, rng = Form(bits, 8), np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (5, 24), dtype=np.uint8)
    parts = packed_codes(form, codes)
    assert sum(p.nbytes for p in parts.values()) * 8 == codes.size * bits
    assert np.array_equal(codes_of(form, parts), codes)


def test_the_first_code_is_in_the_lowest_bits() -> None:
    assert pack(np.array([[1, 2, 3, 0]], np.uint8), 2).tolist() == [[0b00111001]]
    assert unpack(np.array([[0xA5]], np.uint8), 4).tolist() == [[5, 10]]


def test_every_kind_of_shift() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (3, 64), dtype=np.uint8)
    scales = rng.standard_normal((3, 4)).astype(np.float16)
    wide = np.repeat(scales.astype(np.float64), 16, axis=1)
    parts = {**packed_codes(Form(4, 16), codes), "scales": scales}
    assert np.array_equal(dequantized(Form(4, 16, offset=8), parts), (codes - 8.0) * wide)
    zeros = rng.integers(0, 16, (3, 4), dtype=np.uint8)
    wanted = (codes - np.repeat(zeros.astype(float), 16, axis=1)) * wide
    form = Form(4, 16, shift="zero")
    form.check({**parts, "zeros": zeros}, 3, 64)
    assert np.array_equal(dequantized(form, {**parts, "zeros": zeros}), wanted)
    lows = rng.standard_normal((3, 4)).astype(np.float16)
    wanted = codes * wide + np.repeat(lows.astype(float), 16, axis=1)
    got = dequantized(Form(4, 16, shift="low"), {**parts, "lows": lows})
    assert np.array_equal(got, wanted.astype(np.float32))


def test_scales_of_scales() -> None:
    rng = np.random.default_rng(1)
    form = Form(6, 16, offset=32, super_group=64)
    codes = rng.integers(0, 64, (2, 128), dtype=np.uint8)
    scales = rng.integers(-128, 128, (2, 8)).astype(np.int8)
    tops = rng.standard_normal((2, 2)).astype(np.float16)
    parts = {**packed_codes(form, codes), "scales": scales, "super_scales": tops}
    form.check(parts, 2, 128)
    scale = np.repeat(scales, 16, axis=1) * np.repeat(tops.astype(np.float64), 64, axis=1)
    assert np.array_equal(dequantized(form, parts), (codes - 32.0) * scale)


def test_what_does_not_fit_is_refused() -> None:
    form, codes = Form(4, 32), np.zeros((2, 32), np.uint8)
    good = {"codes": codes, "scales": np.zeros((2, 2), np.float16)}
    form.check(good, 2, 64)
    for bad in ({"codes": codes}, {**good, "scales": np.zeros((2, 3), np.float16)}):
        with pytest.raises(ShapeError, match=r"packed \[2, 64\]"):
            form.check(bad, 2, 64)
    with pytest.raises(ShapeError, match="runs of 32"):
        form.shapes(2, 48)
    with pytest.raises(DTypeError, match="scales"):
        form.check({**good, "scales": np.zeros((2, 2), np.float64)}, 2, 64)
    with pytest.raises(DTypeError, match="table"):
        Form(4, 32, values="e4m3").check(good, 2, 64)
