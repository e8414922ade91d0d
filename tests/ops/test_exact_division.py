"""Float % and // against exact rational arithmetic over the whole range of each dtype: quotients
of any size, subnormals, both zeros, infinities and NaN; the oracle, compiled, and as operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact import floats, floor_divide, nearest, remainder, same_bits
from hypothesis import given, settings, strategies as st
from opkit import FLOATS
from present import opened
from rows import covering

import weft
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.core.dtypes import DType

EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.1, -0.1, 7.5, 1e-3, 1e5, -1e10, 33837760.0, 0.2419,
     5445.331, 1.1088, 65504.0, 2.0**-126, -(2.0**-126), 2.0**-149, -(2.0**-140), 3e38, -3.4e38,
     2.0**-14, 2.0**-24, 16777215.0, 2.0**24, np.inf, -np.inf, np.nan]
)  # fmt: skip
Pair = tuple[np.ndarray, np.ndarray]


@functools.cache
def pairs(dtype: DType) -> Pair:
    """Every pair of edges; pairs of any bits; quotients of any size; ties of large quotients."""
    rng, n = np.random.default_rng(0), 4000
    with np.errstate(all="ignore"):
        edges = EDGES.astype(dtype.numpy)
        word = np.uint32 if dtype.itemsize == 4 else np.uint16
        bits = rng.integers(0, np.iinfo(word).max, (2, n), word, endpoint=True).view(dtype.numpy)
        x, y = rng.normal(size=(2, n)) * 100
        far = x * 2.0 ** rng.integers(-20, 60, n)
        whole = rng.integers(2**24, 2**26, n) * 2.0 ** rng.integers(0, 12, n)  # of 25 bits: ties
        left = [np.repeat(edges, len(edges)), bits[0], x, far, y * np.rint(x), whole * y]
        right = [np.tile(edges, len(edges)), bits[1], y, y, y, y]
        return tuple(np.concatenate([v.astype(dtype.numpy) for v in s]) for s in (left, right))  # type: ignore[return-value]


@functools.cache
def truth(dtype: DType) -> Pair:
    x, y = pairs(dtype)
    return _truth(x, y)


def _truth(x: np.ndarray, y: np.ndarray) -> Pair:
    return floats(remainder, x, y), floats(floor_divide, x, y)


def both(x: Any, y: Any) -> tuple[Any, Any]:
    return x % y, x // y


@functools.cache
def compiled(device: str) -> Callable[..., Any]:
    if ":" in device:
        registry._open_devices[device] = InterpDevice(device.partition(":")[2])
    return weft.compile(both, device=opened(device))


def check(run: Callable[..., Any], x: np.ndarray, y: np.ndarray, want: Pair) -> None:
    rest, quotient = run(weft.tensor(x), weft.tensor(y))
    same_bits(rest.numpy(), want[0], "%")
    same_bits(quotient.numpy(), want[1], "//")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_whole_range_in_the_oracle(dtype: DType) -> None:
    check(both, *pairs(dtype), truth(dtype))


@pytest.mark.parametrize(
    "device,dtype",
    covering(["cpu", "vulkan", "interp", "interp:cuda", "interp:hip-wave64"], FLOATS),
    ids=str,
)
def test_whole_range_compiled(dtype: DType, device: str) -> None:
    check(compiled(device), *pairs(dtype), truth(dtype))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_floats(data: st.DataObject) -> None:
    """Among them quotients by a power of two, whose remainder has few bits or none."""
    one = st.floats(width=32) | st.floats(-1e4, 1e4, width=32) | st.integers(-20, 20).map(float)
    one |= st.integers(-149, 127).map(lambda e: 2.0**e)
    chosen = data.draw(st.lists(st.tuples(one, one), min_size=64, max_size=64))
    x, y = np.array(chosen, np.float32).T.copy()
    want = _truth(x, y)
    check(both, x, y, want)
    check(compiled("cpu"), x, y, want)
    check(compiled("interp"), x, y, want)


def test_what_was_wrong_once() -> None:
    """Quotients too large for f32, the zero's sign, an infinite operand."""
    x = np.float32([-1e10, 33837760, -1e-3, 5445.331, -np.inf, -1.0, 0.0, 4.0])
    y = np.float32([3.0, 0.2419, 1e5, 1.1088, np.inf, np.inf, -2.0, -2.0])
    for run in (both, compiled("cpu"), compiled("vulkan")):
        rest, quotient = (t.numpy().tolist() for t in run(weft.tensor(x), weft.tensor(y)))
        assert rest[0] == 2.0 and 0 <= rest[1] < 0.2419 and quotient[2:4] == [-1.0, 4911.0]
        assert np.isnan(rest[4]) and rest[5] == np.inf and quotient[5] == -1.0
        assert np.signbit(rest[6:]).all() and np.signbit(quotient[6]) and quotient[7] == -2.0


@pytest.mark.parametrize("device", ["", "cpu"])
def test_numbers_on_either_side(device: str) -> None:
    x = np.float32([7.5, -7.5, 1e30, -1e-30, 0.0])
    for number in (3, -3, 0.7, 1e-20):
        like = np.full_like(x, number)
        for fn, a, c in (
            (lambda t, n=number: both(t, n), x, like),
            (lambda t, n=number: both(n, t), like, x),
        ):
            rest, quotient = (weft.compile(fn, device=device) if device else fn)(weft.tensor(x))
            same_bits(rest.numpy(), floats(remainder, a, c), f"% {number}")
            same_bits(quotient.numpy(), floats(floor_divide, a, c), f"// {number}")


def test_float64_agrees_where_it_can() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 500)) * 10.0 ** rng.integers(-3, 6, (2, 500))
    rest, quotient = both(weft.tensor(x), weft.tensor(y))
    same_bits(rest.numpy(), floats(remainder, x, y))
    np.testing.assert_allclose(quotient.numpy(), floats(floor_divide, x, y), rtol=1e-15)


def test_the_judge_rounds_as_the_dtypes_do() -> None:
    rng = np.random.default_rng(1)
    values = (rng.normal(size=3000) * 2.0 ** rng.integers(-155, 130, 3000)).tolist()
    for d in FLOATS:
        with np.errstate(over="ignore"):
            want = np.array(values).astype(d.numpy)  # one rounding, from float64
        same_bits(np.array([nearest(Fraction(v), d.numpy) for v in values]).astype(d.numpy), want)
