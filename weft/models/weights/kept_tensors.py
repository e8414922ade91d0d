"""Tensors that are slow to make, stored in weft's cache directory and mapped from there.

Files are trusted only if they belong to this user alone (owner, mode, no links), a keyed checksum
shows that this user's weft wrote the digests under this name, and each tensor matches its digest.
The content is checked once per file, as long as the system's marks of the file are unchanged (see
content.py). On any failure the file counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.budget import CachedFile, CacheFolder
from weft.core.errors import StorageError
from weft.core.places import check_inside
from weft.core.records import dataclass
from weft.host import cache as disk
from weft.host.files import check_free, default_directory
from weft.host.mapped import pieces, release
from weft.host.private import distrust, make_private
from weft.importers.safetensors import SafetensorsFile
from weft.importers.safetensors_growing import growing
from weft.models.weights.content import FileIdentity, unchanged

_THREADS = 4  # threads for reading and hashing
_TICK, _TICKS = 0.002, 25  # seconds, times that `_settle` waits


@dataclass(frozen=True)
class Tensors:
    """The stored tensors of a kind, in a folder of the cache; `limit` is the total size in bytes. A
    newly written file is kept even if it exceeds the limit."""

    kind: str
    limit: int

    @property
    def shelf(self) -> CacheFolder | None:
        """The files; None without a cache directory."""
        home = default_directory()
        if home is None:
            return None
        return CacheFolder(home / self.kind, disk.FILE, None, self.limit, home / "used")

    def load(self, key: str) -> dict[str, np.ndarray] | None:
        """Maps the tensors under `key`; returns None if they are missing or changed."""
        with _whatever_fails():
            if (shelf := self.shelf) is None or distrust(shelf.folder):
                return None
            path = self._path(shelf, key)
            check_inside(path, shelf.folder.parent)
            file = SafetensorsFile(path, own=True)
            if not self._is_whole(file, path.name):
                return None
            shelf.note_use(path)
            return dict(file)
        return None

    def save(
        self,
        key: str,
        tensors: Mapping[str, np.ndarray],
        note: Mapping[str, str],
        nbytes: int = 0,
        valid: Callable[[], bool] = lambda: True,
    ) -> None:
        """Stores tensors under `key`, complete or not at all; `note` describes them for people.

        Each is looked up once, in order, and written before the next, so they may be made on
        demand; then `nbytes` is about their size. `valid` says at the end if they still belong
        under the key.
        """
        with _whatever_fails():
            if (shelf := self.shelf) is None:
                return
            path = self._path(shelf, key)
            check_inside(path, shelf.folder.parent)
            make_private(shelf.folder)
            digests = dict.fromkeys(sorted(tensors), "0" * 64)
            said = {"digests": json.dumps(digests), "note": json.dumps(dict(note))}
            mark = self._mark(path.name, said)
            if not mark or distrust(shelf.folder):
                return
            check_free(shelf.folder, nbytes or sum(t.nbytes for t in tensors.values()))
            like = {**said, "mark": mark}
            with growing(path, tuple(tensors), like, private=True) as file:
                for name in tensors:
                    value = tensors[name]
                    digests[name] = _digest(value)
                    file.add(name, value)
                if not valid():
                    raise StorageError(f"{path}: made of other files than its key says")
                said["digests"] = json.dumps(digests)
                file.metadata = {**said, "mark": self._mark(path.name, said)}
            shelf.prune(spare=path)
            self._settle(path, shelf)

    def _settle(self, path: Path, shelf: CacheFolder) -> None:
        """Has a file that was just written count as checked, as soon as the clock of its file
        system has moved on, so that any later change of it would show."""
        known = FileIdentity.of(path.lstat())
        for _ in range(_TICKS):
            with tempfile.TemporaryFile(dir=shelf.folder) as probe:
                if os.fstat(probe.fileno()).st_ctime_ns > known[4] and os.name == "posix":
                    break
            time.sleep(_TICK)
        else:
            return
        file = SafetensorsFile(path, own=True)
        if FileIdentity.of(file.status) == known:
            disk.kernels().put(_checked(known, file.metadata["mark"]), b"")

    def prune(self) -> int:
        """Removes files that would not be used again: another version wrote them, they are damaged,
        or what they were made of is gone or has changed. Returns the bytes freed."""
        shelf, freed = self.shelf, 0
        for entry, note in self.kept():
            there = bool(note) and Path(note.get("source", "")).exists()
            stale = not there or not unchanged(note.get("of", "{}"))
            if stale and shelf is not None and shelf.remove(entry.path):
                freed += entry.size
        return freed

    def kept(self) -> Iterator[tuple[CachedFile, dict[str, str]]]:
        """Yields each file with its note; {} for an untrusted file."""
        for entry in () if self.shelf is None else self.shelf.entries():
            note: dict[str, str] = {}
            with _whatever_fails():
                file = SafetensorsFile(entry.path, own=True)
                if file.metadata["mark"] == self._mark(entry.path.name, file.metadata):
                    note = json.loads(file.metadata["note"])
            yield entry, note

    def _path(self, shelf: CacheFolder, key: str) -> Path:
        return shelf.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"

    def _mark(self, name: str, said: Mapping[str, Any]) -> str:
        text = json.dumps([said["digests"], said["note"]]).encode()
        return disk.kernels().mark(f"{self.kind} {name}", text).hex()

    def _is_whole(self, file: SafetensorsFile, name: str) -> bool:
        """Returns True if a file has the content that was stored under its name."""
        if file.metadata["mark"] != self._mark(name, file.metadata):
            return False
        cache, known = disk.kernels(), FileIdentity.of(file.status)
        key = _checked(known, file.metadata["mark"])
        if cache.get(key) is not None:
            return True
        if _digests(file) != json.loads(file.metadata["digests"]):
            return False
        if known.settled and FileIdentity.of(file.path.lstat()) == known:
            cache.put(key, b"")
        return True


PACKED = Tensors("quantised", 32 << 30)  # packed weights, and their order for a device


def _checked(known: FileIdentity, mark: str) -> str:
    """Returns the key of the note that a file's content is what its digests say."""
    return f"whole {tuple(known)} {mark}"


def _digests(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Returns name -> digest of dtype, shape and values."""
    names = sorted(tensors)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: _digest(tensors[name]), names)))


def _digest(tensor: np.ndarray) -> str:
    """Returns a digest of dtype, shape and values, and gives pages of a mapped file back."""
    flat = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    made = hashlib.sha256(f"{tensor.dtype.name} {tensor.shape}\0".encode())
    for part in pieces(flat.size, 1):
        made.update(flat[part].data)
        release(flat[part])
    return made.hexdigest()


@contextmanager
def _whatever_fails() -> Iterator[None]:
    with suppress(Exception):
        yield
