"""Every blocked product adds in the order of core/order, bit for bit: against an exact chain in
NumPy for all Caps (interpreter), the real CPU and Vulkan, whatever the configuration and rows."""

from __future__ import annotations

import functools
from typing import Any

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from harness import targets
from test_matmul_targets import TARGETS, device

from weft.backends.cpu import CpuDevice
from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.core.order import CHUNK, SPAN
from weft.templates.group import Group
from weft.templates.product import blocked
from weft.templates.product.problem import find_dots, problem_of

CPU = CpuDevice()


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z of float32, rounded once: the product is exact in float64, and a sum of float64
    whose bits lost are kept in the last place (round to odd) rounds to float32 as the exact one."""
    product = x.astype(np.float64) * y.astype(np.float64)
    total = product + z.astype(np.float64)
    low = total - z
    lost = (product - low) + (z - (total - low))
    bits = total.view(np.int64)
    toward = np.where((lost > 0) == (total > 0), 0, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), np.where(toward == 0, bits + 1, bits - 1), bits)
    return odd.view(np.float64).astype(np.float32)


def apart(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z rounded twice, as a shader's compiler may take an fma."""
    return x * y + z


def chain(a: np.ndarray, b: np.ndarray, add: Any = fma) -> np.ndarray:
    """a . b in the order: chunks of multiply-adds, chunks within spans, spans."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = None
    for s in range(0, a.shape[-1], SPAN):
        span = None
        for c in range(s, min(s + SPAN, a.shape[-1]), CHUNK):
            acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
            for k in range(c, min(c + CHUNK, s + SPAN, a.shape[-1])):
                acc = add(a[:, k : k + 1], b[k : k + 1], acc)
            span = acc if span is None else span + acc
        total = span if total is None else total + span
    assert total is not None
    return total


def case(m: int, n: int, k: int, a_t: bool, b_t: bool, dtype: dt.DType = dt.float32):  # type: ignore[no-untyped-def]
    """Sources, their dot, their content and the one right answer."""
    x, w = (
        source("x", (k, m) if a_t else (m, k), dtype),
        source("w", (n, k) if b_t else (k, n), dtype),
    )
    out = f.dot(f.swap_last(x) if a_t else x, f.swap_last(w) if b_t else w, dt.float32)
    arrays = [kit.fill(x), kit.fill(w)]
    want = chain(arrays[0].T if a_t else arrays[0], arrays[1].T if b_t else arrays[1])
    return [x, w], out, arrays, want


def plain(caps: Caps) -> set[dt.DType]:
    """Dtypes whose products go through f32 multiply-adds."""
    unit = {"mma_bf16", "dot2_bf16", "mma16_bf16"} & caps.features
    return (
        {dt.float32}
        | (set() if unit else {dt.bfloat16})
        | (set() if "mma16_f16" in caps.features else {dt.float16})
    )


def test_the_reference_rounds_once() -> None:
    """The reference's fma against exact rationals."""
    from fractions import Fraction

    rng = np.random.default_rng(3)
    x, y, z = (rng.standard_normal(400).astype(np.float32) for _ in range(3))
    z *= np.float32(2.0) ** rng.integers(-30, 30, 400).astype(np.float32)
    z[:40] = -(x[:40] * y[:40])
    for a, b, c, got in zip(x, y, z, fma(x, y, z)):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = [np.nextafter(got, np.float32(d), dtype=np.float32) for d in (-np.inf, np.inf)]
        gaps = [abs(Fraction(float(v)) - exact) for v in (got, *near)]
        assert gaps[0] == min(gaps)


@pytest.mark.parametrize("name", targets(*TARGETS))
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float16])
def test_order_on_every_target(name: str, dtype: dt.DType) -> None:
    if dtype not in plain(device(name).caps):
        pytest.skip("goes through another unit")
    for k in (40, CHUNK + 9) if dtype != dt.float32 else (40, CHUNK + 9, SPAN + CHUNK + 4):
        ins, out, arrays, want = case(3, 6, k, False, True, dtype)
        (got,) = kit.play(device(name), "matmul", ins, [out], arrays)
        if name == "vulkan" and not np.array_equal(got, want):
            want = chain(arrays[0], arrays[1].T, apart)
        np.testing.assert_array_equal(got, want)


@functools.cache
def long(layout: str):  # type: ignore[no-untyped-def]
    return case(77, 70, SPAN + CHUNK + 37, layout[0] == "T", layout[1] == "T")


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_order_on_the_cpu(layout: str) -> None:
    """Any configuration, any number of rows, a bound on them."""
    ins, out, arrays, want = long(layout)
    group = Group("matmul", tuple(ins), (out,), None, name="k")
    problem = problem_of(group, find_dots(group))
    assert problem.k > SPAN
    configs = [{}, {"mr": 5}, {"mb": 12, "mr": 4}, *blocked.candidates(group, CPU.caps)]
    for config in configs:
        (got,) = kit.play(CPU, "matmul", ins, [out], arrays, config=config)
        np.testing.assert_array_equal(got, want)
    (got,) = kit.play(CPU, "matmul", ins, [out], arrays, [31], rows="n", slots={"n": 0})
    np.testing.assert_array_equal(got[:31], want[:31])
    if layout[0] == "N":
        few = source("x", (3, problem.k))
        one = f.dot(few, f.swap_last(ins[1]) if layout[1] == "T" else ins[1])
        (got,) = kit.play(CPU, "matmul", [few, ins[1]], [one], [arrays[0][:3], arrays[1]])
        np.testing.assert_array_equal(got, want[:3])


@pytest.mark.parametrize("name", ["cuda", "hip-wave64", "webgpu", "lavapipe", "cpu-avx2"])
def test_tuning_does_not_change_a_bit(name: str) -> None:
    ins, out, arrays, want = case(20, 36, CHUNK + 8, False, True)
    group = Group("matmul", tuple(ins), (out,), None, name="k")
    for config in blocked.candidates(group, PRESETS[name])[::3]:
        (got,) = kit.play(device(name), "matmul", ins, [out], arrays, config=config)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "name,cut", [("cuda", SPAN), ("hip-wave64", SPAN), ("cpu-amx", SPAN), ("cpu-avx512", CHUNK)]
)
def test_pairs_and_units_join(name: str, cut: int) -> None:
    """What goes by pairs or through a unit is the sum of its chunks' or spans' products."""
    k = 2 * cut + 32
    ins, out, arrays, _ = case(5, 18, k, False, True, dt.bfloat16)
    (got,) = kit.play(device(name), "matmul", ins, [out], arrays)
    total = None
    for s in range(0, k, cut):
        part = [np.ascontiguousarray(v[:, s : s + cut]) for v in arrays]
        x, w = source("x", part[0].shape, dt.bfloat16), source("w", part[1].shape, dt.bfloat16)
        one = f.dot(x, f.swap_last(w), dt.float32)
        (span,) = kit.play(device(name), "matmul", [x, w], [one], part)
        total = span if total is None else total + span
    np.testing.assert_array_equal(got, total)
