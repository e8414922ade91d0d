"""Files that only their owner may change: what is run as code must not come from anybody else."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MORE = 1 << 16  # bytes read beyond the size that a file reports


def read_regular(path: str | os.PathLike[str], limit: int, own: bool = False) -> bytes:
    """Returns the content of a regular file of at most `limit` bytes.

    Never waits for a pipe or a device, and never reads one without end. With `own`, the file must
    belong to this user, no other user may write it, and it may not be a link of any kind. Raises
    OSError.
    """
    with open_regular(path, own) as file:
        return _read(file, os.fstat(file.fileno()).st_size, limit)


def open_regular(path: str | os.PathLike[str], own: bool = False) -> BufferedReader:
    """A regular file, open for reading; `own` as for `read_regular`. Raises OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_CLOEXEC", 0) | (getattr(os, "O_NOFOLLOW", 0) if own else 0)
    number = os.open(path, flags)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):  # folders too: open() would report them differently
            raise OSError("not a regular file")
        if own and not _is_own(status):
            raise PermissionError("another user may have written this file")
        return open(number, "rb")
    except BaseException:
        os.close(number)
        raise


def _read(file: BufferedReader, size: int, limit: int) -> bytes:
    """Reads `size` bytes and a little more, and allocates no more memory than the file fills.

    The further bytes show that the file has grown, or that it is one of the kernel's files, which
    report no size.
    """
    parts: list[bytes] = []
    room = limit + 1  # one more byte shows that the file is too long
    while room and size <= limit and (part := file.read(min(room, max(size, _MORE)))):
        parts.append(part)
        room -= len(part)
        size = 0
    found = max(size, limit + 1 - room)
    if found > limit:
        raise OSError(f"{found} bytes; at most {limit} are expected")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_own(status: os.stat_result) -> bool:
    if os.name != "posix":  # other systems use access lists; user folders are private by default
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS and status.st_nlink == 1


def make_private(directory: Path) -> None:
    """Creates a folder and those above it that are missing, all for this user only. Raises
    OSError."""
    if not directory.parent.exists():
        make_private(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def distrust(directory: Path) -> str:
    """Returns the reason why another user may change what a folder holds, or "" if none may.

    Reasons: the folder or one above it belongs to another user, or others may write to it. A sticky
    folder above, such as /tmp, is fine. Raises OSError where a folder cannot be examined.
    """
    if os.name != "posix":
        return ""
    place = directory.resolve()
    for at in (place, *place.parents):
        status = at.stat()
        if not stat.S_ISDIR(status.st_mode):
            return f"{at} is not a folder"
        owners = (os.geteuid(),) if at == place else (0, os.geteuid())
        if status.st_uid not in owners:
            return f"{at} belongs to another user (uid {status.st_uid})"
        sticky = status.st_mode & stat.S_ISVTX and at != place
        if status.st_mode & _others_than_own_group(status) and not sticky:
            return f"others may write to {at} (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _others_than_own_group(status: os.stat_result) -> int:
    """Returns the write permissions that matter. A group with this user alone is left out: systems
    that give each user such a group let it write by default."""
    if not status.st_mode & stat.S_IWGRP:
        return stat.S_IWOTH
    import grp
    import pwd

    try:
        group, name = grp.getgrgid(status.st_gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return _OTHERS
    alone = group.gr_name == name and set(group.gr_mem) <= {name}
    return stat.S_IWOTH if alone else _OTHERS
