"""The folder of files and batches, which one server owns. In it files/ID/ has `meta.json` and
`content`, batches/ID.json is a batch, and work/ID/ has the answers that a batch has so far. Files
are replaced as a whole, so a killed server leaves no half of one. Answers are appended; a half last
line of them is cut off at the next start.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from weft.core.errors import FileFormatError, UsageError
from weft.core.places import remove, remove_tree
from weft.host.files import owned, replacing_folder, write_bytes
from weft.serve.batches.types import ENDED, Batch, StoredFile

T = TypeVar("T", StoredFile, Batch)
FILES, BATCHES, WORK = "files", "batches", "work"
OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
KEPT_SECONDS = 30 * 86400  # how long an ended batch can be asked for


class BatchFolder:
    """The files and batches in `path`. `clock` returns seconds since 1970. Raises UsageError where
    another process owns the folder, FileFormatError for a record that weft did not write."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path, self._clock = path, clock
        self._held = contextlib.ExitStack()
        path.mkdir(0o700, parents=True, exist_ok=True)  # prompts are for nobody else
        self._held.enter_context(owned(path))
        try:
            for name in (FILES, BATCHES, WORK):
                self._held.enter_context(owned(path / name))
            self.files = {
                f.id: f for f in self._read((path / FILES).glob("*/meta.json"), StoredFile)
            }
            self.batches = {b.id: b for b in self._read((path / BATCHES).glob("*.json"), Batch)}
        except BaseException:
            self._held.close()
            raise

    def _read(self, paths: Iterator[Path], kind: type[T]) -> Iterator[T]:
        found = []
        for path in paths:
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=kind))
            except (OSError, msgspec.DecodeError) as e:
                raise FileFormatError(f"{path}: {e}; remove what is not weft's") from None
        yield from sorted(found, key=lambda one: (one.created_at, one.id))

    def now(self) -> int:
        """The time in seconds since 1970."""
        return int(self._clock())

    def content(self, file: StoredFile) -> Path:
        """The path of a file's content."""
        return self.path / FILES / file.id / "content"

    def work(self, batch: Batch, name: str) -> Path:
        """The path of a batch's answers until it ends."""
        return self.path / WORK / batch.id / name

    def keep(self, file: StoredFile, source: Path) -> None:
        """Keeps a file whose content is at `source`, which goes. Raises StorageError."""
        with replacing_folder(self.path / FILES / file.id) as new:
            try:
                os.link(source, new / "content")
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, new / "content")
            write_bytes(new / "meta.json", msgspec.json.encode(file))
        self.files[file.id] = file
        with contextlib.suppress(OSError):
            remove(source, self.path)

    def delete(self, file: StoredFile) -> None:
        """Removes a file."""
        self.files.pop(file.id, None)
        with contextlib.suppress(FileNotFoundError):
            remove_tree(self.path / FILES / file.id, self.path)

    def save(self, batch: Batch) -> None:
        """Writes a batch's present state. Raises StorageError."""
        write_bytes(self.path / BATCHES / f"{batch.id}.json", msgspec.json.encode(batch))
        self.batches[batch.id] = batch

    def finish(self, batch: Batch) -> None:
        """Makes the answers of a batch into its output files. Done once, however often it is
        called. Raises StorageError."""
        for name, number in ((OUTPUT, batch.output_file_id), (ERRORS, batch.error_file_id)):
            source = self.work(batch, name)
            if number is None or number in self.files or not source.exists():
                continue
            now, seconds = self.now(), batch.output_seconds
            self.keep(StoredFile(
                id=number, bytes=source.stat().st_size, created_at=now,
                expires_at=now + seconds if isinstance(seconds, int) else None,
                filename=f"{batch.id}_{name}", purpose="batch_output", owner=batch.owner,
            ), source)  # fmt: skip

    def forget(self, batch: Batch) -> None:
        """Removes an ended batch; its files stay."""
        self.batches.pop(batch.id, None)
        with contextlib.suppress(FileNotFoundError):
            remove(self.path / BATCHES / f"{batch.id}.json", self.path)

    def clear(self, batch: Batch) -> None:
        """Removes what an ended batch no longer needs."""
        with contextlib.suppress(FileNotFoundError):
            remove_tree(self.path / WORK / batch.id, self.path)

    def sweep(self) -> None:
        """Removes expired files, and batches that ended long ago."""
        now = self.now()
        read = {b.input_file_id for b in self.batches.values() if b.status not in ENDED}
        for file in list(self.files.values()):
            if file.expires_at is not None and file.expires_at <= now and file.id not in read:
                self.delete(file)
        for batch in list(self.batches.values()):
            if batch.status in ENDED and batch.created_at + KEPT_SECONDS <= now:
                self.forget(batch)

    def close(self) -> None:
        """Lets the folder go."""
        self._held.close()


def new_id(kind: str) -> str:
    """An id that cannot be guessed."""
    return kind + secrets.token_hex(16)


def check_folder(path: Path) -> None:
    """Raises UsageError where a folder cannot be a batch folder: it holds something else."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"--batch-folder {path} is a file; name a folder")
    others = {p.name for p in path.iterdir()} - {FILES, BATCHES, WORK} if path.is_dir() else set()
    if others := {name for name in others if not name.startswith(".")}:
        raise UsageError(f"--batch-folder {path} holds {min(others)!r}; name a folder of its own")
