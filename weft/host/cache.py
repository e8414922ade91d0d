"""A disk cache of compiled code, shared by the backends.

There is one file per key, in WEFT_CACHE or the platform's user cache directory. Its content is run
as code, so weft checks that the directory, those above it and the file belong to this user. Each
file also has a keyed checksum that names user and host (its key is a file of the directory). A
truncated or altered entry, or one copied from elsewhere, counts as absent and is rebuilt.
After a failure (a disk that is read-only or full, no home, no memory for an entry) weft just does
not cache. It ignores a directory that others may write to, with a line on stderr.

Each kind of entry has its own budget: kernels, Programs, and the quantised weights kept by
models/weights/kept_tensors.py, a single one of which takes more than all kernels together.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from weft.core.budget import CacheFolder, note_use
from weft.core.notices import say
from weft.core.places import check_inside
from weft.host.files import default_directory, replacing
from weft.host.private import distrust, make_private, read_regular

_MAGIC = b"weft2\n"
_DIGEST = 32  # bytes of the checksum, and of its key
_KEY = "key"
_HALL, _NAME = re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{62}")
FILE = re.compile(r"[0-9a-f]{32}\.safetensors")  # files written by models/weights/kept_tensors.py
KERNELS, PROGRAMS = 512 << 20, 1 << 30  # bytes of all entries of a kind
_LOOKS = 64  # at all files, which takes a while, as the limit's bytes are stored


class DiskCache:
    """Bytes by key. `directory` None caches nothing; `limit` bounds the total size in bytes (the
    files used least recently go first), and half of it an entry."""

    def __init__(self, directory: Path | None, limit: int = KERNELS) -> None:
        self.directory = directory
        self.limit = limit

    @property
    def shelf(self) -> CacheFolder | None:
        """Its files; None where nothing is cached."""
        return (
            None
            if self.directory is None
            else CacheFolder(self.directory, _NAME, _HALL, self.limit)
        )

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
                say(f"nothing is cached: {why}; choose another folder with WEFT_CACHE")
                return None
            path = self.directory / _KEY
            try:
                found = read_regular(path, _DIGEST, own=True)
            except OSError:  # does not exist or is not ours: its entries count as absent
                found = b""
            if len(found) != _DIGEST:
                found = os.urandom(_DIGEST)
                with replacing(path, private=True) as temporary:
                    temporary.write_bytes(found)
            return found
        except OSError:
            return None

    def mark(self, key: str, payload: bytes) -> bytes:
        """Returns a checksum of the entry under `key` that other users cannot make, or b"" where
        the cache is off."""
        return b"" if self._secret is None else self._digest(self._secret, key, payload)

    def _digest(self, secret: bytes, key: str, payload: bytes) -> bytes:
        mark = hashlib.blake2b(f"{_place()}\0{key}\0".encode(), key=secret, digest_size=_DIGEST)
        mark.update(payload)
        return mark.digest()

    def get(self, key: str) -> bytes | None:
        """The bytes put under `key`, or None."""
        with _whatever_fails():
            path, secret = self._path(key), self._secret
            if path is None or secret is None:
                return None
            raw = read_regular(path, self.limit // 2, own=True)
            start = len(_MAGIC) + _DIGEST
            payload = raw[start:]
            if raw[:start] == _MAGIC + self._digest(secret, key, payload):
                note_use(path)
                return payload
        return None

    def put(self, key: str, data: bytes) -> None:
        """Stores `data`, whole or not at all, even when other processes write the same key."""
        with _whatever_fails():
            path, secret = self._path(key), self._secret
            if self.directory is None or path is None or secret is None:
                return
            if len(_MAGIC) + _DIGEST + len(data) > self.limit // 2:
                return  # it would evict everything else
            check_inside(path, self.directory)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            head = _MAGIC + self._digest(secret, key, data)
            with replacing(path, private=True, durable=False) as new, new.open("wb") as file:
                file.write(head)
                file.write(data)
            # The name of an entry is as good as a draw, and a large one is more likely to be drawn.
            if int(path.name[:8], 16) < (len(data) * _LOOKS << 32) / self.limit:
                self.prune()

    def prune(self) -> int:
        """Removes the least recently used files if the total is over the limit, until it is well
        below. Returns the number of bytes freed."""
        return 0 if self.shelf is None else self.shelf.prune()


@contextlib.contextmanager
def _whatever_fails() -> Iterator[None]:
    """Suppresses every failure: a cache that fails counts as empty."""
    with contextlib.suppress(Exception):
        yield


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


def kernels() -> DiskCache:
    """The cache of kernels, in the default directory."""
    return DiskCache(default_directory())


def programs() -> DiskCache:
    """The cache of Programs, in a folder of the default directory."""
    home = default_directory()
    return DiskCache(None if home is None else home / "programs", PROGRAMS)
