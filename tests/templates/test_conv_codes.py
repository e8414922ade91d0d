"""Convolutions of codes with channels last: every tier against NumPy's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import QUICK, TIERS, group_of, play, trace
from hypothesis import given, settings, strategies as st
from product_kit import device

from weft import ops
from weft.core.caps import PRESETS
from weft.ops.codes import CONV_LAST, DEPTHWISE_LAST
from weft.templates.conv.sizes import bands

ALL = [pytest.param(t, marks=[] if t in QUICK else [pytest.mark.slow]) for t in TIERS]
NONE: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}


def truth(x: np.ndarray, w: np.ndarray, start: np.ndarray, zero: int, **window: Any) -> np.ndarray:
    """start + sum x w with `zero` around x, in int64; x[N, H, W, C], w[O, KH, KW, C] (depthwise
    [C, KH, KW])."""
    (sh, sw), (dh, dw) = window["stride"], window["dilation"]
    wide = np.pad(x.astype(np.int64), ((0, 0), *window["padding"], (0, 0)), constant_values=zero)
    kh, kw = w.shape[1:3]
    high = (wide.shape[1] - dh * (kh - 1) - 1) // sh * sh + 1
    broad = (wide.shape[2] - dw * (kw - 1) - 1) // sw * sw + 1
    total: Any = start.astype(np.int64)
    for i in range(kh):
        for j in range(kw):
            seen = wide[:, i * dh : i * dh + high : sh, j * dw : j * dw + broad : sw]
            k = w[:, i, j].astype(np.int64)
            total = total + (seen * k if w.ndim == 3 else seen @ k.T)
    return total


def agree(
    tier: str, x: tuple[int, ...], w: tuple[int, ...], dtype: Any, zero: int, **more: Any
) -> None:
    """Codes of the whole range, of x and of w."""
    rng, window, info = np.random.default_rng(sum((*x, *w))), {**NONE, **more}, np.iinfo(dtype)
    codes = rng.integers(info.min, info.max + 1, x).astype(dtype)
    weights = rng.integers(-128, 128, w).astype(np.int8)
    start = rng.integers(-9999, 9999, w[0]).astype(np.int32)
    want = truth(codes, weights, start, zero, **window)
    params = {"kernel": w[1:3], "zero": zero, **window}
    if len(w) == 3:
        name, given_ = DEPTHWISE_LAST, weights.reshape(w[0], -1).T.copy()
        start = start.astype(np.float32)  # type: ignore[assignment]
    else:
        caps = PRESETS[tier] if tier in PRESETS else device(tier).caps
        count, lanes = bands(w[0], caps)
        rows = np.zeros((count * lanes, weights[0].size), np.int8)
        rows[: w[0]] = weights.reshape(w[0], -1)
        given_ = rows.reshape(count, lanes, -1, 4).transpose(0, 2, 1, 3).copy()
        name, params["channels"] = CONV_LAST, w[0]
    arrays = [codes, given_, start]
    np.testing.assert_array_equal(ops.call(name, *arrays, **params), want)
    graph = trace(lambda *values: ops.call(name, *values, **params), arrays)
    got = play(tier, group_of(graph, "conv", "call"), arrays)[0]
    np.testing.assert_array_equal(got, want)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 7, 6, 20), (33, 3, 3, 20), {"padding": ((1, 1), (1, 1))}),
    "1x1 by two": ((1, 5, 7, 16), (70, 1, 1, 16), {"stride": (2, 2)}),
    "first": ((1, 15, 13, 4), (16, 7, 7, 4), {"padding": ((3, 3), (3, 3)), "stride": (2, 2)}),
    "apart": ((1, 9, 8, 8), (7, 3, 2, 8), {"dilation": (2, 3), "padding": ((0, 2), (3, 1))}),
    "depthwise by two": (
        (1, 9, 12, 33), (33, 5, 5), {"padding": ((2, 2), (2, 1)), "stride": (2, 2)}),
    "depthwise apart": ((2, 8, 7, 6), (6, 3, 2), {"padding": ((4, 0), (1, 5)), "dilation": (2, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("tier", ALL)
@pytest.mark.parametrize("name", CASES)
def test_exact_sums(tier: str, name: str) -> None:
    x, w, window = CASES[name]
    agree(tier, x, w, np.uint8, 131, **window)
    agree(tier, x, w, np.int8, -7, **window)


def test_sums_beyond_what_a_float_holds() -> None:
    agree("cpu", (1, 3, 3, 1200), (5, 3, 3, 1200), np.uint8, 255, padding=((1, 1), (1, 1)))


@given(st.data(), st.booleans(), st.sampled_from([np.uint8, np.int8]))
@settings(max_examples=25, deadline=None)
def test_any_window_on_this_cpu(data: Any, deep: bool, dtype: Any) -> None:
    draw = data.draw
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, apart = pair(1, 5), pair(1, 3), pair(1, 2)
    sides = (pair(0, 4), pair(0, 4))
    reach = [d * (k - 1) + 1 for d, k in zip(apart, kernel)]
    size = [max(draw(st.integers(1, 20)), r - sum(p)) for r, p in zip(reach, sides)]
    c, o = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    c = c if deep else 4 * -(-c // 4)
    w = (c, *kernel) if deep else (o, *kernel, c)
    zero = draw(st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)))
    window = {"stride": stride, "padding": sides, "dilation": apart}
    agree("cpu", (draw(st.integers(1, 2)), *size, c), w, dtype, zero, **window)
