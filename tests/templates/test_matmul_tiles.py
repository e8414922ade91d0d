"""Products of bf16 matrices in matrix registers: the interpreter, the portable expansion, and the
CPU's own unit where it has one, against NumPy in float64."""

from __future__ import annotations

import functools
from typing import Any

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from hypothesis import given, settings, strategies as st

from weft.backends.cpu import CpuDevice
from weft.backends.interp import InterpDevice
from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.graph.ir import Node
from weft.kernel.tiles import expand, has_tiles
from weft.kernel.verify import verify
from weft.program.device import Device
from weft.templates import registry
from weft.templates.group import Group

WAYS = ["interp", "expanded", "cpu"]
BF16 = dt.bfloat16


@functools.cache
def cpu() -> CpuDevice:
    return CpuDevice(threads=2)


@functools.cache
def device(way: str) -> Device:
    if way == "interp":
        return InterpDevice("cpu-amx")
    if way == "cpu" and "mma_bf16" not in cpu().caps.features:
        pytest.skip("this CPU has no AMX, or the system refuses its use")
    return cpu()


def play(
    way: str, inputs: list[Node], outputs: list[Node], arrays: list[np.ndarray],
    scalars: tuple[int, ...] = (), config: dict[str, Any] | None = None, **fields: Any,
) -> list[np.ndarray]:  # fmt: skip
    """The outputs of a matmul group built for a matrix unit."""
    group = Group("matmul", tuple(inputs), tuple(outputs), None, name="k", **fields)
    kernel = registry.get("matmul")(group, PRESETS["cpu-amx"], config or {})
    verify(kernel)
    assert has_tiles(kernel.body)
    if way == "expanded":
        kernel = expand(kernel)
        verify(kernel)
        assert not has_tiles(kernel.body)
    blanks = [np.full(o.shape, 77, o.dtype.numpy) for o in outputs]
    return run_kernel(device(way), kernel, [*arrays, *blanks], scalars)[len(inputs) :]


def operands(m: int, n: int, k: int, a_t: bool, b_t: bool, batch: tuple[int, ...] = ()):  # type: ignore[no-untyped-def]
    x = source("x", (*batch, k, m) if a_t else (*batch, m, k), BF16)
    w = source("w", (*batch, n, k) if b_t else (*batch, k, n), BF16)
    return x, w, f.swap_last(x) if a_t else x, f.swap_last(w) if b_t else w


def truth(x: np.ndarray, w: np.ndarray, a_t: bool, b_t: bool) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    return (x.swapaxes(-1, -2) if a_t else x) @ (w.swapaxes(-1, -2) if b_t else w)


@pytest.mark.parametrize("a_t", [False, True])
@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("shape", [(64, 64, 64), (70, 45, 99), (17, 33, 31), (96, 32, 320)])
@pytest.mark.parametrize("way", WAYS)
def test_layouts(way: str, shape: tuple[int, int, int], a_t: bool, b_t: bool) -> None:
    m, n, k = shape
    x, w, a, b = operands(m, n, k, a_t, b_t)
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = play(way, [x, w], [f.dot(a, b, dt.float32)], arrays, config={"kc": 128})
    kit.close(got, truth(*arrays, a_t, b_t), np.float32, 4 * k)


@settings(max_examples=12, deadline=None)
@given(
    m=st.integers(1, 100), n=st.integers(1, 90), k=st.integers(16, 150),
    a_t=st.booleans(), b_t=st.booleans(), batch=st.sampled_from([(), (3,), (2, 2)]),
)  # fmt: skip
def test_any_shape(m, n, k, a_t, b_t, batch) -> None:  # type: ignore[no-untyped-def]
    x, w, a, b = operands(m, n, k, a_t, b_t, batch)
    arrays = [kit.fill(x), kit.fill(w)]
    for way in ("cpu" if "mma_bf16" in cpu().caps.features else "expanded",):
        (got,) = play(way, [x, w], [f.dot(a, b)], arrays)
        kit.close(got, truth(*arrays, a_t, b_t), BF16, 4 * k)


@pytest.mark.parametrize("way", WAYS)
def test_operands_without_a_unit_stride(way: str) -> None:
    x, w = source("x", (40, 2, 50), BF16), source("w", (50, 3, 37), BF16)
    a = f.reshape(f.slice_(x, (0, 1, 0), (40, 2, 50), (1, 1, 2)), (40, 25))
    b = f.reshape(f.slice_(w, (0, 2, 0), (50, 3, 37), (2, 1, 2)), (25, 19))
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = play(way, [x, w], [f.dot(a, b, dt.float32)], arrays)
    xs, ws = arrays[0][:, 1, ::2], arrays[1][::2, 2, ::2]
    kit.close(got, truth(xs, ws, False, False), np.float32, 100)


@pytest.mark.parametrize("way", WAYS)
def test_gate_of_two_dots_with_bf16_output(way: str) -> None:
    x, g, u = (source(n, s, BF16) for n, s in (("x", (50, 96)), ("g", (70, 96)), ("u", (70, 96))))
    gate, up = (f.dot(x, f.swap_last(w), dt.float32) for w in (g, u))
    out = f.cast(f.mul(kit.silu(gate), up), BF16)
    arrays = [kit.fill(n) for n in (x, g, u)]
    (got,) = play(way, [x, g, u], [out], arrays, config={"kc": 32, "panels": 2})
    xs, gs, us = (a.astype(np.float64) for a in arrays)
    want = xs @ gs.T
    kit.close(got, want / (1 + np.exp(-want)) * (xs @ us.T), BF16, 4 * 96)


@pytest.mark.parametrize("way", WAYS)
def test_several_outputs_share_the_left_operand(way: str) -> None:
    x = source("x", (33, 64), BF16)
    ws = [source(n, (40, 64), BF16) for n in "qkv"]
    outs = [f.dot(x, f.swap_last(w), dt.float32) for w in ws]
    arrays = [kit.fill(n) for n in (x, *ws)]
    got = play(way, [x, *ws], outs, arrays)
    for g, w in zip(got, arrays[1:]):
        kit.close(g, truth(arrays[0], w, False, True), np.float32, 4 * 64)


@pytest.mark.parametrize("k", [96, 70])
@pytest.mark.parametrize("rows", [1, 16, 31, 50, 64])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_does_not_depend_on_how_many_there_are(way: str, rows: int, k: int) -> None:
    x, w = source("x", (64, k), BF16), source("w", (40, k), BF16)
    arrays = [kit.fill(x), kit.fill(w)]
    out = f.dot(x, f.swap_last(w), dt.float32)
    (full,) = play(way, [x, w], [out], arrays)
    (got,) = play(way, [x, w], [out], arrays, (rows,), rows="n", slots={"n": 0})
    np.testing.assert_array_equal(got[:rows], full[:rows])
    own = source("x", (rows, k), BF16)
    out = f.dot(own, f.swap_last(w), dt.float32)
    (alone,) = play(way, [own, w], [out], [arrays[0][:rows], arrays[1]], config={"kc": 64})
    np.testing.assert_array_equal(alone, full[:rows])


@pytest.mark.parametrize("way", WAYS)
def test_infinities_and_nans_stay_in_their_rows_and_columns(way: str) -> None:
    x, w = source("x", (37, 45), BF16), source("w", (45, 34), BF16)
    arrays = [kit.fill(x), kit.fill(w)]
    arrays[0][36, 44], arrays[1][3, 33] = np.nan, np.inf
    (got,) = play(way, [x, w], [f.dot(x, w, dt.float32)], arrays)
    with np.errstate(invalid="ignore"):
        want = truth(*arrays, False, False)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    assert np.isnan(got[36]).all() and np.isfinite(got[:36, :33]).all()


def test_other_dtypes_and_short_dots_take_the_vector_units() -> None:
    for dtype, k in ((dt.float32, 64), (dt.float16, 64), (BF16, 8)):
        x, w = source("x", (40, k), dtype), source("w", (k, 40), dtype)
        group = Group("matmul", (x, w), (f.dot(x, w, dt.float32),), None, name="k")
        assert not has_tiles(registry.get("matmul")(group, PRESETS["cpu-amx"], {}).body)
    x, w = source("x", (40, 64), BF16), source("w", (64, 40), BF16)
    group = Group("matmul", (x, w), (f.dot(x, w, dt.float32),), None, name="k")
    assert not has_tiles(registry.get("matmul")(group, PRESETS["cpu-avx512"], {}).body)
