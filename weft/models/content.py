"""Digests of files' content, worked out once: they are kept with what the system says of a file.

A file whose device, inode, size, and times of change are those of before holds what it held. Size
and time of modification alone would not do: tools set that time, and a copy may have both. Nobody
sets the time at which the inode changed (`st_ctime_ns`), short of setting the system's clock.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from weft.backends import cache as disk

_SETTLED = 2_000_000_000  # nanoseconds: clocks of file systems tick that coarsely


class Identity(tuple[int, ...]):
    """The system's marks of a file: equal for an unchanged one, another for any other."""

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls((
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        ))  # fmt: skip

    @property
    def settled(self) -> bool:
        """True if a change from now on would show: it has been the same for a while. On Windows
        the time is another one, which tells nothing."""
        return os.name == "posix" and time.time_ns() - max(self[3], self[4]) > _SETTLED


def content_digest(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal; read only where it is not known. Raises OSError."""
    with path.open("rb") as file:
        before = Identity.of(os.fstat(file.fileno()))
        settled, key, cache = before.settled, f"content {tuple(before)}", disk.kernels()
        known = cache.get(key) if settled else None
        if known is not None:
            return known.decode("ascii")
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if settled and Identity.of(os.fstat(file.fileno())) == before:
            cache.put(key, found.encode())
        return found


def model_digests(folder: Path) -> dict[str, str]:
    """Name -> digest of the files that a model's weights are read from. Raises OSError."""
    files: list[Any] = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
    return {f.name: content_digest(f) for f in sorted([*files, folder / "config.json"])}
