"""The matvec template: layouts, dtypes, several dots at once, and bit-identical rows."""

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


@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("n,k", [(200, 96), (3, 64), (77, 133), (1, 5)])
def test_rows_are_bit_identical_for_any_batch(n, k, dtype, b_t) -> None:  # type: ignore[no-untyped-def]
    w = source("w", (n, k) if b_t else (k, n), dtype)
    b = f.swap_last(w) if b_t else w
    ws = kit.fill(w)
    xs = kit.fill(source("x", (16, k), dtype))
    want = xs.astype(np.float64) @ (ws.T if b_t else ws).astype(np.float64)
    first = None
    for m in (1, 2, 3, 4, 5, 8, 16):
        x = source("x", (m, k), dtype)
        (got,) = kit.play(CPU, "matvec", [x, w], [f.dot(x, b, dt.float32)], [xs[:m], ws])
        kit.close(got, want[:m], np.float32, 4 * k)
        first = got if first is None else first
        np.testing.assert_array_equal(got[:1], first)
        if m == 16:
            x = source("x", (1, k), dtype)
            for i in (3, 15):
                (one,) = kit.play(
                    CPU, "matvec", [x, w], [f.dot(x, b, dt.float32)], [xs[i : i + 1], ws]
                )
                np.testing.assert_array_equal(one[0], got[i])


@settings(max_examples=15, deadline=None)
@given(m=st.integers(1, 16), n=st.integers(1, 300), k=st.integers(1, 200), b_t=st.booleans())
def test_any_shape(m, n, k, b_t) -> None:  # type: ignore[no-untyped-def]
    x, w = source("x", (m, k)), source("w", (n, k) if b_t else (k, n))
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(CPU, "matvec", [x, w], [f.dot(x, f.swap_last(w) if b_t else w)], arrays)
    want = arrays[0].astype(np.float64) @ (arrays[1].T if b_t else arrays[1]).astype(np.float64)
    kit.close(got, want, k=k)


@pytest.mark.parametrize("m", [1, 6])
def test_three_dots_of_different_width(m: int) -> None:
    x = source("x", (m, 96), dt.bfloat16)
    ws = [source(f"w{i}", (n, 96), dt.bfloat16) for i, n in enumerate((64, 24, 17))]
    bias = source("bias", (24,), dt.bfloat16)
    q, k, v = (f.dot(x, f.swap_last(w)) for w in ws)
    k = f.add(k, f.broadcast(bias, k.shape))
    ins = [x, *ws, bias]
    arrays = [kit.fill(n) for n in ins]
    got = kit.play(CPU, "matvec", ins, [q, k, f.reshape(v, (m, 17))], arrays)
    xs, *wide = (a.astype(np.float64) for a in arrays)
    want = [xs @ w.T for w in wide[:3]]
    want[1] += wide[3]
    for g, t in zip(got, want):
        kit.close(g, t, "bfloat16", 96)


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_runtime_rows(rows: int) -> None:
    x, w = source("x", (8, 96)), source("w", (64, 96))
    arrays = [kit.fill(x), kit.fill(w)]
    out = f.dot(x, f.swap_last(w))
    (full,) = kit.play(CPU, "matvec", [x, w], [out], arrays)
    (got,) = kit.play(CPU, "matvec", [x, w], [out], arrays, [rows], rows="n", slots={"n": 0})
    n = min(rows, 8)
    np.testing.assert_array_equal(got[:n], full[:n])


def test_residual_in_place() -> None:
    x, w, res = source("x", (2, 96)), source("w", (67, 96)), source("res", (2, 67))
    out = f.add(res, f.dot(x, f.swap_last(w)))
    arrays = [kit.fill(n) for n in (x, w, res)]
    from weft.conform.harness import run_kernel
    from weft.templates import registry
    from weft.templates.group import Group

    group = Group("matvec", (x, w, res), (out,), None, in_place={0: 2}, name="k")
    kernel = registry.get("matvec")(group, CPU.caps, {})
    done = run_kernel(CPU, kernel, arrays)
    want = arrays[2] + arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T
    kit.close(done[2], want, k=96)
