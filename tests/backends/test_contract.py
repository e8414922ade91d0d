"""The contract of devices (program/device.py), a row per device: what `weft check` asks of each at
the level "device", and what every device refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cpu_case
import numpy as np
import pytest
import wgpu_case
from gpu_bindings import Taught, install

from weft.backends.interp import InterpDevice
from weft.backends.null import NullDevice
from weft.conform import device as contract, kernels as nodes
from weft.conform.report import Check, Skip
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DeviceError
from weft.program.device import Device
from weft.program.program import BufferRef, BufferSpec, Copy, Fill, Program

PLAYERS = ("cpu", "vulkan", "cuda", "hip", "null")  # of CUDA and HIP the bindings are stand-ins


@pytest.fixture
def device(request: Any, monkeypatch: pytest.MonkeyPatch) -> Device:
    return opened(request.param, monkeypatch)


def opened(name: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    if name in ("cuda", "hip"):
        return Taught(install(monkeypatch, name))
    if name == "vulkan":
        return wgpu_case.device()
    if name == "null":
        return NullDevice()
    return cpu_case.device() if name == "cpu" else InterpDevice(name)


def passes(checks: Iterable[Check]) -> None:
    for name, check in checks:
        try:
            check()
        except Skip:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("device", [*PLAYERS, *PRESETS], indirect=True)
def test_what_check_asks(device: Device) -> None:
    passes(contract.checks(device))


@pytest.mark.parametrize("device", ["vulkan"], indirect=True)
def test_every_node(device: Device) -> None:
    passes(nodes.checks(device))


@pytest.mark.parametrize("device", PLAYERS, indirect=True)
def test_bytes_at_any_offset(device: Device) -> None:
    a, want = device.alloc(33), np.arange(33, dtype=np.uint8)
    device.write(a, want)
    for offset, size in ((1, 1), (3, 7), (30, 3), (5, 11), (32, 1), (8, 4)):
        data = np.arange(100, 100 + size, dtype=np.uint8)
        device.write(a, data, offset)
        want[offset : offset + size] = data
        np.testing.assert_array_equal(device.read(a, (33,), dt.uint8), want)
        np.testing.assert_array_equal(device.read(a, (size,), dt.uint8, offset), data)
    beyond = r"bytes {}\.\.{} of a buffer of 33"
    with pytest.raises(DeviceError, match=beyond.format(30, 34)):
        device.write(a, np.zeros(4, np.uint8), 30)
    with pytest.raises(DeviceError, match=beyond.format(20, 36)):
        device.read(a, (4,), dt.float32, 20)
    with pytest.raises(DeviceError, match=beyond.format(-4, 0)):
        device.read(a, (1,), dt.float32, -4)


@pytest.mark.parametrize("device", PLAYERS, indirect=True)
def test_buffers_that_do_not_fit_are_refused(device: Device) -> None:
    spec = BufferSpec("x", "input", dt.uint8, (16,), 16)
    program = Program("p", (spec,), (), (Fill(BufferRef(0, 0, 16), 1),), (), (), (0,))
    buffer = InterpDevice("webgpu").alloc(16)
    for act in (
        lambda: device.read(buffer, (4,), dt.float32),
        lambda: device.write(buffer, np.zeros(4, np.float32)),
        lambda: device.bind(program, [buffer]),
        lambda: device.bind(program, [device.alloc(16)]).rebind(0, buffer),
    ):
        with pytest.raises(DeviceError, match="belongs to another device"):
            act()
    with pytest.raises(DeviceError, match=r"needs 16 bytes, got 15"):
        device.bind(program, [device.alloc(15)])
    with pytest.raises(DeviceError, match="p has 1 buffers, got 2"):
        device.bind(program, [device.alloc(16)] * 2)


@pytest.mark.parametrize("device", PLAYERS, indirect=True)
def test_copies_within_a_buffer_and_fills(device: Device) -> None:
    """Also overlapping ones, some large enough to be shared out, some of nothing."""
    n = 1 << 20
    specs = (
        BufferSpec("a", "arena", dt.uint8, (2 * n,), 2 * n),
        BufferSpec("out", "output", dt.uint8, (n,), n),
    )
    steps = (
        Fill(BufferRef(0, n, n), 255),
        Copy(BufferRef(0, 256, n), BufferRef(1, 0, n)),
        Copy(BufferRef(1, 1024, 5120), BufferRef(1, 2048, 5120)),
        Copy(BufferRef(1, 9216, 5120), BufferRef(1, 8192, 5120)),
        Copy(BufferRef(1, 4, 8), BufferRef(1, 4, 8)),
        Copy(BufferRef(0, 0, 0), BufferRef(1, 0, 0)),
        Fill(BufferRef(1, 8, 0), 9),
    )
    data = np.random.default_rng(0).integers(0, 256, 2 * n, np.uint8)
    buffers = [device.alloc(2 * n), device.alloc(n)]
    device.write(buffers[0], data)
    bound = device.bind(Program("moves", specs, (), steps, (), (), (1,)), buffers)
    data[n:] = 255
    want = data[256 : 256 + n]
    want[2048:7168] = want[1024:6144].copy()
    want[8192:13312] = want[9216:14336].copy()
    for _ in range(3):  # a GPU's second run is recorded, its third a replay
        device.submit(bound, ())
        np.testing.assert_array_equal(device.read(buffers[1], (n,), dt.uint8), want)
