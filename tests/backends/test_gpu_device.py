"""The device that CUDA and HIP share, on a driver that records: order, arguments, lifetimes,
errors."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import gpu_fake as fake
import numpy as np
import pytest

import weft
from weft.backends.cache import DiskCache
from weft.conform import device as contract
from weft.conform.harness import elementwise_kernel, program_of
from weft.conform.report import Skip
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, OutOfMemoryError
from weft.kernel.builder import Builder, load
from weft.kernel.ir import Param
from weft.models import random_folder
from weft.program.program import BufferRef, BufferSpec, Copy, Dispatch, Fill, Program

F32 = dt.float32


def double(device: fake.FakeDevice, n: int = 64):  # type: ignore[no-untyped-def]
    return elementwise_kernel("double", device.caps, n, [F32], F32, lambda b, i, x: x * 2.0)


def test_the_contract_of_devices() -> None:
    device = fake.fake_device()
    for name, check in contract.checks(device):
        try:
            check()
        except Skip:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def test_order_and_arguments() -> None:
    device = fake.fake_device()
    driver = device.driver
    program, sizes = program_of(double(device), repeat=2, scalars=("n",))
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.arange(64, dtype=np.float32))
    bound = device.bind(program, buffers)
    driver.calls.clear()
    for scalars in ((5,), (5,), (6,)):
        device.write(buffers[1], np.zeros(64, np.float32))
        device.submit(bound, scalars)
    got = device.read(buffers[1], (64,), F32)
    np.testing.assert_array_equal(got, np.arange(64) * 2)
    both = ["launch", "launch"]
    assert driver.names() == [
        "write", "write", *both,  # scalars are written only when they change
        "write", "record", *both, "recorded", "replay",  # the second run is recorded
        "write", "write", "replay",  # and serves for other values
        "read",
    ]  # fmt: skip
    _, entry, grid, threads, args, shared = driver.calls[2]
    assert (entry, grid, threads) == ("weft_double", (1, 1, 1), (64, 1, 1))
    assert args[:2] == (buffers[0].address, buffers[1].address) and len(args) == 3 and shared == 0


def test_shared_memory_beyond_what_code_may_declare(tmp_path: Path) -> None:
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
            device = fake.FakeDevice(fake.FakeDriver(), DiskCache(tmp_path))
            device.submit(device.bind(program, [device.alloc(n) for n in sizes]), [])
            assert ("load", "weft_large", asked) in device.driver.calls
            (call,) = [c for c in device.driver.calls if c[0] == "launch"]
            assert call[-1] == asked


def test_grids_follow_the_scalars() -> None:
    device = fake.fake_device()
    b = Builder("rows")
    out = b.buffer("out", dt.int32, 8, "w")
    b.store(out, b.group(0), Param("n", 0))
    program, sizes = program_of(b.kernel((Param("n", 0),)), scalars=("n",))
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.zeros(8, np.int32))
    bound = device.bind(program, buffers)
    device.driver.calls.clear()
    for n in (3, 0):
        device.submit(bound, [n])
    assert device.read(buffers[0], (8,), dt.int32).tolist() == [3, 3, 3, 0, 0, 0, 0, 0]
    assert device.driver.names().count("launch") == 1  # nothing to do is not launched
    for _ in range(2):
        device.submit(bound, (0,))
    assert "record" not in device.driver.names()  # nor recorded
    with pytest.raises(DeviceError, match="takes 1 scalars, got 0"):
        device.submit(bound, [])


def test_recordings_follow_grids_and_buffers() -> None:
    """Every grid and every set of buffers has its own recording; few are kept, none leaks."""
    device = fake.fake_device()
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
    assert len(device.driver.graphs) == 4
    del bound
    gc.collect()
    assert not device.driver.graphs


def test_a_failure_ends_the_recording() -> None:
    device = fake.fake_device()
    program, sizes = program_of(double(device))
    buffers = [device.alloc(n) for n in sizes]
    device.write(buffers[0], np.ones(64, np.float32))
    bound = device.bind(program, buffers)
    device.submit(bound, [])
    device.driver.fail["launch"] = DeviceError("too much")
    with pytest.raises(DeviceError, match="too much"):
        device.submit(bound, [])
    assert device.driver.noted is None and not device.driver.graphs
    for _ in range(3):
        device.submit(bound, [])
    np.testing.assert_array_equal(device.read(buffers[1], (64,), F32), 2)


def test_memory_lives_as_long_as_it_is_used() -> None:
    device = fake.fake_device()
    program, sizes = program_of(double(device))
    buffers = [device.alloc(n) for n in sizes]
    kept = {b.address for b in buffers}
    bound = device.bind(program, buffers)
    fresh = device.alloc(sizes[1])
    del buffers
    gc.collect()
    assert kept <= set(device.driver.live)  # the bound program holds them
    bound.rebind(1, fresh)
    gc.collect()
    assert len(kept & set(device.driver.live)) == 1
    device.submit(bound, [])
    del bound, fresh
    gc.collect()
    assert not device.driver.live


def test_copies_and_fills() -> None:
    device = fake.fake_device()
    spec = BufferSpec("x", "input", dt.uint8, (64,), 64)
    steps = (
        Copy(BufferRef(0, 0, 32), BufferRef(0, 32, 32)),
        Copy(BufferRef(0, 0, 40), BufferRef(0, 8, 40)),
        Copy(BufferRef(0, 3, 5), BufferRef(0, 3, 5)),
        Fill(BufferRef(0, 60, 4), 7),
    )
    program = Program("moves", (spec,), (), steps, (), (0,), ())
    x = np.arange(64, dtype=np.uint8)
    buffer = device.alloc(64)
    device.write(buffer, x)
    device.submit(device.bind(program, [buffer]), [])
    want = x.copy()
    want[32:64] = want[:32].copy()
    want[8:48] = want[:40].copy()
    want[60:] = 7
    np.testing.assert_array_equal(device.read(buffer, (64,), dt.uint8), want)


def test_code_is_compiled_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    first = fake.FakeDevice(fake.FakeDriver(), cache)
    kernel = double(first)
    assert first.load([kernel, kernel])[0] == ("weft_double", 0) and first.compiled == 1
    assert first.driver.names() == ["load"]
    second = fake.FakeDevice(fake.FakeDriver(), cache)
    second.load([kernel])
    assert second.compiled == 0
    other = fake.FakeDevice(fake.FakeDriver(arch="sm_90"), cache)
    other.load([kernel])
    assert other.compiled == 1
    assert ".target sm_80" in first.source(kernel)


def test_errors_name_what_failed() -> None:
    device = fake.fake_device(memory=4096)
    with pytest.raises(OutOfMemoryError, match="no 9,999 bytes"):
        device.alloc(9999)
    program, sizes = program_of(double(device))
    buffers = [device.alloc(n) for n in sizes]
    bound = device.bind(program, buffers)
    device.driver.fail["launch"] = DeviceError("too much")
    with pytest.raises(DeviceError, match=r"double, step 0, double \(kernel double\): too much"):
        device.submit(bound, [])
    with pytest.raises(DeviceError, match="needs 256 bytes, got 255"):
        device.bind(program, [buffers[0], device.alloc(255)])
    with pytest.raises(DeviceError, match="has 2 buffers, got 1"):
        device.bind(program, buffers[:1])
    with pytest.raises(DeviceError, match="another device"):
        device.bind(program, [fake.fake_device().alloc(256)] * 2)
    with pytest.raises(DeviceError, match=r"bytes 200\.\.300 of a buffer of 256"):
        device.read(buffers[0], (25,), F32, 200)
    with pytest.raises(DeviceError, match="bound on another device"):
        fake.fake_device().submit(bound, [])


def test_unaligned_places_are_refused_when_bound() -> None:
    device = fake.fake_device()
    kernel = double(device, 4)
    specs = tuple(BufferSpec(n, "input", F32, (8,), 32) for n in "xy")
    args = (BufferRef(0, 4, 16), BufferRef(1, 0, 16))
    program = Program("odd", specs, (kernel,), (Dispatch(0, args, "two"),), (), (0, 1), ())
    with pytest.raises(DeviceError, match="two starts at byte 4 of a buffer"):
        device.bind(program, [device.alloc(32), device.alloc(32)])


def test_a_failed_write_of_scalars_is_not_remembered() -> None:
    device = fake.fake_device()
    program, sizes = program_of(double(device), scalars=("n",))
    bound = device.bind(program, [device.alloc(n) for n in sizes])
    for buffer in bound.buffers:
        device.write(buffer, np.zeros(64, np.float32))
    device.driver.fail["write"] = DeviceError("busy")
    with pytest.raises(DeviceError, match="busy"):
        device.submit(bound, [1])
    device.driver.calls.clear()
    device.submit(bound, [1])
    assert device.driver.names() == ["write", "launch"]


@pytest.mark.parametrize("kind,arch", [("cuda", "sm_90"), ("hip", "gfx1100")])
def test_a_model_on_the_recording_driver(kind: str, arch: str, tmp_path: Path) -> None:
    small = {
        "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }  # fmt: skip
    folder = random_folder(tmp_path, small, scale=0.3)
    device = fake.fake_device(kind=kind, arch=arch)
    want = weft.load(folder, device="oracle").generate([1, 2, 3], max_new_tokens=3)
    assert weft.load(folder, device=device).generate([1, 2, 3], max_new_tokens=3) == want
    assert "launch" in device.driver.names()


def test_garbage_collection_waits_for_no_lock() -> None:
    """Two threads that hold a device each and collect the other's garbage would wait for ever."""
    device = fake.fake_device()
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
    assert len(device.driver.live) == 1
    kept = device.alloc(8)
    assert list(device.driver.live) == [kept.address]
