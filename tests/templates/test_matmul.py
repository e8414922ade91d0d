"""The matmul template against NumPy in float64: shapes, layouts, dtypes, batches, epilogues."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from hypothesis import given, settings, strategies as st

from weft.backends.cpu import CpuDevice
from weft.core import dtypes as dt

CPU = CpuDevice()
WIDE = [dt.float32, dt.float16, dt.bfloat16]


def layouts(m: int, n: int, k: int, a_t: bool, b_t: bool, dtype=dt.float32, batch=()):  # type: ignore[no-untyped-def]
    """Sources and a dot whose operands are stored as they are or transposed."""
    x = source("x", (*batch, k, m) if a_t else (*batch, m, k), dtype)
    w = source("w", (*batch, n, k) if b_t else (*batch, k, n), dtype)
    a = f.swap_last(x) if a_t else x
    b = f.swap_last(w) if b_t else w
    return x, w, a, b


def truth(x: np.ndarray, w: np.ndarray, a_t: bool, b_t: bool) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    return (x.swapaxes(-1, -2) if a_t else x) @ (w.swapaxes(-1, -2) if b_t else w)


@pytest.mark.parametrize("a_t", [False, True])
@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("shape", [(70, 130, 96), (37, 64, 130), (19, 7, 5)])
def test_layouts_and_dtypes(shape, dtype, a_t, b_t) -> None:  # type: ignore[no-untyped-def]
    m, n, k = shape
    x, w, a, b = layouts(m, n, k, a_t, b_t, dtype)
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(CPU, "matmul", [x, w], [f.dot(a, b, dt.float32)], arrays)
    kit.close(got, truth(*arrays, a_t, b_t), np.float32, 4 * k)


@settings(max_examples=15, deadline=None)
@given(
    m=st.integers(1, 70), n=st.integers(1, 90), k=st.integers(1, 70),
    a_t=st.booleans(), b_t=st.booleans(), batch=st.sampled_from([(), (3,), (2, 2)]),
)  # fmt: skip
def test_any_shape(m, n, k, a_t, b_t, batch) -> None:  # type: ignore[no-untyped-def]
    x, w, a, b = layouts(m, n, k, a_t, b_t, batch=batch)
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(CPU, "matmul", [x, w], [f.dot(a, b)], arrays)
    kit.close(got, truth(*arrays, a_t, b_t), k=k)


@pytest.mark.parametrize("kind", ["matmul", "matvec"])
@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("pair", [("int8", "int8"), ("uint8", "uint8")])
def test_integers_are_exact(kind, b_t, pair) -> None:  # type: ignore[no-untyped-def]
    x = source("x", (9, 333), dt.as_dtype(pair[0]))
    w = source("w", (50, 333) if b_t else (333, 50), dt.as_dtype(pair[1]))
    arrays = [kit.fill(x), kit.fill(w)]
    b = f.swap_last(w) if b_t else w
    (got,) = kit.play(CPU, kind, [x, w], [f.dot(x, b)], arrays)
    np.testing.assert_array_equal(got, truth(*arrays, False, b_t).astype(np.int32))


@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("dtype", WIDE)
def test_k_blocks(dtype, b_t) -> None:  # type: ignore[no-untyped-def]
    x, w, a, b = layouts(45, 80, 1500, False, b_t, dtype)
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(CPU, "matmul", [x, w], [f.dot(a, b, dt.float32)], arrays)
    kit.close(got, truth(*arrays, False, b_t), np.float32, 1500)


@pytest.mark.parametrize("kind,m", [("matmul", 45), ("matvec", 5)])
@pytest.mark.parametrize("dtype", WIDE)
def test_epilogue_bias_gelu_residual(kind, m, dtype) -> None:  # type: ignore[no-untyped-def]
    x, w = source("x", (m, 64), dtype), source("w", (70, 64), dtype)
    bias, res = source("bias", (70,), dtype), source("res", (m, 70), dtype)
    y = f.dot(x, f.swap_last(w))
    out = f.add(res, kit.gelu(f.add(y, f.broadcast(bias, y.shape))))
    ins = [x, w, bias, res]
    arrays = [kit.fill(n) for n in ins]
    (got,) = kit.play(CPU, kind, ins, [out], arrays)
    xs, ws, bs, rs = (a.astype(np.float64) for a in arrays)
    z = xs @ ws.T + bs
    import torch

    want = rs + torch.nn.functional.gelu(torch.from_numpy(z)).numpy()
    kit.close(got, want, dtype, 64)


@pytest.mark.parametrize("kind,m", [("matmul", 33), ("matvec", 1), ("matvec", 7)])
def test_gate(kind, m) -> None:  # type: ignore[no-untyped-def]
    x = source("x", (m, 48))
    wg, wu = source("g", (90, 48)), source("u", (90, 48))
    out = f.mul(kit.silu(f.dot(x, f.swap_last(wg))), f.dot(x, f.swap_last(wu)))
    ins = [x, wg, wu]
    arrays = [kit.fill(n) for n in ins]
    (got,) = kit.play(CPU, kind, ins, [out], arrays)
    xs, gs, us = (a.astype(np.float64) for a in arrays)
    g = xs @ gs.T
    kit.close(got, g / (1 + np.exp(-g)) * (xs @ us.T), k=4 * 48)


def test_broadcast_weight_merges_batch_into_rows() -> None:
    x, w = source("x", (3, 11, 40)), source("w", (50, 40))
    y = f.dot(x, f.broadcast(f.swap_last(w), (3, 40, 50)))
    out = f.reshape(f.add(y, kit.number(1.0, y)), (33, 50))
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(CPU, "matmul", [x, w], [out], arrays)
    kit.close(got, (arrays[0].astype(np.float64) @ arrays[1].T + 1).reshape(33, 50), k=40)


def test_mixed_weight_dtype_reads_through_the_cast() -> None:
    x, w = source("x", (40, 64)), source("w", (70, 64), dt.float16)
    out = f.dot(x, f.swap_last(f.cast(w, dt.float32)))
    arrays = [kit.fill(x), kit.fill(w)]
    for kind in ("matmul", "matvec"):
        (got,) = kit.play(CPU, kind, [x, w], [out], arrays)
        kit.close(got, arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T, k=64)


@pytest.mark.parametrize("rows", [1, 5, 13, 14, 39, 40, 64])
def test_runtime_rows_and_batch_invariance(rows: int) -> None:
    x, w = source("x", (40, 600)), source("w", (70, 600))
    arrays = [kit.fill(x), kit.fill(w)]
    out = f.dot(x, f.swap_last(w))
    (full,) = kit.play(CPU, "matmul", [x, w], [out], arrays)
    (got,) = kit.play(
        CPU, "matmul", [x, w], [out], arrays, [rows], rows="n", slots={"n": 0},
    )  # fmt: skip
    n = min(rows, 40)
    np.testing.assert_array_equal(got[:n], full[:n])
    x1 = source("x", (n, 600))
    (own,) = kit.play(
        CPU, "matmul", [x1, w], [f.dot(x1, f.swap_last(w))], [arrays[0][:n], arrays[1]]
    )
    np.testing.assert_array_equal(own, full[:n])
