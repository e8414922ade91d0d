"""The cuda and hip devices on real GPUs; skipped where there are none (`weft check` does more)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_contract import passes

from weft.backends import drivers, registry
from weft.backends.gpu import GpuDevice, staging
from weft.conform import device as contract, kernels, templates
from weft.conform.gpt import GptSizes, Trainer
from weft.conform.harness import elementwise_kernel, program_of
from weft.core import dtypes as dt
from weft.core.errors import OutOfMemoryError

LINES = {"cuda": drivers.probe_cuda()[0], "hip": drivers.probe_hip()[0]}
pytestmark = pytest.mark.gpu


@pytest.fixture(params=["cuda", "hip"])
def device(request: Any) -> GpuDevice:
    line = LINES[request.param]
    if not line.available:
        pytest.skip(f"no {request.param} device: {line.reason}")
    found = registry.get(request.param)
    assert isinstance(found, GpuDevice)
    return found


@pytest.mark.parametrize("level", [contract, kernels, templates], ids=lambda m: m.__name__)
def test_conformance(device: GpuDevice, level: Any) -> None:
    passes(level.checks(device))


def test_training_steps_like_on_the_cpu(device: GpuDevice) -> None:
    shape = GptSizes(layers=1, width=64, heads=2, context=32, batch=2, vocab=64)
    host, there = Trainer(shape, "cpu"), Trainer(shape, device.info.id)
    want, got = ([t.step() for _ in range(6)] for t in (host, there))
    assert np.allclose(got, want, rtol=1e-4)


def test_transfers(device: GpuDevice) -> None:
    """Longer than the page-locked chunks, and many short ones, changed right after."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 3 * staging.CHUNK + 77, np.uint8)
    buffer = device.alloc(data.size)
    for _ in range(3):
        given = data.copy()
        device.write(buffer, given)
        given[:] = 0
        np.testing.assert_array_equal(device.read(buffer, data.shape, dt.uint8), data)
        data = data[::-1].copy()
    one = np.zeros(1, np.uint8)
    for i in range(5000):
        one[0] = i % 251
        device.write(buffer, one, i)
    got = device.read(buffer, (5000,), dt.uint8)
    np.testing.assert_array_equal(got, np.arange(5000) % 251)


def test_recordings_and_the_devices_clock(device: GpuDevice) -> None:
    f32, n = dt.float32, 1 << 20
    kernel = elementwise_kernel("double", device.caps, n, [f32], f32, lambda b, i, x: x * 2.0)
    program, sizes = program_of(kernel, repeat=3)
    buffers = [device.alloc(size) for size in sizes]
    bound = device.bind(program, buffers)
    for round in range(5):
        device.write(buffers[0], np.full(n, round, np.float32))
        seconds = device.timed([lambda: device.submit(bound, [])] * 2)
        assert all(0 < s < 1 for s in seconds)
        assert (device.read(buffers[1], (n,), f32) == 2 * round).all()


def test_out_of_memory(device: GpuDevice) -> None:
    free = device.free_memory()
    with pytest.raises(OutOfMemoryError, match="bytes are free"):
        device.alloc(device.info.memory * 2)
    half = [device.alloc(free // 4) for _ in range(3)]
    del half
    assert device.alloc(free // 2).nbytes == free // 2  # from what the pool kept, or given back
