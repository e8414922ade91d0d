"""The memory of the emulated GPU: every access is checked."""

from __future__ import annotations

import gpu_junk
import numpy as np


class Fault(Exception):
    """What a kernel must not do, or this machine does not know."""


class Memory:
    """Bytes in equal parts, one per group or thread; `valid` are within an array."""

    def __init__(self, nbytes: int, parts: int, junk: str) -> None:
        self.size = nbytes
        self.data = gpu_junk.junk(junk, max(nbytes * parts, 1), np.dtype(np.float32)).copy()
        self.valid = np.ones(nbytes, bool)
        self.known = np.zeros(max(nbytes * parts, 1), bool)

    def places(self, at: np.ndarray, nbytes: int) -> np.ndarray:
        at = at.astype(np.int64)
        if (at % nbytes).any():
            raise Fault(f"an access of {nbytes} bytes at {int(at[at % nbytes != 0][0])}")
        return at[:, None] + np.arange(nbytes)

    def within(self, each: np.ndarray) -> np.ndarray:
        inside = (each >= 0) & (each < self.size)
        return inside & self.valid[np.where(inside, each, 0)]

    def read(
        self, at: np.ndarray, part: np.ndarray, nbytes: int, items: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """(uint8[K, nbytes], bool[K, items]: which items are there and written). One of them must
        be: LLVM reads up to 16 aligned bytes for the sake of some, as no page ends in them."""
        each = self.places(at, nbytes)
        inside = self.within(each)
        places = np.where(inside, each + (part * self.size)[:, None], 0)
        there = inside.reshape(at.size, items, nbytes // items).any(2)
        known = (inside & self.known[places]).reshape(at.size, items, nbytes // items).any(2)
        if not there.any(1).all():
            raise Fault("an access beyond an array or buffer")
        if not known.any(1).all():
            raise Fault("memory that was not written is read")
        return self.data[places], known

    def write(self, at: np.ndarray, part: np.ndarray, values: np.ndarray) -> None:
        each = self.places(at, values.shape[1])
        if not self.within(each).all():
            raise Fault("an access beyond an array or buffer")
        places = each + (part * self.size)[:, None]
        self.data[places], self.known[places] = values, True
