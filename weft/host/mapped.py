"""Files mapped into memory, and arrays that are views of them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError
from weft.host.private import open_regular


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
        what = f"cannot be read: {e.strerror}" if e.strerror else str(e)
        raise FileFormatError(f"{path}: {what}") from None
    made.path, made.status = path, status
    return made


def mapped_files(arrays: Iterable[np.ndarray]) -> list[MappedFile]:
    """Returns the mapped files that at least one of `arrays` is a view of."""
    found = {id(file): file for file in map(_mapped_file, arrays) if file is not None}
    return list(found.values())


def _mapped_file(array: np.ndarray) -> MappedFile | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    held = base.obj if isinstance(base, memoryview) else base
    return held if isinstance(held, MappedFile) else None


def release(array: np.ndarray) -> None:
    """Gives the memory under a contiguous view of a mapped file back to the system, which reads it
    from the file again should anybody look. Does nothing to other arrays."""
    file = _mapped_file(array)
    if file is None or not hasattr(mmap, "MADV_DONTNEED") or not array.nbytes:
        return
    start = array.ctypes.data - np.frombuffer(file, np.uint8, 1).ctypes.data
    begin = start // mmap.PAGESIZE * mmap.PAGESIZE
    file.madvise(mmap.MADV_DONTNEED, begin, start + array.nbytes - begin)
