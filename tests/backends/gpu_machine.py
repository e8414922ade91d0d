"""What `gpu_bindings` does beside work: calls, handles, devices, the stream and its events."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.backends.llvm.gpu_target import GpuTarget
from weft.kernel import interp
from weft.kernel.ir import Kernel

OUT_OF_MEMORY, CAPTURING = 2, 900
STREAM = 4711  # its handle as a number

# The vendors' names of the calls, as their references have them.
CUDA = {
    "cuInit": "init", "cuDeviceGetCount": "count", "cuDeviceGet": "number",
    "cuDeviceGetName": "cuda_name", "cuDeviceTotalMem": "total", "cuDriverGetVersion": "version",
    "cuDeviceGetAttribute": "attribute", "cuDevicePrimaryCtxRetain": "retain",
    "cuDevicePrimaryCtxRelease": "release", "cuCtxSetCurrent": "choose",
    "cuStreamCreate": "stream", "cuStreamDestroy": "stream_end", "cuStreamSynchronize": "wait",
    "cuDeviceGetDefaultMemPool": "pool", "cuMemPoolSetAttribute": "cuda_keep",
    "cuMemPoolTrimTo": "trim", "cuMemAllocAsync": "alloc_async", "cuMemFreeAsync": "free_async",
    "cuMemAlloc": "alloc", "cuMemFree": "free", "cuMemGetInfo": "room",
    "cuMemHostAlloc": "host_alloc", "cuMemFreeHost": "host_free",
    "cuMemcpyHtoDAsync": "to_device", "cuMemcpyDtoHAsync": "to_host",
    "cuMemcpyDtoDAsync": "copy", "cuMemsetD8Async": "fill",
    "cuModuleLoadDataEx": "cuda_module", "cuModuleUnload": "module_end",
    "cuModuleGetFunction": "function", "cuFuncSetAttribute": "allow", "cuLaunchKernel": "launch",
    "cuStreamBeginCapture": "begin", "cuStreamEndCapture": "end",
    "cuGraphInstantiate": "instantiate", "cuGraphDestroy": "graph_end",
    "cuGraphLaunch": "replay", "cuGraphExecDestroy": "exec_end",
    "cuEventCreate": "event", "cuEventRecord": "event_record", "cuEventSynchronize": "event_wait",
    "cuEventElapsedTime": "elapsed", "cuEventDestroy": "event_end",
}  # fmt: skip
HIP = {
    "hipInit": "init", "hipGetDeviceCount": "count", "hipGetDeviceProperties": "properties",
    "hipRuntimeGetVersion": "version", "hipDeviceGetAttribute": "attribute",
    "hipSetDevice": "choose",
    "hipStreamCreateWithFlags": "stream", "hipStreamDestroy": "stream_end",
    "hipStreamSynchronize": "wait",
    "hipDeviceGetDefaultMemPool": "pool", "hipMemPoolSetAttribute": "hip_keep",
    "hipMemPoolTrimTo": "trim", "hipMallocAsync": "alloc_async", "hipFreeAsync": "free_async",
    "hipMalloc": "alloc", "hipFree": "free", "hipMemGetInfo": "room",
    "hipHostMalloc": "host_alloc", "hipHostFree": "host_free",
    "hipMemcpyHtoDAsync": "to_device", "hipMemcpyDtoHAsync": "to_host",
    "hipMemcpyDtoDAsync": "copy", "hipMemsetD8Async": "fill",
    "hipModuleLoadData": "hip_module", "hipModuleUnload": "module_end",
    "hipModuleGetFunction": "function", "hipModuleLaunchKernel": "launch",
    "hipStreamBeginCapture": "begin", "hipStreamEndCapture": "end",
    "hipGraphInstantiateWithFlags": "instantiate", "hipGraphDestroy": "graph_end",
    "hipGraphLaunch": "replay", "hipGraphExecDestroy": "exec_end",
    "hipEventCreateWithFlags": "event", "hipEventRecord": "event_record",
    "hipEventSynchronize": "event_wait", "hipEventElapsedTime": "elapsed",
    "hipEventDestroy": "event_end",
}  # fmt: skip
_FREE = {"init", "count", "number", "cuda_name", "total", "version", "attribute", "properties",
         "retain", "release", "choose", "pool", "cuda_keep", "hip_keep"}  # fmt: skip
_ALSO_CAPTURING = {"choose", "copy", "fill", "launch", "end"}


Execute = Callable[[Kernel, list[np.ndarray], list[int]], None]


class Status(int):
    """An error number with a name, as the enums of the bindings are."""

    @property
    def name(self) -> str:
        return {0: "SUCCESS", 2: "OUT_OF_MEMORY", 218: "INVALID_PTX", 700: "ILLEGAL_ADDRESS"}.get(
            self, f"ERROR_{int(self)}"
        )


class Handle:
    """Something of the driver's; `int` gives an address where it has one."""

    def __init__(self, what: str, address: int = 0, data: Any = None) -> None:
        self.what, self.address, self.data = what, address, data
        self.done, self.records = 0.0, 0

    def __int__(self) -> int:
        return self.address

    def __repr__(self) -> str:
        return self.what


class Machine(types.ModuleType):
    """`fail` gives the error numbers that the next uses of a call end with (0: none); a kernel in
    `faults` leaves the device failing for good with 700."""

    def __init__(self, kind: str, gpus: int = 1, memory: int = 1 << 26) -> None:
        super().__init__(kind)
        self.kind, self.gpus, self.memory = kind, gpus, memory
        self.table = CUDA if kind == "cuda" else HIP
        self.calls: list[tuple[Any, ...]] = []
        self.fail: dict[str, list[int]] = {}
        self.faults: set[str] = set()
        self.sticky = 0
        self.chosen = threading.local()
        self.pools, self.capability, self.arch_name = 1, (9, 0), "gfx90a:sramecc+:xnack-"
        self.kept: Any = None
        self.live: list[Handle] = []
        self.blocks: dict[int, np.ndarray] = {}  # the device's memory, then the host's
        self.pinned: dict[int, np.ndarray] = {}
        self.freed = 0  # bytes that the pool keeps
        self.queue: list[Callable[[], None]] = []
        self.capture: list[Callable[[], None]] | None = None
        self.clock = 0.0  # milliseconds, one per thing done
        self.kernels: dict[str, Kernel] = {}
        self.target: GpuTarget | None = None
        self.launches: list[tuple[Any, ...]] = []  # entry, grid, threads, arguments, shared bytes
        self.execute: Execute = self.interpret
        for name in ("CUdevice_attribute", "CUmemPool_attribute", "CUjit_option", "cuuint64_t",
                     "CUstreamCaptureMode", "CUfunction_attribute", "hipMemPoolAttr",
                     "hipStreamCaptureMode"):  # fmt: skip
            setattr(self, name, int)
        self.hipDeviceAttribute_t = types.SimpleNamespace(
            hipDeviceAttributeMemoryPoolsSupported=115
        )

    def interpret(self, kernel: Kernel, arrays: list[np.ndarray], scalars: list[int]) -> None:
        interp.run(kernel, arrays, scalars, caps=self.target and self.target.caps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.table:
            raise AttributeError(name)
        method = getattr(self, f"do_{self.table[name]}")

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, *args))
            return self._call(name, self.table[name], method, args)

        return call

    def _call(self, name: str, short: str, method: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        planned = self.fail.get(name)
        status = planned.pop(0) if planned else 0
        if short not in _FREE:
            assert getattr(self.chosen, "value", None) is not None, f"{name}: no device chosen"
            if self.capture is not None and short not in _ALSO_CAPTURING:
                status = status or CAPTURING
        try:
            value = None if status or self.sticky else method(*args)
        except MemoryError:
            status, value = OUT_OF_MEMORY, None
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        return (Status(status or self.sticky), *values)

    def names(self) -> list[str]:
        """The calls since the last look, without the choice of the device."""
        return [c[0] for c in self.take()]

    def shorts(self) -> list[str]:
        """The same by the names that both vendors share here."""
        return [self.table[name] for name in self.names()]

    def take(self) -> list[tuple[Any, ...]]:
        """The same with their arguments."""
        chooses = next(n for n, short in self.table.items() if short == "choose")
        found = [c for c in self.calls if c[0] != chooses]
        self.calls.clear()
        return found

    # -- handles

    def make(self, what: str, address: int = 0, data: Any = None) -> Handle:
        self.live.append(Handle(what, address, data))
        return self.live[-1]

    def known(self, handle: Any, what: str) -> Handle:
        assert isinstance(handle, Handle) and handle.what == what, handle
        assert any(handle is h for h in self.live), f"{what} after its end"
        return handle

    def end_of(self, handle: Any, what: str) -> None:
        self.known(handle, what)
        self.live = [h for h in self.live if h is not handle]

    def left(self) -> list[str]:
        """What was made and not given back."""
        return sorted([h.what for h in self.live] + ["memory"] * len(self.blocks))

    # -- devices

    def do_init(self, flags: int) -> None:
        assert flags == 0

    def do_count(self) -> int:
        return self.gpus

    def do_number(self, index: int) -> int:
        assert 0 <= index < self.gpus
        return index

    def do_cuda_name(self, length: int, device: int) -> bytes:
        return f"GPU {device}".encode().ljust(length, b"\0")

    def do_total(self, device: int) -> int:
        return self.memory

    def do_version(self) -> int:
        return 12040 if self.kind == "cuda" else 60342134

    def do_attribute(self, which: int, device: int) -> int:
        return {75: self.capability[0], 76: self.capability[1], 115: self.pools}[which]

    def do_properties(self, index: int) -> Any:
        return types.SimpleNamespace(
            name=f"GPU {index}", gcnArchName=self.arch_name, totalGlobalMem=self.memory
        )

    def do_retain(self, device: int) -> Handle:
        return self.make("context")

    def do_release(self, device: int) -> None:
        self.end_of(next(h for h in self.live if h.what == "context"), "context")

    def do_choose(self, context: Any) -> None:
        if self.kind == "cuda":
            self.known(context, "context")
        self.chosen.value = context

    def do_stream(self, flags: int) -> Handle:
        assert flags == 1  # does not wait for the default stream
        return self.make("stream", STREAM)

    def do_stream_end(self, stream: Any) -> None:
        self.end_of(stream, "stream")

    # -- the queue

    def enqueue(self, stream: Any, what: Callable[[], None]) -> None:
        self.known(stream, "stream")
        (self.queue if self.capture is None else self.capture).append(what)

    def run(self) -> None:
        """Does the first thing in the queue."""
        self.clock += 1
        self.queue.pop(0)()

    def do_wait(self, stream: Any) -> None:
        self.known(stream, "stream")
        while self.queue and not self.sticky:
            self.run()

    def do_event(self, flags: int) -> Handle:
        assert flags in (0, 2)
        return self.make("event", data=bool(flags))

    def do_event_record(self, event: Any, stream: Any) -> None:
        """Only the last record of an event counts."""
        self.known(event, "event").done = 0.0
        event.records = mine = event.records + 1

        def reached() -> None:
            if event.records == mine:
                event.done = self.clock

        self.enqueue(stream, reached)

    def do_event_wait(self, event: Any) -> None:
        self.known(event, "event")
        while not event.done and self.queue and not self.sticky:
            self.run()

    def do_elapsed(self, start: Any, stop: Any) -> float:
        assert not start.data and not stop.data and start.done and stop.done
        return float(stop.done - start.done)

    def do_event_end(self, event: Any) -> None:
        self.end_of(event, "event")
