"""AMD GPUs: the HIP runtime behind `gpu.Driver`. Its bindings (rocm-bindings-hip, of
hip-python) are imported only when a GPU is asked for.

Sources: AMD, "HIP Runtime API" reference; the signatures of hip-python 10 (rocm-bindings-hip).
"""

from __future__ import annotations

import ctypes
from typing import Any

from weft.backends.gpu import Api, Card, Driver, DriverError, GpuDevice, api
from weft.backends.gpu.blas_api import HIPBLASLT
from weft.backends.llvm.gpu_target import amd_arch
from weft.program.device import DeviceInfo

_RELEASE_THRESHOLD = 4  # hipMemPoolAttr


class HipApi(Api):
    """AMD's runtime through hip-python 10. A thread chooses a GPU by its number."""

    kind, maker, prefix = "hip", "AMD", "hip"
    module_name, package = "rocm.bindings.hip", "hip-python's rocm-bindings-hip"
    install = "install AMD's driver and ROCm's HIP runtime"
    hiding = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    blas = HIPBLASLT
    # hipMallocAsync of ROCm 6.3 to 7.2 is reported to refuse memory that is there (ROCm/hip#3775),
    # to fail or crash on gfx1100 (ROCm/legacy-rocm-build#6178) and to lose what lies in it
    # (ROCm/rocm-systems#10943, #11693).
    pools = False
    names = {
        "GetCount": "hipGetDeviceCount", "Alloc": "hipMalloc", "Free": "hipFree",
        "AllocAsync": "hipMallocAsync", "FreeAsync": "hipFreeAsync",
        "HostAlloc": "hipHostMalloc", "HostFree": "hipHostFree",
        "StreamCreate": "hipStreamCreateWithFlags", "EventCreate": "hipEventCreateWithFlags",
        "LaunchKernel": "hipModuleLaunchKernel",
        "GraphInstantiate": "hipGraphInstantiateWithFlags",
        "StreamCaptureMode": "hipStreamCaptureMode",
    }  # fmt: skip

    def version(self) -> str:
        number = int(self.call("RuntimeGetVersion"))
        return f"HIP {number // 10_000_000}.{number // 100_000 % 100}"

    def card(self, index: int) -> Card:
        found = self.call("GetDeviceProperties", index)
        arch, reason = api.attempt(lambda: amd_arch(str(found.gcnArchName)))
        which = self.raw.hipDeviceAttribute_t.hipDeviceAttributeMemoryPoolsSupported
        pools = bool(self.call("DeviceGetAttribute", which, index))
        return Card(str(found.name), int(found.totalGlobalMem), arch, reason, pools)

    def open(self, index: int) -> Any:
        return index

    def choose(self, context: Any) -> None:
        self.call("SetDevice", context)

    def close(self, index: int) -> None:
        """Nothing was taken."""

    def pool(self, index: int) -> Any:
        pool = self.call("DeviceGetDefaultMemPool", index)
        keep = ctypes.c_uint64((1 << 64) - 1)
        which = self.raw.hipMemPoolAttr(_RELEASE_THRESHOLD)
        self.call("MemPoolSetAttribute", pool, which, ctypes.addressof(keep))
        return pool

    def module(self, code: bytes, entry: str) -> Any:
        try:
            return self.call("ModuleLoadData", code)
        except DriverError as error:
            raise self.refused(entry, error) from None

    def replay_defect(self) -> str:
        """ROCm 7.2.0 to 7.2.4, on gfx942 and gfx950: a replay's kernels may read what lay in memory
        before a copy that was asked for first, as the runtime scalars are."""
        is_72 = int(self.call("RuntimeGetVersion")) // 100_000 == 702
        return "ROCm 7.2 replays give wrong results (ROCm/clr#279, ROCm/hip#3902)" if is_72 else ""

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """A group may take all that there is without asking."""


def probe() -> list[DeviceInfo]:
    """One line per GPU; one that says why not where there is none. Starts no work."""
    return api.probe(HipApi)


def open_device(index: int) -> GpuDevice:
    """GPU number `index`. Raises DeviceError saying why not and what to install."""
    return GpuDevice(Driver(HipApi(), index))
