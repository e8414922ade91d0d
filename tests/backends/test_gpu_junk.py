"""What a kernel has not written does not show in its results: see gpu_junk."""

from __future__ import annotations

import itertools
import sys

import gpu_emulator
import gpu_junk
import numpy as np
import pytest
from gpu_emulator import Emulated

from weft.backends.llvm import gpu_target
from weft.conform import kernels, primitives, templates
from weft.conform.report import CheckFailed, Skip
from weft.core import dtypes as dt
from weft.core.errors import KernelError
from weft.kernel import interp
from weft.kernel.builder import Builder
from weft.kernel.expr import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")

ARCHES = ("sm_80", "gfx90a", "gfx1100")
ONE = "cached_attention float32 "


LET = (Skip, CheckFailed)  # whether the result is right, others ask


@pytest.mark.parametrize("arch", ARCHES)
def test_nodes(arch: str) -> None:
    device = Emulated(gpu_target(arch), gpu_junk.KINDS)
    device.run_checks(itertools.islice(kernels.checks(device), ARCHES.index(arch), None, 40), LET)
    assert device.played > 2


def test_what_another_emulator_had_wrong() -> None:
    """One of the five; `test_everything` has all."""
    device = Emulated(gpu_target("sm_80"), gpu_junk.KINDS)
    device.run_checks((c for c in templates.checks(device) if c[0] == ONE), LET)
    assert device.played == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", [kernels, primitives, templates], ids=lambda m: m.__name__)
@pytest.mark.parametrize("arch", ARCHES)
def test_everything(arch: str, module) -> None:  # type: ignore[no-untyped-def]
    device = Emulated(gpu_target(arch), gpu_junk.KINDS)
    device.run_checks(module.checks(device), LET)
    assert device.played > 100


# -- that it would be seen


def faulty(kind: str):  # type: ignore[no-untyped-def]
    """64 threads that read an element of what none of them has written."""
    b = Builder("faulty")
    x, out = b.buffer("x", dt.float32, 64), b.buffer("out", dt.float32, 64, "rw")
    t = b.let(b.thread(0), "t")
    if kind == "of the output":
        b.store(out, t, load(x, t) + load(out, t))
        return b.kernel((1,), (64,))
    space = "shared" if kind.startswith("shared") else "private"
    array = b.array("held", dt.float32, 64, space)
    first = b.group(0) < 1 if kind == "shared, by the second group" else t < 63
    b.store(array, t, load(x, t), mask=first)
    b.barrier()
    b.store(out, t, load(array, 63 - t if space == "shared" else t) * 0.5, mask=b.group(0) > 0)
    return b.kernel((2,), (64,))


@pytest.mark.parametrize("arch", ["sm_80", "gfx1100"])
@pytest.mark.parametrize("kind", ["shared", "shared, by the second group", "private"])
def test_what_reads_the_unwritten_is_seen(arch: str, kind: str) -> None:
    kernel, target = faulty(kind), gpu_target(arch)
    arrays = [np.arange(64, dtype=np.float32), np.zeros(64, np.float32)]
    with pytest.raises(AssertionError, match=r"kernel faulty: elements .* of buffer 1 depend on"):
        gpu_emulator.play(kernel, target, arrays, [])
    with pytest.raises(KernelError, match="is read before anything was stored"):
        interp.run(kernel, arrays, caps=target.caps)


def test_unwritten_memory_of_the_device_is_seen() -> None:
    kernel = faulty("of the output")
    arrays = [np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)]
    gpu_emulator.play(kernel, gpu_target("sm_80"), arrays, [])  # known: all of it
    marks = [np.ones(256, bool), np.arange(256) >= 8]
    with pytest.raises(AssertionError, match=r"elements \[0, 1\] of buffer 1 depend on"):
        gpu_emulator.play(kernel, gpu_target("sm_80"), arrays, [], marks)


def test_what_is_left_out_keeps_its_content() -> None:
    b = Builder("half")
    x, out = b.buffer("x", dt.float32, 64), b.buffer("out", dt.float32, 64, "w")
    t = b.let(b.thread(0), "t")
    b.store(out, t, load(x, t), mask=t < 32)
    arrays = [np.arange(64, dtype=np.float32), np.full(64, 7, np.float32)]
    marks = [np.ones(256, bool), np.zeros(256, bool)]
    kernel = b.kernel((1,), (64,))
    gpu_emulator.play(kernel, gpu_target("sm_80"), arrays, [], marks, gpu_junk.KINDS)
    np.testing.assert_array_equal(arrays[1], np.where(np.arange(64) < 32, arrays[0], 7))
    assert marks[1].sum() == 128 and marks[1][:128].all()


@pytest.mark.parametrize(
    "dtype", [dt.float32, dt.float16, dt.bfloat16, dt.int8, dt.int32, dt.bool_]
)
def test_kinds_of_junk(dtype) -> None:  # type: ignore[no-untyped-def]
    values = {k: gpu_junk.junk(k, 64, dtype.numpy).view(dtype.numpy) for k in gpu_junk.KINDS}
    assert not np.any(values["zeros"]) and len(np.unique(values["random"].view(np.uint8))) > 9
    if dtype.is_float:
        assert np.isnan(values["nan"].astype(np.float32)).all()
        assert (values["large"].astype(np.float32) > 5e4).all()
