"""The CUDA driver API behind `gpu.Driver`. cuda-bindings is imported only when a GPU is asked for.

Source: NVIDIA, "CUDA Driver API" reference.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

from weft.backends.base import DeviceInfo
from weft.backends.gpu import Driver, GpuDevice
from weft.backends.llvm.gpu_target import nvidia_arch
from weft.core import dtypes as dt
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError, UsageError

_OUT_OF_MEMORY, _NO_DEVICE, _NO_DRIVER = 2, 100, 35
# The context does not survive these: a fault or a failure of a kernel, an ECC error, a reset, ...
_LOST = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999})
_MAJOR, _MINOR, _POOLS = 75, 76, 115  # CUdevice_attribute
_MAX_DYNAMIC_SHARED = 8  # CUfunction_attribute
_RELEASE_THRESHOLD = 4  # CUmemPool_attribute
_NON_BLOCKING = 1  # CUstream_flags
_THREAD_LOCAL = 1  # CUstreamCaptureMode
_LOG, _LOG_SIZE = 5, 6  # CUjit_option: the error log and its size
_LOG_BYTES = 4096


def _bindings() -> Any:
    """cuda-bindings' driver module, initialised. Raises DeviceError saying what is missing."""
    try:
        cuda = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(
            f"the cuda device needs cuda-bindings ({error}): pip install 'weft[cuda]'"
        ) from None
    try:
        status = int(cuda.cuInit(0)[0])
    except RuntimeError as error:  # the driver's library is not there
        raise DeviceError(f"no NVIDIA driver found: {error}") from None
    if status == _NO_DEVICE:
        raise DeviceError("the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)")
    if status:
        reason = "the NVIDIA driver is too old or missing" if status == _NO_DRIVER else "it failed"
        raise DeviceError(f"the NVIDIA driver did not start: {reason} (error {status})")
    return cuda


def _call(cuda: Any, name: str, *args: Any) -> Any:
    """A call that must succeed; its value, or None."""
    status, *values = getattr(cuda, name)(*args)
    if int(status):
        raise _Failed(cuda, name, int(status))
    return values[0] if values else None


class _Failed(DeviceError):
    def __init__(self, cuda: Any, name: str, status: int) -> None:
        self.status = status
        text = str(getattr(cuda.CUresult(status), "name", status))
        super().__init__(f"{name} failed: {text} ({status})")


def probe() -> list[DeviceInfo]:
    """One line per GPU; one that says why not where there is none. Makes no context."""
    try:
        cuda = _bindings()
        count = _call(cuda, "cuDeviceGetCount")
        return [_line(cuda, i) for i in range(count)]
    except DeviceError as error:
        return [DeviceInfo("cuda", 0, "NVIDIA GPU", False, str(error))]


def _line(cuda: Any, index: int) -> DeviceInfo:
    device = _call(cuda, "cuDeviceGet", index)
    names = tuple(d.name for d in dt.DEVICE)
    driver, memory = _version(cuda), int(_call(cuda, "cuDeviceTotalMem", device))
    try:
        reason, extra = "", {"arch": _arch(cuda, device)}
    except UsageError as error:
        reason, extra = str(error), {}
    return DeviceInfo(
        "cuda", index, _name(cuda, device), not reason, reason, driver, memory, names, extra=extra
    )


def _version(cuda: Any) -> str:
    number = int(_call(cuda, "cuDriverGetVersion"))
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


def _name(cuda: Any, device: Any) -> str:
    return bytes(_call(cuda, "cuDeviceGetName", 256, device)).split(b"\0")[0].decode()


def _attribute(cuda: Any, number: int, device: Any) -> int:
    which = cuda.CUdevice_attribute(number)
    return int(_call(cuda, "cuDeviceGetAttribute", which, device))


def _arch(cuda: Any, device: Any) -> str:
    return nvidia_arch(_attribute(cuda, _MAJOR, device), _attribute(cuda, _MINOR, device))


def open_device(index: int) -> GpuDevice:
    """GPU number `index`. Raises DeviceError saying why not and what to install."""
    return GpuDevice(CudaDriver(index))


class CudaDriver(Driver):
    """One GPU's primary context (shared with other CUDA code of the process) and one stream."""

    kind = "cuda"

    def __init__(self, index: int) -> None:
        self.cuda = cuda = _bindings()
        count = int(_call(cuda, "cuDeviceGetCount"))
        if index >= count:
            raise DeviceError(f'there are {count} NVIDIA GPUs; "cuda:{index}" does not exist')
        self.index, self.lost = index, False
        self._recording = False
        self._freed: list[int] = []  # while recording
        self._device = device = _call(cuda, "cuDeviceGet", index)
        self.name, self.version = _name(cuda, device), _version(cuda)
        self.memory = int(_call(cuda, "cuDeviceTotalMem", device))
        try:
            self.arch = _arch(cuda, device)
        except UsageError as error:
            raise DeviceError(f"{self.name}: {error}") from None
        self._context = _call(cuda, "cuDevicePrimaryCtxRetain", device)
        _call(cuda, "cuCtxSetCurrent", self._context)
        self._stream = _call(cuda, "cuStreamCreate", _NON_BLOCKING)
        self._pools = bool(_attribute(cuda, _POOLS, device))
        if self._pools:  # keep freed memory: the next step wants it again
            pool = _call(cuda, "cuDeviceGetDefaultMemPool", device)
            keep = cuda.CUmemPool_attribute(_RELEASE_THRESHOLD)
            _call(cuda, "cuMemPoolSetAttribute", pool, keep, cuda.cuuint64_t((1 << 64) - 1))

    def _do(self, name: str, *args: Any) -> Any:
        """A call in the device's context. Notes when an error has left the context unusable."""
        if self.lost:
            raise DeviceError(f"cuda:{self.index} was lost after an error; open it anew")
        try:
            _call(self.cuda, "cuCtxSetCurrent", self._context)
            return _call(self.cuda, name, *args)
        except _Failed as error:
            self.lost = error.status in _LOST
            raise

    def alloc(self, nbytes: int) -> int:
        try:
            if self._pools:
                return int(self._do("cuMemAllocAsync", nbytes, self._stream))
            return int(self._do("cuMemAlloc", nbytes))
        except _Failed as error:
            if error.status != _OUT_OF_MEMORY:
                raise
        raise OutOfMemoryError(
            f"cuda:{self.index} ({self.name}) has no {nbytes:,} bytes free{self._room()}"
        )

    def _room(self) -> str:
        status, *room = self.cuda.cuMemGetInfo()
        return "" if int(status) else f": {int(room[0]):,} of {int(room[1]):,} are"

    def free(self, address: int) -> None:
        if self._recording:  # a recording would free it at every replay
            self._freed.append(address)
        elif self._pools:
            self._do("cuMemFreeAsync", address, self._stream)
        else:
            self._do("cuStreamSynchronize", self._stream)
            self._do("cuMemFree", address)

    def write(self, address: int, host: int, nbytes: int) -> None:
        self._do("cuMemcpyHtoDAsync", address, host, nbytes, self._stream)
        self._do("cuStreamSynchronize", self._stream)

    def read(self, host: int, address: int, nbytes: int) -> None:
        self._do("cuMemcpyDtoHAsync", host, address, nbytes, self._stream)
        self._do("cuStreamSynchronize", self._stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._do("cuMemcpyDtoDAsync", target, source, nbytes, self._stream)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._do("cuMemsetD8Async", address, byte, nbytes, self._stream)

    def load(self, code: bytes, entry: str, shared: int = 0) -> Any:
        log = bytearray(_LOG_BYTES)
        options = [self.cuda.CUjit_option(_LOG), self.cuda.CUjit_option(_LOG_SIZE)]
        values = [log, _LOG_BYTES]
        try:
            # The text ends in a zero, as the driver wants it.
            module = self._do("cuModuleLoadDataEx", code + b"\0", 2, options, values)
        except _Failed as error:
            said = bytes(log).split(b"\0")[0].decode("utf-8", "replace").strip()
            raise CompileError(f"{entry}: the driver refuses the code: {said or error}") from None
        function = self._do("cuModuleGetFunction", module, entry.encode())
        if shared:
            most = self.cuda.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
            self._do("cuFuncSetAttribute", function, most, shared)
        return function

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        threads: Sequence[int],
        args: Sequence[int],
        shared: int = 0,
    ) -> None:
        values = (ctypes.c_void_p * len(args))(*args)
        start, size = ctypes.addressof(values), ctypes.sizeof(ctypes.c_void_p)
        pointers = (ctypes.c_void_p * len(args))(*[start + size * i for i in range(len(args))])
        self._do(
            "cuLaunchKernel", function, *grid, *threads, shared, self._stream,
            ctypes.addressof(pointers), 0,
        )  # fmt: skip

    def record(self) -> None:
        self._do("cuStreamBeginCapture", self._stream, self.cuda.CUstreamCaptureMode(_THREAD_LOCAL))
        self._recording = True

    def recorded(self) -> Any:
        self._recording = False
        try:
            graph = self._do("cuStreamEndCapture", self._stream)
        finally:
            freed, self._freed = self._freed, []
            for address in freed:
                self.free(address)
        try:
            return self._do("cuGraphInstantiate", graph, 0)
        finally:
            self._do("cuGraphDestroy", graph)

    def replay(self, graph: Any) -> None:
        self._do("cuGraphLaunch", graph, self._stream)

    def forget(self, graph: Any) -> None:
        self._do("cuGraphExecDestroy", graph)

    def sync(self) -> None:
        self._do("cuStreamSynchronize", self._stream)
