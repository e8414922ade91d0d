"""Loads, stores, arrays and lanes of the LLVM dialect against NumPy, and what it refuses; masks and
gathers of WGSL likewise."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cpu_case import device, play
from node_case import Row, dot_kernel
from rows import covering

from weft.backends.llvm import cpu_target, render
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, extract, iota, load, pack, shuffle, splat
from weft.kernel.ir import Type

TARGETS = ("host", "avx512", "avx2", "base")
rng = np.random.default_rng(1)


def values(dtype: dt.DType, n: int) -> np.ndarray:
    if dtype.kind == "bool":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max, n, dtype=np.int64).astype(dtype.numpy)
    return rng.standard_normal(n).astype(np.float32).astype(dtype.numpy)


TAILS = [(t, n) for t in TARGETS for n in (1, 8, 16, 64)] + [("wgsl", 4), ("wgsl", 16)]


@pytest.mark.parametrize("where,dtype", covering(TAILS, dt.DEVICE))
def test_masked_tail(where: tuple[str, int], dtype: dt.DType) -> None:
    """Lanes beyond n are neither read (they become 0) nor written."""
    target, lanes = where
    n = 3 * lanes + max(1, lanes // 3)
    x = values(dtype, n)
    b = Builder("tail")
    source, out = b.buffer("x", dtype, n), b.buffer("out", dtype, n, "w")
    wide = b.buffer("wide", dtype, 4 * lanes, "w")
    at = b.let(b.group(0) * lanes, "at")
    mask = b.let(at + iota(lanes) < n, "mask")
    v = b.let(load(source, at, lanes, mask), "v")
    b.store(out, at, v, mask)
    b.store(wide, at, v)
    given = [x, np.zeros(n, x.dtype), np.ones(4 * lanes, x.dtype)]
    got = Row(target, lanes).play(b.kernel((4,)), given)
    np.testing.assert_array_equal(got[1], x)
    np.testing.assert_array_equal(got[2][:n], x)
    assert not got[2][n:].astype(bool).any()


@pytest.mark.parametrize("where,dtype", covering([(t, n) for t, n in TAILS if n > 1], dt.DEVICE))
def test_a_condition_of_all_lanes_guards_the_address(
    where: tuple[str, int], dtype: dt.DType
) -> None:
    """Where a condition on all lanes is false, nothing near the index is touched: a CPU takes
    microseconds for a masked load from a page that is not there."""
    target, lanes = where
    far, x = -(1 << 28), values(dtype, 2 * lanes)
    b = Builder("guarded")
    source, out = b.buffer("x", dtype, 2 * lanes), b.buffer("out", dtype, 3 * lanes, "w")
    near = b.let(b.group(0) < 2, "near")
    at = b.let(b.group(0) * lanes + cast(near ^ True, dt.int32) * far, "at")
    b.store(out, b.group(0) * lanes, load(source, at, lanes, splat(near, lanes)))
    kernel = b.kernel((3,))
    got = Row(target, lanes).play(kernel, [x, np.ones(3 * lanes, x.dtype)])[1]
    np.testing.assert_array_equal(got, np.concatenate([x, np.zeros(lanes, x.dtype)]))
    if target == "host":
        assert "masked.load" not in device().source(kernel)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [dt.int8, dt.uint8, dt.bool_, dt.float16, dt.bfloat16])
@pytest.mark.parametrize("kept", [1, 2, 15])
def test_constant_masks_of_narrow_stores(kept: int, dtype: dt.DType, target: str) -> None:
    """LLVM 22 turns a one-lane masked store of truncated values into a store of 32 bits."""
    b = Builder("narrow")
    x, out = b.buffer("x", dt.int32, 16), b.buffer("out", dtype, 16, "w")
    b.store(out, 0, cast(load(x, 0, 16), dtype), iota(16) < kept)
    data = (np.arange(16, dtype=np.int32) + 1) * 0x01010101  # bits that truncation must drop
    with np.errstate(over="ignore"):
        want = np.where(np.arange(16) < kept, data, 0).astype(
            np.float32 if dtype.is_float else "i4"
        )
        want = want.astype(dtype.numpy)
    got = play(b.kernel((1,)), [data, np.zeros(16, dtype.numpy)], target=target)[1]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", [*TARGETS, "wgsl"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", dt.DEVICE)
def test_gather_and_scatter(dtype: dt.DType, masked: bool, target: str) -> None:
    n = 64
    x, index = values(dtype, n), rng.permutation(n).astype(np.int32)
    to = rng.permutation(n).astype(np.int32)
    if masked:  # what the mask forbids may point anywhere
        index[::3], to[::3] = 1 << 20, -(1 << 20)
    b = Builder("gather")
    source, i1, i2 = b.buffer("x", dtype, n), b.buffer("i", dt.int32, n), b.buffer("t", dt.int32, n)
    out = b.buffer("out", dtype, n, "w")
    at = b.let(b.group(0) * 16, "at")
    lane = b.let(at + iota(16), "lane")
    mask = b.let(ir.Binary("ne", lane % 3, const(0, Type(dt.int32, 16)), Type(dt.bool_, 16)), "m")
    v = load(source, load(i1, at, 16), 16, mask if masked else None)
    b.store(out, load(i2, at, 16), v, mask if masked else None)
    got = Row(target, 16).play(b.kernel((4,)), [x, index, to, np.zeros(n, x.dtype)])[-1]
    want = np.zeros(n, x.dtype)
    keep = np.arange(n) % 3 != 0 if masked else slice(None)
    want[to[keep]] = x[index[keep]]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.int8])
def test_nontemporal_store_at_any_alignment(dtype: dt.DType, offset: int) -> None:
    lanes, n = 64 // dtype.itemsize, 256
    x = values(dtype, n + offset)
    b = Builder("stream")
    source, out = b.buffer("x", dtype, n + offset), b.buffer("out", dtype, n + offset, "w")
    at = b.let(b.group(0) * lanes + offset, "at")
    b.prefetch(source, at + 4 * lanes)
    b.store(out, at, load(source, at, lanes), nontemporal=True)
    got = play(b.kernel((n // lanes,)), [x, np.zeros_like(x)])[-1]
    np.testing.assert_array_equal(got[offset:], x[offset:])


@pytest.mark.parametrize("features,low", [(("avx", "avx2"), 31), (("avx512f", "avx512vl"), 63)])
def test_a_nontemporal_store_asks_for_the_alignment_of_a_register(
    features: tuple[str, ...], low: int
) -> None:
    """Not of all that it stores: rows of 56 numbers would send half of a line past the cache."""
    b = Builder("stream")
    out = b.buffer("out", dt.float32, 64, "w")
    b.store(out, b.group(0) * 16, const(0.0, ir.Type(dt.float32, 16)), nontemporal=True)
    target = cpu_target("x86_64-unknown-linux-gnu", frozenset(features))
    text = render(b.kernel((4,)), PRESETS["cpu-avx2"], target)
    asked = re.findall(r"and i64 %\S+, (\d+)", text)
    assert asked == [str(low)]
    assert f"align {low + 1}, !nontemporal" in text


@pytest.mark.parametrize("size", [16, 4096, 4097, 100_000])
def test_private_array_on_the_stack_or_in_scratch(size: int) -> None:
    """Reversal through an array; groups of several chunks and threads must not meet."""
    groups = 50
    b = Builder("reverse")
    out = b.buffer("out", dt.int32, groups, "w")
    tmp = b.array("tmp", dt.int32, size)
    g = b.let(b.group(0), "g")
    with b.loop(size) as i:
        b.store(tmp, size - 1 - i, i * g)
    b.store(out, g, load(tmp, 3) + load(tmp, size - 1))
    got = play(b.kernel((groups,)), [np.zeros(groups, np.int32)])[0]
    np.testing.assert_array_equal(got, np.arange(groups) * (size - 4))


def test_scratch_that_does_not_fit_is_refused() -> None:
    b = Builder("greedy")
    out = b.buffer("out", dt.float32, 1, "w")
    tmp = b.array("tmp", dt.float32, 2 << 20)
    b.store(tmp, 0, 1.0)
    b.store(out, 0, load(tmp, 0))
    with pytest.raises(CompileError, match="kernel greedy: private arrays need 8388608 bytes"):
        device().load([b.kernel((1,))])


def test_register_tile_leaves_no_memory_traffic() -> None:
    """A small array with constant indices after unrolling must live in registers."""
    from weft.backends.cpu import jit

    n, lanes = 64, 16
    b = Builder("tile")
    x, y, out = (
        b.buffer(k, dt.float32, 4096, "r" if k != "out" else "w") for k in ("x", "y", "out")
    )
    acc = b.array("acc", dt.float32, 4 * 2 * lanes)
    with b.loop(4, unroll=True, name="r") as r, b.loop(2, unroll=True, name="c") as c:
        b.store(acc, (r * 2 + c) * lanes, const(0.0, Type(dt.float32, lanes)))
    row, column = b.loop(4, unroll=True, name="r"), b.loop(2, unroll=True, name="c")
    with b.loop(n, name="k") as k, row as r, column as c:
        at = (r * 2 + c) * lanes
        a = ir.Vec("splat", (load(x, r * n + k),), Type(dt.float32, lanes))
        w = load(y, (k * 2 + c) * lanes, lanes)
        b.store(acc, at, ir.Fma(a, w, load(acc, at, lanes), Type(dt.float32, lanes)))
    with b.loop(4, unroll=True, name="r") as r, b.loop(2, unroll=True, name="c") as c:
        b.store(out, (r * 2 + c) * lanes, load(acc, (r * 2 + c) * lanes, lanes))
    kernel = b.kernel((1,))
    d = device()
    if d.caps.lanes == 16:
        text = jit.assembly(d.source(kernel), d.host)
        assert not re.search(r"\(%r[sb]p\), %zmm|%zmm\d+, -?\d*\(%r[sb]p", text)
    xs, ys = rng.standard_normal((4, n)).astype(np.float32), rng.standard_normal((n, 32))
    data = [np.zeros(4096, np.float32) for _ in range(3)]
    data[0][: 4 * n], data[1][: n * 32] = xs.ravel(), ys.astype(np.float32).ravel()
    got = play(kernel, data)[-1][: 4 * 32].reshape(4, 32)
    np.testing.assert_allclose(got, xs @ ys.astype(np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lanes", [4, 16])
def test_lane_plumbing(lanes: int) -> None:
    x, y = values(dt.float32, lanes), values(dt.float32, lanes)
    reverse = tuple(range(lanes - 1, -1, -1))
    zipped = tuple(i // 2 + (i % 2) * lanes for i in range(lanes))
    got = Row("host", lanes).run(lambda a, c: shuffle(reverse, a), [x, y], dt.float32)
    np.testing.assert_array_equal(got, x[::-1])
    got = Row("host", lanes).run(lambda a, c: shuffle(zipped, a, c), [x, y], dt.float32)
    np.testing.assert_array_equal(got, np.concatenate([x, y])[list(zipped)])
    b = Builder("pack")
    source, out = b.buffer("x", dt.float32, lanes), b.buffer("out", dt.float32, lanes, "w")
    v = b.let(load(source, 0, lanes), "v")
    parts = [extract(v, (3 * i) % lanes) for i in range(lanes)]
    b.store(out, 0, pack(*parts) * cast(iota(lanes), dt.float32))
    got = play(b.kernel((1,)), [x, np.zeros_like(x)])[1]
    index = np.arange(lanes)
    np.testing.assert_array_equal(got, x[3 * index % lanes] * index.astype(np.float32))


def test_dot_instructions_are_used_where_the_cpu_has_them() -> None:
    from weft.backends.cpu import jit

    d = device()
    for op, dtype, feature, instruction in (
        ("dot2", dt.bfloat16, "dot2_bf16", "dpbf16"), ("dot4", dt.uint8, "dot4", "vpdpbusd"),
    ):  # fmt: skip
        if feature in d.caps.features:
            kernel = dot_kernel(op, Row("host", 16), dtype)
            assert instruction in jit.assembly(d.source(kernel), d.host)


def test_plain_loops_vectorise() -> None:
    from weft.backends.cpu import jit

    n = 1 << 16
    b = Builder("scale")
    x, y = b.buffer("x", dt.float32, n), b.buffer("y", dt.float32, n, "w")
    row = b.let(b.group(0) * 256, "row")
    with b.loop(256) as i:
        b.store(y, row + i, load(x, row + i) * 2.0)
    d = device()
    if d.caps.lanes == 16:
        assert "%zmm" in jit.assembly(d.source(b.kernel((n // 256,))), d.host)


def test_kernels_for_threads_and_subgroups_are_refused() -> None:
    b = Builder("gpu")
    out = b.buffer("out", dt.float32, 64, "w")
    b.store(out, b.thread(0), 1.0)
    with pytest.raises(CompileError, match="kernel gpu"):
        device().load([b.kernel((1,), threads=(64,))])
    b = Builder("subgroup")
    out = b.buffer("out", dt.float32, 1, "w")
    b.store(out, 0, ir.Collective("subgroup_add", (const(1.0, ir.F32),), ir.F32))
    with pytest.raises(CompileError, match="kernel subgroup"):
        device().load([b.kernel((1,))])


def test_rendering_is_pure_and_needs_no_llvm() -> None:
    kernel = dot_kernel("dot4", Row("host", 4), dt.int8)
    texts = {
        render(kernel, PRESETS["cpu-neon"], cpu_target("aarch64-linux", frozenset())) for _ in "ab"
    }
    assert len(texts) == 1 and "x86" not in texts.pop()


def test_each_cpu_has_its_products_of_bytes() -> None:
    """Of signed and of unsigned bytes, and of those that are promised to be small."""
    small = {
        ("aarch64-linux", "dotprod"): "neon.sdot",
        ("x86_64-linux", "avx2"): "pmadd.ub.sw",
        ("x86_64-linux", "avx2,avxvnni"): "vpdpbusd.256",
        ("x86_64-linux", "avx512f,avx512vl,avx512vnni"): "vpdpbusd.256",
    }
    for (triple, features), name in small.items():
        target = cpu_target(triple, frozenset(features.split(",")))
        for dtype in (dt.int8, dt.uint8):
            assert name in render(
                dot_kernel("dot4", Row("host", 8), dtype, 1), PRESETS["cpu-avx2"], target
            )
    exact = dot_kernel("dot4", Row("host", 8), dt.uint8)  # may saturate 16 bits
    target = cpu_target("x86_64-linux", frozenset({"avx2"}))
    assert "pmadd.wd" in (text := render(exact, PRESETS["cpu-avx2"], target))
    assert "pmadd.ub" not in text


def test_too_deep_an_expression_is_refused_by_name() -> None:
    b = Builder("deep")
    x, out = b.buffer("x", dt.float32, 1), b.buffer("out", dt.float32, 1, "w")
    total = load(x, 0)
    for _ in range(5000):
        total = total + 1.0
    b.store(out, 0, total)
    with pytest.raises(CompileError, match=r"kernel deep: .*nested too deeply"):
        render(b.kernel((1,)), PRESETS["cpu-avx512"], cpu_target("", frozenset()))
