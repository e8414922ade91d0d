"""The one way to remove, rename or replace a file or folder at a path that was read from a disk.

A path made of names found in a cache or a folder may lead elsewhere, by a link or by "..". Every
function here takes `root`, the folder that such a path may not leave: `path` is `root` and some
names. Each folder between them is opened from the one before it, and none may be a link; so a link
that appears meanwhile is not followed either. The last name is never followed: a link is removed or
moved itself, and its target stays. `root` may lie behind links, since the caller chose it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from weft.core.errors import StorageError

_BY_FOLDER = {os.open, os.unlink, os.rename, os.stat} <= os.supports_dir_fd
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER |= getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class _Spot(NamedTuple):
    """A name in an open folder; `folder` is None where that is `root` itself, or the system has no
    such calls, and `name` then is the whole path."""

    name: str
    folder: int | None


def remove(path: Path, root: Path) -> None:
    """Removes a file or a link in `root`. Raises StorageError for what lies outside, OSError."""
    with _spot(path, root) as at:
        os.unlink(at.name, dir_fd=at.folder)


def remove_tree(path: Path, root: Path) -> None:
    """Removes a file, a link, or a folder in `root` with what it holds; links in it are not
    followed. Raises StorageError for what lies outside, OSError."""
    with _spot(path, root) as at:
        status = os.stat(at.name, dir_fd=at.folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(at.name, dir_fd=at.folder)  # refuses a link that was put there meanwhile
        else:
            os.unlink(at.name, dir_fd=at.folder)


def remove_empty(path: Path, root: Path) -> None:
    """Removes an empty folder in `root`. Raises StorageError for what lies outside, OSError."""
    with _spot(path, root) as at:
        os.rmdir(at.name, dir_fd=at.folder)


def move(path: Path, target: Path, root: Path) -> None:
    """Renames `path` to `target`, where nothing is to be, both in `root`. Raises StorageError for
    what lies outside, OSError."""
    with _spot(path, root) as at, _spot(target, root) as to:
        os.rename(at.name, to.name, src_dir_fd=at.folder, dst_dir_fd=to.folder)


def replace(path: Path, target: Path, root: Path) -> None:
    """Renames the file `path` to `target`, both in `root`, in the place of what was there. Raises
    StorageError for what lies outside, OSError."""
    with _spot(path, root) as at, _spot(target, root) as to:
        os.replace(at.name, to.name, src_dir_fd=at.folder, dst_dir_fd=to.folder)


def check_inside(path: Path, root: Path) -> None:
    """Raises StorageError if a link between `root` and `path` could redirect a write outside.
    Folders that do not exist yet are allowed."""
    at = root
    for part in _parts(path, root)[:-1]:
        at = at / part
        if at.is_symlink() or _is_junction(at):
            raise _outside(path, at)


@contextmanager
def _spot(path: Path, root: Path) -> Iterator[_Spot]:
    """The place that a path leads to, in a folder that stays the one it is while it is held."""
    *folders, name = _parts(path, root)
    if not (folders and _BY_FOLDER):
        check_inside(path, root)
        yield _Spot(str(path), None)
        return
    with ExitStack() as stack:
        folder = os.open(root, _FOLDER)
        stack.callback(os.close, folder)
        for part in folders:
            try:
                inner = os.open(part, _FOLDER | _NO_LINK, dir_fd=folder)
            except OSError as error:
                error.filename = os.fspath(path)
                status = os.stat(part, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    raise _outside(path, root / part) from None
                raise
            stack.callback(os.close, inner)
            folder = inner
        try:
            yield _Spot(name, folder)
        except OSError as error:
            if error.filename == name:
                error.filename = os.fspath(path)
            raise


def _parts(path: Path, root: Path) -> tuple[str, ...]:
    """The names that lead from `root` to `path`, one at least."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if not parts or ".." in parts:
        failed = StorageError(f"{path}: not in {root}; weft changes nothing there")
        failed.errno = errno.EXDEV
        raise failed
    return parts


def _is_junction(path: Path) -> bool:
    """True for Windows' links to folders, which are not symbolic ones."""
    if os.name != "nt":
        return False
    return bool(getattr(path.lstat(), "st_reparse_tag", 0)) if os.path.lexists(path) else False


def _outside(path: Path, link: Path) -> StorageError:
    failed = StorageError(
        f"{path}: {link.name} is a link, and weft changes nothing behind it; put the folder "
        "itself in its place, or remove the link"
    )
    failed.errno = errno.EXDEV
    return failed
