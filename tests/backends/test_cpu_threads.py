"""CpuDevice: its threads, those that compile, and when one does it alone."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cpu_case import device, program_of, scale_kernel, two_buffers
from llvmlite.binding import ffi

import weft
from weft.backends.cpu import CpuDevice, jit
from weft.backends.cpu.threads import Workers
from weft.backends.llvm import optimise
from weft.core import dtypes as dt
from weft.core.errors import CompileError, UsageError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast
from weft.program.program import BufferRef, BufferSpec, Dispatch, Program

# -- threads


def test_results_depend_neither_on_threads_nor_on_runs_nor_on_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of unequal work, cut differently on every run. A run that pauses does so within a
    kernel that takes long, and others run there."""
    monkeypatch.setattr("weft.backends.cpu.device._PART", 1e-4)
    groups = 999
    b = Builder("uneven")
    out = b.buffer("out", dt.float32, groups, "w")
    g = b.let(b.group(0), "g")
    total = b.var(0.0, "total")
    with b.loop(g * 3) as i:
        b.assign(total, total + 1.0 / (cast(i, dt.float32) + 1.0))
    b.store(out, g, total)
    program = program_of(b.kernel((groups,)), repeat=4)
    results = []
    for threads in (1, 2, 5):
        d = CpuDevice(threads=1)
        d.threads = threads  # more workers than cores must do no harm either
        buffer = d.alloc(4 * groups)
        bound = d.bind(program, [buffer])
        for _ in range(20):
            d.write(buffer, np.zeros(groups, np.float32))
            d.submit(bound, ())
            results.append(d.read(buffer, (groups,), dt.float32).tobytes())
        other, pauses = d.bind(program, [d.alloc(4 * groups)]), 0

        def pause() -> None:
            nonlocal pauses
            pauses += 1
            if pauses % 16 == 1:
                d.submit(other, ())  # noqa: B023

        d.write(buffer, np.zeros(groups, np.float32))
        d.submit_pausing(bound, (), pause)
        results.append(d.read(buffer, (groups,), dt.float32).tobytes())
        assert pauses > 3 * 4  # parts of a step
        with pytest.raises(KeyError):
            d.submit_pausing(bound, (), {}.popitem)
        d.submit(bound, ())  # all groups again
        results.append(d.read(buffer, (groups,), dt.float32).tobytes())
    assert len(set(results)) == 1


def test_two_python_threads_share_one_device() -> None:
    n = 64_000
    program = two_buffers(
        n, kernels=(scale_kernel(n, 3.0),),
        steps=(Dispatch(0, (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))),) * 20,
    )  # fmt: skip
    d = device()
    wrong = []

    def work(value: float) -> None:
        buffers = [d.alloc(4 * n), d.alloc(4 * n)]
        d.write(buffers[0], np.full(n, value, np.float32))
        bound = d.bind(program, buffers)
        for _ in range(30):
            d.write(buffers[1], np.zeros(n, np.float32))
            d.submit(bound, ())
            got = d.read(buffers[1], (n,), dt.float32)
            if not np.array_equal(got, value * 3 + np.repeat(np.arange(n // 64), 64)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(v,)) for v in (1.0, 2.0, 4.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_workers_sleep_between_runs_and_wake_again() -> None:
    n = 1 << 20
    program = two_buffers(
        n, kernels=(scale_kernel(n, 2.0),),
        steps=(Dispatch(0, (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))),),
    )  # fmt: skip
    d = CpuDevice(threads=1)
    d.threads = 3
    buffers = [d.alloc(4 * n), d.alloc(4 * n)]
    d.write(buffers[0], np.ones(n, np.float32))
    bound = d.bind(program, buffers)
    for _ in range(5):
        d.submit(bound, ())
        time.sleep(0.02)
        assert d.workers._fields["sleepers"] == 2  # nobody spins while there is nothing to do
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_tiny_steps_are_cheap() -> None:
    """A Program of 300 tiny kernels is one call out of Python: no work of Python's per step."""
    n = 64
    program = two_buffers(
        n, kernels=(scale_kernel(n, 2.0),),
        steps=(Dispatch(0, (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))),) * 300,
    )  # fmt: skip
    d = device()
    buffers = [d.alloc(4 * n), d.alloc(4 * n)]
    d.write(buffers[0], np.ones(n, np.float32))
    bound = d.bind(program, buffers)
    d.submit(bound, ())
    events = []
    sys.setprofile(lambda frame, event, arg: events.append(event))
    d.submit(bound, ())
    sys.setprofile(None)
    assert len(events) < 100


def test_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NUM_THREADS", "1")
    assert CpuDevice().threads == 1 == CpuDevice().caps.cores
    for bad in ("0", "many", "-1"):
        monkeypatch.setenv("WEFT_NUM_THREADS", bad)
        with pytest.raises(UsageError, match="WEFT_NUM_THREADS"):
            CpuDevice()
    monkeypatch.delenv("WEFT_NUM_THREADS")
    with pytest.raises(UsageError, match="threads=0"):
        CpuDevice(threads=0)


# -- compiling


def test_kernels_compile_on_several_threads_to_the_same_code(tmp_path: Path) -> None:
    kernels = [scale_kernel(1 << 10, 1.5 + i) for i in range(6)]  # factors of this test alone
    objects = []
    for threads in (1, 3):
        d = CpuDevice(threads=threads)
        texts = [("k", partial(d.source, k)) for k in kernels]
        objects.append(jit.compile_objects(texts, d.host, d.loader.threads))
    assert objects[0] == objects[1]
    d = CpuDevice(threads=3, cache=tmp_path)
    assert len({*d.load(kernels)}) == d.loader.compiled == 6
    d.load(kernels)
    assert d.loader.compiled == 6


def test_two_threads_are_inside_llvm_at_once() -> None:
    for name in ("LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"):
        free = optimise._without_lock(name)
        assert free is not getattr(ffi.lib, name), "llvmlite wraps its functions in another way"


def test_a_kernel_that_llvm_refuses_is_named_from_any_thread() -> None:
    d = CpuDevice(threads=2)
    texts = [("good", lambda: d.source(scale_kernel(64, 1.0))), ("bad", lambda: "define nonsense")]
    with pytest.raises(CompileError, match="bad"):
        jit.compile_objects(texts, d.host, 2)


def test_kernels_begun_early_are_compiled_once(tmp_path: Path) -> None:
    kernels = [scale_kernel(1 << 10, 203.5 + i) for i in range(3)]  # factors of this test alone
    d = CpuDevice(threads=2, cache=tmp_path)
    for kernel in (*kernels, kernels[0]):
        d.prepare(kernel)
    assert len({*d.load(kernels[:2])}) == 2
    assert d.loader.compiled - 3 in (0, 1)  # with the third, and perhaps the runtime
    compiled = d.loader.compiled
    for kernel in kernels:
        d.prepare(kernel)
    d.load(kernels)
    assert d.loader.compiled == compiled and d.loader._early is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_wait_for_kernels_that_its_parent_began(tmp_path: Path) -> None:
    kernels = [scale_kernel(1 << 10, 211.5 + i) for i in range(2)]
    d = CpuDevice(threads=2, cache=tmp_path)
    for kernel in kernels:
        d.prepare(kernel)
    child = os.fork()
    if not child:
        status = 1
        try:
            d.prepare(kernels[0])
            status = len({*d.load(kernels)}) - 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len({*d.load(kernels)}) == 2


def test_what_llvm_refuses_shows_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    d = CpuDevice(threads=2, cache=tmp_path)
    bad, good = scale_kernel(64, 217.5), scale_kernel(64, 218.5)
    with monkeypatch.context() as patched:
        patched.setattr(d.loader, "render", lambda *_: "define nonsense")
        d.prepare(bad)
    d.prepare(good)
    with pytest.raises(CompileError, match=bad.name):
        d.load([bad])
    assert d.load([good]) and d.load([bad])  # rendered anew


def test_a_device_hears_of_each_kernel_while_its_program_is_made() -> None:
    heard: list[ir.Kernel] = []
    d = CpuDevice(threads=2)
    d.prepare = heard.append  # type: ignore[method-assign, assignment]
    x = weft.tensor(np.ones((8, 300), np.float32))
    compiled = weft.compile(lambda x: (x @ x.T).sum(-1), device=d)
    compiled(x)
    assert heard and len(heard) == len({k.name for k in heard})


# -- one thread or several


def own_workers(threads: int = 2) -> CpuDevice:
    """A device whose workers no other device has."""
    d = CpuDevice(threads=1)
    d.threads = threads
    d._workers = Workers(d.functions, threads)
    return d


def test_a_small_program_never_asks_for_a_worker() -> None:
    n, steps = 640, 30
    d = own_workers()
    ref = BufferRef(0, 0, 4 * n)
    other = BufferRef(1, 0, 4 * n)
    program = two_buffers(
        n, kernels=(scale_kernel(n, 1.0),), steps=(Dispatch(0, (ref, other)),) * steps
    )
    buffers = [d.alloc(4 * n), d.alloc(4 * n)]
    d.write(buffers[0], np.ones(n, np.float32))
    bound = d.bind(program, buffers)
    for _ in range(10):
        d.submit(bound, ())
    assert d.workers._started == []
    assert int(d.workers._fields["wake"]) == 0 and int(d.workers._fields["entry"]) == 0
    want = 1 + np.repeat(np.arange(n // 64), 64)
    np.testing.assert_array_equal(d.read(buffers[1], (n,), dt.float32), want)


def test_a_program_that_proves_long_is_shared() -> None:
    """Its kernels' figures say nothing; that it is no small one, its first runs show."""
    n, steps = 64 * 1000, 40
    d = own_workers()
    ref, other = BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n)
    dispatches = (Dispatch(0, (ref, other)),) * steps
    program = two_buffers(n, kernels=(scale_kernel(n, 2.0),), steps=dispatches)
    buffers = [d.alloc(4 * n), d.alloc(4 * n)]
    d.write(buffers[0], np.ones(n, np.float32))
    bound = d.bind(program, buffers)
    want = 2 + np.repeat(np.arange(n // 64), 64)
    for i in range(6):
        d.submit(bound, ())
        assert bool(d.workers._started) == (i >= 3)  # three trials alone
        np.testing.assert_array_equal(d.read(buffers[1], (n,), dt.float32), want)
    d.workers.stop()


def test_a_program_over_scalars_is_never_held_small() -> None:
    """Its work may grow with them from run to run."""
    d = own_workers()
    b = Builder("fill")
    x = b.buffer("x", dt.float32, 64, "w")
    with b.loop(ir.Param("n", 0)) as i:
        b.store(x, i, 1.0)
    spec = BufferSpec("x", "input", dt.float32, (64,), 256)
    steps = (Dispatch(0, (BufferRef(0, 0, 256),)),)
    program = Program("p", (spec,), (b.kernel((1,)),), steps, ("n",), (0,), (0,))
    bound = d.bind(program, [d.alloc(256)])
    for _ in range(5):
        d.submit(bound, (3,))
    assert d.workers._started
    assert bound.direct((0,), ()) is None
    d.workers.stop()
