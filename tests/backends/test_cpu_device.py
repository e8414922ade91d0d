"""CpuDevice: memory, Programs of many steps, errors."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from cpu_case import device, program_of, scale_kernel, two_buffers

from weft.backends.cpu import CpuDevice
from weft.backends.cpu.memory import rounded
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, OutOfMemoryError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import load
from weft.program.program import BufferRef, Dispatch

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
    with pytest.raises(DeviceError, match="of a buffer of 96"):
        d.view(wrapped, (97,), dt.uint8)


def test_an_allocation_beyond_the_memory() -> None:
    d = device()
    for nbytes in (1 << 46, 1 << 62):
        with pytest.raises(OutOfMemoryError, match=r"MiB was asked for .*(available|refused)"):
            d.alloc(nbytes)


@pytest.mark.parametrize("nbytes", [1 << 20, (2 << 20) + 4096, (9 << 20) + 64])
def test_large_memory_can_be_huge_pages(nbytes: int) -> None:
    d = CpuDevice(threads=1)
    buffer = d.alloc(nbytes)
    if nbytes >= 2 << 20 and sys.platform == "linux":
        assert buffer.address % (2 << 20) == 0
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    d.write(buffer, data)
    np.testing.assert_array_equal(np.asarray(buffer), data)


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
    with pytest.raises(DeviceError, match="needs 2560 bytes, got 100"):
        d.bind(good, [d.alloc(100), d.alloc(4 * n)])
    with pytest.raises(DeviceError, match="a buffer of cpu:0 belongs to another"):
        d.bind(good, [other.alloc(4 * n), d.alloc(4 * n)])
    short = two_buffers(
        n, kernels=good.kernels, steps=(Dispatch(0, (BufferRef(0, 0, 4), refs[1])),)
    )
    with pytest.raises(DeviceError, match="kernel scale: buffer x has 640 float32 elements"):
        d.bind(short, [d.alloc(4 * n), d.alloc(4 * n)])
    bound = d.bind(good, [d.alloc(4 * n), d.alloc(4 * n)])
    with pytest.raises(DeviceError, match="needs 2560 bytes"):
        bound.rebind(0, d.alloc(100))
    with pytest.raises(DeviceError, match="another device"):
        other.submit(bound, ())
