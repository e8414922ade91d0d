"""One order of every product (core.order): the streaming and the blocked kernel, any number of rows
and any target give the same bits, and those of a plain chain in NumPy."""

from __future__ import annotations

import functools

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from harness import targets
from test_matmul_order import chain, plain
from test_matmul_targets import device as machine

from weft.backends.cpu import CpuDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.order import CHUNK, SPAN
from weft.program.device import Device

ROWS = (1, 2, 5, 16)  # of the streaming product; the blocked one takes these and more
MORE = (17, 67)
TARGETS = [*PRESETS, "vulkan"]
DTYPES = (dt.float32, dt.float16, dt.bfloat16, dt.int8)
LENGTHS = (1, 15, CHUNK, CHUNK + 1, 700, SPAN, SPAN + 1, 4100)


@functools.cache
def device(name: str) -> Device:
    return CpuDevice() if name == "cpu" else machine(name)


@functools.cache
def content(n: int, k: int, dtype: dt.DType, b_t: bool) -> tuple[np.ndarray, np.ndarray]:
    """x of the most rows, and w."""
    rng = np.random.default_rng([n, k, b_t])
    w = source("w", (n, k) if b_t else (k, n), dtype)
    return kit.fill(source("x", (MORE[-1], k), dtype), rng), kit.fill(w, rng)


def rows_of(name: str, kind: str, m: int, n: int, k: int, dtype: dt.DType, b_t: bool) -> np.ndarray:
    """The first m rows of the product, by the template of a kind."""
    xs, ws = content(n, k, dtype, b_t)
    x, w = source("x", (m, k), dtype), source("w", ws.shape, dtype)
    wide = dt.float32 if dtype.is_float else dt.int32
    out = f.dot(x, f.swap_last(w) if b_t else w, wide)
    (got,) = kit.play(device(name), kind, [x, w], [out], [xs[:m], ws])
    return got


def reference(n: int, k: int, dtype: dt.DType, b_t: bool, m: int) -> np.ndarray:
    xs, ws = content(n, k, dtype, b_t)
    w = ws.T if b_t else ws
    if not dtype.is_float:
        return xs[:m].astype(np.int32) @ w.astype(np.int32)
    return chain(xs[:m], w)


def check(name: str, n: int, k: int, dtype: dt.DType, b_t: bool, few: tuple, more: tuple) -> None:
    full = rows_of(name, "matvec", few[-1], n, k, dtype, b_t)
    if not dtype.is_float or (dtype in plain(device(name).caps) and name != "vulkan"):
        np.testing.assert_array_equal(full, reference(n, k, dtype, b_t, few[-1]))
    for m in few[:-1]:
        np.testing.assert_array_equal(rows_of(name, "matvec", m, n, k, dtype, b_t), full[:m])
    for m in more:
        got = rows_of(name, "matmul", m, n, k, dtype, b_t)
        rows = min(m, few[-1])
        np.testing.assert_array_equal(got[:rows], full[:rows])


@pytest.mark.parametrize("b_t", [True, False], ids=["NK", "KN"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", targets(*TARGETS))
def test_any_number_of_rows_on_every_target(name: str, dtype: dt.DType, b_t: bool) -> None:
    """Small sizes: most targets are interpreted."""
    for n, k in ((5, CHUNK + 9), (19, 47), (3, 1)):
        check(name, n, k, dtype, b_t, (1, 3, 6), (2, 7, 17))


@pytest.mark.parametrize("b_t", [True, False], ids=["NK", "KN"])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=str)
@pytest.mark.parametrize("name", targets(*TARGETS))
def test_spans_on_every_target(name: str, dtype: dt.DType, b_t: bool) -> None:
    check(name, 3, SPAN + CHUNK + 34, dtype, b_t, (1, 2), (2,))


@pytest.mark.parametrize("b_t", [True, False], ids=["NK", "KN"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length_on_the_cpu(dtype: dt.DType, b_t: bool) -> None:
    for k in LENGTHS:
        check("cpu", 37, k, dtype, b_t, ROWS, (*ROWS, *MORE))


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=str)
def test_every_length_on_vulkan(dtype: dt.DType) -> None:
    for k in LENGTHS[2:]:
        check("vulkan", 7, k, dtype, True, (1, 5), (5, 17))
