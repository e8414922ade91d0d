"""The f32 functions against float64, through the interpreter, over wide ranges and at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from weft.core import dtypes as dt
from weft.kernel import expr as k, lanewise, math as km
from weft.kernel.builder import Builder
from weft.kernel.interp import run
from weft.kernel.verify import verify

ULP = 2.0**-24  # half a unit in the last place of 1.0: the least relative error that counts
RNG = np.random.default_rng(7)
# The f32 beyond 6433 that are nearest to multiples of pi/2 (found by continued fractions).
_HARD = np.uint32(
    [0x6F79BE45, 0x50A3E87F, 0x6FF9BE45, 0x5123E87F, 0x7079BE45, 0x6A1976F1, 0x53B146A6, 0x65898498]
).view(np.float32)
EDGES = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, 3.4e38, -3.4e38])


def compute(fn: Callable, *xs: np.ndarray, lanes: int = 16) -> np.ndarray:
    """fn over f32 arrays, in vectors of `lanes`."""
    n = -(-len(xs[0]) // lanes) * lanes
    padded = [np.resize(x, n).astype(np.float32) for x in xs]
    b = Builder("f")
    sources = [b.buffer("x", dt.float32, n) for _ in xs]
    out = b.buffer("out", dt.float32, n, "w")
    i = b.let(b.group(0) * lanes, "i")
    b.store(out, i, fn(b, *[k.load(s, i, lanes) for s in sources]))
    result = np.full(n, 12345.0, np.float32)
    run(b.kernel((n // lanes,)), [*padded, result])
    return result[: len(xs[0])]


def relative(got: np.ndarray, want: np.ndarray, tiny: float = 1.8e-38) -> float:
    """The largest relative error; equal infinities and NaN agree, as do values below `tiny`."""
    with np.errstate(all="ignore"):
        single = want.astype(np.float32)
        same = (got == single) | (np.isnan(got) & np.isnan(want))
        same |= (np.abs(got) < tiny) & (np.abs(want) < tiny)
        error = np.abs(got.astype(np.float64) - want) / np.abs(want)
    return float(np.where(same, 0.0, np.nan_to_num(error, nan=np.inf)).max())


def log_uniform(low: float, high: float, n: int) -> np.ndarray:
    return np.exp(RNG.uniform(low, high, n)).astype(np.float32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "reference", "xs", "bound"),
    [
        ("exp", np.exp, RNG.uniform(-110, 100, 50000), 2 * ULP),
        ("exp", np.exp, [88.72283, 88.7229, -87.0, -86.5, 200, -200], 2 * ULP),
        ("log", np.log, log_uniform(-103, 88.7, 50000), 2 * ULP),
        ("log", np.log, RNG.uniform(0.5, 2, 20000), 2 * ULP),
        ("tanh", np.tanh, RNG.uniform(-12, 12, 50000), 4e-7),
        ("tanh", np.tanh, log_uniform(-80, 0, 10000), 4e-7),
        ("erf", np.vectorize(math.erf), RNG.uniform(-6, 6, 20000), 4e-7),
        ("erf", np.vectorize(math.erf), log_uniform(-80, 0, 10000), 4e-7),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), RNG.uniform(-86, 100, 20000), 3 * ULP),
    ],
)
def test_relative_error(name: str, reference: Callable, xs: np.ndarray, bound: float) -> None:
    x = np.append(np.float32(xs), EDGES)
    assert relative(compute(getattr(km, name), x), reference(x.astype(np.float64))) <= bound


def test_exp_below_zero() -> None:
    x = np.float32([*RNG.uniform(-87.3, 0, 20000), 0.0, -0.0])
    assert relative(compute(km.exp_below, x), np.exp(x.astype(np.float64))) <= 2 * ULP
    assert not compute(km.exp_below, np.float32([-87.8, -100, -1e30, -np.inf])).any()


def test_exp2_below_zero() -> None:
    x = np.concatenate([-log_uniform(-20, 4.8, 50000), np.float32([0.0, -0.5, -126.4])])
    assert relative(compute(km.exp2_below, x), np.exp2(x.astype(np.float64))) <= 3.2e-6
    assert not compute(km.exp2_below, np.float32([-127, -200, -1e30, -np.inf])).any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sin_and_cos_of_every_size(name: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also near multiples of pi/2, and where fma rounds twice."""
    if not fused:
        monkeypatch.setattr(lanewise, "fma", lambda a, b, c: a * b + c)
    steps = np.arange(1, 5000) * (np.pi / 2)
    near = np.nextafter(np.float32(steps), np.float32(RNG.choice([0, 1e9], steps.size)))
    far = RNG.integers(0x45C90000, 0x7F800000, 20000).astype(np.uint32).view(np.float32)
    x = np.concatenate([RNG.uniform(-7000, 7000, 20000), near, steps, far, -far, _HARD])
    x = x.astype(np.float32)
    want = getattr(np, name)(x.astype(np.float64))
    assert relative(compute(getattr(km, name), x), want) <= 6 * ULP
    edges = np.float32([np.inf, -np.inf, np.nan])
    assert np.isnan(compute(getattr(km, name), edges)).all()


def test_sine_and_cosine_share_their_reduction() -> None:
    b = Builder("both")
    x = b.let(k.load(b.buffer("x", dt.float32, 1), 0), "x")
    sine = b.let(km.sin(b, x), "sine")
    once = len(b.statements)
    km.cos(b, x)
    assert len(b.statements) - once < once / 4
    y = b.let(k.unary("neg", x), "y")
    with b.when(x < 0.0):
        km.sin(b, y)
    other = km.sin(b, y)  # what was bound inside is not in scope here
    b.store(b.buffer("out", dt.float32, 1, "w"), 0, sine + other)
    verify(b.kernel((1,)))


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_tanh_and_erf_are_exactly_one_far_out(name: str) -> None:
    x = np.float32([9.02, 10, 50, 65504, 1e20, 3.4028235e38, np.inf])
    assert (compute(getattr(km, name), x) == 1).all()
    assert (compute(getattr(km, name), -x) == -1).all()
    assert np.isnan(compute(getattr(km, name), np.float32([np.nan]))).all()
    x = np.linspace(3, 10, 20000, dtype=np.float32)
    assert (compute(getattr(km, name), x) <= 1).all()


def test_signed_zero_and_tiny_arguments_stay() -> None:
    x = np.float32([0.0, -0.0, 1e-30, -1e-30])
    for name in ("sin", "tanh"):
        got = compute(getattr(km, name), x)
        assert (got == x).all() and (np.signbit(got) == np.signbit(x)).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pow() -> None:
    x = log_uniform(-87, 88, 30000)
    y = RNG.uniform(-1, 1, 30000) * 90 / np.maximum(np.abs(np.log(x.astype(np.float64))), 1e-3)
    y = y.astype(np.float32)
    want = x.astype(np.float64) ** y.astype(np.float64)
    assert relative(compute(km.pow_, x, y), want) <= 16 * ULP
    x, y = RNG.uniform(0.5, 2, 30000), RNG.uniform(-120, 120, 30000)
    x, y = x.astype(np.float32), y.astype(np.float32)
    want = x.astype(np.float64) ** y.astype(np.float64)
    assert relative(compute(km.pow_, x, y), want) <= 16 * ULP


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pow_special_cases_are_numpy_s() -> None:
    values = [0, 1, 0.5, 2, 3, 2.5, np.inf, 1e20, 1e-20, 16777217, 33554433]
    s = np.float32([*values, *(-v for v in values), -0.0, np.nan])
    x, y = (v.ravel() for v in np.meshgrid(s, s))
    got, want = compute(km.pow_, x, y), np.power(x, y)
    close = (got == want) | (np.isnan(got) & np.isnan(want))
    close |= np.abs(got - want) <= np.maximum(2e-6 * np.abs(want), 1.8e-38)
    close &= np.isnan(want) | (np.signbit(got) == np.signbit(want))
    assert close.all(), list(zip(x[~close], y[~close], got[~close], want[~close]))


def test_nan_aware_helpers() -> None:
    x, y = (v.ravel() for v in np.meshgrid(EDGES, EDGES))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute(km.nan_max, x, y), np.maximum(x, y))
        np.testing.assert_array_equal(compute(km.nan_min, x, y), np.minimum(x, y))
    flags = compute(lambda b, v: k.cast(km.isnan(b, v), dt.float32), EDGES)
    np.testing.assert_array_equal(flags, np.isnan(EDGES))
    finite = compute(lambda b, v: km.exp(b, v, nan=False), np.float32([-1, 0, 1, -np.inf]))
    np.testing.assert_allclose(finite, np.exp([-1, 0, 1, -np.inf]), rtol=1e-6)


@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh", "erf"])
def test_lanes_make_no_difference(name: str, lanes: int) -> None:
    x = RNG.uniform(0.1, 5, 64).astype(np.float32)
    fn = getattr(km, name)
    np.testing.assert_array_equal(compute(fn, x, lanes=lanes), compute(fn, x))
