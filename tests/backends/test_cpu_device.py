"""CpuDevice: memory, Programs of many steps, threads, errors."""

from __future__ import annotations

import gc
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cpu_case import device, program_of
from llvmlite.binding import ffi

from weft.backends.cpu import CpuDevice, jit
from weft.backends.cpu.memory import rounded
from weft.backends.cpu.threads import Workers
from weft.backends.llvm import optimise
from weft.core import dtypes as dt
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError, UsageError
from weft.kernel import ir
from weft.kernel.builder import Builder, cast, load
from weft.program.program import BufferRef, BufferSpec, Copy, Dispatch, Fill, Program


def scale_kernel(n: int, factor: float, block: int = 64) -> ir.Kernel:
    """y = x * factor + group, `block` elements per group."""
    b = Builder("scale")
    x, y = b.buffer("x", dt.float32, n), b.buffer("y", dt.float32, n, "w")
    g = b.let(b.group(0), "g")
    with b.loop(block) as i:
        b.store(y, g * block + i, load(x, g * block + i) * factor + cast(g, dt.float32))
    return b.kernel((n // block,))


def two_buffers(n: int, name: str = "p", **parts: object) -> Program:
    specs = tuple(BufferSpec(k, "input", dt.float32, (n,), 4 * n) for k in "xy")
    return Program(name, specs, parts["kernels"], parts["steps"], (), (0,), (1,))  # type: ignore[arg-type]


# -- memory


def test_alloc_is_aligned_and_reused() -> None:
    d = CpuDevice(threads=1)
    seen = set()
    for nbytes in (0, 1, 63, 64, 65, 1000, 1 << 20, (1 << 20) + 1, 5 << 20):
        buffer = d.alloc(nbytes)
        assert buffer.nbytes == nbytes and buffer.address % 64 == 0
        seen.add(buffer.address)
        del buffer
    again = d.alloc(5 << 20)
    assert again.address in seen


def test_rounded_sizes_waste_little() -> None:
    for n in [*range(1, 300), 10_000, 99_999, 1 << 20, (1 << 20) + 1, 123_456_789]:
        assert n <= rounded(n) <= max(n + 63, n * 1.15) and rounded(n) % 64 == 0
        assert rounded(rounded(n)) == rounded(n)


def test_pool_is_bounded() -> None:
    d = CpuDevice(threads=1)
    d._pool.limit = 3 << 20
    buffers = [d.alloc(1 << 20) for _ in range(8)]
    del buffers
    gc.collect()
    assert 0 < d._pool.cached <= 3 << 20


def test_write_read_view_and_wrap() -> None:
    d = device()
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer = d.alloc(200)
    d.write(buffer, data, 64)
    np.testing.assert_array_equal(d.read(buffer, (4, 6), dt.float32, 64), data)
    view = d.view(buffer, (6,), dt.float32, 64)
    d.write(buffer, np.float32([9]), 64)
    assert view[0] == 9
    address = buffer.address
    del buffer  # the view keeps the memory from being handed out again
    others = [d.alloc(200) for _ in range(8)]
    assert all(b.address != address for b in others) and view[1] == 1
    wrapped = d.wrap(data)
    assert wrapped.address == data.ctypes.data and wrapped.nbytes == data.nbytes
    data[0, 0] = 42
    assert d.read(wrapped, (1,), dt.float32)[0] == 42
    unaligned = np.frombuffer(bytes(80), np.uint8)[8:72].view(np.float32)
    d.wrap(unaligned)
    with pytest.raises(DeviceError, match="C-contiguous"):
        d.wrap(data.T)


def test_bfloat16_and_bool_views() -> None:
    d = device()
    for dtype in dt.DEVICE:
        data = np.array([0, 1, 1, 0, 1, 1, 1, 0]).astype(dtype.numpy)
        buffer = d.alloc(data.nbytes)
        d.write(buffer, data)
        got = d.read(buffer, (2, 4), dtype)
        assert got.dtype == dtype.numpy
        np.testing.assert_array_equal(got, data.reshape(2, 4))


def test_access_beyond_a_buffer_is_refused() -> None:
    d = device()
    buffer = d.alloc(16)
    for call in (
        lambda: d.write(buffer, np.zeros(5, np.float32)),
        lambda: d.read(buffer, (4,), dt.float32, 4),
        lambda: d.read(buffer, (1,), dt.float32, -4),
        lambda: d.view(buffer, (17,), dt.uint8),
    ):
        with pytest.raises(DeviceError, match="of a buffer of 16"):
            call()


def test_an_allocation_beyond_the_memory() -> None:
    d = device()
    for nbytes in (1 << 46, 1 << 62):
        with pytest.raises(OutOfMemoryError, match=r"MiB was asked for .*(available|refused)"):
            d.alloc(nbytes)


# -- Programs


def test_many_steps_in_order() -> None:
    n, steps = 640, 300
    kernels = tuple(scale_kernel(n, 1 + k / 4) for k in range(3))
    refs = [BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n)]
    program = two_buffers(
        n, kernels=kernels,
        steps=tuple(Dispatch(s % 3, (refs[s % 2], refs[1 - s % 2])) for s in range(steps)),
    )  # fmt: skip
    x = np.linspace(-1, 1, n, dtype=np.float32)
    want = x.copy()
    group = np.repeat(np.arange(n // 64), 64).astype(np.float32)
    with np.errstate(over="ignore"):
        for s in range(steps):
            want = want * np.float32(1 + s % 3 / 4) + group
    for threads in (1, 2):
        d = device(threads)
        buffers = [d.alloc(4 * n) for _ in range(2)]
        bound = d.bind(program, buffers)
        for _ in range(3):
            d.write(buffers[0], x)
            d.submit(bound, ())
            np.testing.assert_array_equal(d.read(buffers[0], (n,), dt.float32), want)


def test_copy_fill_offsets_and_empty_steps() -> None:
    n = 1_000_000
    spec = BufferSpec("arena", "arena", dt.uint8, (4 * n,), 4 * n)
    other = BufferSpec("out", "output", dt.uint8, (n,), n)
    steps = (
        Fill(BufferRef(0, 0, n), 7),
        Fill(BufferRef(0, n, n), 255),
        Copy(BufferRef(0, 256, n), BufferRef(1, 0, n)),
        Copy(BufferRef(0, 0, 1000), BufferRef(0, 100, 1000)),  # overlapping
        Copy(BufferRef(0, 0, 0), BufferRef(1, 0, 0)),
        Fill(BufferRef(1, 5, 0), 9),
    )
    program = Program("moves", (spec, other), (), steps, (), (), (1,))
    d = device()
    buffers = [d.alloc(4 * n), d.alloc(n)]
    d.submit(d.bind(program, buffers), ())
    got = d.read(buffers[1], (n,), dt.uint8)
    assert (got[: n - 256] == 7).all() and (got[n - 256 :] == 255).all()


def test_grids_follow_the_scalars() -> None:
    n = 4096
    b = Builder("rows")
    out = b.buffer("out", dt.int32, n, "rw")
    g = b.let(b.group(1) * 8 + b.group(0), "g")
    b.store(out, g, load(out, g) + ir.Param("bias", 1))
    rows = ir.Param("rows", 0)
    kernel = b.kernel((8, (rows + 7) // 8 * 1))
    d = device()
    buffer = d.alloc(4 * n)
    bound = d.bind(program_of(kernel, ("rows", "bias")), [buffer])
    for rows_now, bias in ((0, 1), (1, 2), (100, 3), (100, 4), (4000, 5), (-5, 6), (8, 7)):
        d.write(buffer, np.zeros(n, np.int32))
        d.submit(bound, (rows_now, bias))
        count = max(0, -(-rows_now // 8) * 8)
        want = np.where(np.arange(n) < count, bias, 0)
        np.testing.assert_array_equal(d.read(buffer, (n,), dt.int32), want)
    with pytest.raises(DeviceError, match="scalars"):
        d.submit(bound, (1,))
    with pytest.raises(DeviceError, match="rows=2147483648 is not an int32"):
        d.submit(bound, (1 << 31, 0))


def test_rebind() -> None:
    n = 640
    program = two_buffers(
        n, kernels=(scale_kernel(n, 2.0),),
        steps=(Dispatch(0, (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))),),
    )  # fmt: skip
    d = device()
    first, second, out = (d.alloc(4 * n) for _ in range(3))
    d.write(first, np.zeros(n, np.float32))
    d.write(second, np.ones(n, np.float32))
    bound = d.bind(program, [first, out])
    d.submit(bound, ())
    assert d.read(out, (1,), dt.float32)[0] == 0
    bound.rebind(0, second)
    d.submit(bound, ())
    assert d.read(out, (1,), dt.float32)[0] == 2
    with pytest.raises(DeviceError, match="needs 2560 bytes"):
        bound.rebind(0, d.alloc(100))


def test_a_wrapped_read_only_array_may_only_be_read() -> None:
    n = 640
    program = two_buffers(
        n, kernels=(scale_kernel(n, 2.0),),
        steps=(Dispatch(0, (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))),),
    )  # fmt: skip
    d = device()
    constant = np.ones(n, np.float32)
    constant.flags.writeable = False
    fixed, out = d.wrap(constant), d.alloc(4 * n)
    bound = d.bind(program, [fixed, out])
    d.submit(bound, ())
    assert d.read(out, (1,), dt.float32)[0] == 2
    assert not d.view(fixed, (n,), dt.float32).flags.writeable
    with pytest.raises(DeviceError, match="buffer y is written by the Program"):
        d.bind(program, [out, fixed])
    with pytest.raises(DeviceError, match="buffer y is written by the Program"):
        bound.rebind(1, fixed)
    with pytest.raises(DeviceError, match="read-only"):
        d.write(fixed, constant)


def test_binding_errors() -> None:
    n = 640
    refs = (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))
    good = two_buffers(n, kernels=(scale_kernel(n, 2.0),), steps=(Dispatch(0, refs),))
    d, other = device(), CpuDevice(threads=1)
    with pytest.raises(DeviceError, match="1 buffers for a Program of 2"):
        d.bind(good, [d.alloc(4 * n)])
    with pytest.raises(DeviceError, match="needs 2560 bytes, got 100"):
        d.bind(good, [d.alloc(100), d.alloc(4 * n)])
    with pytest.raises(DeviceError, match="a buffer of cpu:0 was given to cpu:0"):
        d.bind(good, [other.alloc(4 * n), d.alloc(4 * n)])
    short = two_buffers(
        n, kernels=good.kernels, steps=(Dispatch(0, (BufferRef(0, 0, 4), refs[1])),)
    )
    with pytest.raises(DeviceError, match="kernel scale: buffer x has 640 float32 elements"):
        d.bind(short, [d.alloc(4 * n), d.alloc(4 * n)])
    bound = d.bind(good, [d.alloc(4 * n), d.alloc(4 * n)])
    with pytest.raises(DeviceError, match="another device"):
        other.submit(bound, ())


# -- threads


def test_results_do_not_depend_on_threads_or_runs() -> None:
    """Groups of unequal work, cut differently on every run."""
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
    """A Program of 300 tiny kernels: microseconds in all, not per-step Python work."""
    n = 64
    program = two_buffers(
        n, kernels=(scale_kernel(n, 2.0),),
        steps=(Dispatch(0, (BufferRef(0, 0, 4 * n), BufferRef(1, 0, 4 * n))),) * 300,
    )  # fmt: skip
    d = device()
    buffers = [d.alloc(4 * n), d.alloc(4 * n)]
    d.write(buffers[0], np.ones(n, np.float32))
    bound = d.bind(program, buffers)
    best = 1.0
    for _ in range(50):
        start = time.perf_counter()
        d.submit(bound, ())
        best = min(best, time.perf_counter() - start)
    assert best / 300 < 5e-6  # measured 0.1 microseconds; the bound allows for a busy machine


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


@pytest.mark.parametrize("nbytes", [1 << 20, (2 << 20) + 4096, (9 << 20) + 64])
def test_large_memory_can_be_huge_pages(nbytes: int) -> None:
    d = CpuDevice(threads=1)
    buffer = d.alloc(nbytes)
    if nbytes >= 2 << 20 and sys.platform == "linux":
        assert buffer.address % (2 << 20) == 0
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    d.write(buffer, data)
    np.testing.assert_array_equal(np.asarray(buffer), data)


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
