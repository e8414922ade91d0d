"""A GPU driver that records: memory with guards, calls in order, kernels run by the interpreter."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.backends.cache import DiskCache
from weft.backends.gpu import Driver, GpuDevice
from weft.backends.llvm import gpu_target, launch
from weft.core.caps import PRESETS
from weft.core.errors import DeviceError, OutOfMemoryError
from weft.kernel import interp
from weft.kernel.ir import Kernel, host_eval

_GAP = 256


class FakeDriver(Driver):
    """`fail` maps the name of a call to the error that its next use raises."""

    def __init__(self, kind: str = "cuda", arch: str = "sm_80", memory: int = 1 << 24) -> None:
        self.kind, self.arch, self.memory = kind, arch, memory
        self.index, self.name, self.version, self.lost = 0, "fake GPU", "1.0", False
        self.live: dict[int, np.ndarray] = {}
        self.next = 1 << 20
        self.calls: list[tuple[Any, ...]] = []
        self.kernels: dict[str, Kernel] = {}
        self.fail: dict[str, Exception] = {}
        self.noted: list[tuple[Any, ...]] | None = None
        self.graphs: list[list[tuple[Any, ...]]] = []

    def _note(self, name: str, *what: Any) -> None:
        self.calls.append((name, *what))
        if name in self.fail:
            raise self.fail.pop(name)

    def _noted(self, *call: Any) -> bool:
        """Whether a recording takes this call."""
        if self.noted is not None:
            self.noted.append(call)
        return self.noted is not None

    def record(self) -> None:
        self._note("record")
        assert self.noted is None
        self.noted = []

    def recorded(self) -> Any:
        self._note("recorded")
        graph, self.noted = self.noted, None
        assert graph is not None
        self.graphs.append(graph)
        return graph

    def replay(self, graph: Any) -> None:
        self._note("replay", len(graph))
        assert any(graph is g for g in self.graphs)
        for name, *args in graph:
            getattr(self, "_" + name)(*args)

    def forget(self, graph: Any) -> None:
        self._note("forget")
        self.graphs = [g for g in self.graphs if g is not graph]

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def view(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at an address, which must lie in one live allocation."""
        for start, data in self.live.items():
            if start <= address and address + nbytes <= start + len(data):
                return data[address - start : address - start + nbytes]
        raise AssertionError(f"{nbytes} bytes at {address:#x} are not allocated")

    def alloc(self, nbytes: int) -> int:
        assert self.noted is None, "memory asked for while recording"
        self._note("alloc", nbytes)
        if sum(map(len, self.live.values())) + nbytes > self.memory:
            raise OutOfMemoryError(f"fake GPU has no {nbytes:,} bytes free")
        address = self.next
        self.next += -(-nbytes // 256) * 256 + _GAP
        self.live[address] = np.full(nbytes, 0xA5, np.uint8)
        return address

    def free(self, address: int) -> None:
        self._note("free", address)
        del self.live[address]  # a KeyError is a double free

    def room(self) -> tuple[int, int]:
        return self.memory - sum(map(len, self.live.values())), self.memory

    def write(self, address: int, host: int, nbytes: int) -> None:
        self._note("write", address, nbytes)
        self.view(address, nbytes)[:] = np.frombuffer(ctypes.string_at(host, nbytes), np.uint8)

    def read(self, host: int, address: int, nbytes: int) -> None:
        self._note("read", address, nbytes)
        ctypes.memmove(host, self.view(address, nbytes).tobytes(), nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._note("copy", target, source, nbytes)
        if not self._noted("copy", target, source, nbytes):
            self._copy(target, source, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        assert abs(target - source) >= nbytes, "the places overlap"
        self.view(target, nbytes)[:] = self.view(source, nbytes)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._note("fill", address, byte, nbytes)
        if not self._noted("fill", address, byte, nbytes):
            self._fill(address, byte, nbytes)

    def _fill(self, address: int, byte: int, nbytes: int) -> None:
        self.view(address, nbytes)[:] = byte

    def load(self, code: bytes, entry: str, shared: int = 0) -> Any:
        self._note("load", entry, shared)
        assert entry.encode() in code
        return entry

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        threads: Sequence[int],
        args: Sequence[int],
        shared: int = 0,
    ) -> None:
        self._note("launch", function, tuple(grid), tuple(threads), tuple(args), shared)
        if not self._noted("launch", function, grid, threads, args, shared):
            self._launch(function, grid, threads, args, shared)

    def _launch(
        self,
        function: Any,
        grid: Sequence[int],
        threads: Sequence[int],
        args: Sequence[int],
        shared: int,
    ) -> None:
        kernel = self.kernels[function]
        assert shared == launch.shared_bytes(kernel, gpu_target(self.arch).static_shared)
        assert all(address % launch.ALIGN == 0 for address in args)
        assert min(grid) > 0 and kernel.threads == tuple(threads)
        arrays = [
            self.view(address, b.size * b.dtype.itemsize).view(b.dtype.numpy)
            for address, b in zip(args, kernel.buffers)
        ]
        start = next(s for s, d in self.live.items() if s <= args[-1] < s + len(d))
        scalars = self.live[start].view(np.int32).tolist()
        whole = [host_eval(g, scalars) for g in kernel.grid]
        assert np.prod(grid) == np.prod(whole), "a replay with another grid"
        interp.run(kernel, arrays, scalars, caps=PRESETS["cuda"])

    def sync(self) -> None:
        self._note("sync")

    def mark(self) -> Any:
        self._note("mark")
        return len(self.calls)

    def times(self, marks: Sequence[Any]) -> list[float]:
        """A millisecond for each call between."""
        self._note("times", *marks)
        return [(b - a) / 1e3 for a, b in itertools.pairwise(marks)]

    def close(self) -> None:
        self._note("close")
        self.lost = True


class FakeDevice(GpuDevice):
    """A GpuDevice whose driver learns each kernel that is compiled."""

    driver: FakeDriver

    def _function(self, kernel: Kernel) -> Any:
        self.driver.kernels[launch.entry(kernel)] = kernel
        return super()._function(kernel)


def fake_device(**fields: Any) -> FakeDevice:
    return FakeDevice(FakeDriver(**fields), DiskCache(None))


__all__ = ["DeviceError", "FakeDevice", "FakeDriver", "fake_device"]
