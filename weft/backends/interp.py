"""The checking device: every kernel runs in the interpreter, for any Caps, on NumPy memory.

Slow and exact: out-of-bounds access, uninitialised reads, races and divergent barriers raise
KernelError. So kernels shaped for CUDA or HIP are executed on machines without such a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core import caps as caps_module
from weft.core.caps import PRESETS, Caps
from weft.core.dtypes import DType
from weft.core.errors import OutOfMemoryError, UnknownDeviceError
from weft.host import memory
from weft.kernel import interp
from weft.kernel.batch import RunWatch
from weft.kernel.ir import Kernel
from weft.program.device import Bound, Buffer, Device, DeviceInfo
from weft.program.program import BufferRef, Copy, Dispatch, Fill, Program, Step

POISON = 0xA5  # content of fresh memory, so that reading it shows


class HostBuffer(Buffer):
    """NumPy bytes."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        try:
            self.data = np.full(max(nbytes, 1), POISON, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(f"{device.kind}: no memory for {nbytes} bytes") from error

    def view(self, ref: BufferRef) -> np.ndarray:
        """The bytes that a ref names."""
        return self.data[ref.offset : ref.offset + ref.nbytes]


class InterpBound(Bound):
    def __init__(self, device: Device, program: Program, buffers: Sequence[Buffer]) -> None:
        self.device, self.program = device, program
        self.buffers: list[HostBuffer] = device.bindable(program, buffers)

    def rebind(self, index: int, buffer: Buffer) -> None:
        self.buffers[index] = self.device.fitting(self.program, index, buffer)

    def view(self, ref: BufferRef) -> np.ndarray:
        return self.buffers[ref.buffer].view(ref)


class InterpDevice(Device):
    """`caps` is a Caps, the name of a preset, or None for "webgpu"."""

    kind = "interp"
    check = True

    def __init__(self, caps: Caps | str | None = None) -> None:
        if isinstance(caps, str):
            if caps not in PRESETS:
                raise UnknownDeviceError(f'no preset "{caps}"; use one of {", ".join(PRESETS)}')
            caps = PRESETS[caps]
        self.caps = caps or PRESETS["webgpu"]
        names = tuple(d.name for d in sorted(caps_module.ALL_DTYPES, key=lambda d: d.name))
        self.info = DeviceInfo(
            self.kind, 0, f"interpreter of {self.caps.name}", True, "", "NumPy", 0, names, True
        )

    def alloc(self, nbytes: int) -> HostBuffer:
        free = self.free_memory()
        if free and nbytes > free:  # the host would grant it, and end the process at its use
            raise OutOfMemoryError(f"{self.kind}: {nbytes:,} bytes of memory, {free:,} are free")
        return HostBuffer(self, nbytes)

    def free_memory(self) -> int:
        return memory.available()

    def write(self, buffer: Buffer, data: np.ndarray, offset: int = 0) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._range(buffer, offset, raw.size)[:] = raw

    def read(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = self._range(buffer, offset, size).copy()
        return raw.view(dtype.numpy).reshape(shape)

    def _range(self, buffer: Buffer, offset: int, size: int) -> np.ndarray:
        own: HostBuffer = self.own(buffer)
        own.check(offset, size)
        return own.data[offset : offset + size]

    def load(self, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
        return list(kernels)

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> Bound:
        return InterpBound(self, program, buffers)

    def submit(self, bound: Bound, scalars: Sequence[int]) -> None:
        assert isinstance(bound, InterpBound)
        for step in bound.program.steps:
            self.play(bound, step, scalars)

    def play(self, bound: InterpBound, step: Step, scalars: Sequence[int]) -> None:
        """One step."""
        if isinstance(step, Dispatch):
            kernel = bound.program.kernels[step.kernel]
            self._dispatch(kernel, [bound.view(ref) for ref in step.args], scalars)
        elif isinstance(step, Copy):
            bound.view(step.dst)[:] = bound.view(step.src).copy()
        elif isinstance(step, Fill):
            bound.view(step.dst)[:] = step.byte

    def watch(self, kernel: Kernel) -> RunWatch | None:
        """Returns the watcher for a run of `kernel` that begins, or None."""
        return None

    def _dispatch(self, kernel: Kernel, args: list[np.ndarray], scalars: Sequence[int]) -> None:
        arrays = [
            raw[: b.size * b.dtype.itemsize].view(b.dtype.numpy)
            for raw, b in zip(args, kernel.buffers, strict=True)
        ]
        watch = self.watch(kernel)
        interp.run(kernel, arrays, scalars, self.caps, self.check, watch=watch)

    def sync(self) -> None:
        pass
