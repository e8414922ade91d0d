"""A disk that fills up, fails or is cut off from a process, at any call that changes it.

Stands between Python and the system: what weft writes goes through `os` and `io.open`.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """The process is gone: nothing that it meant to do afterwards happens either."""


INTERRUPT = -1


class Disk:
    """Counts the calls that change what is below `root`. The call with number `at` (from 1) fails
    with `error`, an errno; 0 stands for the end of the process, INTERRUPT for a Ctrl-C there. A
    full disk stays full, but files can still be removed and renamed."""

    def __init__(self, root: Path, at: int = 0, error: int = 0) -> None:
        self.root, self.at, self.error = os.fspath(root), at, error
        self.calls: list[str] = []

    def tick(self, what: str, grows: bool = True) -> None:
        if self.error in (errno.ENOSPC, errno.EDQUOT) and not grows:
            return
        self.calls.append(what)
        reached = self.at and len(self.calls) >= self.at
        if reached and not self.error:
            raise Killed(what)
        if self.error == INTERRUPT:
            if len(self.calls) == self.at:
                raise KeyboardInterrupt
            return
        lasting = self.error in (errno.ENOSPC, errno.EDQUOT)
        if reached and (lasting or len(self.calls) == self.at):
            raise OSError(self.error, os.strerror(self.error))

    def holds(self, path: Any, dir_fd: Any = None) -> bool:
        if isinstance(path, int):
            return False
        return dir_fd is not None or os.path.abspath(os.fspath(path)).startswith(self.root)


@contextmanager
def disk(root: Path, at: int = 0, error: int = 0) -> Iterator[Disk]:
    """While inside, the disk below `root` is a Disk; a kill ends the block without a word."""
    made = Disk(root, at, error)
    plain_os_open, plain_open = os.open, io.open

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and made.holds(path):
            made.tick("create")
        return plain_os_open(path, flags, mode, dir_fd=dir_fd)

    def fsync(handle: int) -> None:
        made.tick("fsync")  # and no more: a test survives no power cut

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            made.tick("write")
            return super().write(data)

    def open_(path: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not made.holds(path):
            return plain_open(path, mode, buffering, *more, **named)
        raw = Raw(path, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        whole = io.BufferedWriter(raw)
        return whole if "b" in mode else io.TextIOWrapper(whole, *more[:1], **named)

    def counted(name: str, grows: bool) -> Any:
        real = getattr(os, name)

        def call(path: Any, *more: Any, **named: Any) -> Any:
            if made.holds(path, named.get("dir_fd")):
                made.tick(name, grows)
            return real(path, *more, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", os_open)
        patch.setattr(os, "fsync", fsync)
        patch.setattr(io, "open", open_)
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, counted(name, name == "mkdir"))
        with suppress(Killed):
            yield made
