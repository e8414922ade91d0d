"""The remains of an interrupted `weft quantize`, and the checks before the next run reuses them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, UsageError
from weft.core.places import check_inside, remove
from weft.host.files import write_json
from weft.host.private import open_regular
from weft.importers.hf_config import read_object

STATE = "quantize.json"
FORMAT = 2  # version of the saved progress; another version's is discarded
_PIECE = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")


class Unfinished:
    """The folder of a job, with finished pieces and STATE: the job, its plan, and the digest of
    each piece."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, str] = {}
        self._job: Mapping[str, Any] = {}
        self._done: dict[str, str] = {}

    def check(self) -> None:
        """Raises StorageError if the folder is a link, so that nothing is written behind it."""
        check_inside(self.folder / STATE, self.folder.parent)

    def begin(self, job: Mapping[str, Any]) -> None:
        """Resumes the remains of the same job; deletes those of another. Raises UsageError for
        files that weft did not make, or that belong to another user."""
        path = self.folder / STATE
        if not path.exists() and any(self.folder.iterdir()):
            raise UsageError(
                f"{self.folder} has files that weft quantize did not make; move the folder"
            )
        if path.exists() and os.name == "posix" and self.folder.stat().st_uid != os.geteuid():
            raise UsageError(f"{self.folder} belongs to another user; move it, or name another -o")
        self._job = job
        self.plan, self._done = self._left(path)
        if not self._done:
            for old in filter(_PIECE.fullmatch, os.listdir(self.folder)):
                remove(self.folder / old, self.folder.parent)
        self.note()

    def _left(self, path: Path) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the plan and the finished pieces of the same job; empty if STATE is damaged."""
        try:
            was = read_object(path) if path.exists() else {}
        except FileFormatError:
            return {}, {}
        seal = was.pop("seal", None)
        whole, plan, done = seal == _seal(was), was.pop("plan", {}), was.pop("done", {})
        return (plan, done) if whole and was == self._job else ({}, {})

    def note(self) -> None:
        """Writes the job and its progress."""
        said = {**self._job, "plan": self.plan, "done": self._done}
        write_json(self.folder / STATE, {**said, "seal": _seal(said)})

    def add(self, name: str) -> None:
        """Records a piece that was just written."""
        self._done[name] = _digest(self.folder / name, own=False)
        self.note()

    def has(self, name: str) -> bool:
        """Returns True if a piece exists with the content that this user's run wrote."""
        was = self._done.get(name)
        try:
            return was is not None and _digest(self.folder / name, own=True) == was
        except OSError:
            return False


def _seal(said: Mapping[str, Any]) -> str:
    """Returns a digest of STATE's content, which reveals damage."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _digest(path: Path, own: bool) -> str:
    """Returns the digest of a file; `own` requires that no other user can have written it. Raises
    OSError."""
    with open_regular(path, own) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
