"""The answers of a running batch, appended to files line by line."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec

from weft.serve.batches.folder import ERRORS, OUTPUT, BatchFolder
from weft.serve.batches.types import Batch


class Journal:
    """The answers of a batch so far. `done`: the ids of its requests, by whether they succeeded.

    A line counts once it is whole on the disk. The rest of one that was being written when the
    process ended is cut off, and its request is asked again."""

    def __init__(self, folder: BatchFolder, batch: Batch) -> None:
        self._paths = {ok: folder.work(batch, OUTPUT if ok else ERRORS) for ok in (True, False)}
        self._paths[True].parent.mkdir(parents=True, exist_ok=True)
        self.done = {ok: _whole(path) for ok, path in self._paths.items()}

    def write(self, custom_id: str, line: dict[str, Any], ok: bool) -> None:
        """Appends an answer and forces it to the disk. Raises OSError; the files are then as
        before."""
        data = msgspec.json.encode(line) + b"\n"
        file = os.open(self._paths[ok], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            before = os.fstat(file).st_size
            try:
                if os.write(file, data) < len(data):
                    raise OSError(errno.ENOSPC, "the disk is full")
                os.fsync(file)
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
        self.done[ok].add(custom_id)


class _Id(msgspec.Struct):
    custom_id: str


def _whole(path: Path) -> set[str]:
    """The ids of the whole lines of a file, whose rest is cut off."""
    found: set[str] = set()
    if not path.exists():
        return found
    with path.open("rb+") as file:
        end = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            found.add(msgspec.json.decode(line, type=_Id).custom_id)
            end += len(line)
        file.truncate(end)
    return found
