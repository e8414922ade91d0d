"""Writing files and folders so that a reader never meets half of one, even after a power cut.

New content is written under a hidden name in the same folder, forced to the disk and then renamed.
A killed process leaves such hidden names behind; `sweep` removes them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, StorageError, UsageError
from weft.core.places import check_inside, move, remove_empty, remove_tree, replace
from weft.core.text import size

_NEW, _OLD = "weft-new", "weft-old"  # the new content; the content it replaces
_HIDDEN = re.compile(rf"\.(.+)\.[0-9a-f]{{8}}\.({_NEW}|{_OLD})", re.DOTALL)
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_ADVICE = {
    **dict.fromkeys(_FULL, "the disk is full: free some space"),
    errno.EIO: "the disk fails: see the system's log",
    errno.EROFS: "name a place that can be written to",
}


@contextmanager
def replacing(
    path: str | os.PathLike[str], private: bool = False, durable: bool = True
) -> Iterator[Path]:
    """Yields a temporary path next to `path`; on success it replaces `path` in one step.

    If the block raises (an interrupt too), the temporary file is removed and `path` keeps its
    content. Only the owner can read a `private` file; the umask governs any other. A `durable` file
    is on the disk before it takes the place. Files that can be made again, and are checked when
    read, can do without. Raises StorageError where the disk is full or fails.
    """
    target = Path(path)
    temporary = _hidden(target, _NEW)  # named before it exists, so that an interrupt leaves nothing
    held = None
    try:
        with naming(target):
            if durable:
                _reclaim(target)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(temporary, flags, 0o600 if private else 0o666))
            held = _lock(temporary) if durable else None
            yield temporary
            if durable:
                _sync(temporary)
            replace(temporary, target, target.parent)
            if durable:
                _sync(target.parent)
    finally:
        _discard(temporary)
        if held is not None:
            os.close(held)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a new, empty folder next to `path`, which replaces `path` when the block ends.

    A folder at `path` stays until then. The block writes its files with the functions of this
    module. Raises StorageError as `replacing` does.
    """
    target = Path(path)
    new, old = _hidden(target, _NEW), _hidden(target, _OLD)
    held = None
    try:
        with naming(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _reclaim(target)
            new.mkdir()
            held = _lock(new)
            yield new
            _sync(new)
            if target.exists():
                move(target, old, target.parent)
            move(new, target, target.parent)
            _sync(target.parent)
    finally:
        _discard(new)
        _settle(old, target)
        if held is not None:
            os.close(held)


def _reclaim(target: Path) -> None:
    """Removes what killed processes left of a file or folder that they wrote in place of `target`,
    and puts back what one had put aside. A process that lives holds a lock on what it writes."""
    left: dict[str, list[Path]] = {_NEW: [], _OLD: []}
    with suppress(OSError):
        for path in target.parent.iterdir():
            found = _HIDDEN.fullmatch(path.name)
            name = target.name if found and found[2] == _OLD else target.name[:50]
            if found and found[1] == name and not path.is_symlink():
                left[found[2]].append(path)
    dead = [path for path in left[_NEW] if _is_dead(path)]
    for path in dead:
        _discard(path)
    if len(dead) == len(left[_NEW]):  # no process is between setting aside and replacing
        for path in left[_OLD]:
            _settle(path, target)


def _is_dead(path: Path) -> bool:
    """True if no process holds a lock on what it was writing at `path`."""
    try:
        held = _lock(path)
    except (OSError, UsageError):  # it has gone, or another process is writing it
        return False
    if held is not None:
        os.close(held)
    return held is not None


def remove_folder(path: Path, root: Path | None = None) -> None:
    """Removes a folder in `root` (by default, where it stands); killed meanwhile, it leaves nothing
    of it under its name. Raises StorageError where a link leads out of `root`."""
    root = root or path.parent
    gone = _hidden(path, _NEW)
    with naming(path):
        move(path, gone, root)
    _discard(gone, root)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file with the content `data`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """A file of UTF-8 text, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """`data` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns name -> SHA-256 (hexadecimal) for the named files that exist in `folder`."""
    return {name: _digest(folder / name) for name in names if (folder / name).is_file()}


def verify(folder: Path, known: Mapping[str, str], remedy: str) -> None:
    """Raises FileFormatError, which ends with `remedy`, for the first file that is not what it was
    when `digests` looked at it."""
    for name, was in known.items():
        path = folder / name
        if path.exists() and not path.is_file():
            raise FileFormatError(f"{path}: not a regular file; {remedy}")
        try:
            same = _digest(path) == was
        except OSError as error:
            raise FileFormatError(f"{path}: {error.strerror}; {remedy}") from None
        if not same:
            raise FileFormatError(f"{path} is not what was written (damaged?); {remedy}")


def _digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Has errors of the system name `target`, which the caller knows, not a hidden name; those of
    a disk that is full or fails become StorageErrors."""
    try:
        yield
    except OSError as error:
        if error.errno in _ADVICE:
            what = f"{os.strerror(error.errno or 0)}; {_ADVICE[error.errno]}"
            failed = StorageError(f"{target}: {what}")
            failed.errno = error.errno
            raise failed from None
        if isinstance(error, StorageError):
            raise
        hidden = isinstance(error.filename, str) and _HIDDEN.fullmatch(Path(error.filename).name)
        if error.errno is None or not (hidden or error.filename in (None, os.fspath(target))):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(target)) from None


def check_free(folder: Path, nbytes: int) -> None:
    """Raises StorageError if the disk of `folder`, which may not exist yet, has less than `nbytes`
    free."""
    there = next((p for p in (folder, *folder.parents) if p.is_dir()), folder)
    free = shutil.disk_usage(there).free
    if free < nbytes:
        need = f"{size(nbytes)} are to be written and {size(free)} are free; free some space"
        failed = StorageError(f"{folder}: {need}")
        failed.errno = errno.ENOSPC
        raise failed


# -- a folder that one process writes to -----------------------------------------------------------


@contextmanager
def owned(folder: Path, inner: str = "") -> Iterator[None]:
    """Makes `folder` if it does not exist, keeps other processes from owning it, and sweeps it.

    The sweep covers the folder `inner` too, since no other process can be writing there. Raises
    UsageError where another process owns `folder` or it is a file. Raises StorageError or OSError
    where it is not writable, or where `inner` is a link that leads out of it.
    """
    if inner and os.path.lexists(folder / inner):
        check_inside(folder / inner / "any", folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder")
    probe = _hidden(folder / "probe", _NEW)
    made = not folder.exists()
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    held = _lock(folder)
    try:
        if held is not None:
            for part in {folder, folder / inner}:
                sweep(part)
        with naming(folder):  # fails now rather than after an hour
            probe.mkdir()
            remove_empty(probe, folder)
        yield
    finally:
        if made:
            with suppress(OSError):
                remove_empty(folder, folder.parent)  # nothing was written to it
        if held is not None:
            os.close(held)


def sweep(folder: Path) -> None:
    """Removes what killed processes left half-written in a folder, and puts back what one had put
    aside to replace. Only where no other process writes."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        found = _HIDDEN.fullmatch(path.name)
        if found and found[2] == _OLD:
            _settle(path, folder / found[1])
        elif found:
            _discard(path)


def _lock(folder: Path) -> int | None:
    """An open descriptor that holds a lock on the folder or file, which goes with the process
    however that ends; None where the system or the file system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            raise UsageError(
                f"{folder}: another process is writing there; wait for it, or name another folder"
            ) from None
        return None
    return held


# -- parts -----------------------------------------------------------------------------------------


def _hidden(target: Path, kind: str) -> Path:
    """Returns a new hidden name in the folder of `target`. An old folder keeps its whole name in
    it, so that `sweep` can restore it."""
    name = target.name if kind == _OLD else target.name[:50]
    return target.with_name(f".{name}.{os.urandom(4).hex()}.{kind}")


def _discard(path: Path, root: Path | None = None) -> None:
    """Removes a file or folder with a hidden name. On failure a later `sweep` removes it."""
    with suppress(OSError):
        remove_tree(path, root or path.parent)


def _settle(old: Path, target: Path) -> None:
    """Ends a replacement: what was put aside goes back where nothing took its place."""
    if target.exists():
        _discard(old)
    else:
        with suppress(OSError):
            move(old, target, old.parent)


def _sync(path: Path) -> None:
    """Waits until what is at `path`, a file or a folder's list of names, is on the disk itself."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # the system has no such call for folders
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if not folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # otherwise the file system keeps no such list
    finally:
        os.close(handle)


# -- places ----------------------------------------------------------------------------------------


def default_directory() -> Path | None:
    """Returns the folder for files that weft can make again: WEFT_CACHE, or the user's cache
    directory.

    Returns None when WEFT_CACHE is empty, "0" or "off", or when the user lacks a home directory;
    then weft keeps nothing.
    """
    chosen = os.environ.get("WEFT_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen not in ("", "0", "off") else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "weft"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "weft" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "weft"
