"""A CPU device whose buffers lie between forbidden pages, and an interpreter to match."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.memory import CpuBuffer
from weft.backends.interp import InterpDevice
from weft.core.caps import Caps

PAGE = mmap.PAGESIZE
POISON = 0xA5
_NONE = 0  # PROT_NONE


class Fenced(CpuBuffer):
    """Pages of its own, and one of forbidden memory on each side. The bytes begin where the first
    page does, or end where the last one does (up to the alignment of 64)."""

    def __init__(self, device: CpuDevice, nbytes: int, at_end: bool) -> None:
        body = -(-max(nbytes, 1) // PAGE) * PAGE
        self.pages = mmap.mmap(-1, body + 2 * PAGE)
        whole = np.frombuffer(self.pages, np.uint8)
        start = whole.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (start, start + PAGE + body):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), _NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        inside = whole[PAGE : PAGE + body]
        inside[:] = POISON
        first = (body - nbytes) // 64 * 64 if at_end else 0
        super().__init__(device, inside, inside[first:].ctypes.data, nbytes, None)
        self.rest = np.concatenate([np.arange(first), np.arange(first + nbytes, body)])

    def intact(self) -> bool:
        """Whether the bytes around are as they were."""
        return bool((self.owner[self.rest] == POISON).all())


class FencedCpu(CpuDevice):
    """Takes turns in putting buffers at the start and at the end of their pages."""

    wrap = None  # type: ignore[assignment]

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self.made: list[Fenced] = []
        self.at_end = True

    def alloc(self, nbytes: int) -> Fenced:
        self.made.append(Fenced(self, nbytes, self.at_end))
        return self.made[-1]

    def intact(self) -> bool:
        return all(buffer.intact() for buffer in self.made)


class Interp(InterpDevice):
    """The interpreter with a CPU's Caps; it checks bounds, but goes on where threads race."""

    check = False

    def __init__(self, caps: Caps) -> None:
        super().__init__(caps)
