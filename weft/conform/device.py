"""Level "device": the contract of program/device.py, read as checks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.conform.harness import check_equal, elementwise_kernel, program_of, run_kernel
from weft.conform.report import Check, CheckFailed
from weft.core import dtypes as dt
from weft.core.errors import LimitError
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load
from weft.kernel.ir import Param
from weft.program.device import Device
from weft.program.program import BufferRef, BufferSpec, Copy, Fill, Program

_F32 = dt.float32


def checks(device: Device) -> Iterator[Check]:
    """Every check of the contract, by name."""
    yield "write then read gives the same bytes, any dtype and offset", lambda: _round_trip(device)
    yield "zero bytes can be allocated", lambda: _zero(device)
    yield "allocations do not overlap", lambda: _apart(device)
    yield "an absurd allocation is a named error", lambda: _absurd(device)
    yield "Copy and Fill steps", lambda: _copy_fill(device)
    yield "steps see the steps before them", lambda: _order(device)
    yield "runtime scalars change from run to run", lambda: _scalars(device)
    yield "a grid that depends on a scalar", lambda: _dynamic_grid(device)
    yield "rebind takes effect at the next run", lambda: _rebind(device)
    yield "a replayed Program gives the same bits", lambda: _replay(device)


def _round_trip(device: Device) -> float:
    rng = np.random.default_rng(0)
    for dtype in sorted(device.caps.dtypes, key=lambda d: d.name):
        for n in (1, 3, 64, 1000):
            data = rng.integers(0, 2, n).astype(dtype.numpy)
            buffer = device.alloc(data.nbytes + 64)
            device.write(buffer, data, 64)
            check_equal(device.read(buffer, (n,), dtype, 64), data)
    return 0.0


def _zero(device: Device) -> float:
    buffer = device.alloc(0)
    device.write(buffer, np.zeros(0, np.float32))
    check_equal(device.read(buffer, (0,), _F32), np.zeros(0, np.float32))
    return 0.0


def _apart(device: Device) -> float:
    rows = [np.full(100, i, np.float32) for i in range(20)]
    buffers = [device.alloc(r.nbytes) for r in rows]
    for buffer, row in zip(buffers, rows):
        device.write(buffer, row)
    for buffer, row in zip(buffers, rows):
        check_equal(device.read(buffer, (100,), _F32), row)
    return 0.0


def _absurd(device: Device) -> float:
    try:
        device.alloc(1 << 50)
    except LimitError as error:
        if not str(error):
            raise CheckFailed("the error carries no message") from None
        return 0.0
    raise CheckFailed("a petabyte was allocated without an error")


def _copy_fill(device: Device) -> float:
    specs = tuple(BufferSpec(n, "input", _F32, (64,), 256) for n in "ab")
    whole = (BufferRef(0, 0, 256), BufferRef(1, 0, 256))
    steps = (Fill(whole[1], 0), Copy(BufferRef(0, 0, 128), BufferRef(1, 128, 128)))
    program = Program("copy_fill", specs, (), steps, (), (0, 1), ())
    a, b = device.alloc(256), device.alloc(256)
    data = np.arange(64, dtype=np.float32)
    device.write(a, data)
    device.write(b, data + 1)
    device.submit(device.bind(program, [a, b]), ())
    check_equal(device.read(b, (64,), _F32), np.concatenate([np.zeros(32), data[:32]]))
    return 0.0


def _order(device: Device) -> float:
    kernel = elementwise_kernel(
        "inc", device.caps, 100, [], _F32, lambda b, i: load(b.buffers[-1], i) + 1.0, access="rw"
    )
    program, _ = program_of(kernel, repeat=10)
    buffer = device.alloc(400)
    device.write(buffer, np.zeros(100, np.float32))
    device.submit(device.bind(program, [buffer]), ())
    check_equal(device.read(buffer, (100,), _F32), np.full(100, 10, np.float32))
    return 0.0


def _scalar_kernel(grid_by_scalar: bool):  # type: ignore[no-untyped-def]
    b = Builder("scalar")
    out = b.buffer("out", dt.int32, 64, "rw")
    n = Param("n", 0)
    if grid_by_scalar:
        b.store(out, b.group(0), load(out, b.group(0)) + 1)
        return b.kernel(grid=(n,))
    b.store(out, b.group(0), n + b.group(0))
    return b.kernel(grid=(const(64),))


def _scalars(device: Device) -> float:
    kernel = _scalar_kernel(False)
    for value in (5, -7, 2**31 - 100):
        got = run_kernel(device, kernel, [np.zeros(64, np.int32)], (value,))[0]
        check_equal(got, value + np.arange(64, dtype=np.int32))
    return 0.0


def _dynamic_grid(device: Device) -> float:
    program, _ = program_of(_scalar_kernel(True), scalars=("n",))
    buffer = device.alloc(256)
    device.write(buffer, np.zeros(64, np.int32))
    bound = device.bind(program, [buffer])
    want = np.zeros(64, np.int32)
    for n in (64, 0, 3, 17):
        device.submit(bound, (n,))
        want[:n] += 1
    check_equal(device.read(buffer, (64,), dt.int32), want)
    return 0.0


def _rebind(device: Device) -> float:
    kernel = elementwise_kernel("copy", device.caps, 64, [_F32], _F32, lambda b, i, x: x * 2.0)
    program, _ = program_of(kernel)
    x, y, z = (device.alloc(256) for _ in range(3))
    data = np.arange(64, dtype=np.float32)
    device.write(x, data)
    bound = device.bind(program, [x, y])
    device.submit(bound, ())
    device.write(z, data + 1)
    bound.rebind(0, z)
    device.submit(bound, ())
    check_equal(device.read(y, (64,), _F32), (data + 1) * 2)
    return 0.0


def _replay(device: Device) -> float:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(5000).astype(np.float32)
    kernel = elementwise_kernel(
        "poly", device.caps, 5000, [_F32], _F32, lambda b, i, v: v * 1.7 + 0.3
    )
    first = run_kernel(device, kernel, [x, np.zeros_like(x)])[1]
    for _ in range(5):
        check_equal(run_kernel(device, kernel, [x, np.zeros_like(x)])[1], first)
    return 0.0
