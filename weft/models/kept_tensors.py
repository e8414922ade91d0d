"""Tensors that took long to make, kept in weft's cache directory and mapped from there.

What lies there is believed only where it is this user's alone (owner, mode, no links), where a
keyed checksum says that this user's weft wrote these digests under this name, and where each tensor
has its digest. A file's content is looked at once: as long as the system says that it is the same
file, unchanged (see content.py), it holds what it held. Whatever fails means that nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.backends import cache as disk
from weft.core.budget import Entry, Shelf
from weft.core.files import check_free, default_directory
from weft.core.places import check_inside
from weft.core.private import distrust, make_private
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models.content import Identity

_THREADS = 4  # that read and digest


@dataclass(frozen=True)
class Tensors:
    """The kept things of a kind, in a folder of the cache; `limit` is in bytes of all of them. One
    that was just made is kept also where it is larger by itself."""

    kind: str
    limit: int

    @property
    def shelf(self) -> Shelf | None:
        """Their files; None where nothing is kept."""
        home = default_directory()
        if home is None:
            return None
        return Shelf(home / self.kind, disk.FILE, None, self.limit, home / "used")

    def load(self, key: str) -> dict[str, np.ndarray] | None:
        """Maps what was kept under `key`; None where it is not there or not as it was."""
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

    def save(self, key: str, tensors: Mapping[str, np.ndarray], note: Mapping[str, str]) -> None:
        """Keeps tensors under `key`, whole or not at all; `note` tells people what they are."""
        with _whatever_fails():
            if (shelf := self.shelf) is None:
                return
            path = self._path(shelf, key)
            check_inside(path, shelf.folder.parent)
            make_private(shelf.folder)
            said = {"digests": json.dumps(_digests(tensors)), "note": json.dumps(dict(note))}
            mark = self._mark(path.name, said)
            if not mark or distrust(shelf.folder):
                return
            check_free(shelf.folder, sum(t.nbytes for t in tensors.values()))
            save_file(path, tensors, {**said, "mark": mark}, private=True)
            shelf.prune(spare=path)

    def kept(self) -> Iterator[tuple[Entry, dict[str, str]]]:
        """The files, and the note of each; {} for one that would not be believed."""
        for entry in () if self.shelf is None else self.shelf.entries():
            note: dict[str, str] = {}
            with _whatever_fails():
                file = SafetensorsFile(entry.path, own=True)
                if file.metadata["mark"] == self._mark(entry.path.name, file.metadata):
                    note = json.loads(file.metadata["note"])
            yield entry, note

    def _path(self, shelf: Shelf, key: str) -> Path:
        return shelf.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"

    def _mark(self, name: str, said: Mapping[str, Any]) -> str:
        text = json.dumps([said["digests"], said["note"]]).encode()
        return disk.kernels().mark(f"{self.kind} {name}", text).hex()

    def _is_whole(self, file: SafetensorsFile, name: str) -> bool:
        """True if a file holds what was kept under its name."""
        if file.metadata["mark"] != self._mark(name, file.metadata):
            return False
        cache, known = disk.kernels(), Identity.of(file.status)
        key, settled = f"whole {tuple(known)} {file.metadata['mark']}", known.settled
        if settled and cache.get(key) is not None:
            return True
        if _digests(file) != json.loads(file.metadata["digests"]):
            return False
        if settled and Identity.of(file.path.lstat()) == known:
            cache.put(key, b"")
        return True


def _digests(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Name -> digest of dtype, shape and values."""

    def digest(name: str) -> str:
        value = np.ascontiguousarray(tensors[name])
        made = hashlib.sha256(f"{value.dtype.name} {value.shape}\0".encode())
        made.update(value.reshape(-1).view(np.uint8).data)
        return made.hexdigest()

    names = sorted(tensors)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(digest, names)))


@contextmanager
def _whatever_fails() -> Iterator[None]:
    with suppress(Exception):
        yield
