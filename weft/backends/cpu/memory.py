"""Host memory as device buffers: aligned, pooled for reuse, or a NumPy array in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.errors import OutOfMemoryError
from weft.host import memory
from weft.host.pages import LARGE, pages
from weft.program.device import Buffer, Device

_ALIGN = 64


class CpuBuffer(Buffer):
    """Host memory at `address`. It is an array interface of bytes, so `np.asarray(buffer)` is a
    view that keeps it alive."""

    def __init__(
        self, device: Device, owner: np.ndarray, address: int, nbytes: int, pool: BlockPool | None
    ) -> None:
        self.device = device
        self.address = address
        self.nbytes = nbytes
        self.owner = owner
        self.writable = bool(owner.flags.writeable)
        self._pool = pool

    @property
    def __array_interface__(self) -> dict[str, Any]:
        data = (self.address, not self.writable)
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": data}

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.give(self.owner)


class BlockPool:
    """Storage blocks waiting for reuse, by rounded size; at most `limit` bytes in all.

    Lists are pushed and popped in single operations, so a buffer that is finalised in the middle
    of an allocation does no harm.
    """

    def __init__(self, limit: int = 256 << 20) -> None:
        self.limit = limit
        self.cached = 0
        self._free: dict[int, list[np.ndarray]] = {}

    def take(self, nbytes: int) -> np.ndarray:
        """At least `nbytes` bytes, 64-byte aligned, content undefined. Raises OutOfMemoryError."""
        size = rounded(nbytes)
        try:
            block = self._free[size].pop()
        except (KeyError, IndexError):
            return self._fresh(size, nbytes)
        self.cached -= size
        return block

    def give(self, block: np.ndarray) -> None:
        size = block.nbytes
        if self.cached + size <= self.limit:
            self.cached += size
            self._free.setdefault(size, []).append(block)

    def clear(self) -> None:
        self._free.clear()
        self.cached = 0

    def _fresh(self, size: int, asked: int) -> np.ndarray:
        try:
            return pages(size) if size >= LARGE else _aligned(size)
        except (MemoryError, OSError, ValueError, OverflowError):
            self.clear()
            raise _out_of_memory(asked, memory.available()) from None


def rounded(nbytes: int) -> int:
    """The block size that serves `nbytes`: eight steps per power of two, at least 64."""
    step = max(_ALIGN, 1 << max(0, nbytes.bit_length() - 4))
    return max(_ALIGN, -(-nbytes // step) * step)


def _aligned(size: int) -> np.ndarray:
    raw = np.empty(size + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + size]


def _out_of_memory(asked: int, available: int) -> OutOfMemoryError:
    have = f"{available / 2**20:,.0f} MiB are available" if available else "the system refused"
    return OutOfMemoryError(
        f"cpu: a buffer of {asked / 2**20:,.0f} MiB was asked for and {have}; "
        "use a smaller batch, context or model, or a narrower dtype"
    )
