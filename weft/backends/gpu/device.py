"""A CUDA or HIP device: memory, compiled kernels, and Programs run step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.backends.gpu.api import wished
from weft.backends.gpu.blas import Blas, Product
from weft.backends.gpu.bound import GpuBound
from weft.backends.gpu.driver import Driver
from weft.backends.llvm import launch
from weft.backends.llvm.gpu_target import GpuTarget, gpu_target
from weft.core import dtypes as dt, versions
from weft.core.dtypes import DType
from weft.core.errors import DeviceError
from weft.host.cache import DiskCache
from weft.host.files import default_directory
from weft.kernel.digest import digest
from weft.kernel.ir import Kernel
from weft.program.device import Bound, Buffer, Device, DeviceInfo
from weft.program.gemm import Gemm
from weft.program.program import Program

_SIZE = 4  # bytes before a kernel's code in the cache: the size of its dynamic shared memory


class GpuBuffer(Buffer):
    """Memory of a GPU, freed when the last reference goes."""

    def __init__(self, device: GpuDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self.address = device.driver.alloc(max(nbytes, 1))
        back = functools.partial(device.driver.free, self.address)
        free = weakref.finalize(self, device.give_back, back)
        free.atexit = False  # the end of the process frees everything


class LoadedKernel(NamedTuple):
    """A kernel that the driver has loaded, and its bytes of dynamic shared memory."""

    handle: Any
    shared: int


class GpuDevice(Device):
    """One GPU behind its driver. Work is asynchronous; `read` and `sync` wait for it."""

    def __init__(self, driver: Driver, cache: DiskCache | None = None) -> None:
        self.driver = driver
        self.kind = driver.kind
        self.lock = threading.RLock()
        self.cache = cache or DiskCache(default_directory())
        self.target: GpuTarget = gpu_target(driver.arch)
        self.caps = dataclasses.replace(self.target.caps, name=driver.kind, model=driver.name)
        # WEFT_CHECK: every step is waited for, so that the one that fails is named.
        self.checking = os.environ.get("WEFT_CHECK", "0") not in ("", "0")
        self.replaying = wished("WEFT_REPLAY", not driver.replay_defect)
        self.compiled = 0  # how many kernels LLVM has compiled here (the rest were cached)
        self._functions: dict[str, LoadedKernel] = {}
        self._gone: list[Callable[[], None]] = []  # frees memory that other threads left
        # or the reason why it is missing; loaded when first needed
        self._blas: Blas | str | None = None
        names = tuple(d.name for d in dt.DEVICE)
        self.info = DeviceInfo(
            driver.kind, driver.index, driver.name, True, "", driver.version, driver.memory, names,
            extra={"arch": driver.arch} | ({} if self.replaying else {"replay": "off"}),
        )  # fmt: skip

    @property
    def lost(self) -> bool:
        """True if an error left the device unusable and it must be opened again."""
        return self.driver.lost

    # -- memory

    def alloc(self, nbytes: int) -> GpuBuffer:
        with self.lock:
            self._sweep()
            return GpuBuffer(self, nbytes)

    def free_memory(self) -> int:
        with self.lock:
            self._sweep()
            return self.driver.room()[0]

    def give_back(self, what: Callable[[], None]) -> None:
        """Calls `what`, or leaves it for the next allocation where another thread has the device.
        Garbage collection comes at any time, so it waits for no lock: this thread may have another
        device, which that thread may want."""
        if self.lost:
            return
        self._gone.append(what)
        if self.lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self.lock.release()

    def _sweep(self) -> None:
        while self._gone:
            with contextlib.suppress(DeviceError, IndexError):  # IndexError: swept meanwhile
                self._gone.pop(0)()

    def _place(self, buffer: Buffer, offset: int, nbytes: int) -> int:
        own: GpuBuffer = self.own(buffer)
        own.check(offset, nbytes)
        return own.address + offset

    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        raw = np.ascontiguousarray(data)
        address = self._place(buffer, offset, raw.nbytes)
        if raw.nbytes:
            with self.lock:
                self.driver.write(address, raw.ctypes.data, raw.nbytes)

    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        out = np.empty(shape, dtype.numpy)
        address = self._place(buffer, offset, out.nbytes)
        if out.nbytes:
            with self.lock:
                self.driver.read(out.ctypes.data, address, out.nbytes)
        return out

    # -- kernels

    def load(self, kernels: Sequence[Kernel]) -> list[LoadedKernel]:
        """The driver's function of each kernel, compiled at most once."""
        with self.lock:
            return [self._function(kernel) for kernel in kernels]

    def _function(self, kernel: Kernel) -> LoadedKernel:
        key = self._key(kernel)
        if key not in self._functions:
            data = self.cache.get(key)
            if data is None:
                shared = launch.shared_bytes(kernel, self.target.static_shared)
                data = shared.to_bytes(_SIZE, "little") + self.code(kernel)
                self.compiled += 1
                self.cache.put(key, data)
            shared, code = int.from_bytes(data[:_SIZE], "little"), data[_SIZE:]
            handle = self.driver.load(code, launch.entry(kernel), shared)
            self._functions[key] = LoadedKernel(handle, shared)
        return self._functions[key]

    def _key(self, kernel: Kernel) -> str:
        target, name = f"{self.target.arch}|{self.target.features}", kernel.name
        salt = f"{_version()}|{target}|{name}|{digest(kernel)}"
        return f"{self.kind}:{hashlib.sha256(salt.encode()).hexdigest()}"

    def code(self, kernel: Kernel) -> bytes:
        """Returns the code for the driver: PTX text or a linked code object."""
        from weft.backends.llvm import offline

        return offline.code(kernel, self.target)

    def source(self, kernel: Kernel) -> str:
        from weft.backends.llvm import offline

        return offline.source(kernel, self.target)

    # -- products

    def library(self) -> str:
        with self.lock:
            blas = self._library()
        return blas if isinstance(blas, str) else blas.name

    def _library(self) -> Blas | str:
        if self._blas is None:
            try:
                self._blas = self.driver.library()
            except DeviceError as error:
                self._blas = str(error)
        return self._blas

    def product(self, gemm: Gemm, starts: tuple[int, ...]) -> Product | str:
        """The product as the vendor's library does it, or why it does not (see Blas.product)."""
        with self.lock:
            blas = self._library()
            return blas if isinstance(blas, str) else blas.product(gemm, starts)

    # -- programs

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> GpuBound:
        with self.lock:
            return GpuBound(self, program, buffers)

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        if not isinstance(bound, GpuBound) or bound.device is not self:
            raise DeviceError(f"{self.info.id}: the program was bound on another device")
        with self.lock:
            bound.run(scalars)

    def sync(self) -> None:
        with self.lock:
            self.driver.sync()

    def timed(self, runs: Sequence[Callable[[], None]]) -> list[float]:
        """See Device.timed: by the device's own clock, without waiting between the runs."""
        with self.lock:
            marks = [self.driver.mark()]
            for run in runs:
                run()
                marks.append(self.driver.mark())
            return self.driver.times(marks)

    def close(self) -> None:
        """Waits and gives the GPU back; every later call raises DeviceError."""
        with self.lock:
            self.driver.close()


@functools.cache
def _version() -> str:
    """Changes with the code that turns kernels into GPU code, and with LLVM."""
    from importlib import metadata

    return f"{versions.stamp('gpu code')}|{metadata.version('llvmlite')}"
