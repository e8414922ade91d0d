"""Bodies of several parts (multipart/form-data): bounded, and written to the disk as they come."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Collection
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from weft.serve.routing import FORM
from weft.serve.wire import HttpError, check_coding

PACKAGE = "python_multipart"  # reads forms
MAX_FILE = 200 << 20  # bytes
UPLOAD_SECONDS = 600.0
BESIDE = 64 << 10  # bytes of a form besides its file


def can_read() -> bool:
    """Returns True if the package that reads forms is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def is_form(request: Request) -> bool:
    """Returns True if a request says that its body is a form."""
    return request.headers.get("content-type", "").lower().startswith(FORM)


def check_form(request: Request) -> None:
    """Raises HttpError for a body that is not a form."""
    if not is_form(request):
        raise HttpError(400, f"send the file in a form: Content-Type: {FORM}", "file")


@contextlib.asynccontextmanager
async def form_of(
    request: Request, known: Collection[str], fields: int = 8, most: int = MAX_FILE
) -> AsyncIterator[tuple[FormData, UploadFile]]:
    """The form of a request and its file. `known` are the names of its parts, of which `fields`
    at most are not the file. Raises HttpError: 400 for a form without a file or with other parts,
    413 for more than `most` bytes, 408 after UPLOAD_SECONDS."""
    check_form(request)
    check_coding(request)
    if not can_read():
        raise HttpError(503, "this server cannot read forms: it lacks python-multipart")
    limited = Request(request.scope, _limited(request, most))
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            form = await limited.form(max_files=1, max_fields=fields, max_part_size=BESIDE)
    except TimeoutError:
        raise HttpError(408, f"the file did not come within {UPLOAD_SECONDS:.0f} seconds") from None
    except HTTPException as e:
        raise HttpError(400, f"the form cannot be read: {e.detail}") from None
    try:
        if unknown := sorted(set(form) - set(known)):
            raise HttpError(400, f"the form has an unknown field {unknown[0]!r:.100}", unknown[0])
        file = form.get("file")
        if not isinstance(file, UploadFile):
            said = "the form has no file; send multipart/form-data with one"
            raise HttpError(400, said, "file")
        if (file.size or 0) > most:
            raise HttpError(413, f"a file holds at most {most} bytes", "file")
        yield form, file
    finally:
        await form.close()


def _limited(request: Request, most: int) -> Any:
    """The request's `receive`, up to the limit."""
    length = request.headers.get("content-length", "0")
    came = 0

    async def receive() -> Message:
        nonlocal came
        message = await request.receive()
        came += len(message.get("body", b""))
        if came > most + BESIDE:
            raise HttpError(413, f"a file holds at most {most} bytes", "file")
        return message

    if not length.isdecimal() or int(length[:20]) > most + BESIDE:
        raise HttpError(413, f"a file holds at most {most} bytes", "file")
    return receive
