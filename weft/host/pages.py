"""Memory that comes straight from the system, and goes back to it at once.

The allocator behind NumPy keeps freed arrays of up to 32 MiB for itself. A model that is read,
converted and let go weight by weight would leave a second copy of itself there.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
from functools import cache
from typing import Any

import numpy as np

from weft.host import memory

LARGE = 1 << 20  # bytes from which on an array gets pages of its own
_HUGE = 2 << 20  # bytes of a huge page, on most machines
_TRIMMED = 64 << 20  # bytes that are let go between two calls of `trim`


class Pages(mmap.mmap):
    """The memory of one array. `spent` is True once only its last reader uses it."""

    spent = False


def pages(nbytes: int, sparse: bool = False) -> np.ndarray:
    """Returns uint8 [nbytes] from the system, at 64 bytes or more; its content is zeros. Only whole
    huge pages are requested, at their alignment: part of one would waste memory. `sparse`: none,
    since most of it may stay untouched. Raises MemoryError, OSError, ValueError or
    OverflowError."""
    memory.check(nbytes)
    huge = 0 if sparse else nbytes - nbytes % _HUGE
    spare = _HUGE if huge else 0  # address space alone: a page takes memory when it is touched
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if _PRIVATE else {}
    made = Pages(-1, nbytes + spare, **private)
    whole = np.frombuffer(made, np.uint8)
    start = -whole.ctypes.data % _HUGE if huge else 0
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a hint: without huge pages small ones serve
            made.madvise(mmap.MADV_HUGEPAGE, start, huge)
    if sparse and hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # some systems take huge pages unasked
            made.madvise(mmap.MADV_NOHUGEPAGE)
    return whole[start : start + nbytes]


_PRIVATE = hasattr(mmap, "MAP_ANONYMOUS")


def fresh(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns a new array whose memory goes back to the system when it is freed. Its content is
    undefined. Raises MemoryError."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    if nbytes < LARGE:
        return np.empty(shape, kind)
    try:
        made: np.ndarray = pages(nbytes).view(kind).reshape(shape)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{nbytes:,} bytes: {error}") from None
    return made


def base_of(array: np.ndarray) -> Any:
    """Returns the object that owns an array's memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def spend(array: np.ndarray) -> None:
    """Marks an array of `fresh` as spent: its next reader is the last one and may give parts of it
    back as it goes (`weft.host.mapped.release`). Does nothing to other arrays."""
    if isinstance(held := base_of(array), Pages):
        held.spent = True


class Trimmer:
    """Returns memory that is let go to the system, some at a time."""

    def __init__(self) -> None:
        self._left = 0

    def add(self, nbytes: int) -> None:
        """Counts bytes that were freed, or are about to be."""
        self._left += nbytes
        if self._left >= _TRIMMED:
            self._left = 0
            trim()


def trim() -> None:
    """Asks the allocator for the memory that it keeps for later arrays. Only glibc keeps much."""
    if (call := _trimming()) is not None:
        call(0)


@cache
def _trimming() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
