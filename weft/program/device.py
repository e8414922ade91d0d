"""The contract between weft and a device. A backend author writes Caps, a Dialect and a Device.

Nothing here (or in any backend) knows graphs or op names: a device allocates bytes, compiles
kernels and runs the steps of a Program.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.errors import DeviceError
from weft.core.records import dataclass
from weft.kernel.ir import Kernel
from weft.program.program import Program

OWN_KERNEL = "own kernel"
HOST = "cpu"  # the kind of the one device that is this process's own processor


@dataclass(frozen=True)
class DeviceInfo:
    """One line of `weft devices`. `available` is False where `reason` says what is missing and
    what to install; `software` marks a rasteriser that runs on the CPU (never picked by auto)."""

    kind: str  # "cpu", "vulkan", ...
    index: int
    name: str
    available: bool
    reason: str = ""
    driver: str = ""
    memory: int = 0  # bytes, 0 when unknown
    dtypes: tuple[str, ...] = ()
    software: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name by which a device is opened, such as "cpu:0"."""
        return f"{self.kind}:{self.index}"


class Buffer(abc.ABC):
    """Bytes on a device. Freed when the last reference goes; `nbytes` is what was asked for."""

    nbytes: int
    device: Device

    def check(self, offset: int, nbytes: int) -> None:
        """Raises DeviceError unless `nbytes` from byte `offset` are its own."""
        if offset < 0 or offset + nbytes > self.nbytes:
            raise DeviceError(
                f"{self.device.info.id}: bytes {offset}..{offset + nbytes} of a buffer of "
                f"{self.nbytes}"
            )


class Bound(abc.ABC):
    """A Program resolved against concrete buffers: replaying it allocates nothing. `products` says
    who does a Library step, by its number, where that may be another than its kernel: a library's
    name, or OWN_KERNEL and why."""

    products: Mapping[int, str] = {}

    @abc.abstractmethod
    def rebind(self, index: int, buffer: Buffer) -> None:
        """Use `buffer` for Program buffer number `index` from the next run on."""

    def direct(
        self, inputs: Sequence[int], outputs: Sequence[int], holder: type | None = None
    ) -> Callable[..., int] | None:
        """Returns a shorter way to run a Program in host memory, or None.

        The result is a function of one array per output and then per input (Program buffer
        numbers). If each is a contiguous np.ndarray of its buffer's shape and dtype, or a `holder`
        of one in a slot `_value`, it runs the Program on them in place and returns 1. Otherwise it
        does nothing and returns 0. None may become a function later: a few runs may be needed to
        find the best way to run a Program.
        """
        return None


class Dialect(abc.ABC):
    """Kernel → source text. Pure: the same kernel and Caps give the same text."""

    name: str

    @abc.abstractmethod
    def render(self, kernel: Kernel, caps: Caps) -> str:
        """Returns the source of a kernel for a target. Raises CompileError."""


class Device(abc.ABC):
    """One device. Methods raise DeviceError (lost, failing) or OutOfMemoryError, never return
    wrong data. Calls may be asynchronous until `sync` or `read`."""

    kind: str
    info: DeviceInfo
    caps: Caps
    synchronous: bool = False  # True: `submit` returns only when its work is done
    pauses: bool = False  # True: `submit_pausing` pauses
    is_host: bool = False  # True: its memory is this process's; tensors there are NumPy arrays

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.id!r}, {self.info.name!r})"

    @abc.abstractmethod
    def alloc(self, nbytes: int) -> Buffer:
        """A buffer of at least max(nbytes, 1) bytes, 64-byte aligned; content undefined."""

    @abc.abstractmethod
    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        """Copies a C-contiguous array's bytes into the buffer from byte `offset`."""

    @abc.abstractmethod
    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        """A host copy of the content (waits for all submitted work that writes it)."""

    @abc.abstractmethod
    def load(self, kernels: Sequence[Kernel]) -> Sequence[Any]:
        """Compiles kernels (through the disk cache) to handles that `bind` understands."""

    def prepare(self, kernel: Kernel) -> None:
        """Hears of a kernel that will be loaded when its Program is complete. A device that
        compiles on other threads may begin; this one waits. Raises nothing."""
        return None

    @abc.abstractmethod
    def bind(self, program: Program, buffers: Sequence[Buffer]) -> Bound:
        """Resolves every step once. `buffers` has one entry per Program buffer, same order."""

    @abc.abstractmethod
    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        """Plays the Program's steps once, with these runtime scalars (int32)."""

    def submit_pausing(
        self, bound: Bound, scalars: Sequence[int], pause: Callable[[], None]
    ) -> None:
        """Does `submit`. Where `pauses` is true, it calls `pause` between the steps; other Programs
        may run in it, if they neither use this one's arena nor write what it reads."""
        self.submit(bound, scalars)

    @abc.abstractmethod
    def sync(self) -> None:
        """Waits for everything submitted."""

    def own(self, buffer: Buffer) -> Any:
        """The buffer, if it is this device's; else DeviceError."""
        if not isinstance(buffer, Buffer) or buffer.device is not self:
            given = buffer.device.info.id if isinstance(buffer, Buffer) else type(buffer).__name__
            raise DeviceError(
                f"{self.info.id}: a buffer of {given} belongs to another device; copy it with read "
                "and write"
            )
        return buffer

    def fitting(self, program: Program, index: int, buffer: Buffer) -> Any:
        """The buffer, if it is this device's and may be Program buffer `index`; else
        DeviceError."""
        spec = program.buffers[index]
        if self.own(buffer).nbytes < spec.nbytes:
            raise DeviceError(
                f"{program.name}: buffer {spec.name!r} needs {spec.nbytes} bytes, "
                f"got {buffer.nbytes}"
            )
        return buffer

    def bindable(self, program: Program, buffers: Sequence[Buffer]) -> list[Any]:
        """Returns the arguments for `bind`: a fitting buffer for each of the Program's. Raises
        DeviceError if there are too few or too many."""
        if len(buffers) != len(program.buffers):
            raise DeviceError(
                f"{program.name} has {len(program.buffers)} buffers, got {len(buffers)}"
            )
        return [self.fitting(program, n, buffer) for n, buffer in enumerate(buffers)]

    def free_memory(self) -> int:
        """Returns the number of bytes that may still be allocated; 0 if the device cannot tell."""
        return 0

    def timed(self, runs: Sequence[Callable[[], None]]) -> list[float]:
        """Seconds that the work of each run takes, one after the other; a run submits work."""
        times = []
        for run in runs:
            start = time.perf_counter()
            run()
            self.sync()
            times.append(time.perf_counter() - start)
        return times

    def source(self, kernel: Kernel) -> str:
        """The text a kernel is compiled from on this device (the Kernel IR itself by default)."""
        from weft.kernel.printer import text

        return text(kernel)

    def library(self) -> str:
        """Returns the vendor's library that does Library steps here, or the reason why it is
        missing; "" on devices without such libraries."""
        return ""

    def supports(self, dtype: DType) -> bool:
        """True if kernels on this device can compute in `dtype`."""
        return dtype in self.caps.dtypes
