"""Guarded kernels: nothing outside is touched, nothing inside changes, and weft's own stay as they
are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rows import few

from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import KernelError
from weft.kernel import expr as kb, interp, ir
from weft.kernel.builder import Builder
from weft.kernel.clean import cleared
from weft.kernel.expr import iota, load, splat
from weft.kernel.guard import Guarded, guard
from weft.kernel.ir import Kernel
from weft.kernel.printer import kernel_hash, text
from weft.kernel.verify import verify

sys.path.append(str(Path(__file__).parents[1] / "backends"))
import gpu_case as case

N = 20
INDICES = [0, 1, 7, 12, 13, 16, 19, 20, 21, -1, -4, -5, 1 << 20, -(1 << 31), (1 << 31) - 1]


def run(kernel: Kernel, *arrays: np.ndarray, caps: str = "cpu-avx512") -> list[np.ndarray]:
    """What a guarded kernel makes of copies of the arrays."""
    found = [a.copy() for a in arrays]
    interp.run(kernel, found, (), PRESETS[caps])
    return found


def sound(kernel: Kernel, guards: int) -> Kernel:
    verify(kernel)
    found = guard(kernel)
    verify(found.kernel)
    assert found.guards == guards
    again = guard(found.kernel)
    assert again.guards == 0 and text(again.kernel) == text(found.kernel)
    return found.kernel


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("at", INDICES)
def test_accesses_at_any_index(lanes: int, masked: bool, at: int) -> None:
    """Loads outside give 0, stores outside are dropped, each whole or, under a mask, by lanes."""
    b = Builder("k")
    x, places, y = b.buffer("x", dt.int32, N), b.buffer("at", dt.int32, 2), b.buffer(
        "y", dt.int32, N, "rw")  # fmt: skip
    i, j = b.let(load(places, 0)), b.let(load(places, 1))
    mask = b.let(iota(4) < splat(kb.const(3), 4)) if masked and lanes > 1 else None
    b.store(y, j, load(x, i, lanes, mask) + 100, mask)
    kernel = sound(b.kernel(grid=(1,)), 2)
    data, before = np.arange(1, N + 1, dtype=np.int32), np.zeros(N, np.int32)
    for to in INDICES:
        got = run(kernel, data, np.array([at, to], np.int32), before)[2]
        want = before.copy()
        open_ = [lane for lane in range(lanes) if mask is None or lane < 3]
        read = [lane for lane in open_ if 0 <= at + lane < N]
        written = [lane for lane in open_ if 0 <= to + lane < N]
        if mask is None:
            read, written = (s if len(s) == lanes else [] for s in (read, written))
        for lane in written:
            want[to + lane] = 100 + (data[at + lane] if lane in read else 0)
        np.testing.assert_array_equal(got, want)


def test_gathers_and_scatters() -> None:
    b = Builder("k")
    x, places, y = b.buffer("x", dt.float32, N), b.buffer("at", dt.int32, 8), b.buffer(
        "y", dt.float32, N, "rw")  # fmt: skip
    lanes = b.let(load(places, 0, 8))
    b.store(y, lanes, load(x, lanes))
    kernel = sound(b.kernel(grid=(1,)), 2)
    data = np.arange(1, N + 1, dtype=np.float32)
    at = np.array([3, -1, 19, 20, -(1 << 31), (1 << 31) - 1, 0, 500], np.int32)
    got = run(kernel, data, at, np.zeros(N, np.float32))[2]
    want = np.zeros(N, np.float32)
    for i in (3, 19, 0):
        want[i] = data[i]
    np.testing.assert_array_equal(got, want)


def test_local_arrays_and_tiles() -> None:
    b = Builder("k")
    places, y = b.buffer("at", dt.int32, 1), b.buffer("y", dt.float32, 512, "w")
    array = b.array("own", dt.float32, 300)
    tile = b.tile("t", dt.float32, 16, 16)
    i = b.let(load(places, 0))
    with b.loop(300) as n:
        b.store(array, n, 1.0)
    b.tile_load(tile, array, i, 18)
    b.tile_store(y, i, 20, tile)
    b.store(array, i, load(array, i) + 1)
    kernel = sound(b.kernel(grid=(1,)), 4)
    for at in INDICES:
        got = run(kernel, np.array([at], np.int32), np.zeros(512, np.float32))[1]
        assert got.sum() == 256


def test_a_tile_that_fits_nowhere_is_refused() -> None:
    b = Builder("k")
    x = b.buffer("x", dt.float32, 255)
    b.tile_load(b.tile("t", dt.float32, 16, 16), x, 0, 16)
    with pytest.raises(KernelError, match="leaves x of 255"):
        guard(b.kernel(grid=(1,)))


def test_late_stores_stay_late_only_in_range() -> None:
    for shift, late in ((0, True), (1, False)):
        b = Builder("k")
        x, y = b.buffer("x", dt.float32, 64), b.buffer("y", dt.float32, 64, "w")
        own, t = b.array("own", dt.float32, 64, "shared"), b.thread(0)
        b.copy_async(own, t, x, t + shift)
        b.barrier()
        b.store(y, t, load(own, t))
        found = guard(b.kernel(grid=(1,), threads=(64,)))
        assert found.guards == shift
        assert any(isinstance(s, ir.AsyncCopy) for s in found.kernel.body.body) == late
        got = run(found.kernel, np.ones(64, np.float32), np.zeros(64, np.float32), caps="cuda")
        assert got[1].sum() == 64 - shift


def test_address_arithmetic_wraps() -> None:
    """(i * 2^20) * 2^12 is 0 for every i, wherever it is computed in 64 bits."""
    b = Builder("k")
    x, places, y = b.buffer("x", dt.int32, N), b.buffer("at", dt.int32, 1), b.buffer(
        "y", dt.int32, 1, "w")  # fmt: skip
    i = b.let(load(places, 0))
    b.store(y, 0, load(x, b.let(i * (1 << 20)) * (1 << 12) + 3))
    kernel = b.kernel(grid=(1,))
    found = guard(kernel).kernel
    assert "bits:u32" in text(found)
    from weft.backends.registry import get
    from weft.conform.harness import run_kernel

    data = np.arange(N, dtype=np.int32)
    for at in (1, -5, 1 << 30, 77):
        args = [data, np.array([at], np.int32), np.zeros(1, np.int32)]
        assert run(found, *args)[2] == run_kernel(get("cpu"), found, args)[2] == 3


def test_loops_cannot_step_over_the_end() -> None:
    b = Builder("k")
    stop, y = b.buffer("stop", dt.int32, 2), b.buffer("y", dt.int32, 1, "rw")
    with b.loop(load(stop, 1), load(stop, 0), step=1 << 30) as i:
        b.store(y, 0, i)
    kernel = sound(b.kernel(grid=(1,)), 0)
    got = run(kernel, np.array([5, (1 << 31) - 1], np.int32), np.zeros(1, np.int32))
    assert got[1] == [5 + (1 << 30)] or got[1] == [5]


def test_shifts_by_too_much() -> None:
    b = Builder("k")
    x, y = b.buffer("x", dt.int32, 2), b.buffer("y", dt.int32, 2, "w")
    a, c = b.let(load(x, 0)), b.let(load(x, 1))
    b.store(y, 0, a << c)
    b.store(y, 1, a >> kb.const(33))
    kernel = sound(b.kernel(grid=(1,)), 0)
    got = run(kernel, np.array([8, 34], np.int32), np.zeros(2, np.int32))[1]
    assert got.tolist() == [32, 4]


def test_what_local_memory_held_is_not_seen() -> None:
    for space, threads, caps in (("private", 1, "cpu-avx512"), ("shared", 64, "cuda")):
        b = Builder("k")
        y, own = b.buffer("y", dt.float32, 64, "w"), b.array("own", dt.float32, 64, space)
        t = b.thread(0) if threads > 1 else b.group(0)
        b.store(y, t, load(own, t))
        kernel = b.kernel(grid=(64 // threads,), threads=(threads,))
        out = np.ones(64, np.float32)
        with pytest.raises(KernelError, match="before anything was stored"):
            run(kernel, out, caps=caps)
        found = guard(kernel).kernel
        assert found.clean and kernel_hash(found) != kernel_hash(kernel)
        assert not run(found, out, caps=caps)[0].any()
        if space == "shared":
            assert not run(replace(cleared(found), clean=False), out, caps=caps)[0].any()


def test_grids_that_host_and_device_may_disagree_on() -> None:
    n = ir.Param("n", 0)
    for entry in (n * 3, (n + 3) / 4, kb.const(7) / n):
        b = Builder("k")
        b.store(b.buffer("y", dt.float32, 1, "w"), 0, 1.0)
        kernel = b.kernel(grid=(entry,))
        with pytest.raises(KernelError, match="grid"):
            guard(kernel)
        if not (isinstance(entry, ir.Binary) and entry.b is n):
            assert guard(kernel, {0: (0, 100)}).guards == 0


def test_work_is_counted() -> None:
    b = Builder("k")
    y = b.buffer("y", dt.float32, 1, "rw")
    with b.loop(1000), b.loop(2000):
        b.store(y, 0, 1.0)
    found = guard(b.kernel(grid=(10, 20), threads=(4,)))
    assert 10 * 20 * 4 * 1000 * 2000 <= found.steps < 3 * 10 * 20 * 4 * 1000 * 2000


# -- weft's own kernels ---------------------------------------------------------------------------


def guarded(kernels: list[Kernel]) -> list[Guarded]:
    """Each with the runtime scalars that its Program would give it: counts of rows."""
    for kernel in kernels:
        verify(kernel)
    return [guard(kernel, dict.fromkeys(range(8), (0, 1 << 16))) for kernel in kernels]


def share(found: list[Guarded]) -> float:
    return sum(f.guards for f in found) / sum(f.accesses for f in found)


@pytest.mark.parametrize(
    "name",
    few(
        ["cpu-avx512", "cpu-avx2", "webgpu", "cuda", "hip-wave64"],
        "cpu-avx2",
        "cuda",
    ),
)
def test_models_need_no_guards(name: str, tmp_path: Path) -> None:
    """What a saved Program of a model computes is not slower for being loaded."""
    caps = PRESETS[name]
    kernels = case.samples(caps) + case.model_kernels(caps, "llama", tmp_path)
    found = guarded(kernels)
    assert sum(f.accesses for f in found) > 400
    assert share(found) < 0.005
    for kernel, f in zip(kernels, found):
        assert f.guards or f.kernel.body is kernel.body or f.kernel.clean


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu-avx512", "cpu-amx", "webgpu", "cuda", "hip-wave64"])
def test_nearly_all_accesses_are_proved(name: str) -> None:
    caps = PRESETS[name]
    kernels = [*case.conformance(caps), *case.products(caps), *case.training(caps)]
    assert share(guarded(kernels)) < 0.01
