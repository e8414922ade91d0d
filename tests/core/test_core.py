"""Dtypes, tolerances and text: the ground everything stands on."""

from __future__ import annotations

import copy
import doctest

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from weft.core import dtypes as dt, text
from weft.core.errors import DTypeError
from weft.core.tolerance import TABLE, compare

ANY = st.sampled_from(dt.ALL)


def test_docstring_examples() -> None:
    assert doctest.testmod(text).failed == 0


@given(ANY)
def test_every_dtype_survives_numpy_and_its_name(dtype: dt.DType) -> None:
    assert dt.as_dtype(dtype.numpy) is dtype
    assert dt.as_dtype(dtype.name) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize


@pytest.mark.parametrize("value", ["float8", "int128", object(), "complex64", np.dtype("O"), 3])
def test_other_dtypes_are_refused_by_name(value: object) -> None:
    with pytest.raises(DTypeError, match="use one of"):
        dt.as_dtype(value)


@given(ANY, ANY)
def test_promotion_is_symmetric_and_holds_both(a: dt.DType, b: dt.DType) -> None:
    if {a.kind, b.kind} == {"int", "uint"} and dt.uint64 in (a, b):
        with pytest.raises(DTypeError, match="no integer dtype holds both"):
            dt.promote(a, b)
        return
    both = dt.promote(a, b)
    assert both is dt.promote(b, a)
    assert dt.promote(both, a) is both
    if not both.is_float:
        for d in (a, b):
            if d.is_int:
                info = np.iinfo(d.numpy)
                for value in (info.min, info.max):
                    assert np.array(value, both.numpy) == value


@given(ANY, ANY)
def test_promotion_matches_numpy_where_numpy_has_the_types(a: dt.DType, b: dt.DType) -> None:
    if dt.bfloat16 in (a, b) or ({a.kind, b.kind} == {"int", "uint"} and dt.uint64 in (a, b)):
        return
    want = np.promote_types(a.numpy, b.numpy)
    if a.is_float != b.is_float and "bool" not in (a.kind, b.kind):
        want = (a if a.is_float else b).numpy  # the array API leaves it open; torch's rule
    assert dt.promote(a, b).numpy == want


def test_compare_finds_a_single_wrong_element() -> None:
    want = np.linspace(-3, 3, 100, dtype=np.float32)
    assert compare(want.copy(), want, "elementwise").ok
    got = want.copy()
    got[17] += 1e-3
    result = compare(got, want, "elementwise")
    assert not result.ok and "[17]" in result.message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_compare_never_passes_nan_or_inf_for_a_number(bad: float) -> None:
    want = np.ones(4, np.float32)
    got = want.copy()
    got[2] = bad
    assert not compare(got, want, "dot").ok
    assert not compare(want, got, "dot").ok
    assert compare(got, got.copy(), "exact").ok


def test_every_tolerance_has_a_reason() -> None:
    for row in TABLE.values():
        for entry in row.values():
            assert len(entry.reason) > 20


def test_bfloat16_is_ml_dtypes() -> None:
    assert dt.bfloat16.numpy == np.dtype(ml_dtypes.bfloat16)


def test_a_copy_of_a_dtype_is_itself() -> None:
    assert copy.deepcopy({"x": [dt.float32]})["x"][0] is dt.float32
