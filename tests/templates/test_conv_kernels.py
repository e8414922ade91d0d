"""Convolutions with channels last: every tier against float64 and against the one order of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from harness import QUICK, TIERS, group_of, play, trace
from hypothesis import given, settings, strategies as st
from product_kit import device
from rows import few

from weft import ops
from weft.core.caps import PRESETS
from weft.core.order import CHUNK, SPAN
from weft.ops.conv_last import CONV, DEPTHWISE
from weft.ops.winograd import WEIGHTS, WINOGRAD
from weft.templates.conv.sizes import bands

SLOW = pytest.mark.slow
ALL = [pytest.param(t, marks=[] if t in QUICK else [SLOW]) for t in TIERS]


def caps_of(tier: str) -> Any:
    return PRESETS[tier] if tier in PRESETS else device(tier).caps


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def run(tier: str, x: np.ndarray, w: np.ndarray, extra: np.ndarray | None, **window: Any) -> Any:
    """max(conv(x, w) + extra, 0) as one kernel; x[N, H, W, C], w[O, KH, KW, C] (depthwise
    [C, KH, KW])."""
    params = {"kernel": w.shape[1:3], **window}
    if w.ndim == 3:
        name, weights = DEPTHWISE, w.reshape(len(w), -1).T.copy()
    elif len(window) == 1:
        name, weights = WINOGRAD, matrices(w, *bands(len(w), caps_of(tier)))
        params = {"channels": len(w), **window}
    else:
        count, lanes = bands(len(w), caps_of(tier))
        rows = np.zeros((count * lanes, w[0].size), np.float32)
        rows[: len(w)] = w.reshape(len(w), -1)
        weights = rows.reshape(count, lanes, -1).transpose(0, 2, 1).copy()
        name, params["channels"] = CONV, len(w)

    def fn(x: Any, w: Any, *more: Any) -> Any:
        y = ops.call(name, x, w, **params)
        return ops.maximum(ops.add(y, more[0]), ops.full_like(y, 0)) if more else y

    arrays = [x, weights] if extra is None else [x, weights, extra]
    graph = trace(fn, arrays)
    return play(tier, group_of(graph, "conv", "call"), arrays)[0]


def matrices(w: np.ndarray, count: int, lanes: int) -> np.ndarray:
    """w[O, 3, 3, C] as the 16 matrices of ops/winograd: [16, count, C, lanes]."""
    made = np.einsum("ai,bj,oijc->aboc", WEIGHTS, WEIGHTS, w).reshape(16, len(w), -1)
    padded = np.zeros((16, count * lanes, made.shape[2]), np.float32)
    padded[:, : len(w)] = made
    return padded.reshape(16, count, lanes, -1).transpose(0, 1, 3, 2).copy()


def truth(x: np.ndarray, w: np.ndarray, extra: np.ndarray | None, **window: Any) -> np.ndarray:
    """By PyTorch in float64."""
    (top, bottom), (left, right) = window["padding"]
    image = torch.tensor(x, dtype=torch.float64).permute(0, 3, 1, 2)
    image = torch.nn.functional.pad(image, (left, right, top, bottom))
    kernel = torch.tensor(w, dtype=torch.float64)
    kernel = kernel[:, None] if w.ndim == 3 else kernel.permute(0, 3, 1, 2)
    groups = len(w) if w.ndim == 3 else 1
    at = (window["stride"], 0, window["dilation"], groups)
    y = torch.nn.functional.conv2d(image, kernel, None, *at).permute(0, 2, 3, 1).numpy()
    return y if extra is None else np.maximum(y + extra, 0)


def agree(tier: str, x: np.ndarray, w: np.ndarray, more: bool, **window: Any) -> None:
    window = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), **window}
    want = truth(x, w, None, **window)
    extra = numbers(*want.shape) if more else None
    got = run(tier, x, w, extra, **window)
    want = truth(x, w, extra, **window)
    scale = float(np.abs(want).max()) or 1.0
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * scale)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 7, 6, 20), (33, 3, 3, 20), {"padding": ((1, 1), (1, 1))}),
    "1x1": ((1, 5, 9, 40), (24, 1, 1, 40), {}),
    "1x1 by two": ((1, 7, 7, 18), (70, 1, 1, 18), {"stride": (2, 2)}),
    "first": ((1, 15, 13, 3), (16, 7, 7, 3), {"padding": ((3, 3), (3, 3)), "stride": (2, 2)}),
    "apart": ((1, 9, 8, 5), (7, 3, 2, 5), {"dilation": (2, 3), "padding": ((0, 2), (3, 1))}),
    "long": ((1, 4, 3, 260), (5, 3, 3, 260), {"padding": ((1, 1), (1, 1))}),
    "depthwise": ((2, 6, 9, 20), (20, 3, 3), {"padding": ((1, 1), (1, 1))}),
    "depthwise by two": (
        (1, 9, 12, 33), (33, 5, 5), {"padding": ((2, 2), (2, 1)), "stride": (2, 2)}),
    "depthwise apart": ((1, 8, 7, 6), (6, 3, 2), {"padding": ((4, 0), (1, 5)), "dilation": (2, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("tier", ALL)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(tier: str, name: str) -> None:
    x, w, window = CASES[name]
    agree(tier, numbers(*x), numbers(*w), True, **window)


@given(st.data(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_window_on_this_cpu(data: Any, deep: bool) -> None:
    draw = data.draw
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, apart = pair(1, 5), pair(1, 3), pair(1, 2)
    sides = (pair(0, 4), pair(0, 4))
    reach = [d * (k - 1) + 1 for d, k in zip(apart, kernel)]
    size = [max(draw(st.integers(1, 20)), r - sum(p)) for r, p in zip(reach, sides)]
    c, o = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    x = numbers(draw(st.integers(1, 2)), *size, c)
    w = numbers(c, *kernel) if deep else numbers(o, *kernel, c)
    agree("cpu", x, w, draw(st.booleans()), stride=stride, padding=sides, dilation=apart)


def in_order(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """sum of x[M, K] w[O, K] as core/order has it: chains of fused multiply-adds (through float64,
    in which a product is exact), chunks, spans."""
    m, k = x.shape
    total = None
    for a in range(0, k, SPAN):
        span = None
        for c in range(a, min(a + SPAN, k), CHUNK):
            acc = np.zeros((m, len(w)), np.float32)
            for i in range(c, min(c + CHUNK, a + SPAN, k)):
                exact = np.outer(x[:, i].astype(np.float64), w[:, i]) + acc
                acc = exact.astype(np.float32)
            span = acc if span is None else span + acc
        total = span if total is None else total + span
    assert total is not None
    return total


@pytest.mark.parametrize("tier", few(["cpu", "cpu-avx512", "cpu-avx2", "cuda"], "cpu", "cuda"))
def test_the_one_order(tier: str) -> None:
    """Of several chunks and spans, with padding; and so for every batch."""
    x, w = numbers(2, 3, 4, 260), numbers(6, 3, 3, 260)
    window = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    rows = [wide[n, i : i + 3, j : j + 3].reshape(-1) for n in (0, 1) for i in range(3)
            for j in range(4)]  # fmt: skip
    want = in_order(np.array(rows), w.reshape(6, -1)).reshape(2, 3, 4, 6)
    got = run(tier, x, w, None, **window)
    # the double rounding of the reference shows in the last bit, rarely
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)
    assert (got == want).mean() > 0.99
    np.testing.assert_array_equal(run(tier, x[1:], w, None, **window), got[1:])


# -- with fewer products --------------------------------------------------------------------------

FEWER: dict[str, tuple[tuple[int, ...], int, Any]] = {  # x, outputs, padding
    "even": ((2, 8, 6, 20), 33, ((1, 1), (1, 1))),
    "odd": ((1, 5, 9, 16), 16, ((0, 0), (0, 0))),
    "wide edges": ((1, 4, 3, 3), 70, ((2, 0), (3, 4))),
    "deep": ((1, 7, 7, 270), 8, ((1, 1), (1, 1))),
}


WITH = [(name, tier) for name in FEWER for tier in ("cpu", "cpu-avx512", "cpu-avx2")]
QUICK_WITH = [(n, t) for n, t in WITH if t == "cpu" or (t == "cpu-avx512" and n != "deep")]


@pytest.mark.parametrize("name,tier", few(WITH, *QUICK_WITH))
def test_fewer_products_against_float64(tier: str, name: str) -> None:
    size, outputs, padding = FEWER[name]
    x, w = numbers(*size), numbers(outputs, 3, 3, size[-1])
    window = {"stride": (1, 1), "padding": padding, "dilation": (1, 1)}
    extra = numbers(*truth(x, w, None, **window).shape)
    want = truth(x, w, extra, **window)
    got = run(tier, x, w, extra, padding=padding)
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.abs(want).max())
    alone = run(tier, x[-1:], w, extra[-1:], padding=padding)
    np.testing.assert_array_equal(alone, got[-1:])


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_fewer_products_of_any_image(data: Any) -> None:
    draw = data.draw
    sides = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(2))
    size = [draw(st.integers(max(1, 3 - sum(p)), 30)) for p in sides]
    c, o = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    x, w = numbers(draw(st.integers(1, 2)), *size, c), numbers(o, 3, 3, c)
    want = truth(x, w, None, stride=(1, 1), padding=sides, dilation=(1, 1))
    got = run("cpu", x, w, None, padding=sides)
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.abs(want).max())


def test_fewer_products_mean_what_their_body_does() -> None:
    size, outputs, padding = FEWER["wide edges"]
    x, w = numbers(*size), numbers(outputs, 3, 3, size[-1])
    made = matrices(w, 5, 16)
    got = ops.evaluate(trace(lambda x, u: ops.call(WINOGRAD, x, u, channels=70, padding=padding),
                             [x, made]), [x, made])  # fmt: skip
    want = truth(x, w, None, stride=(1, 1), padding=padding, dilation=(1, 1))
    np.testing.assert_allclose(got[0], want, rtol=0, atol=4e-6 * np.abs(want).max())
