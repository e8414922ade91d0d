"""Files mapped into memory, and arrays that are views of them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from weft.core.errors import FileFormatError, unreadable
from weft.host.pages import Pages, base_of
from weft.host.private import open_regular

PIECE = 1 << 22  # bytes worked on at a time
_AROUND = 2 << 20  # bytes before a page that is read which Linux may map with it


class MappedFile(mmap.mmap):
    """A file's bytes, read in place."""

    path: Path
    status: os.stat_result  # when it was mapped

    def check(self) -> None:
        """Raises FileFormatError if the file has become shorter than it was when it was mapped:
        reading beyond its end would kill the process. A file replaced by another of its name
        keeps its bytes for as long as they are mapped."""
        if (size := self.size()) < len(self):
            raise FileFormatError(
                f"{self.path}: cut to {size} bytes from {len(self)} since it was loaded; write "
                "the weights again (to another name, then rename: that is safe) and load them again"
            )


def map_file(path: Path, least: int, wanted: str, own: bool = False) -> MappedFile:
    """The file at `path`, to be read. Raises FileFormatError if there is none that can be read or
    it has fewer than `least` bytes (1 or more), which `wanted` explains; with `own` if anybody else
    can have written it."""
    try:
        with open_regular(path, own) as f:
            status = os.fstat(f.fileno())
            if status.st_size < least:
                raise FileFormatError(f"{path}: {status.st_size} bytes; {wanted}")
            made = MappedFile(f.fileno(), status.st_size, access=mmap.ACCESS_READ)
    except OSError as e:
        raise unreadable(path, e) if e.strerror else FileFormatError(f"{path}: {e}") from None
    made.path, made.status = path, status
    return made


def mapped_files(arrays: Iterable[np.ndarray]) -> list[MappedFile]:
    """Returns the mapped files that at least one of `arrays` is a view of."""
    found = {id(file): file for file in map(_mapped_file, arrays) if file is not None}
    return list(found.values())


def _mapped_file(array: np.ndarray) -> MappedFile | None:
    held = base_of(array)
    return held if isinstance(held, MappedFile) else None


def pieces(count: int, nbytes: int) -> Iterator[slice]:
    """Yields the parts of an axis of `count` elements of `nbytes` each that are worked on, and
    given back, one at a time."""
    step = max(PIECE // max(nbytes, 1), 1)
    return (slice(at, min(at + step, count)) for at in range(0, count, step))


def release(array: np.ndarray) -> None:
    """Gives the memory under a C-contiguous array back to the system: the part of a mapped file,
    which is read again should anybody look, and pages that are spent (`weft.host.pages.spend`).
    Does nothing to other arrays."""
    held = base_of(array)
    spent = isinstance(held, Pages) and held.spent
    if not spent and not isinstance(held, MappedFile):
        return
    known = hasattr(mmap, "MADV_DONTNEED") and array.flags.c_contiguous
    if not known or not array.nbytes:
        return
    base = np.frombuffer(held, np.uint8, 1).ctypes.data
    start, stop = array.ctypes.data - base, array.ctypes.data + array.nbytes - base
    if spent:  # the rest of the first and last page belongs to others, who may not have read it
        first, last = _up(start), stop // mmap.PAGESIZE * mmap.PAGESIZE
    else:  # a read maps pages before it as well
        first, last = max(start - _AROUND, 0) // mmap.PAGESIZE * mmap.PAGESIZE, _up(stop)
    if first < last:
        held.madvise(mmap.MADV_DONTNEED, first, min(last, len(held)) - first)


def _up(at: int) -> int:
    return -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
