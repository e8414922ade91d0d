"""Transfers through page-locked memory: two chunks that take turns.

A write returns when the host's bytes are in a chunk, and small writes share one; while the GPU
reads one chunk the host fills the other. A read empties one while the other is filled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

CHUNK = 4 << 20  # bytes of each of the two
_ALIGN = 64
_NO_TIMING = 2  # CUevent_flags, hipEventDisableTiming


class Staging:
    """`call` makes a driver's call by its shared name; everything goes through `stream`."""

    def __init__(self, call: Callable[..., Any], stream: Any) -> None:
        self._call, self._stream = call, stream
        self._memory: list[Any] = []  # the driver's handles, allocated at the first transfer
        self._chunks: list[int] = []  # and their addresses
        self._events: list[Any] = []
        self._busy = [False, False]  # True if an event marks reads of a chunk
        self._now, self._used = 0, 0

    def _open(self) -> None:
        while len(self._events) < 2:
            if len(self._memory) == len(self._events):
                self._memory.append(self._call("HostAlloc", CHUNK, 0))
                self._chunks.append(int(self._memory[-1]))
            self._events.append(self._call("EventCreate", _NO_TIMING))

    def write(self, address: int, host: int, nbytes: int) -> None:
        """Copies to the device; the host's bytes may change when this returns."""
        self._open()
        done = 0
        while done < nbytes:
            if self._used == CHUNK:
                self._turn()
            piece = min(nbytes - done, CHUNK - self._used)
            at = self._chunks[self._now] + self._used
            ctypes.memmove(at, host + done, piece)
            self._call("MemcpyHtoDAsync", address + done, at, piece, self._stream)
            self._used += -(-piece // _ALIGN) * _ALIGN
            done += piece

    def _turn(self) -> None:
        """Takes the other chunk, once the device has read it."""
        self._call("EventRecord", self._events[self._now], self._stream)
        self._busy[self._now] = True
        self._now ^= 1
        if self._busy[self._now]:
            self._call("EventSynchronize", self._events[self._now])
            self._busy[self._now] = False
        self._used = 0

    def read(self, host: int, address: int, nbytes: int) -> None:
        """Copies to the host, when all work before is done. Chunks still to be written from are
        safe to read into: the stream does it after."""
        self._open()
        offsets = range(0, nbytes, CHUNK)
        for n, offset in enumerate(offsets):
            piece = min(CHUNK, nbytes - offset)
            at = self._chunks[n % 2]
            self._call("MemcpyDtoHAsync", at, address + offset, piece, self._stream)
            self._call("EventRecord", self._events[n % 2], self._stream)
            if n:
                self._take(n - 1, host, nbytes)
        self._take(len(offsets) - 1, host, nbytes)
        self.idle()

    def _take(self, n: int, host: int, nbytes: int) -> None:
        """Copies the n-th piece of a read to where it belongs, once it has come."""
        self._call("EventSynchronize", self._events[n % 2])
        offset = n * CHUNK
        ctypes.memmove(host + offset, self._chunks[n % 2], min(CHUNK, nbytes - offset))

    def idle(self) -> None:
        """Notes that the stream has done everything: both chunks are free."""
        self._busy = [False, False]
        self._used = 0

    def close(self) -> None:
        """Gives everything back. Called when the stream is idle."""
        while self._events:
            self._call("EventDestroy", self._events.pop())
        while self._memory:
            self._call("HostFree", self._memory.pop())
        self._chunks.clear()
