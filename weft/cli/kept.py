"""The contents of weft's own cache (kernels, Programs, quantised weights), and their size
limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.core.budget import CacheFolder
from weft.core.errors import StorageError
from weft.core.places import check_inside
from weft.host import cache as disk
from weft.hub.names import named
from weft.models.weights.kept_tensors import PACKED


@dataclass(frozen=True)
class CacheUse:
    """The number of files of a kind, their bytes, and the limit in bytes."""

    kind: str
    files: int
    nbytes: int
    limit: int

    def as_dict(self) -> dict[str, Any]:
        return _with_bytes(asdict(self))


@dataclass(frozen=True)
class QuantisedWeights:
    """Quantised weights: source folder, scheme, and last use (seconds since 1970). `source` is ""
    if they would not be used again, because another version wrote them or they are damaged."""

    source: str
    scheme: str
    nbytes: int
    used: float
    path: Path

    @property
    def name(self) -> str:
        """The name for `weft rm`: SOURCE+SCHEME, with the hub's name of a model."""
        return f"{named(self.source)}+{self.scheme}" if self.source else ""

    def as_dict(self) -> dict[str, Any]:
        return _with_bytes(asdict(self) | {"name": self.name, "path": str(self.path)})

    def check(self) -> None:
        """Raises StorageError if a link leads the file out of weft's cache."""
        if (shelf := PACKED.shelf) is not None:
            check_inside(self.path, shelf.folder.parent)

    def remove(self) -> None:
        """Removes the file. Raises StorageError, OSError."""
        self.check()
        shelf = PACKED.shelf
        gone = shelf is None or shelf.remove(self.path) or not os.path.lexists(self.path)
        if not gone:
            raise StorageError(f"{self.path}: it cannot be removed; see its folder's mode")


def kinds() -> list[CacheUse]:
    """Returns each kind of cached data; [] without a cache."""
    found = []
    for name, shelf in _shelves():
        entries = shelf.entries()
        found.append(CacheUse(name, len(entries), sum(e.size for e in entries), shelf.limit))
    return found


def weights() -> list[QuantisedWeights]:
    """Returns the quantised weights, most recently used first."""
    found = [
        QuantisedWeights(
            note.get("source", ""), note.get("scheme", ""), entry.size, entry.used, entry.path
        )
        for entry, note in PACKED.kept()
    ]
    return sorted(found, key=lambda w: -w.used)


def prune() -> int:
    """Removes quantised weights whose model is gone or that would not be used again. Then removes
    the least recently used files of each kind over its limit. Returns the bytes freed."""
    return PACKED.prune() + sum(shelf.prune() for _, shelf in _shelves())


def _shelves() -> Iterator[tuple[str, CacheFolder]]:
    made: dict[str, Callable[[], CacheFolder | None]] = {
        "kernels": lambda: disk.kernels().shelf,
        "programs": lambda: disk.programs().shelf,
        "quantised weights": lambda: PACKED.shelf,
    }
    for name, make in made.items():
        if (shelf := make()) is not None:
            yield name, shelf


def _with_bytes(out: dict[str, Any]) -> dict[str, Any]:
    return out | {"bytes": out.pop("nbytes")}
