"""Every variant of the dot and attention templates: the interpreter with the Caps of each kind of
target (which reports races and out-of-bounds access), and Vulkan where there is a driver."""

from __future__ import annotations

import functools

import dotkit as kit
import numpy as np
import pytest
import test_attention
import test_attention_backward
import test_attention_cached
from dotkit import f, source

from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import WeftError
from weft.program.device import Device

TARGETS = [*PRESETS, "vulkan"]


@functools.cache
def device(name: str) -> Device:
    if name != "vulkan":
        return InterpDevice(name)
    from weft.backends.registry import get

    try:
        return get("vulkan")
    except WeftError as error:
        pytest.skip(f"no Vulkan here: {error}")


def run(name: str, kind: str, ins, outs, wants, dtype=dt.float32, k=32, **fields) -> None:  # type: ignore[no-untyped-def]
    arrays = [kit.fill(n) for n in ins]
    got = kit.play(device(name), kind, ins, outs, arrays, **fields)
    for g, w in zip(got, wants([a.astype(np.float64) for a in arrays])):
        kit.close(g, w, dtype, 4 * k)


@pytest.mark.parametrize("a_t,b_t", [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", TARGETS)
def test_matmul_layouts(name: str, a_t: bool, b_t: bool) -> None:
    for m, n, k, dtype in [(19, 37, 21, dt.float32), (20, 36, 40, dt.bfloat16)]:
        x = source("x", (2, k, m) if a_t else (2, m, k), dtype)
        w = source("w", (2, n, k) if b_t else (2, k, n), dtype)
        out = f.dot(f.swap_last(x) if a_t else x, f.swap_last(w) if b_t else w, dt.float32)

        def want(a, a_t=a_t, b_t=b_t):  # type: ignore[no-untyped-def]
            return [(a[0].swapaxes(1, 2) if a_t else a[0]) @ (a[1].swapaxes(1, 2) if b_t else a[1])]

        run(name, "matmul", [x, w], [out], want, k=k)


@pytest.mark.parametrize("kind,m", [("matmul", 18), ("matvec", 1), ("matvec", 6)])
@pytest.mark.parametrize("name", TARGETS)
def test_gate_and_residual(name: str, kind: str, m: int) -> None:
    x, wg, wu = source("x", (m, 24)), source("g", (21, 24)), source("u", (21, 24))
    res = source("res", (m, 21))
    gate = kit.silu(f.dot(x, f.swap_last(wg)))
    out = f.add(res, f.mul(gate, f.dot(x, f.swap_last(wu))))

    def want(a):  # type: ignore[no-untyped-def]
        g = a[0] @ a[1].T
        return [a[3] + g / (1 + np.exp(-g)) * (a[0] @ a[2].T)]

    run(name, kind, [x, wg, wu, res], [out], want)


@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_matvec_several_widths(name: str, b_t: bool) -> None:
    x = source("x", (5, 36), dt.float16)
    ws = [source("w", (n, 36) if b_t else (36, n), dt.float16) for n in (40, 9, 17)]
    outs = [f.dot(x, f.swap_last(w) if b_t else w, dt.float32) for w in ws]
    run(
        name, "matvec", [x, *ws], outs,
        lambda a: [a[0] @ (w.T if b_t else w) for w in a[1:]],
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["matmul", "matvec"])
@pytest.mark.parametrize("name", TARGETS)
def test_integers(name: str, kind: str) -> None:
    x, w = source("x", (9, 30), dt.int8), source("w", (17, 30), dt.int8)
    arrays = [kit.fill(x), kit.fill(w)]
    if device(name).supports(dt.int8):
        (got,) = kit.play(device(name), kind, [x, w], [f.dot(x, f.swap_last(w))], arrays)
        want = arrays[0].astype(np.int32) @ arrays[1].astype(np.int32).T
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind,m", [("matmul", 40), ("matvec", 8)])
@pytest.mark.parametrize("name", TARGETS)
def test_rows_do_not_depend_on_how_many_there_are(name: str, kind: str, m: int) -> None:
    x, w = source("x", (m, 37)), source("w", (20, 37))
    arrays = [kit.fill(x), kit.fill(w)]
    out = f.dot(x, f.swap_last(w))
    (full,) = kit.play(device(name), kind, [x, w], [out], arrays)
    (part,) = kit.play(device(name), kind, [x, w], [out], arrays, [5], rows="n", slots={"n": 0})
    np.testing.assert_array_equal(part[:5], full[:5])
    x3 = source("x", (3, 37))
    out = f.dot(x3, f.swap_last(w))
    (own,) = kit.play(device(name), kind, [x3, w], [out], [arrays[0][:3], arrays[1]])
    np.testing.assert_array_equal(own, full[:3])


@pytest.mark.parametrize("name", TARGETS)
def test_whole_attention(name: str) -> None:
    d = device(name)
    test_attention.case(d, 1, 2, 2, 9, 11, 10)
    test_attention.case(d, 2, 4, 2, 9, 21, 12, window=4, lengths=[3, 21], packed=True)
    test_attention.case(d, 1, 2, 1, 17, 17, 8, dt.float16, causal=False, softcap=2.0)


@pytest.mark.parametrize("name", TARGETS)
def test_attention_gradients(name: str) -> None:
    d = device(name)
    test_attention_backward.case(d, 1, 2, 1, 9, 11, 10, parts=True, causal=True)
    case = {"window": 4, "lengths": [3, 21], "packed": True, "softcap": 2.0}
    test_attention_backward.case(d, 2, 2, 2, 9, 21, 12, dt.float16, parts=True, **case)


@pytest.mark.parametrize("name", TARGETS)
def test_cached_attention(name: str) -> None:
    d = device(name)
    test_attention_cached.case(d, [0, 1], [5, 17], length=20, d=10, flat=True)
    test_attention_cached.case(d, [0] * 18, list(range(18)), length=20, d=8, dtype=dt.float16)
    test_attention_cached.case(d, [1, 0, 0], [19, 3, 12], h=3, g=1, length=20, d=8, window=6)
