"""The memory that this process may use: the machine's, and that of its control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

CHECKED = 64 << 20  # most bytes that are promised between two looks at what is free
SPARE = 16 << 20  # bytes that stay free for the small allocations that nobody counts
_NONE = 1 << 60  # a limit from which on there is none: version 1 writes a number
_ROOT = Path("/")


class Limits(NamedTuple):
    """A control group's limit, what it uses of it, and how much of that are pages of files, which
    the system drops when it needs them: bytes."""

    limit: int
    used: int
    files: int


class _Version(NamedTuple):
    limit: str
    used: str
    files: tuple[str, ...]  # lines of memory.stat, with the groups inside this one


_V1 = _Version(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
)
_V2 = _Version("memory.max", "memory.current", ("active_file", "inactive_file"))


def total(root: Path = _ROOT) -> int:
    """Returns the bytes of physical memory, or a control group's limit if it is lower; 0 if
    unknown."""
    known = [_meminfo(root).get("MemTotal", 0), *(group.limit for group in groups(root))]
    return min(filter(None, known), default=0)


def available(root: Path = _ROOT) -> int:
    """Returns the bytes that can still be allocated without swapping out others; 0 if unknown."""
    info = _meminfo(root)
    free = info.get("MemAvailable", 0) + info.get("SwapFree", 0)
    left = [max(group.limit - group.used + group.files, 1) for group in groups(root)]
    return min(filter(None, (free, *left)), default=0)


class _Promised:
    def __init__(self) -> None:
        self.left = 0  # bytes, until the next look


_promised = _Promised()


def check(nbytes: int) -> None:
    """Raises MemoryError for memory that the system would promise, and end the process when it is
    used. A model has many small weights, so not each of them looks: after a look at most half of
    what is free is promised, and CHECKED bytes at most."""
    _promised.left -= nbytes
    if _promised.left >= 0:
        return
    free = available()
    if free and nbytes + SPARE > free:
        _promised.left = 0
        raise MemoryError(f"{nbytes:,} bytes; {free:,} are free")
    _promised.left = min(CHECKED, (free - nbytes) // 2) if free else CHECKED


def groups(root: Path = _ROOT) -> list[Limits]:
    """Returns the control groups with a limit that hold this process, of both versions, from the
    innermost one outwards. A group that the system does not show is left out."""
    own = dict(_own(root))
    found = []
    for kind, base, mount in _mounts(root):
        if kind not in own:
            continue
        version = _V2 if kind == "cgroup2" else _V1
        path = PurePosixPath(own[kind])
        inner = path.relative_to(base) if path.is_relative_to(base) else PurePosixPath()
        folder = mount / inner if ".." not in inner.parts else mount
        for at in (folder, *folder.parents):
            limit = _number(at / version.limit)
            if limit and limit < _NONE:
                found.append(Limits(limit, _number(at / version.used), _files(at, version)))
            if at == mount:
                break
    return found


def _own(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the kind of a file system of groups, and the path of this process's group in it."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield "cgroup2", path
        elif "memory" in controllers.split(","):
            yield "cgroup", path


def _mounts(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Yields kind, the group at its top, and folder of each file system that limits memory."""
    for line in _lines(root / "proc/self/mountinfo"):
        first, _, last = line.partition(" - ")
        fields, more = first.split(), last.split()
        if len(fields) < 5 or len(more) < 3 or more[0] not in ("cgroup", "cgroup2"):
            continue
        if more[0] == "cgroup" and "memory" not in more[2].split(","):
            continue
        base, mount = (re.sub(r"\\([0-7]{3})", _octal, field) for field in fields[3:5])
        yield more[0], base, root / mount.lstrip("/")


def _octal(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))


def _files(folder: Path, version: _Version) -> int:
    pairs = (line.split() for line in _lines(folder / "memory.stat"))
    return sum(int(p[1]) for p in pairs if len(p) == 2 and p[0] in version.files)


def _number(path: Path) -> int:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _meminfo(root: Path) -> dict[str, int]:
    pairs = (line.split(":", 1) for line in _lines(root / "proc/meminfo") if ":" in line)
    found = {k: v.split() for k, v in pairs}
    read = {k: int(v[0]) << 10 for k, v in found.items() if v[1:] == ["kB"] and v[0].isdigit()}
    if read or root != _ROOT:
        return read
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return {}
    return {"MemTotal": size, "MemAvailable": size}
