"""The smallest backend: `weft new-backend NAME` clones this file to bring up an accelerator.

A device needs memory (`alloc write read`) and a way to run a Program's steps (`bind submit`). This
one keeps NumPy bytes and lets the kernel interpreter compute, without its checks. Yours renders
each Kernel in a Dialect, compiles it in `load`, and launches it in `submit`. The class is
registered under the entry-point group "weft.backends"; `weft check --device NAME` proves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.interp import InterpDevice
from weft.core.caps import Caps
from weft.core.dtypes import DEVICE
from weft.core.errors import DeviceError
from weft.program.device import Bound, Buffer, DeviceInfo
from weft.program.program import Program


class NullDevice(InterpDevice):
    """Any index opens the same kind of device. Caps say what kernels may use: templates choose
    their variant from these numbers and nothing else."""

    kind = "null"
    check = False

    def __init__(self, index: int = 0) -> None:
        super().__init__(Caps("null", max_threads=64, max_bindings=8, shared_bytes=16384))

    @staticmethod
    def probe() -> list[DeviceInfo]:
        """A line for each device, opening none: whether it is there, or what to install."""
        dtypes = tuple(dtype.name for dtype in DEVICE)
        return [DeviceInfo("null", 0, "example backend", True, "", "NumPy", 0, dtypes, True)]

    def bind(self, program: Program, buffers: Sequence[Buffer]) -> Bound:
        """Checks once what can be checked once; `submit` then only runs."""
        for kernel in program.kernels:
            if len(kernel.buffers) > self.caps.max_bindings:
                raise DeviceError(f"null: kernel {kernel.name} has {len(kernel.buffers)} buffers")
        return super().bind(program, buffers)
