"""Few rows times weights on GPUs with subgroups: layouts, dtypes, edges, several dots, and rows
that do not depend on each other, in the interpreter with the Caps of NVIDIA and AMD."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from hypothesis import given, settings, strategies as st

from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.kernel import interp
from weft.templates import registry
from weft.templates.group import Group

DEVICES = {name: InterpDevice(name) for name in ("cuda", "hip-wave64", "hip-wave32")}
DTYPES = [dt.float32, dt.float16, dt.bfloat16]


def product(m, n, k, b_t, dtype=dt.float32):  # type: ignore[no-untyped-def]
    x, w = source("x", (m, k), dtype), source("w", (n, k) if b_t else (k, n), dtype)
    return [x, w], f.dot(x, f.swap_last(w) if b_t else w, dt.float32)


def truth(x: np.ndarray, w: np.ndarray, b_t: bool) -> np.ndarray:
    return x.astype(np.float64) @ (w.T if b_t else w).astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(DEVICES)), dtype=st.sampled_from(DTYPES), m=st.integers(1, 16),
    n=st.sampled_from([1, 5, 16, 33, 96, 130]), k=st.sampled_from([1, 3, 8, 100, 256, 700, 1030]),
    b_t=st.booleans(),
)  # fmt: skip
def test_any_shape(name, dtype, m, n, k, b_t) -> None:  # type: ignore[no-untyped-def]
    ins, out = product(m, n, k, b_t, dtype)
    arrays = [kit.fill(x) for x in ins]
    (got,) = kit.play(DEVICES[name], "matvec", ins, [out], arrays)
    kit.close(got, truth(*arrays, b_t), np.float32, 4 * k)


@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
def test_rows_and_plans_give_the_same_bits(name: str, dtype: dt.DType, b_t: bool) -> None:
    n, k = 72, 1100
    ins, out = product(16, n, k, b_t, dtype)
    arrays = [kit.fill(x) for x in ins]
    (full,) = kit.play(DEVICES[name], "matvec", ins, [out], arrays)
    for m in (1, 2, 5, 13):
        few, one = product(m, n, k, b_t, dtype)
        (got,) = kit.play(DEVICES[name], "matvec", few, [one], [arrays[0][-m:], arrays[1]])
        np.testing.assert_array_equal(got, full[-m:])
    few, one = product(3, n, k, b_t, dtype)
    group = Group("matvec", tuple(few), (one,), None, name="k")
    found = registry.candidates(group, DEVICES[name].caps)
    assert len(found) > 3
    for config in found[::3]:
        (got,) = kit.play(
            DEVICES[name], "matvec", few, [one], [arrays[0][:3], arrays[1]], config=config
        )
        np.testing.assert_array_equal(got, full[:3])


@pytest.mark.parametrize("name", DEVICES)
def test_rows_bounded_at_run_time(name: str) -> None:
    for b_t in (False, True):
        ins, out = product(8, 40, 96, b_t)
        arrays = [kit.fill(x) for x in ins]
        (full,) = kit.play(DEVICES[name], "matvec", ins, [out], arrays)
        for rows in (1, 4, 9):
            (got,) = kit.play(
                DEVICES[name], "matvec", ins, [out], arrays, [rows], rows="n", slots={"n": 0}
            )
            n = min(rows, 8)
            np.testing.assert_array_equal(got[:n], full[:n])


@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
def test_several_dots_of_both_layouts(name: str) -> None:
    """Gate and up that meet, and a third of another width and layout, in one launch."""
    k, x = 260, source("x", (6, 260), dt.bfloat16)
    gate, up = (source("w", (90, k), dt.bfloat16) for _ in range(2))
    other, res = source("v", (k, 33), dt.bfloat16), source("res", (6, 90), dt.bfloat16)
    y = f.mul(
        kit.silu(f.dot(x, f.swap_last(gate), dt.float32)), f.dot(x, f.swap_last(up), dt.float32)
    )
    outs = [f.add(y, f.cast(res, dt.float32)), f.dot(x, other, dt.float32)]
    ins = [x, gate, up, other, res]
    arrays = [kit.fill(n) for n in ins]
    got = kit.play(DEVICES[name], "matvec", ins, outs, arrays)
    a, g, u, o, r = (v.astype(np.float64) for v in arrays)
    z = a @ g.T
    kit.close(got[0], z / (1 + np.exp(-z)) * (a @ u.T) + r, np.float32, 16 * k)
    kit.close(got[1], a @ o, np.float32, 4 * k)


@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
def test_strides_and_batches(name: str) -> None:
    x, w = source("x", (3, 5, 100)), source("w", (3, 40, 100))
    window = f.slice_(w, (0, 1, 2), (3, 40, 98), (1, 3, 1))
    left = f.slice_(x, (0, 0, 3), (3, 5, 99), (1, 1, 1))
    arrays = [kit.fill(x), kit.fill(w)]
    out = f.dot(left, f.swap_last(window))
    (got,) = kit.play(DEVICES[name], "matvec", [x, w], [out], arrays)
    a, b = (v.astype(np.float64) for v in arrays)
    kit.close(got, a[:, :, 3:99] @ b[:, 1::3, 2:98].swapaxes(1, 2), np.float32, 100)


@pytest.mark.parametrize("b_t", [False, True])
def test_infinity_stays_in_its_row(b_t: bool) -> None:
    """What lies beyond the end of K takes no part, not even times zero."""
    ins, out = product(2, 9, 45, b_t)
    arrays = [kit.fill(x) for x in ins]
    arrays[0][0, -1] = np.inf
    arrays[1][...] = np.abs(arrays[1]) + 1
    (got,) = kit.play(DEVICES["cuda"], "matvec", ins, [out], arrays)
    assert np.isposinf(got[0]).all()
    kit.close(got[1], truth(arrays[0][1:], arrays[1], b_t)[0], np.float32, 45)


@pytest.mark.parametrize("b_t", [False, True])
def test_nothing(b_t: bool) -> None:
    for n, k in ((0, 9), (9, 0)):
        ins, out = product(3, n, k, b_t, dt.bfloat16)
        kernel = registry.get("matvec")(
            Group("matvec", tuple(ins), (out,), None, name="k"), DEVICES["cuda"].caps, {}
        )
        arrays = [np.ones(b.size, b.dtype.numpy) for b in kernel.buffers]
        interp.run(kernel, arrays, (), DEVICES["cuda"].caps)
        assert not arrays[-1][: out.size].any()
