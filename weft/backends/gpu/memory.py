"""The source of a device's memory: the driver's pool, or memory that is allocated once and kept.

All work goes to one stream, in order. So freed memory may be reused at once: later work runs later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_LEAST, _MOST = 512, 2 << 20  # bytes: between these a size grows by an eighth at most


class DriverPool:
    """The driver's pool, which gives and takes in the stream's order and keeps what it took."""

    def __init__(self, call: Callable[..., Any], pool: Any, stream: Any) -> None:
        self._call, self._pool, self._stream = call, pool, stream

    def alloc(self, nbytes: int) -> int:
        """The address of new memory."""
        return int(self._call("AllocAsync", nbytes, self._stream))

    def free(self, address: int) -> None:
        """Takes memory back."""
        self._call("FreeAsync", address, self._stream)

    def trim(self) -> None:
        """Gives the driver what is kept. Called when the stream is idle."""
        self._call("MemPoolTrimTo", self._pool, 0)


class CachingPool:
    """The same without a pool: one call of the driver per new size, freed memory kept by size."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._sizes: dict[int, int] = {}  # sizes of allocated memory
        self._kept: dict[int, list[int]] = {}  # addresses by size

    def alloc(self, nbytes: int) -> int:
        """The address of new memory."""
        size = rounded(nbytes)
        kept = self._kept.get(size)
        address = kept.pop() if kept else int(self._call("Alloc", size))
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Takes memory back."""
        self._kept.setdefault(self._sizes.pop(address), []).append(address)

    def trim(self) -> None:
        """Gives the driver what is kept. Called when the stream is idle."""
        kept, self._kept = self._kept, {}
        for address in itertools.chain(*kept.values()):
            self._call("Free", address)


def rounded(nbytes: int) -> int:
    """A size that like sizes share."""
    step = min(max(1 << max(nbytes.bit_length() - 4, 0), _LEAST), _MOST)
    return -(-nbytes // step) * step
