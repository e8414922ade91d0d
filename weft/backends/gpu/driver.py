"""The few driver calls of a GPU device, on one GPU and one stream: the shared part of CUDA's and
HIP's drivers.

This code has not met a real driver yet: tests run it on stand-ins.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weft.backends.gpu.api import FATAL, OUT_OF_MEMORY, Api, DriverError, wished
from weft.backends.gpu.blas import Blas, open_blas
from weft.backends.gpu.memory import CachingPool, DriverPool
from weft.backends.gpu.staging import Staging
from weft.core.errors import DeviceError, OutOfMemoryError

T = TypeVar("T")

_NON_BLOCKING = 1  # CUstream_flags, hipStreamNonBlocking
_THREAD_LOCAL = 1  # CUstreamCaptureMode, hipStreamCaptureMode


_calling = threading.local()  # the driver whose call this thread is in
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork() -> None:
    """A vendor's driver works in the process that started it alone: the child only says so."""
    for driver in _drivers:
        driver.lost, driver._gone = True, "opened before this process was forked: use 'spawn'"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Driver:
    """GPU number `index` of a vendor. Memory comes from the driver's pool where it has one that is
    trusted, or that WEFT_POOL asks for. Raises DeviceError where there is no such GPU.

    Everything happens in the order in which it was asked for. Addresses are integers; memory is
    given at multiples of 256 bytes. Methods may be called from any thread, one at a time. They
    raise OutOfMemoryError where memory is short and DeviceError for everything else; after an error
    from which the device does not recover `lost` is True.
    """

    def __init__(self, api: Api, index: int) -> None:
        self.api, self.kind, self.index, self.lost = api, api.kind, index, False
        self.id, self._gone = f"{self.kind}:{index}", "lost after an error: start the process anew"
        count = api.count()
        if index >= count:
            many = "is 1" if count == 1 else f"are {count}"
            gpus = "GPU" if count == 1 else "GPUs"
            raise DeviceError(f'there {many} {api.maker} {gpus}; "{self.id}" does not exist')
        card = api.card(index)
        if card.reason:
            raise DeviceError(f"{card.name}: {card.reason}")
        pools = wished("WEFT_POOL", api.pools) and card.pools
        self.name, self.arch, self.memory = card.name, card.arch, card.memory
        self.version, self.replay_defect = api.version(), api.replay_defect()
        self._held: dict[int, int] = {}  # bytes at each address given
        self._recording = False
        self._later: list[Callable[[], None]] = []  # memory given back while recording
        self._modules: list[tuple[Any, bytes]] = []  # a driver may read the code later
        self._blas: Blas | None = None
        self._stream: Any = None
        self._context = self._opened()
        try:
            self._stream = self._do("StreamCreate", _NON_BLOCKING)
            self._memory: DriverPool | CachingPool = CachingPool(self._do)
            if pools:
                self._memory = DriverPool(self._do, self._try(api.pool, index), self._stream)
        except BaseException:
            self._end()
            raise
        self._staging = Staging(self._do, self._stream)
        _drivers.add(self)

    def _opened(self) -> Any:
        try:
            return self.api.open(self.index)
        except DriverError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            raise OutOfMemoryError(
                f"{self.id} ({self.name}) cannot be opened: other programs use all of its memory; "
                f"end them or name another device"
            ) from None

    # -- calls

    def _do(self, name: str, *args: Any) -> Any:
        """A call on the device, by its shared name."""
        return self._try(self.api.call, name, *args)

    def _try(self, what: Callable[..., Any], *args: Any) -> Any:
        """Calls the driver for this device. Notes when an error has left it unusable."""
        if self.lost:
            raise DeviceError(f"{self.id} was {self._gone}")
        outer, _calling.driver = getattr(_calling, "driver", None), self
        try:
            self.api.choose(self._context)
            return what(*args)
        except DriverError as error:
            if error.status in FATAL:
                self.lost = True
                raise DeviceError(
                    f"{self.id} is lost, perhaps because a kernel failed: {error}; restart the "
                    f"process, with WEFT_CHECK=1 to learn the step"
                ) from None
            if error.status == OUT_OF_MEMORY:
                raise OutOfMemoryError(f"{self.id} ({self.name}): {error}{self._room()}") from None
            raise
        finally:
            _calling.driver = outer
            if outer not in (None, self):  # garbage collection freed here what is another's
                outer.api.choose(outer._context)

    def _room(self) -> str:
        try:
            free, total = map(int, self.api.call("MemGetInfo"))
        except DeviceError:
            return ""
        held = sum(self._held.values())
        return (
            f"; {free:,} of {total:,} bytes are free, this process's arrays hold {held:,}, "
            "the rest is the driver's and other programs'"
        )

    # -- memory

    def alloc(self, nbytes: int) -> int:
        """The address of new memory, its content undefined."""
        try:
            address = self._twice(lambda: self._memory.alloc(nbytes))
        except OutOfMemoryError:
            raise OutOfMemoryError(
                f"{self.id} ({self.name}) cannot allocate {nbytes:,} bytes{self._room()}"
            ) from None
        self._held[address] = nbytes
        return address

    def _twice(self, call: Callable[[], T]) -> T:
        """Makes a call that may need memory which weft keeps for reuse. If memory runs out, frees
        the kept memory and calls again."""
        try:
            return call()
        except OutOfMemoryError:
            self._trim()
            return call()

    def _trim(self) -> None:
        """Gives the driver the memory that is kept."""
        self.sync()
        self._memory.trim()

    def free(self, address: int) -> None:
        """Frees memory once the work submitted so far is done."""
        if self._recording:  # a recording would free it at every replay
            self._later.append(functools.partial(self.free, address))
            return
        self._held.pop(address, None)
        self._memory.free(address)

    def room(self) -> tuple[int, int]:
        """Returns the free bytes and the total bytes; memory of other programs is not free."""
        self._trim()  # kept memory counts as taken
        free, total = map(int, self._do("MemGetInfo"))
        return free, total

    def write(self, address: int, host: int, nbytes: int) -> None:
        """Copies from host memory, which may change as soon as this returns."""
        self._staging.write(address, host, nbytes)

    def read(self, host: int, address: int, nbytes: int) -> None:
        """Copies to host memory, when all work before is done."""
        self._staging.read(host, address, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies between places of the device that do not overlap."""
        if nbytes:
            self._do("MemcpyDtoDAsync", target, source, nbytes, self._stream)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Fills with a repeated byte."""
        if nbytes:  # HIP refuses to record a fill of nothing
            self._do("MemsetD8Async", address, byte, nbytes, self._stream)

    # -- kernels

    def load(self, code: bytes, entry: str, shared: int = 0) -> Any:
        """The function `entry` of PTX text or of a code object; it stays loaded. `shared` is how
        many bytes of dynamic shared memory its launches will ask for."""
        module = self._twice(lambda: self._try(self.api.module, code, entry))
        self._modules.append((module, code))
        function = self._do("ModuleGetFunction", module, entry.encode())
        if shared:
            self._try(self.api.allow_shared, function, shared)
        return function

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        threads: Sequence[int],
        args: Sequence[int],
        shared: int = 0,
    ) -> None:
        """Runs a function whose arguments are all addresses, with `shared` bytes of dynamic shared
        memory per group."""
        values = (ctypes.c_void_p * len(args))(*args)
        start, size = ctypes.addressof(values), ctypes.sizeof(ctypes.c_void_p)
        pointers = (ctypes.c_void_p * len(args))(*[start + size * i for i in range(len(args))])
        self._do(
            "LaunchKernel", function, *grid, *threads, shared, self._stream,
            ctypes.addressof(pointers), 0,
        )  # fmt: skip

    # -- products

    def library(self) -> Blas:
        """The vendor's library of matrix products, working on this device's stream. Raises
        DeviceError saying why there is none."""
        if self._blas is None:
            self._blas = open_blas(self.api.blas, self._try, int(self._stream), self)
        return self._blas

    # -- recordings

    def record(self) -> None:
        """Records launches, copies and fills from here on, without running them, until
        `recorded`."""
        mode = self.api.enum("StreamCaptureMode", _THREAD_LOCAL)
        self._recording = True  # first: Python may collect garbage, and so free, at any time
        try:
            self._do("StreamBeginCapture", self._stream, mode)
        except BaseException:
            self._end_of_recording()
            raise

    def _end_of_recording(self) -> None:
        self._recording = False
        later, self._later = self._later, []
        for give_back in later:
            with contextlib.suppress(DeviceError):
                give_back()

    def recorded(self) -> Any:
        """Returns the recorded work, for replay as one. Frees memory that was given back
        meanwhile."""
        try:
            graph = self._do("StreamEndCapture", self._stream)
        finally:
            self._end_of_recording()
        try:
            return self._twice(lambda: self._do("GraphInstantiate", graph, 0))
        finally:
            self._do("GraphDestroy", graph)

    def replay(self, graph: Any) -> None:
        """Does what was noted, with the addresses, grids and bytes of then."""
        self._twice(lambda: self._do("GraphLaunch", graph, self._stream))

    def forget(self, graph: Any) -> None:
        """Gives a recording back."""
        if self._recording:
            self._later.append(functools.partial(self.forget, graph))
        else:
            self._do("GraphExecDestroy", graph)

    # -- time

    def sync(self) -> None:
        """Waits for all submitted work; errors of kernels show here."""
        self._do("StreamSynchronize", self._stream)
        self._staging.idle()

    def mark(self) -> Any:
        """Notes the time at which the device reaches this place."""
        event = self._do("EventCreate", 0)
        self._do("EventRecord", event, self._stream)
        return event

    def times(self, marks: Sequence[Any]) -> list[float]:
        """Seconds on the device from each mark to the next. Waits, and gives the marks back."""
        try:
            self._do("EventSynchronize", marks[-1])
            between = [self._do("EventElapsedTime", *pair) for pair in itertools.pairwise(marks)]
            return [float(ms) / 1e3 for ms in between]
        finally:
            with contextlib.suppress(DeviceError):
                for event in marks:
                    self._do("EventDestroy", event)

    def close(self) -> None:
        """Waits, and gives everything back but memory still held elsewhere."""
        if not self.lost:
            with contextlib.suppress(DeviceError):
                if self._blas is not None:
                    self._blas.close()
                self._trim()
                self._staging.close()
                for module, _ in self._modules:
                    self._do("ModuleUnload", module)
            self._end()
            self.lost, self._gone = True, "closed: open it anew"
        self._modules.clear()

    def _end(self) -> None:
        with contextlib.suppress(DeviceError):
            if self._stream is not None:
                self._do("StreamDestroy", self._stream)
            self.api.close(self.index)
