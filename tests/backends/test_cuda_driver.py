"""The CUDA driver adaptor on a recording stand-in for cuda.bindings.driver: which calls, with what,
in which order, and what each error becomes. No GPU has run this yet."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest

from weft.backends import drivers
from weft.backends.cache import DiskCache
from weft.backends.cuda import driver as cuda_driver
from weft.backends.gpu import GpuDevice
from weft.backends.llvm.gpu_target import nvidia_arch
from weft.conform.harness import elementwise_kernel, program_of
from weft.core import dtypes as dt
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError, UsageError

NAMES = {2: "CUDA_ERROR_OUT_OF_MEMORY", 218: "CUDA_ERROR_INVALID_PTX", 700: "ILLEGAL_ADDRESS"}


class Bindings(types.ModuleType):
    """Every call is recorded and succeeds, unless `fail` maps its name to an error number."""

    def __init__(self, **values: Any) -> None:
        super().__init__("cuda.bindings.driver")
        self.calls: list[tuple[Any, ...]] = []
        self.fail: dict[str, int] = {}
        self.attributes = {75: 9, 76: 0, 115: 1}
        self.values = {
            "cuDeviceGetCount": 1, "cuDeviceGet": "device", "cuDeviceGetName": b"H100\0\0",
            "cuDeviceTotalMem": 80 << 30, "cuDriverGetVersion": 12040,
            "cuDevicePrimaryCtxRetain": "context", "cuStreamCreate": "stream",
            "cuDeviceGetDefaultMemPool": "pool", "cuMemAllocAsync": 4096, "cuMemAlloc": 8192,
            "cuModuleLoadDataEx": "module", "cuModuleGetFunction": "function",
            "cuStreamEndCapture": "graph", "cuGraphInstantiate": "exec",
        } | values  # fmt: skip
        for name in ("CUdevice_attribute", "CUmemPool_attribute", "CUjit_option", "cuuint64_t",
                     "CUstreamCaptureMode", "CUfunction_attribute"):  # fmt: skip
            setattr(self, name, int)
        self.CUresult = lambda n: types.SimpleNamespace(name=NAMES.get(n, str(n)))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, *args))
            if name in self.fail:
                return (self.fail[name], None)
            if name == "cuDeviceGetAttribute":
                return (0, self.attributes[args[0]])
            if name == "cuMemGetInfo":
                return (0, 1000, 2000)
            return (0, self.values[name]) if name in self.values else (0,)

        return call

    def names(self) -> list[str]:
        """The calls since the last look, without the choice of the context."""
        found = [c[0] for c in self.calls if c[0] != "cuCtxSetCurrent"]
        self.calls.clear()
        return found


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    found = Bindings()
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", found)
    return found


def test_opening(bindings: Bindings) -> None:
    driver = cuda_driver.CudaDriver(0)
    assert (driver.arch, driver.name, driver.version) == ("sm_90", "H100", "CUDA 12.4")
    names = [c[0] for c in bindings.calls]
    retained = names.index("cuDevicePrimaryCtxRetain")
    assert names[0] == "cuInit"
    assert names[retained : retained + 3] == [
        "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate",
    ]  # fmt: skip
    assert ("cuMemPoolSetAttribute", "pool", 4, (1 << 64) - 1) in bindings.calls
    with pytest.raises(DeviceError, match='"cuda:1" does not exist'):
        cuda_driver.CudaDriver(1)


def test_memory(bindings: Bindings) -> None:
    driver = cuda_driver.CudaDriver(0)
    bindings.names()
    assert driver.alloc(100) == 4096
    driver.write(4096, 1, 100)
    driver.copy(8192, 4096, 100)
    driver.fill(4096, 7, 100)
    driver.read(1, 4096, 100)
    driver.free(4096)
    calls = [c for c in bindings.calls if c[0] != "cuCtxSetCurrent"]
    assert bindings.calls[0] == ("cuCtxSetCurrent", "context")
    assert calls == [
        ("cuMemAllocAsync", 100, "stream"),
        ("cuMemcpyHtoDAsync", 4096, 1, 100, "stream"), ("cuStreamSynchronize", "stream"),
        ("cuMemcpyDtoDAsync", 8192, 4096, 100, "stream"),
        ("cuMemsetD8Async", 4096, 7, 100, "stream"),
        ("cuMemcpyDtoHAsync", 1, 4096, 100, "stream"), ("cuStreamSynchronize", "stream"),
        ("cuMemFreeAsync", 4096, "stream"),
    ]  # fmt: skip


def test_without_memory_pools(bindings: Bindings) -> None:
    bindings.attributes[115] = 0
    driver = cuda_driver.CudaDriver(0)
    bindings.names()
    assert driver.alloc(100) == 8192
    driver.free(8192)
    assert bindings.names() == ["cuMemAlloc", "cuStreamSynchronize", "cuMemFree"]


def test_recording(bindings: Bindings) -> None:
    """Memory freed while recording is freed after it: else each replay would free it."""
    driver = cuda_driver.CudaDriver(0)
    bindings.names()
    driver.record()
    driver.fill(4096, 0, 8)
    driver.free(8192)
    graph = driver.recorded()
    driver.replay(graph)
    driver.forget(graph)
    calls = [c for c in bindings.calls if c[0] != "cuCtxSetCurrent"]
    assert calls == [
        ("cuStreamBeginCapture", "stream", 1), ("cuMemsetD8Async", 4096, 0, 8, "stream"),
        ("cuStreamEndCapture", "stream"), ("cuMemFreeAsync", 8192, "stream"),
        ("cuGraphInstantiate", "graph", 0), ("cuGraphDestroy", "graph"),
        ("cuGraphLaunch", "exec", "stream"), ("cuGraphExecDestroy", "exec"),
    ]  # fmt: skip


def test_arguments_of_a_launch(bindings: Bindings) -> None:
    driver = cuda_driver.CudaDriver(0)
    seen = []

    def launch(*args: Any) -> tuple[int]:
        pointers = ctypes.cast(args[9], ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        seen.append((*args[:9], [pointers[i][0] for i in range(3)]))
        return (0,)

    bindings.cuLaunchKernel = launch
    driver.launch("function", (5, 4, 3), (32, 2, 1), [4096, 8192, 1 << 40])
    driver.launch("function", (5, 4, 3), (32, 2, 1), [4096, 8192, 1 << 40], 99 << 10)
    want = [
        ("function", 5, 4, 3, 32, 2, 1, n, "stream", [4096, 8192, 1 << 40]) for n in (0, 99 << 10)
    ]
    assert seen == want


def test_shared_memory_is_asked_for(bindings: Bindings) -> None:
    driver = cuda_driver.CudaDriver(0)
    bindings.names()
    driver.load(b"code", "weft_k")
    driver.load(b"code", "weft_k", 99 << 10)
    assert bindings.calls[-1] == ("cuFuncSetAttribute", "function", 8, 99 << 10)
    names = ["cuModuleLoadDataEx", "cuModuleGetFunction"]
    assert bindings.names() == [*names, *names, "cuFuncSetAttribute"]


def test_a_program(bindings: Bindings) -> None:
    device = GpuDevice(cuda_driver.CudaDriver(0), DiskCache(None))
    kernel = elementwise_kernel(
        "double", device.caps, 64, [dt.float32], dt.float32, lambda b, i, x: x * 2.0
    )
    program, sizes = program_of(kernel)
    bindings.names()
    bound = device.bind(program, [device.alloc(n) for n in sizes])
    device.submit(bound, [])
    device.sync()
    assert bindings.names() == [
        "cuMemAllocAsync", "cuMemAllocAsync", "cuModuleLoadDataEx", "cuModuleGetFunction",
        "cuMemAllocAsync", "cuLaunchKernel", "cuStreamSynchronize",
    ]  # fmt: skip
    np.testing.assert_array_equal(device.read(bound.buffers[0], (0,), dt.float32), [])


def test_errors(bindings: Bindings) -> None:
    driver = cuda_driver.CudaDriver(0)
    bindings.fail = {"cuMemAllocAsync": 2}
    with pytest.raises(OutOfMemoryError, match="no 12,345 bytes free: 1,000 of 2,000 are"):
        driver.alloc(12345)
    bindings.fail = {"cuModuleLoadDataEx": 218}
    with pytest.raises(CompileError, match="weft_k: the driver refuses the code"):
        driver.load(b"nonsense", "weft_k")
    assert not driver.lost
    bindings.fail = {"cuStreamSynchronize": 700}
    with pytest.raises(DeviceError, match=r"cuStreamSynchronize failed: ILLEGAL_ADDRESS \(700\)"):
        driver.sync()
    assert driver.lost
    bindings.fail = {}
    bindings.names()
    with pytest.raises(DeviceError, match="cuda:0 was lost after an error; open it anew"):
        driver.sync()
    assert bindings.names() == []


@pytest.mark.parametrize(
    "number,said", [(100, "sees no GPU"), (35, "too old or missing"), (3, "it failed")]
)
def test_a_driver_that_does_not_start(bindings: Bindings, number: int, said: str) -> None:
    bindings.fail = {"cuInit": number}
    (line,) = cuda_driver.probe()
    assert not line.available and said in line.reason
    with pytest.raises(DeviceError, match=said):
        cuda_driver.CudaDriver(0)


def test_probing_makes_no_context(bindings: Bindings) -> None:
    (line,) = cuda_driver.probe()
    assert line.available and line.extra["arch"] == "sm_90" and line.memory == 80 << 30
    assert not {"cuDevicePrimaryCtxRetain", "cuStreamCreate"} & set(bindings.names())
    bindings.attributes |= {75: 7, 76: 5}
    (line,) = cuda_driver.probe()
    assert not line.available and "compute capability 7.5; weft needs 8.0" in line.reason
    with pytest.raises(DeviceError, match=r"H100: compute capability 7\.5"):
        cuda_driver.CudaDriver(0)


def test_architectures() -> None:
    known = {
        (8, 0): "sm_80",
        (8, 6): "sm_86",
        (9, 0): "sm_90",
        (10, 3): "sm_100",
        (12, 1): "sm_120",
    }
    assert {cc: nvidia_arch(*cc) for cc in known} == known
    with pytest.raises(UsageError, match=r"7\.5"):
        nvidia_arch(7, 5)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_open_first", lambda names: None)
    (line,) = drivers.probe_cuda()
    assert not line.available and "install NVIDIA's driver" in line.reason

    def version(pointer: Any) -> int:
        pointer._obj.value = 12040
        return 0

    library = types.SimpleNamespace(cuDriverGetVersion=version)
    monkeypatch.setattr(drivers, "_open_first", lambda names: library)
    monkeypatch.setattr(drivers, "_found", lambda module: False)
    (line,) = drivers.probe_cuda()
    assert "CUDA 12.4" in line.reason and "pip install 'weft[cuda]'" in line.reason
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(DeviceError, match="needs cuda-bindings"):
        cuda_driver.CudaDriver(0)
