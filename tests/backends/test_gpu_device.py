"""The device that CUDA and HIP share, on stand-ins for their bindings: order, arguments, lifetimes,
errors."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from gpu_bindings import Bindings, Taught, named

from weft.conform.harness import elementwise_kernel, program_of
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, OutOfMemoryError
from weft.host.cache import DiskCache
from weft.kernel.builder import Builder
from weft.kernel.expr import load
from weft.kernel.ir import Param
from weft.program.program import BufferRef, BufferSpec, Dispatch, Program

F32 = dt.float32


def double(device: Taught, n: int = 64):  # type: ignore[no-untyped-def]
    return elementwise_kernel("double", device.caps, n, [F32], F32, lambda b, i, x: x * 2.0)


def test_order_and_arguments(gpu: Bindings) -> None:
    device = Taught(gpu)
    program, sizes = program_of(double(device), repeat=2, scalars=("n",))
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.arange(64, dtype=np.float32))
    bound = device.bind(program, buffers)
    gpu.calls.clear()
    for scalars in ((5,), (5,), (6,)):
        device.write(buffers[1], np.zeros(64, np.float32))
        device.submit(bound, scalars)
    got = device.read(buffers[1], (64,), F32)
    np.testing.assert_array_equal(got, np.arange(64) * 2)
    both = ["launch", "launch"]
    assert gpu.shorts() == [
        "to_device", "to_device", *both,  # scalars are written only when they change
        "to_device", "begin", *both, "end", "instantiate", "graph_end",  # the second run is
        "replay",  # recorded, and serves for other values
        "to_device", "to_device", "replay",
        "to_host", "event_record", "event_wait",
    ]  # fmt: skip
    entry, grid, threads, args, shared = gpu.launches[0]
    assert (entry, grid, threads) == ("weft_double", (1, 1, 1), (64, 1, 1))
    assert args[:2] == [buffers[0].address, buffers[1].address] and len(args) == 3 and shared == 0


def test_shared_memory_beyond_what_code_may_declare(gpu: Bindings, tmp_path: Path) -> None:
    """The amount is cached with the code, and asked for at every launch."""
    for size, asked in ((12288, 0), (12289, 49168)):
        b = Builder("large")
        x, out = b.buffer("x", F32, 64), b.buffer("out", F32, 64, "w")
        tmp, t = b.array("tmp", F32, size, "shared"), b.let(b.thread(0))
        b.store(tmp, t, load(x, t))
        b.store(out, t, load(tmp, t))
        kernel = b.kernel((1,), (64,))
        program, sizes = program_of(kernel)
        for _ in range(2):
            device = Taught(gpu, DiskCache(tmp_path))
            device.submit(device.bind(program, [device.alloc(n) for n in sizes]), [])
            assert gpu.shorts().count("allow") == (gpu.kind == "cuda" and asked > 0)
            assert gpu.launches[-1][-1] == asked * (gpu.kind == "cuda")  # AMD's code declares all


def test_grids_follow_the_scalars(gpu: Bindings) -> None:
    device = Taught(gpu)
    b = Builder("rows")
    out = b.buffer("out", dt.int32, 8, "w")
    b.store(out, b.group(0), Param("n", 0))
    program, sizes = program_of(b.kernel((Param("n", 0),)), scalars=("n",))
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.zeros(8, np.int32))
    bound = device.bind(program, buffers)
    gpu.calls.clear()
    for n in (3, 0):
        device.submit(bound, [n])
    assert device.read(buffers[0], (8,), dt.int32).tolist() == [3, 3, 3, 0, 0, 0, 0, 0]
    assert gpu.shorts().count("launch") == 1  # nothing to do is not launched
    for _ in range(2):
        device.submit(bound, (0,))
    assert "begin" not in gpu.shorts()  # nor recorded
    with pytest.raises(DeviceError, match="takes 1 scalars, got 0"):
        device.submit(bound, [])


def test_recordings_follow_grids_and_buffers(gpu: Bindings) -> None:
    """Every grid and every set of buffers has its own recording; few are kept, none leaks."""
    device = Taught(gpu)
    b = Builder("rows")
    out = b.buffer("out", dt.int32, 8, "w")
    b.store(out, b.group(0), b.group(0) + 1)
    program, sizes = program_of(b.kernel((Param("n", 0),)), scalars=("n",))
    buffers = [device.alloc(sizes[0]) for _ in range(2)]
    bound = device.bind(program, buffers[:1])
    for n in (1, 2, 3, 4, 5, 6, 7):
        for buffer in (buffers[0], buffers[0], buffers[0], buffers[1], buffers[1]):
            bound.rebind(0, buffer)
            device.write(buffer, np.zeros(8, np.int32))
            device.submit(bound, [n])
            got = device.read(buffer, (8,), dt.int32)
            assert got.tolist() == [*range(1, n + 1), *[0] * (8 - n)]
    assert [h.what for h in gpu.live].count("exec") == 4
    del bound
    gc.collect()
    assert "exec" not in gpu.left()


def test_a_failure_ends_the_recording(gpu: Bindings) -> None:
    device = Taught(gpu)
    program, sizes = program_of(double(device))
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.ones(64, np.float32))
    bound = device.bind(program, buffers)
    device.submit(bound, [])
    gpu.fail = {named(gpu, "launch")[0]: [1]}
    with pytest.raises(DeviceError, match="ERROR_1"):
        device.submit(bound, [])
    assert gpu.capture is None and not {"exec", "graph"} & set(gpu.left())
    for _ in range(3):
        device.submit(bound, [])
    np.testing.assert_array_equal(device.read(buffers[1], (64,), F32), 2)


def test_memory_lives_as_long_as_it_is_used(gpu: Bindings) -> None:
    device = Taught(gpu)
    program, sizes = program_of(double(device))
    buffers = [device.alloc(n) for n in sizes]
    kept = {b.address for b in buffers}
    bound = device.bind(program, buffers)
    fresh = device.alloc(sizes[1])
    del buffers
    gc.collect()
    device.sync()
    assert kept <= set(gpu.blocks)  # the bound program holds them
    bound.rebind(1, fresh)
    gc.collect()
    device.sync()
    assert len(kept & set(gpu.blocks)) == 1
    device.submit(bound, [])
    del bound, fresh
    gc.collect()
    device.sync()
    assert not gpu.blocks


def test_code_is_compiled_once(gpu: Bindings, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    first = Taught(gpu, cache, real=True)
    kernel = double(first)
    loaded = first.load([kernel, kernel])
    assert loaded[0] is loaded[1] and loaded[0].shared == 0 and first.compiled == 1
    assert gpu.shorts() == [f"{gpu.kind}_module", "function"]
    second = Taught(gpu, cache, real=True)
    second.load([kernel])
    assert second.compiled == 0
    gpu.capability, gpu.arch_name = (8, 0), "gfx1100"
    other = Taught(gpu, cache, real=True)
    other.load([kernel])
    assert other.compiled == 1
    assert {"cuda": ".target sm_80", "hip": 'gfx1100"'}[gpu.kind] in other.source(kernel)


def test_errors_name_what_failed(gpu: Bindings) -> None:
    gpu.memory = 4096
    device = Taught(gpu)
    with pytest.raises(OutOfMemoryError, match="cannot allocate 9,999 bytes"):
        device.alloc(9999)
    program, sizes = program_of(double(device))
    buffers = [device.alloc(n) for n in sizes]
    bound = device.bind(program, buffers)
    gpu.fail = {named(gpu, "launch")[0]: [1]}
    with pytest.raises(DeviceError, match=r"double, step 0, double \(kernel double\): .*ERROR_1"):
        device.submit(bound, [])
    with pytest.raises(DeviceError, match="another device"):
        device.bind(program, [Taught(gpu).alloc(256)] * 2)
    with pytest.raises(DeviceError, match="bound on another device"):
        Taught(gpu).submit(bound, [])


def test_unaligned_places_are_refused_when_bound(gpu: Bindings) -> None:
    device = Taught(gpu)
    kernel = double(device, 4)
    specs = tuple(BufferSpec(n, "input", F32, (8,), 32) for n in "xy")
    args = (BufferRef(0, 4, 16), BufferRef(1, 0, 16))
    program = Program("odd", specs, (kernel,), (Dispatch(0, args, "two"),), (), (0, 1), ())
    with pytest.raises(DeviceError, match="two starts at byte 4 of a buffer"):
        device.bind(program, [device.alloc(32), device.alloc(32)])


def test_a_failed_write_of_scalars_is_not_remembered(gpu: Bindings) -> None:
    device = Taught(gpu)
    program, sizes = program_of(double(device), scalars=("n",))
    bound = device.bind(program, [device.alloc(n) for n in sizes])
    for buffer in bound.buffers:
        device.write(buffer, np.zeros(64, np.float32))
    gpu.fail = {named(gpu, "to_device")[0]: [1]}
    with pytest.raises(DeviceError, match="ERROR_1"):
        device.submit(bound, [1])
    gpu.calls.clear()
    device.submit(bound, [1])
    assert gpu.shorts() == ["to_device", "launch"]


def test_garbage_collection_waits_for_no_lock(gpu: Bindings) -> None:
    """Two threads that hold a device each and collect the other's garbage would wait for ever."""
    device = Taught(gpu)
    buffer = device.alloc(8)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with device.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    del buffer
    done.set()
    thread.join()
    device.sync()
    assert len(gpu.blocks) == 1
    kept = device.alloc(8)
    device.sync()
    assert list(gpu.blocks) == [kept.address]
