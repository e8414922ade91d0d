"""The files that a served model reads its weights from in place, watched while it is served."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable

from weft.core.errors import FileFormatError
from weft.host.mapped import MappedFile
from weft.host.samples import files_digest

LOOK_SECONDS = 0.05  # between two looks
_log = logging.getLogger(__name__)


class WatchedFiles:
    """The mapped files of a model. Their bytes are its weights: a file that is cut ends the
    process at the next read beyond its end, and one that is written over changes answers. A file
    replaced by another of its name keeps its bytes while it is mapped, so it counts as it was."""

    def __init__(self, files: Iterable[MappedFile]) -> None:
        self._files = [(file, files_digest(file.path)) for file in files]
        self._times = {file.path: file.status.st_mtime_ns for file, _ in self._files}
        self._looked, self._wrong = time.monotonic(), ""

    @property
    def spoilt(self) -> bool:
        """True if a file was cut or written over. The log says which."""
        try:
            self.check()
        except FileFormatError as e:
            _log.warning("%s", e)
            return True
        return False

    def check(self) -> None:
        """Raises FileFormatError where a file was cut or written over. Looks every LOOK_SECONDS
        at most."""
        now = time.monotonic()
        if not self._wrong and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            try:
                self._look()
            except FileFormatError as e:
                self._wrong = str(e)
        if self._wrong:
            raise FileFormatError(self._wrong)

    def _look(self) -> None:
        for file, digest in self._files:
            file.check()
            try:
                found = os.stat(file.path)
            except OSError:  # removed: its bytes stay
                continue
            same = (found.st_dev, found.st_ino) == (file.status.st_dev, file.status.st_ino)
            if not same or found.st_mtime_ns == self._times[file.path]:
                continue
            if files_digest(file.path) != digest:
                raise FileFormatError(
                    f"{file.path}: written over since it was loaded; write another file, then "
                    "rename it: a loaded model keeps the old one"
                )
            self._times[file.path] = found.st_mtime_ns
            _log.warning("%s was touched; the bytes that were compared are the same", file.path)
