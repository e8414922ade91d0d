"""The remains of an interrupted `weft quantize`, and how much of them the next one may take."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, UsageError
from weft.core.files import write_json
from weft.core.places import check_inside, remove
from weft.core.private import open_regular
from weft.importers.hf_config import read_object

STATE = "quantize.json"
FORMAT = 2  # of what lies beside it: that of another is made anew
_PIECE = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")


class Unfinished:
    """The folder of a job, which holds finished pieces and STATE: what the job is, the plan it
    goes by, and the digest of each piece."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, str] = {}
        self._job: Mapping[str, Any] = {}
        self._done: dict[str, str] = {}

    def check(self) -> None:
        """Raises StorageError where the folder is a link: nothing is written behind it."""
        check_inside(self.folder / STATE, self.folder.parent)

    def begin(self, job: Mapping[str, Any]) -> None:
        """Takes what the same job left; what another one left is swept away. Raises UsageError for
        what weft did not make, or another user did."""
        path = self.folder / STATE
        if not path.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder} holds what weft quantize did not make; move it")
        if path.exists() and os.name == "posix" and self.folder.stat().st_uid != os.geteuid():
            raise UsageError(f"{self.folder} belongs to another user; move it, or name another -o")
        self._job = job
        self.plan, self._done = self._left(path)
        if not self._done:
            for old in filter(_PIECE.fullmatch, os.listdir(self.folder)):
                remove(self.folder / old, self.folder.parent)
        self.note()

    def _left(self, path: Path) -> tuple[dict[str, str], dict[str, str]]:
        """The plan and the finished pieces of the same job; none where STATE is damaged."""
        try:
            was = read_object(path) if path.exists() else {}
        except FileFormatError:
            return {}, {}
        seal = was.pop("seal", None)
        whole, plan, done = seal == _seal(was), was.pop("plan", {}), was.pop("done", {})
        return (plan, done) if whole and was == self._job else ({}, {})

    def note(self) -> None:
        """Writes what the job is and what of it is done."""
        said = {**self._job, "plan": self.plan, "done": self._done}
        write_json(self.folder / STATE, {**said, "seal": _seal(said)})

    def add(self, name: str) -> None:
        """Notes a piece that was just written."""
        self._done[name] = _digest(self.folder / name, own=False)
        self.note()

    def has(self, name: str) -> bool:
        """True if a piece is there as this user's run wrote it."""
        was = self._done.get(name)
        try:
            return was is not None and _digest(self.folder / name, own=True) == was
        except OSError:
            return False


def _seal(said: Mapping[str, Any]) -> str:
    """A digest of what STATE says, which shows damage."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _digest(path: Path, own: bool) -> str:
    """The digest of a file; with `own` of one that nobody else can have written. Raises OSError."""
    with open_regular(path, own) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
