"""A disk cache of compiled code, shared by the backends.

One file per key, in WEFT_CACHE or the platform's user cache directory. What lies there is run as
code, so it must be this user's: the directory and those above it, the file, and a keyed checksum
that names user and host (its key is a file of the directory). A truncated or altered entry, or one
copied from elsewhere, counts as absent and is rebuilt. Everything that goes wrong with the disk
(read-only, full, no home) means only that nothing is cached; a directory that others may write to
is left alone, with a line on stderr.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from pathlib import Path

from weft.core.files import default_directory, replacing
from weft.core.private import distrust, make_private, read_regular
from weft.kernel.ir import Kernel

_MAGIC = b"weft2\n"
_DIGEST = 32  # bytes of the checksum, and of its key
_KEY = "key"
_MOST_BYTES = 1 << 30  # of an entry
_KEPT = 0.75  # of the limit: what a pruning leaves, so that the next one is far


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

    @functools.cached_property
    def _secret(self) -> bytes | None:
        """The key of this directory's checksums, made if need be; None where nothing is cached."""
        if self.directory is None:
            return None
        try:
            make_private(self.directory)
            if why := distrust(self.directory):
                _say(f"nothing is cached: {why}; choose another folder with WEFT_CACHE")
                return None
            path = self.directory / _KEY
            try:
                found = read_regular(path, _DIGEST, own=True)
            except OSError:  # none yet, or not ours: entries under it count as absent
                found = b""
            if len(found) != _DIGEST:
                found = os.urandom(_DIGEST)
                with replacing(path, private=True) as temporary:
                    temporary.write_bytes(found)
            return found
        except OSError:
            return None

    def _digest(self, secret: bytes, key: str, payload: bytes) -> bytes:
        mark = hashlib.blake2b(f"{_place()}\0{key}\0".encode(), key=secret, digest_size=_DIGEST)
        mark.update(payload)
        return mark.digest()

    def get(self, key: str) -> bytes | None:
        """The bytes put under `key`, or None."""
        path, secret = self._path(key), self._secret
        if path is None or secret is None:
            return None
        try:
            raw = read_regular(path, _MOST_BYTES, own=True)
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        payload = raw[start:]
        intact = raw[:start] == _MAGIC + self._digest(secret, key, payload)
        return payload if intact else None

    def put(self, key: str, data: bytes) -> None:
        """Stores `data`, whole or not at all, even when other processes write the same key."""
        path, secret = self._path(key), self._secret
        if path is None or secret is None:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with replacing(path, private=True, durable=False) as temporary:
                temporary.write_bytes(_MAGIC + self._digest(secret, key, data) + data)
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


@functools.cache
def _place() -> str:
    """User and host, which entries are bound to."""
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "")
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if host := read_regular(name, 100).decode().strip():
                return f"{user}@{host}"
    import platform

    return f"{user}@{platform.node()}"


@functools.cache
def _say(line: str) -> None:
    """One line on stderr, once per process."""
    print(f"weft: {line}", file=sys.stderr)


def digest(kernel: Kernel) -> str:
    """The kernel_hash of a kernel: stored beside it, or found by printing it."""
    found: str | None = getattr(kernel, "digest", None)
    if found is None:
        from weft.kernel.printer import kernel_hash

        found = kernel_hash(kernel)
    return found


def shared() -> DiskCache:
    """The cache in the default directory."""
    return DiskCache(default_directory())
