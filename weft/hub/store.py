"""The parts of huggingface_hub's cache that weft may change: a repository's own blobs and links.

A snapshot contains links into its repository's `blobs/`. A link to another place was set up by a
user or is a trap: weft reads through it, and never removes or writes its target.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from weft.core.errors import HubError, StorageError
from weft.core.places import check_inside, remove
from weft.hub.names import Name, cache

_STALE = 3600.0  # seconds after which a partial file is abandoned
_ANY = "any"  # stands for any name in a folder


def check_store(name: Name, commit: str, files: Iterable[str]) -> None:
    """Raises HubError if fetching these files would write or remove something outside the cache, or
    if a folder is in a file's place."""
    folder, locks = name.snapshot(commit), cache() / ".locks" / name.store.name
    places = [name.store / "blobs" / _ANY, locks / _ANY, *(folder / file for file in files)]
    try:
        for path in places:
            check_inside(path, cache())
    except StorageError as error:
        raise HubError(f"{name}: {error}") from None
    for path in places:
        if path.is_dir():
            raise HubError(f"{name}: {_folder_there(path)}")
    with suppress(OSError), os.scandir(locks) as found:
        for lock in found:
            if lock.is_symlink():  # some lock libraries would truncate the target
                raise HubError(f"{name}: {_quoted(lock.path)} is a link; remove the link")


def clear(name: Name) -> None:
    """Removes partial files of killed processes, and partial files with links elsewhere, through
    which a download would write."""
    blobs = name.store / "blobs"
    for path in blobs.glob("*.incomplete"):
        with suppress(OSError):
            status = path.lstat()
            plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            if not plain or time.time() - status.st_mtime > _STALE:
                remove(path, cache())


def discard(name: Name, path: Path, new: bool, intact: Callable[[Path], bool]) -> str:
    """Removes a damaged file of a snapshot, as far as it belongs to the cache; returns what was
    done. `new`: this process has just fetched it. `intact` returns True for a blob that matches its
    name: then only the link was wrong, and the blob stays."""
    try:
        if path.is_symlink():
            blob = blob_of(name, path)
            if blob is None:
                target = _quoted(path.parent / os.readlink(path))
                return f"{_quoted(path)} is a link to {target}; remove it, then try again"
            if blob.is_dir():
                return _folder_there(blob)
            check_inside(blob, cache())  # before the link to it is removed
            remove(path, cache())
            with suppress(FileNotFoundError):
                if not intact(blob):
                    remove(blob, cache())
        elif path.is_dir():
            return _folder_there(path)
        elif new:  # without links on the system, a snapshot holds the file itself
            remove(path, cache())
        else:
            return f"{_quoted(path)} is not a link into blobs/; remove it, then try again"
    except OSError as error:
        return f"it cannot be removed: {error.strerror or error}"
    return "it was removed from the cache; try again"


def blob_of(name: Name, link: Path) -> Path | None:
    """Returns the path in the repository's blobs/ that a link in a snapshot leads to; None if the
    link leads to another folder. Nothing need exist there. Raises OSError."""
    target = link.parent / os.readlink(link)
    blobs = name.store / "blobs"
    return blobs / target.name if _same_folder(target.parent, blobs) else None


def _folder_there(path: Path) -> str:
    return f"{_quoted(path)} is a folder, and a file belongs there; move it, then try again"


def _same_folder(one: Path, other: Path) -> bool:
    try:
        return one.resolve(strict=True) == other.resolve(strict=True)
    except (OSError, RuntimeError):
        return False


def _quoted(path: str | os.PathLike[str]) -> str:
    """Returns a path quoted for a shell, without control characters."""
    text = "".join(c if c.isprintable() else "?" for c in os.fspath(path))
    return shlex.quote(text)
