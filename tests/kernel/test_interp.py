"""The interpreter: what each construct means."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from playing import ints, play

from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel import expr as k, interp, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import F32, I32, Type

RNG = np.random.default_rng(3)


def floats(n: int) -> np.ndarray:
    return RNG.standard_normal(n).astype(np.float32)


def test_threads_groups_and_axes() -> None:
    def body(b: Builder, y: ir.Buffer) -> None:
        g, t = b.group(0) + b.group(1) * 3, b.thread(0) + b.thread(1) * 4
        i = b.let(g * 8 + t, "i")
        b.store(y, i, k.cast(i, dt.float32) * 2.0)

    (y,) = play(body, np.zeros(48, np.float32), grid=(3, 2), threads=(4, 2))
    np.testing.assert_array_equal(y, np.arange(48) * 2)


def test_runtime_scalars_bound_grid_and_loop() -> None:
    n = ir.Param("n", 1)

    def body(b: Builder, y: ir.Buffer) -> None:
        total = b.var(0, "total", I32)
        with b.loop(n, start=1, step=2) as i:
            b.assign(total, total + i)
        b.store(y, b.group(0), total)

    (y,) = play(body, ints(*[-1] * 8), grid=(n,), scalars=(0, 6))
    np.testing.assert_array_equal(y, [9] * 6 + [-1] * 2)


def test_loops_and_branches_per_thread() -> None:
    def body(b: Builder, y: ir.Buffer) -> None:
        t = b.let(b.thread(0), "t")
        total = b.var(0, "total", I32)
        with b.loop(t) as i:
            with b.when(k.eq(i, 3)):
                b.assign(total, -total)
            b.assign(total, total + i)
        with b.when(t < 2):
            b.store(y, t, 100)
        with b.otherwise():
            b.store(y, t, total)

    (y,) = play(body, ints(*range(8)), threads=(8,))
    np.testing.assert_array_equal(y, [100, 100, 1, 3, 0, 4, 9, 15])


def test_vectors_masks_gathers_and_scatters() -> None:
    x, i = floats(32), RNG.permutation(16).astype(np.int32)

    def body(b: Builder, x: ir.Buffer, i: ir.Buffer, y: ir.Buffer) -> None:
        where = b.let(k.load(i, 0, 16), "where")
        v = b.let(k.load(x, where, 16), "v")
        b.store(y, where, v * 2.0, mask=k.iota(16) < 9)
        b.store(y, 16, k.load(x, 24, 16, mask=k.iota(16) < 8))

    y = play(body, x, i, np.full(32, 7, np.float32))[2]
    want = np.full(32, 7, np.float32)
    want[i[:9]] = x[i[:9]] * 2
    want[16:24], want[24:] = x[24:], 0
    np.testing.assert_array_equal(y, want)


def test_lane_plumbing() -> None:
    def body(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
        v = b.let(k.load(x, 0, 4), "v")
        w = b.let(k.load(x, 4, 4), "w")
        b.store(y, 0, k.shuffle((0, 7, 2, 5), v, w))
        b.store(y, 4, k.pack(k.extract(v, 3), k.const(9.0, F32)))
        b.store(y, 6, k.splat(k.extract(w, 0), 2))

    y = play(body, np.arange(8, dtype=np.float32), np.zeros(8, np.float32))[1]
    np.testing.assert_array_equal(y, [0, 7, 2, 5, 3, 9, 4, 4])


def test_private_arrays_and_shared_reversal() -> None:
    def body(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
        s = b.array("s", dt.float32, 8, "shared")
        p = b.array("p", dt.float32, 3)
        t = b.let(b.thread(0), "t")
        base = b.let(b.group(0) * 8, "base")
        with b.loop(3) as i:
            b.store(p, i, k.load(x, base + t) + k.cast(i, dt.float32))
        b.store(s, t, k.load(p, 2))
        b.barrier()
        b.store(y, base + t, k.load(s, 7 - t))

    x = floats(24)
    y = play(body, x, np.zeros_like(x), grid=(3,), threads=(8,))[1]
    np.testing.assert_array_equal(y, (x + np.float32(2)).reshape(3, 8)[:, ::-1].ravel())


def test_integer_semantics() -> None:
    a, d = ints(7, -7, 7, -7, 2**31 - 1), ints(2, 2, -2, -2, 3)

    def body(b: Builder, a: ir.Buffer, d: ir.Buffer, y: ir.Buffer) -> None:
        i = b.let(b.thread(0), "i")
        x, z = b.let(k.load(a, i), "x"), b.let(k.load(d, i), "z")
        b.store(y, i, x / z)
        b.store(y, i + 5, x % z)
        b.store(y, i + 10, x + 1)
        b.store(y, i + 15, x >> 1)

    y = play(body, a, d, ints(*range(20)), threads=(5,))[2].reshape(4, 5)
    np.testing.assert_array_equal(y[0], [3, -3, -3, 3, 715827882])
    np.testing.assert_array_equal(y[1], [1, -1, 1, -1, 1])
    np.testing.assert_array_equal(y[2], [8, -6, 8, -6, -(2**31)])
    np.testing.assert_array_equal(y[3], [3, -4, 3, -4, 2**30 - 1])


def test_casts() -> None:
    x = np.float32([1.9, -1.9, 3e9, -3e9, np.nan, np.inf, 0.0, 300.0])

    def body(b: Builder, x: ir.Buffer, *outs: ir.Buffer) -> None:
        for out in outs:
            b.store(out, 0, k.cast(k.load(x, 0, 8), out.dtype))

    kinds = (np.int32, np.uint32, np.int8, np.uint8, np.bool_, np.float16, ml_dtypes.bfloat16)
    got = play(body, x, *(np.zeros(8, d) for d in kinds))[1:]
    top = 2**31 - 1
    np.testing.assert_array_equal(got[0], [1, -1, top, -top - 1, 0, top, 0, 300])
    np.testing.assert_array_equal(got[1], [1, 0, 3 * 10**9, 0, 0, 2**32 - 1, 0, 300])
    np.testing.assert_array_equal(got[2], [1, -1, 127, -128, 0, 127, 0, 127])
    np.testing.assert_array_equal(got[3], [1, 0, 255, 0, 0, 255, 0, 255])
    np.testing.assert_array_equal(got[4], [True] * 6 + [False, True])
    for have, kind in zip(got[5:], kinds[5:]):
        with np.errstate(all="ignore"):
            want = x.astype(kind).astype(np.float32)
        np.testing.assert_array_equal(have.astype(np.float32), want)


def test_float_semantics() -> None:
    x = np.float32([0.5, 1.5, -2.5, np.nan])

    def body(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
        v = b.let(k.load(x, 0, 4), "v")
        b.store(y, 0, k.unary("rint", v))
        b.store(y, 4, k.minimum(v, 1.0))
        b.store(y, 8, k.fma(v, v, -0.25))
        b.store(y, 12, k.select(v < 1.0, k.bitcast(k.bitcast(v, dt.int32), dt.float32), 8.0))

    y = play(body, x, np.zeros(16, np.float32))[1].reshape(4, 4)
    np.testing.assert_array_equal(y[0], [0, 2, -2, np.nan])
    np.testing.assert_array_equal(y[1], [0.5, 1, -2.5, 1])
    np.testing.assert_array_equal(y[2], [0, 2, 6, np.nan])
    np.testing.assert_array_equal(y[3][:3], [0.5, 8, -2.5])


def test_bits_of_a_vector_as_other_lanes() -> None:
    """The interpreter and the host's own code agree: the first lane is the lowest bits."""
    from weft.backends.cpu import CpuDevice
    from weft.conform.harness import run_kernel

    for dtype, item in ((dt.bfloat16, 2), (dt.float16, 2), (dt.int8, 4)):
        b = Builder("bits")
        x, y = b.buffer("x", dtype, 4 * item), b.buffer("y", dt.uint32, 4, "w")
        b.store(y, 0, k.bitcast(k.load(x, 0, 4 * item), dt.uint32))
        kernel = b.kernel((1,))
        data = np.arange(-3, 4 * item - 3).astype(dtype.numpy)
        want = data.view(np.uint32)
        got = np.zeros(4, np.uint32)
        interp.run(kernel, [data.copy(), got], ())
        np.testing.assert_array_equal(got, want)
        done = run_kernel(CpuDevice(), kernel, [data, np.zeros(4, np.uint32)])
        np.testing.assert_array_equal(done[1], want)


def test_fma_rounds_once() -> None:
    a = np.float32([1 + 2**-12])

    def body(b: Builder, a: ir.Buffer, y: ir.Buffer) -> None:
        v = b.let(k.load(a, 0), "v")
        b.store(y, 0, k.fma(v, v, -1.0))

    y = play(body, a, np.zeros(1, np.float32))[1]
    assert y[0] == 2**-11 + 2**-24


@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
def test_subgroups(name: str) -> None:
    caps = PRESETS[name]
    x = RNG.integers(-9, 9, 256).astype(np.float32)

    def body(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
        t = b.let(b.thread(0), "t")
        v = b.let(k.load(x, t), "v")
        for n, (op, attr) in enumerate(
            (("subgroup_add", 0), ("subgroup_max", 0), ("subgroup_xor", 5))
        ):
            b.store(y, t + n * 256, ir.Collective(op, (v,), F32, attr))

    y = play(body, x, np.zeros(768, np.float32), threads=(256,), caps=caps)[1].reshape(3, 256)
    rows = x.reshape(-1, caps.subgroup)
    np.testing.assert_array_equal(y[0], np.repeat(rows.sum(1), caps.subgroup))
    np.testing.assert_array_equal(y[1], np.repeat(rows.max(1), caps.subgroup))
    np.testing.assert_array_equal(y[2], x[np.arange(256) ^ 5])


def test_dots() -> None:
    a = RNG.integers(0, 256, 64).astype(np.uint8)
    w = RNG.integers(-128, 128, 64).astype(np.int8)
    p, q = floats(32).astype(ml_dtypes.bfloat16), floats(32).astype(ml_dtypes.bfloat16)

    def body(b: Builder, *buffers: ir.Buffer) -> None:
        a, w, p, q, y, z = buffers
        i32, f32 = Type(dt.int32, 16), Type(dt.float32, 16)
        bytes_ = (k.const(5, i32), k.load(a, 0, 64), k.load(w, 0, 64))
        halves = (k.const(1.0, f32), k.load(p, 0, 32), k.load(q, 0, 32))
        b.store(y, 0, ir.Collective("dot4", bytes_, i32))
        b.store(z, 0, ir.Collective("dot2", halves, f32))

    y, z = play(body, a, w, p, q, np.zeros(16, np.int32), np.zeros(16, np.float32))[4:]
    exact = (a.astype(np.int64) * w).reshape(16, 4).sum(1)
    np.testing.assert_array_equal(y, exact + 5)
    want = 1 + (p.astype(np.float64) * q.astype(np.float64)).reshape(16, 2).sum(1)
    np.testing.assert_allclose(z, want, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_dot_beyond_its_promise_shows_in_its_own_lane(kind: type) -> None:
    """It is no error: what comes of rows that hold junk is dropped."""
    a, w = np.full(16, 127, kind), np.full(16, -127, np.int8)
    w[6] = -128
    if kind is np.uint8:
        a[8] = 128

    def body(b: Builder, *buffers: ir.Buffer) -> None:
        a, w, y = buffers
        i32 = Type(dt.int32, 4)
        args = (k.const(0, i32), k.load(a, 0, 16), k.load(w, 0, 16))
        b.store(y, 0, ir.Collective("dot4", args, i32, 1))

    y = play(body, a, w, np.zeros(4, np.int32))[2]
    exact = (a.astype(np.int64) * w).reshape(4, 4).sum(1)
    assert list(y == exact) == [True, False, kind is np.int8, True]


def test_many_groups_advance_in_batches() -> None:
    n = 300_000

    def body(b: Builder, x: ir.Buffer) -> None:
        i = b.let(b.group(0), "i")
        b.store(x, i, k.load(x, i) + 1.0)

    x = floats(n)
    np.testing.assert_array_equal(play(body, x, grid=(n,))[0], x + np.float32(1))
