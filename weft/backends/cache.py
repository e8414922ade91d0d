"""A disk cache of compiled code, shared by the backends.

One file per key, in WEFT_CACHE or the platform's user cache directory. A file carries a checksum:
a truncated or altered one counts as absent and is rebuilt. Everything that goes wrong with the
disk (read-only, full, no home) means only that nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from weft.core.files import default_directory, replacing

_MAGIC = b"weft1\n"
_DIGEST = hashlib.sha256().digest_size
_KEPT = 0.75  # of the limit: what a pruning leaves, so that the next one is far


def code_version(files: Iterable[Path]) -> str:
    """Changes whenever one of the files that make cached code does: their sizes and times."""
    marks = ((os.path.basename(f), os.stat(f)) for f in files if f.exists())
    return ";".join(f"{name}:{status.st_size}:{status.st_mtime_ns}" for name, status in marks)


class DiskCache:
    """Bytes by key. `directory` None caches nothing; `limit` bounds the total size in bytes (the
    files used least recently go first)."""

    def __init__(self, directory: Path | None, limit: int = 512 << 20) -> None:
        self.directory = directory
        self.limit = limit

    def _path(self, key: str) -> Path | None:
        if self.directory is None:
            return None
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.directory / name[:2] / name[2:]

    def get(self, key: str) -> bytes | None:
        """The bytes put under `key`, or None."""
        path = self._path(key)
        if path is None:
            return None
        try:
            with open(path, "rb") as f:
                raw = f.read()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        payload = raw[start:]
        intact = raw.startswith(_MAGIC) and raw[len(_MAGIC) : start] == _digest(key, payload)
        return payload if intact else None

    def put(self, key: str, data: bytes) -> None:
        """Stores `data`, whole or not at all, even when other processes write the same key."""
        path = self._path(key)
        if path is None:
            return
        try:
            # What lies here is run as code: nobody else may write it.
            path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with replacing(path, private=True) as temporary:
                temporary.write_bytes(_MAGIC + _digest(key, data) + data)
        except OSError:
            return
        if path.parent.name == "00":  # one put in 256: looking at every file takes a while
            self.prune()

    def prune(self) -> None:
        """When the total is over the limit, removes the files used least recently until it is well
        below."""
        found = self._files()
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            return
        for _, size, path in sorted(found):
            if total <= self.limit * _KEPT:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size

    def _files(self) -> list[tuple[float, int, str]]:
        """(time of last use, bytes, path) of every file."""
        found: list[tuple[float, int, str]] = []
        if self.directory is None:
            return found
        with contextlib.suppress(OSError), os.scandir(self.directory) as folders:
            for folder in folders:
                with contextlib.suppress(OSError), os.scandir(folder.path) as files:
                    for file in files:
                        with contextlib.suppress(OSError):  # another process may have pruned it
                            s = file.stat()
                            found.append((max(s.st_atime, s.st_mtime), s.st_size, file.path))
        return found


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + payload).digest()


def shared() -> DiskCache:
    """The cache in the default directory."""
    return DiskCache(default_directory())
