"""The limit of a folder of weft's cache: the least recently used entries go first."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from weft.core.places import check_inside, remove

_LEFT = 0.75  # share of the limit that a pruning leaves, so that the next one is far off
_NOTED = 3600.0  # seconds within which a further use is not recorded
_STALE = 3600.0  # seconds after which a hidden file counts as abandoned
_HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}\.weft-(new|old)", re.DOTALL)


class CachedFile(NamedTuple):
    """A file of the cache: when it was last used (seconds since 1970), its bytes."""

    used: float
    size: int
    path: Path


class CacheFolder(NamedTuple):
    """The files of one kind in `folder`, or with `halls` in its subfolders with these names.
    `names` matches these files; anything else there belongs to others. `limit` is in bytes. With
    `notes`, a file of that folder records the time of last use, so that the files' own times stay
    unchanged."""

    folder: Path
    names: re.Pattern[str]
    halls: re.Pattern[str] | None
    limit: int
    notes: Path | None = None

    def entries(self) -> list[CachedFile]:
        """The files that are there; links are not followed."""
        return [e for e in self._files() if self.names.fullmatch(e.path.name)]

    def prune(self, spare: Path | None = None) -> int:
        """Removes what killed processes left half-written; then, where all is larger than the
        limit, what was used least recently until it is well below. `spare` stays: it has just
        been made. Returns the bytes that were freed."""
        files = list(self._files())
        now = time.time()
        gone = [e for e in files if _HIDDEN.fullmatch(e.path.name) and now - e.used > _STALE]
        kept = sorted(e for e in files if self.names.fullmatch(e.path.name))
        total = sum(e.size for e in kept)
        over = total > self.limit
        for entry in kept:
            if not over or total <= self.limit * _LEFT:
                break
            if entry.path != spare:
                gone.append(entry)
                total -= entry.size
        return sum(e.size for e in gone if self.remove(e.path))

    def note_use(self, path: Path) -> None:
        """Notes that one of the files was used just now."""
        if self.notes is not None and time.time() - self._noted(path) > _NOTED:
            with suppress(OSError):
                check_inside(self.notes / path.name, self.notes.parent)
                self.notes.mkdir(mode=0o700, exist_ok=True)
                flags = os.O_CREAT | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
                os.close(os.open(self.notes / path.name, flags, 0o600))
                os.utime(self.notes / path.name, follow_symlinks=False)

    def _noted(self, path: Path) -> float:
        """Returns the recorded time of a file's last use, or 0.0."""
        try:
            return 0.0 if self.notes is None else os.lstat(self.notes / path.name).st_mtime
        except OSError:
            return 0.0

    def remove(self, path: Path) -> bool:
        """Removes one of the files; False where that cannot be done."""
        if self.notes is not None:
            with suppress(OSError):
                remove(self.notes / path.name, self.notes.parent)
        with suppress(OSError):  # another process may have pruned it
            remove(path, self.folder)
            return True
        return False

    def _files(self) -> Iterator[CachedFile]:
        folders = [self.folder]
        if self.halls is not None:
            with suppress(OSError), os.scandir(self.folder) as found:
                folders += [Path(d) for d in found if self._is_hall(d)]
        for folder in folders:
            with suppress(OSError), os.scandir(folder) as found:
                for file in found:
                    with suppress(OSError):
                        if file.is_file(follow_symlinks=False):
                            s, path = file.stat(follow_symlinks=False), Path(file.path)
                            used = max(s.st_atime, s.st_mtime, self._noted(path))
                            yield CachedFile(used, s.st_size, path)

    def _is_hall(self, folder: os.DirEntry[str]) -> bool:
        named = self.halls is not None and self.halls.fullmatch(folder.name)
        return bool(named) and folder.is_dir(follow_symlinks=False)


def note_use(path: Path) -> None:
    """Has a file count as used now, whether or not the system notes when files are read."""
    with suppress(OSError):
        if time.time() - path.lstat().st_mtime > _NOTED:
            os.utime(path, follow_symlinks=False)
