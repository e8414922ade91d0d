"""A GPU as the Python bindings of CUDA and HIP show it: every call recorded and checked, done late.

The device does nothing before someone waits for it, so host memory that changes too early shows; a
handle that is used after its end, or never given back, shows as well. Kernels are run by the
interpreter.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import types
from typing import Any

import numpy as np
import pytest
from gpu_machine import Handle, Machine

from weft.backends import cuda, hip
from weft.backends.gpu import Driver, GpuDevice
from weft.backends.llvm import launch
from weft.host.cache import DiskCache
from weft.kernel.grid import groups
from weft.kernel.ir import Kernel

BACKENDS = {"cuda": cuda, "hip": hip}
APIS = {"cuda": cuda.CudaApi, "hip": hip.HipApi}

STREAM = "stream"  # as `shown` names it


class Bindings(Machine):
    """The stand-in for one vendor's module: `Bindings("cuda")`, `Bindings("hip")`."""

    # -- memory

    def do_pool(self, device: int) -> Any:
        return "pool"

    def do_cuda_keep(self, pool: Any, which: int, value: int) -> None:
        assert (pool, which) == ("pool", 4)
        self.kept = value

    def do_hip_keep(self, pool: Any, which: int, pointer: int) -> None:
        self.do_cuda_keep(pool, which, ctypes.c_uint64.from_address(pointer).value)

    def do_trim(self, pool: Any, keep: int) -> None:
        assert (pool, keep) == ("pool", 0)
        self.freed = 0

    def do_alloc(self, nbytes: int) -> Handle:
        assert nbytes > 0
        if sum(b.nbytes - 512 for b in self.blocks.values()) + self.freed + nbytes > self.memory:
            raise MemoryError
        raw = np.full(nbytes + 512, 0xA5, np.uint8)
        address = raw.ctypes.data + -raw.ctypes.data % 256
        self.blocks[address] = raw
        return Handle("address", address)

    def do_alloc_async(self, nbytes: int, stream: Any) -> Handle:
        assert self.pools
        self.known(stream, "stream")
        return self.do_alloc(nbytes)

    def do_free(self, address: int) -> None:
        assert not self.queue, "memory freed while work may use it"
        del self.blocks[address]  # a KeyError is a double free

    def do_free_async(self, address: int, stream: Any) -> None:
        assert address in self.blocks
        self.enqueue(stream, lambda: self._keep(address))

    def _keep(self, address: int) -> None:
        self.freed += self.blocks.pop(address).nbytes - 512

    def do_room(self) -> tuple[int, int]:
        used = sum(b.nbytes - 512 for b in self.blocks.values()) + self.freed
        return self.memory - used, self.memory

    def do_host_alloc(self, nbytes: int, flags: int) -> Handle:
        raw = np.zeros(nbytes, np.uint8)
        self.pinned[raw.ctypes.data] = raw
        return self.make("pinned", raw.ctypes.data)

    def do_host_free(self, pointer: Any) -> None:
        self.end_of(pointer, "pinned")
        del self.pinned[int(pointer)]

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at an address, which must lie in one live allocation of the device."""
        for start, raw in self.blocks.items():
            if start <= address and address + nbytes <= start + raw.nbytes - 512:
                at = address - raw.ctypes.data
                return raw[at : at + nbytes]
        raise AssertionError(f"{nbytes} bytes at {address:#x} are not allocated")

    def staged(self, address: int, nbytes: int) -> np.ndarray:
        for start, raw in self.pinned.items():
            if start <= address and address + nbytes <= start + raw.nbytes:
                return raw[address - start : address - start + nbytes]
        raise AssertionError("asynchronous copies want page-locked memory")

    def do_to_device(self, target: int, host: int, nbytes: int, stream: Any) -> None:
        source, there = self.staged(host, nbytes), self.bytes_at(target, nbytes)
        self.enqueue(stream, lambda: there.__setitem__(slice(None), source))

    def do_to_host(self, host: int, source: int, nbytes: int, stream: Any) -> None:
        there, data = self.staged(host, nbytes), self.bytes_at(source, nbytes)
        self.enqueue(stream, lambda: there.__setitem__(slice(None), data))

    def do_copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        assert abs(target - source) >= nbytes, "the places overlap"
        self.enqueue(
            stream,
            lambda: self.bytes_at(target, nbytes).__setitem__(
                slice(None), self.bytes_at(source, nbytes)
            ),
        )

    def do_fill(self, address: int, byte: int, nbytes: int, stream: Any) -> None:
        assert 0 <= byte < 256
        self.enqueue(stream, lambda: self.bytes_at(address, nbytes).__setitem__(slice(None), byte))

    # -- kernels

    def do_cuda_module(self, image: bytes, count: int, options: Any, values: Any) -> Handle:
        assert image.endswith(b"\0") and list(options) == [5, 6] and values[1] == len(values[0])
        assert count == 2
        return self.make("module", data=image)

    def do_hip_module(self, image: bytes) -> Handle:
        return self.make("module", data=image)

    def do_module_end(self, module: Any) -> None:
        self.end_of(module, "module")

    def do_function(self, module: Any, name: bytes) -> Handle:
        assert name in self.known(module, "module").data
        return Handle("function", data=(name.decode(), module))

    def do_allow(self, function: Handle, which: int, nbytes: int) -> None:
        assert which == 8

    def do_launch(self, function: Handle, *rest: Any) -> None:
        grid, threads, (shared, stream, params, extra) = rest[:3], rest[3:6], rest[6:]
        entry, module = function.data
        self.known(module, "module")
        assert min(grid) > 0 and extra == 0
        kernel = self.kernels[entry]
        pointers = ctypes.cast(params, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        args = [pointers[i][0] for i in range(len(kernel.buffers) + 1)]
        assert self.target and shared == launch.shared_bytes(kernel, self.target.static_shared)
        self.launches.append((entry, grid, threads, args, shared))
        self.enqueue(stream, lambda: self._play(entry, grid, threads, args))

    def _play(self, entry: str, grid: Any, threads: Any, args: list[int]) -> None:
        if entry in self.faults:
            self.sticky = 700
            return
        kernel = self.kernels[entry]
        assert kernel.threads == tuple(threads) and all(a % launch.ALIGN == 0 for a in args)
        arrays = [
            self.bytes_at(address, b.size * b.dtype.itemsize).view(b.dtype.numpy)
            for address, b in zip(args, kernel.buffers)
        ]
        start = next(s for s, d in self.blocks.items() if s <= args[-1] < s + d.nbytes - 512)
        size = (self.blocks[start].nbytes - 512) // 4 * 4
        scalars = self.bytes_at(start, size).view(np.int32).tolist()
        assert np.prod(grid) == np.prod(groups(kernel, scalars)), "a replay with another grid"
        self.execute(kernel, arrays, scalars)

    # -- recordings

    def do_begin(self, stream: Any, mode: int) -> None:
        assert mode == 1 and self.capture is None
        self.known(stream, "stream")
        self.capture = []

    def do_end(self, stream: Any) -> Handle:
        assert self.capture is not None
        noted, self.capture = self.capture, None
        return self.make("graph", data=noted)

    def do_instantiate(self, graph: Any, flags: int) -> Handle:
        assert flags == 0
        return self.make("exec", data=self.known(graph, "graph").data)

    def do_graph_end(self, graph: Any) -> None:
        self.end_of(graph, "graph")

    def do_replay(self, graph: Any, stream: Any) -> None:
        for what in self.known(graph, "exec").data:
            self.enqueue(stream, what)

    def do_exec_end(self, graph: Any) -> None:
        self.end_of(graph, "exec")


def install(monkeypatch: pytest.MonkeyPatch, kind: str) -> Bindings:
    """Lets the vendor's bindings be a stand-in, which sees every GPU and is trusted."""
    monkeypatch.setenv("WEFT_POOL", "on")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    found, name = Bindings(kind), APIS[kind].module_name
    parts = name.split(".")
    for parent in itertools.accumulate(parts[:-1], "{}.{}".format):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, found)
    return found


class Taught(GpuDevice):
    """A device that tells the stand-in about each kernel. Only with `real` its code is LLVM's:
    the entry's name is all that the stand-in looks for."""

    def __init__(self, gpu: Bindings, cache: DiskCache | None = None, real: bool = False) -> None:
        super().__init__(Driver(APIS[gpu.kind](), 0), cache or DiskCache(None))
        self.gpu, self.real = gpu, real
        gpu.target = self.target
        gpu.calls.clear()

    def _function(self, kernel: Kernel) -> Any:
        self.gpu.kernels[launch.entry(kernel)] = kernel
        return super()._function(kernel)

    def code(self, kernel: Kernel) -> bytes:
        return super().code(kernel) if self.real else launch.entry(kernel).encode()


def named(gpu: Bindings, *shorts: str) -> list[str]:
    """The vendor's names of calls."""
    of = {short: name for name, short in gpu.table.items()}
    return [of[short] for short in shorts]


def opened(gpu: Bindings, index: int = 0) -> Driver:
    """A driver on the stand-in, whose calls so far are forgotten."""
    driver = Driver(APIS[gpu.kind](), index)
    gpu.calls.clear()
    return driver


def pointer(array: np.ndarray) -> int:
    return array.ctypes.data


def shown(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Calls with handles by their kind."""
    return [tuple(repr(a) if hasattr(a, "what") else a for a in call) for call in calls]
