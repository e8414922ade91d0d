"""Digests of files' content, cached with the system's marks of the file.

A file with unchanged device, inode, size and times of change has unchanged content. Size and
modification time alone are not enough: tools set that time, and a copy may have both. The time of
inode change (`st_ctime_ns`) cannot be set without setting the system's clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weft.host import cache as disk
from weft.host.mapped import MappedFile

_SETTLED = 2_000_000_000  # nanoseconds; clocks of file systems are that coarse


class FileIdentity(tuple[int, ...]):
    """The system's marks of a file; equal marks mean an unchanged file."""

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls((
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        ))  # fmt: skip

    @property
    def settled(self) -> bool:
        """True if any later change will show, because the marks are old enough. Always False on
        Windows, where that time means something else."""
        return os.name == "posix" and time.time_ns() - max(self[3], self[4]) > _SETTLED


def marks_of(files: Iterable[MappedFile]) -> str:
    """Returns the paths of files with the marks that they had when they were mapped, as text."""
    found = {str(f.path.resolve()): FileIdentity.of(f.status) for f in files}
    return json.dumps(found, sort_keys=True)


def unchanged(marks: str) -> bool:
    """Returns True if the files that `marks_of` listed are at their paths as they were."""
    try:
        return all(
            list(FileIdentity.of(os.stat(path))) == was for path, was in json.loads(marks).items()
        )
    except OSError:
        return False


def content_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal; reads the file only if it is unknown. Raises
    OSError."""
    with path.open("rb") as file:
        before = FileIdentity.of(os.fstat(file.fileno()))
        settled, key, cache = before.settled, f"content {tuple(before)}", disk.kernels()
        known = cache.get(key) if settled else None
        if known is not None:
            return known.decode("ascii")
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if settled and FileIdentity.of(os.fstat(file.fileno())) == before:
            cache.put(key, found.encode())
        return found


def model_digests(folder: Path) -> dict[str, str]:
    """Returns name -> digest of the files behind a model's weights. Raises OSError."""
    files: list[Any] = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
    return {f.name: content_digest(f) for f in sorted([*files, folder / "config.json"])}
