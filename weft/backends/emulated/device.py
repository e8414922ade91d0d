"""EmulatedDevice: a machine with its own instruction set, run by an emulator.

Its memory is a file that both processes map: buffers are read and written without the guest, which
only runs steps. Code is in the same memory, at addresses that are used once.
"""

from __future__ import annotations

import bisect
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from weft.backends.emulated import build, guest
from weft.backends.emulated.bound import EmulatedBound
from weft.backends.emulated.machines import Machine
from weft.backends.emulated.process import Process
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DeviceError, OutOfMemoryError
from weft.host import memory
from weft.host.cache import DiskCache
from weft.host.files import default_directory
from weft.host.forks import lock_of
from weft.kernel.ir import Kernel
from weft.program.device import Bound, Buffer, Device, DeviceInfo
from weft.program.program import Program

_SCRATCH = 4096  # offset of the scratch memory; the guest's notes precede it
_CODE = 512 << 20  # bytes from the start up to the end of the code; then buffers
_LARGE = 1 << 20  # bytes of a buffer whose pages go back to the system when it is freed


class EmulatedBuffer(Buffer):
    """Bytes of the machine's memory, from `offset` on."""

    def __init__(self, device: EmulatedDevice, nbytes: int, offset: int) -> None:
        self.device: EmulatedDevice = device
        self.nbytes, self.offset = nbytes, offset
        weakref.finalize(self, device.freed.append, offset).atexit = False

    @property
    def address(self) -> int:
        """The address in the machine's memory."""
        return guest.BASE + self.offset


class EmulatedDevice(Device):
    """One machine. Raises DeviceError where emulator or linker are missing or do not start."""

    synchronous = True

    def __init__(self, machine: Machine, cache: DiskCache | None = None) -> None:
        if why := build.missing(machine):
            raise DeviceError(f"{machine.name}: {why}")
        self.machine, self.kind, self.caps = machine, machine.name, machine.caps
        self.info = info(machine)
        self._builder = build.TargetBuilder(machine, cache or DiskCache(default_directory()))
        self.process = Process(machine, self._builder.program())
        weakref.finalize(self, self.process.close)
        self.scratch = guest.BASE + _SCRATCH
        self._code = _SCRATCH + machine.caps.scratch_bytes  # the first byte without code
        self._places = AddressRange(_CODE, machine.memory)
        self.freed: deque[int] = deque()  # offsets of freed buffers
        self._addresses: dict[str, int] = {}  # addresses of functions in memory
        self._lock = lock_of(self)
        self.functions = dict(zip(build.STEPS, self._place(build.STEPS, [])))

    @property
    def lost(self) -> bool:
        """True if the process has ended."""
        return bool(self.process.lost)

    # -- memory

    def alloc(self, nbytes: int) -> EmulatedBuffer:
        if nbytes < 0:
            raise DeviceError(f"{self.kind}: a buffer of {nbytes} bytes was asked for")
        with self._lock:
            self._give_back()
            free = self.free_memory()
            start = None if free and nbytes > free else self._places.take(nbytes)
        if start is None:
            raise OutOfMemoryError(f"{self.kind}: no memory for a buffer of {nbytes:,} bytes")
        return EmulatedBuffer(self, nbytes, start)

    def _give_back(self) -> None:
        if not self.process.ours:  # a fork's copies are freed, the memory is shared
            return
        while self.freed:
            start = self.freed.popleft()
            size = self._places.give(start)
            if size >= _LARGE:
                self.process.forget(start, size)

    def free_memory(self) -> int:
        return memory.available()

    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._window(buffer, offset, raw.size)[:] = raw

    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._window(buffer, offset, size).copy().view(dtype.numpy).reshape(shape)

    def _window(self, buffer: Buffer, offset: int, size: int) -> np.ndarray:
        own: EmulatedBuffer = self.own(buffer)
        own.check(offset, size)
        self.process.check()
        start = own.offset + offset
        return self.process.memory[start : start + size]

    # -- code

    def load(self, kernels: Sequence[Kernel]) -> list[int]:
        """The address of each kernel's function: compiled, linked and put in memory where it is
        not. Raises CompileError."""
        with self._lock:
            made = [self._builder.kernel(kernel) for kernel in kernels]
            absent = {name: data for name, data in made if name not in self._addresses}
            if absent:
                self._addresses.update(zip(absent, self._place(list(absent), [*absent.values()])))
            return [self._addresses[name] for name, _ in made]

    def _place(self, wanted: Sequence[str], objects: Sequence[bytes]) -> list[int]:
        """Links objects, and puts them in memory; the addresses of what is wanted of them."""
        found, data = self._builder.image(wanted, objects, guest.BASE + self._code)
        end = self._code + len(data)
        if end > _CODE:
            raise OutOfMemoryError(f"{self.kind}: no memory is left for code; open it again")
        self.process.memory[self._code : end] = np.frombuffer(data, np.uint8)
        self._code = -(-end // 4096) * 4096
        return found

    def source(self, kernel: Kernel) -> str:
        """The LLVM IR of a kernel."""
        return self._builder.render(kernel)

    # -- running

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> EmulatedBound:
        return EmulatedBound(self, program, buffers)

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        """Plays the steps; they are done when this returns. Raises DeviceError naming the kernel
        in which the emulator ended."""
        if not isinstance(bound, EmulatedBound) or bound.device is not self:
            raise DeviceError(f"{self.kind}: this Program was bound on another device")
        with self._lock:
            bound.run(scalars)

    def sync(self) -> None:
        """Nothing is ever in flight: submit returns when the work is done."""


def info(machine: Machine) -> DeviceInfo:
    """The line of `weft devices`."""
    why = build.missing(machine)
    names = tuple(d.name for d in dt.DEVICE)
    title = f"{machine.title} (emulated)"
    return DeviceInfo(machine.name, 0, title, not why, why, machine.qemu[0], 0, names, True)


ALIGN = 256


class AddressRange:
    """Numbers from `start` to `end` (exclusive), handed out in pieces at multiples of ALIGN."""

    def __init__(self, start: int, end: int) -> None:
        self._free = [(start, end)]  # in order, never adjacent to each other
        self._taken: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Returns the start of `size` free numbers, or None if there are none."""
        size = -(-max(size, 1) // ALIGN) * ALIGN
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                rest = [(start + size, end)] if end - start > size else []
                self._free[i : i + 1] = rest
                self._taken[start] = start + size
                return start
        return None

    def give(self, start: int) -> int:
        """Takes a piece back; how long it was."""
        end = self._taken.pop(start)
        size = end - start
        i = bisect.bisect(self._free, (start, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i and self._free[i - 1][1] == start:
            i -= 1
            start = self._free.pop(i)[0]
        self._free.insert(i, (start, end))
        return size
