"""Reading an uploaded file of requests."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from starlette.datastructures import FormData
from starlette.requests import Request

from weft.core.errors import UsageError
from weft.core.install import how
from weft.serve.forms import can_read, form_of
from weft.serve.wire import HttpError

_FIELDS = {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}


@dataclass(frozen=True)
class Upload:
    """An uploaded file: its content, name and purpose, and the seconds that it stays (None: until
    it is deleted)."""

    content: BinaryIO
    name: str
    seconds: int | None

    def write(self, path: Path) -> int:
        """Writes the content to `path`; returns its bytes."""
        with path.open("wb") as file:
            shutil.copyfileobj(self.content, file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()


def need() -> None:
    """Raises UsageError where the package that reads forms is missing."""
    if not can_read():
        raise UsageError(f"--batch-folder needs python-multipart: {how('serve')}")


@contextlib.asynccontextmanager
async def uploaded(request: Request) -> AsyncIterator[Upload]:
    """The file of a request. Raises HttpError as `form_of` does, and for wrong fields."""
    async with form_of(request, _FIELDS) as (form, file):
        if (purpose := form.get("purpose")) != "batch":
            said = f"purpose is {str(purpose)[:40]!r}; this server keeps files for batch"
            raise HttpError(400, said, "purpose")
        yield Upload(file.file, (file.filename or "file.jsonl")[:255], _seconds(form))


def _seconds(form: FormData) -> int | None:
    anchor, given = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and given is None:
        return None
    text = str(given)
    if anchor != "created_at" or not text.isdecimal() or not 3600 <= int(text[:9]) <= 2592000:
        raise HttpError(400, "expires_after has an anchor, created_at, and seconds, 3600 to "
                        "2592000", "expires_after")  # fmt: skip
    return int(text[:9])
