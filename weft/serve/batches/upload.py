"""Reading an uploaded file: a form of several parts, written to the disk as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from weft.core.errors import UsageError
from weft.core.install import how
from weft.serve.routing import FORM
from weft.serve.wire import HttpError

PACKAGE = "python_multipart"  # reads forms
MAX_FILE = 200 << 20  # bytes
UPLOAD_SECONDS = 600.0
_FORM = 64 << 10  # bytes of a form besides its file
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
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(f"--batch-folder needs python-multipart: {how('serve')}")


def check_form(request: Request) -> None:
    """Raises HttpError for a body that is not a form."""
    if not request.headers.get("content-type", "").lower().startswith(FORM):
        raise HttpError(400, f"send the file in a form: Content-Type: {FORM}", "file")


@contextlib.asynccontextmanager
async def uploaded(request: Request) -> AsyncIterator[Upload]:
    """The file of a request. Raises HttpError: 400 for a form that has no file, or fields that are
    not known; 413 for more than MAX_FILE bytes; 408 after UPLOAD_SECONDS."""
    limited = Request(request.scope, _limited(request))
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            form = await limited.form(max_files=1, max_fields=8)
    except TimeoutError:
        raise HttpError(408, f"the file did not come within {UPLOAD_SECONDS:.0f} seconds") from None
    except HTTPException as e:
        raise HttpError(400, f"the form cannot be read: {e.detail}") from None
    try:
        yield _upload(form)
    finally:
        await form.close()


def _limited(request: Request) -> Any:
    """The request's `receive`, up to the limit."""
    length = request.headers.get("content-length", "0")
    most = MAX_FILE + _FORM
    came = 0

    async def receive() -> Message:
        nonlocal came
        message = await request.receive()
        came += len(message.get("body", b""))
        if came > most:
            raise HttpError(413, f"a file holds at most {MAX_FILE} bytes", "file")
        return message

    if not length.isdecimal() or int(length[:20]) > most:
        raise HttpError(413, f"a file holds at most {MAX_FILE} bytes", "file")
    return receive


def _upload(form: FormData) -> Upload:
    if unknown := sorted(set(form) - _FIELDS):
        raise HttpError(400, f"the form has an unknown field {unknown[0]!r:.100}", unknown[0])
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, UploadFile):
        raise HttpError(400, "the form has no file; send multipart/form-data with one", "file")
    if (file.size or 0) > MAX_FILE:
        raise HttpError(413, f"a file holds at most {MAX_FILE} bytes", "file")
    if purpose != "batch":
        raise HttpError(400, f"purpose is {str(purpose)[:40]!r}; this server keeps files for batch",
                        "purpose")  # fmt: skip
    return Upload(file.file, (file.filename or "file.jsonl")[:255], _seconds(form))


def _seconds(form: FormData) -> int | None:
    anchor, given = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and given is None:
        return None
    text = str(given)
    if anchor != "created_at" or not text.isdecimal() or not 3600 <= int(text[:9]) <= 2592000:
        raise HttpError(400, "expires_after has an anchor, created_at, and seconds, 3600 to "
                        "2592000", "expires_after")  # fmt: skip
    return int(text[:9])
