"""NVIDIA GPUs: the CUDA driver API behind `gpu.Driver`. The package cuda-bindings is imported only
when a GPU is asked for.

Source: NVIDIA, "CUDA Driver API" reference.
"""

from __future__ import annotations

from typing import Any

from weft.backends.gpu import Api, Card, Driver, DriverError, GpuDevice, api
from weft.backends.gpu.blas_api import CUBLASLT
from weft.backends.llvm.gpu_target import nvidia_arch
from weft.program.device import DeviceInfo

_MAJOR, _MINOR, _POOLS = 75, 76, 115  # CUdevice_attribute
_RELEASE_THRESHOLD = 4  # CUmemPool_attribute
_MAX_DYNAMIC_SHARED = 8  # CUfunction_attribute
_LOG, _LOG_SIZE = 5, 6  # CUjit_option: the error log and its size
_LOG_BYTES = 4096


class CudaApi(Api):
    """NVIDIA's driver through cuda-bindings. A GPU is opened by its primary context, which other
    CUDA code of the process shares."""

    kind, maker, prefix = "cuda", "NVIDIA", "cu"
    module_name, package = "cuda.bindings.driver", "cuda-bindings"
    install = "install NVIDIA's driver"
    hiding = ("CUDA_VISIBLE_DEVICES",)
    blas = CUBLASLT
    names = {
        "GetCount": "cuDeviceGetCount", "Alloc": "cuMemAlloc", "Free": "cuMemFree",
        "AllocAsync": "cuMemAllocAsync", "FreeAsync": "cuMemFreeAsync",
        "HostAlloc": "cuMemHostAlloc", "HostFree": "cuMemFreeHost",
        "StreamCaptureMode": "CUstreamCaptureMode",
    }  # fmt: skip

    def version(self) -> str:
        number = int(self.call("DriverGetVersion"))
        return f"CUDA {number // 1000}.{number % 1000 // 10}"

    def card(self, index: int) -> Card:
        device = self.call("DeviceGet", index)
        name = bytes(self.call("DeviceGetName", 256, device)).split(b"\0")[0].decode()
        major, minor = self._attribute(_MAJOR, device), self._attribute(_MINOR, device)
        arch, reason = api.attempt(lambda: nvidia_arch(major, minor))
        memory = int(self.call("DeviceTotalMem", device))
        return Card(name, memory, arch, reason, bool(self._attribute(_POOLS, device)))

    def _attribute(self, number: int, device: Any) -> int:
        return int(self.call("DeviceGetAttribute", self.raw.CUdevice_attribute(number), device))

    def open(self, index: int) -> Any:
        return self.call("DevicePrimaryCtxRetain", self.call("DeviceGet", index))

    def choose(self, context: Any) -> None:
        self.call("CtxSetCurrent", context)

    def close(self, index: int) -> None:
        self.call("DevicePrimaryCtxRelease", self.call("DeviceGet", index))

    def pool(self, index: int) -> Any:
        pool = self.call("DeviceGetDefaultMemPool", self.call("DeviceGet", index))
        keep = self.raw.CUmemPool_attribute(_RELEASE_THRESHOLD)
        self.call("MemPoolSetAttribute", pool, keep, self.raw.cuuint64_t((1 << 64) - 1))
        return pool

    def module(self, code: bytes, entry: str) -> Any:
        log = bytearray(_LOG_BYTES)
        options = [self.raw.CUjit_option(_LOG), self.raw.CUjit_option(_LOG_SIZE)]
        try:
            # The text ends in a zero, as the driver wants it.
            return self.call("ModuleLoadDataEx", code + b"\0", 2, options, [log, _LOG_BYTES])
        except DriverError as error:
            said = bytes(log).split(b"\0")[0].decode("utf-8", "replace").strip()
            raise self.refused(entry, error, said) from None

    def allow_shared(self, function: Any, nbytes: int) -> None:
        most = self.raw.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
        self.call("FuncSetAttribute", function, most, nbytes)


def probe() -> list[DeviceInfo]:
    """One line per GPU; one that says why not where there is none. Makes no context."""
    return api.probe(CudaApi)


def open_device(index: int) -> GpuDevice:
    """GPU number `index`. Raises DeviceError saying why not and what to install."""
    return GpuDevice(Driver(CudaApi(), index))
