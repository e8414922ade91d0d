"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from weft.core.places import remove
from weft.serve.batches.folder import BatchFolder, check_folder, new_id
from weft.serve.batches.owners import owner_of
from weft.serve.batches.types import (
    ENDED,
    Batch,
    BatchList,
    CreateBatch,
    FileDeleted,
    FileList,
    StoredFile,
    UploadForm,
)
from weft.serve.batches.upload import need, uploaded
from weft.serve.batches.work import BatchWorker
from weft.serve.fields import seconds_of
from weft.serve.forms import check_form
from weft.serve.guard import key_of
from weft.serve.routing import FORM, Described, route
from weft.serve.wire import HttpError, json_response, read

T = TypeVar("T", StoredFile, Batch)
MAX_FILES = 1000  # of one key
MAX_BATCHES = 100  # of one key that have not ended
MAX_ENDED = 1000  # of one key that have ended: the oldest go
MAX_RECORDS = 20_000  # files, and batches, of all keys: without --keys-file clients invent keys
MAX_BYTES = 10 << 30  # of all files
MAX_WINDOW = 30 * 86400  # seconds


async def create_file(request: Request) -> Response:
    """Keeps a file of requests."""
    check_form(request)
    folder, owner = _worker(request).folder, _owner(request)
    own = [file for file in folder.files.values() if file.owner == owner]
    if len(own) >= MAX_FILES:
        raise HttpError(429, f"this key keeps {len(own)} files, as many as may; delete some")
    _check_room(folder.files)
    if sum(file.bytes for file in folder.files.values()) >= MAX_BYTES:
        raise HttpError(503, f"this server keeps {MAX_BYTES} bytes of files, as many as may")
    async with uploaded(request) as upload:
        number = new_id("file-")
        source = folder.path / f".{number}.upload"
        try:
            size = await asyncio.to_thread(upload.write, source)
            now = folder.now()
            file = StoredFile(
                id=number, bytes=size, created_at=now, filename=upload.name, purpose="batch",
                expires_at=None if upload.seconds is None else now + upload.seconds, owner=owner,
            )  # fmt: skip
            await asyncio.to_thread(folder.keep, file, source)
        finally:
            with contextlib.suppress(FileNotFoundError):
                remove(source, folder.path)
    return _told(file)


async def files(request: Request) -> Response:
    """The files of a key."""
    purpose = request.query_params.get("purpose")
    own = _own(request, _worker(request).folder.files.values())
    found = [file for file in own if purpose in (None, file.purpose)]
    return json_response(FileList(**_page(request, found, 10_000)))


async def file(request: Request) -> Response:
    """One of them."""
    return _told(_file(request))


async def content(request: Request) -> Response:
    """Its content."""
    found = _file(request)
    path = _worker(request).folder.content(found)
    return FileResponse(path, media_type="application/jsonl", headers={"Cache-Control": "no-store"})


async def delete_file(request: Request) -> Response:
    """Deletes it, unless a batch reads it."""
    found, folder = _file(request), _worker(request).folder
    for batch in folder.batches.values():
        if batch.input_file_id == found.id and batch.status not in ENDED:
            raise HttpError(409, f"{batch.id} reads this file; cancel it first")
    await asyncio.to_thread(folder.delete, found)
    return json_response(FileDeleted(id=found.id))


async def create_batch(request: Request) -> Response:
    """Begins a batch."""
    body = await read(request, CreateBatch)
    worker, owner = _worker(request), _owner(request)
    folder = worker.folder
    window = seconds_of(body.completion_window, "completion_window") or 0.0
    if not 1 <= window <= MAX_WINDOW:
        said = f"completion_window is {body.completion_window!r}; expected a duration like 24h"
        raise HttpError(400, f"{said}, up to 720h", "completion_window")
    source = folder.files.get(body.input_file_id)
    if source is None or source.owner != owner or source.purpose != "batch":
        raise HttpError(404, f"there is no file {body.input_file_id[:100]!r} for a batch",
                        "input_file_id")  # fmt: skip
    own = [b for b in folder.batches.values() if b.owner == owner]
    ended = [b for b in own if b.status in ENDED]
    if (going := len(own) - len(ended)) >= MAX_BATCHES:
        raise HttpError(429, f"{going} batches of this key run, as many as may", retry=60)
    _check_room(folder.batches)
    for old in ended[: max(len(ended) - MAX_ENDED + 1, 0)]:
        await asyncio.to_thread(folder.forget, old)
    now, expiry = folder.now(), body.output_expires_after
    batch = Batch(
        id=new_id("batch_"), endpoint=body.endpoint, input_file_id=source.id, created_at=now,
        completion_window=body.completion_window, expires_at=now + int(window),
        metadata=body.metadata, owner=owner,
        output_seconds=None if expiry is None else expiry.seconds,
    )  # fmt: skip
    await asyncio.to_thread(folder.save, batch)
    worker.add(batch)
    return _told(batch)


async def batches(request: Request) -> Response:
    """The batches of a key."""
    own = _own(request, _worker(request).folder.batches.values())
    return json_response(BatchList(**_page(request, own, 100, 20)))


async def batch(request: Request) -> Response:
    """One of them."""
    return _told(_batch(request))


async def cancel(request: Request) -> Response:
    """Cancels it; requests that were answered by then are in its output file."""
    found, worker = _batch(request), _worker(request)
    if found.status in ENDED or found.finalizing_at is not None:
        raise HttpError(409, f"the batch is {found.status} and cannot be cancelled")
    if found.status != "cancelling":
        found.status, found.cancelling_at = "cancelling", worker.folder.now()
        await asyncio.to_thread(worker.folder.save, found)
        worker.wake()
    return _told(found)


def _check_room(records: Mapping[str, Any]) -> None:
    if len(records) >= MAX_RECORDS:
        raise HttpError(503, f"this server keeps {MAX_RECORDS} of these, as many as may")


def _worker(request: Request) -> BatchWorker:
    found = request.app.state.batches
    if found is None:
        raise HttpError(404, "this server keeps no batches; start it with --batch-folder DIR")
    assert isinstance(found, BatchWorker)
    return found


def _owner(request: Request) -> str:
    return owner_of(key_of(request.scope))


def _own(request: Request, given: Any) -> list[Any]:
    owner = _owner(request)
    return [one for one in given if one.owner == owner]


def _file(request: Request) -> StoredFile:
    return _named(request, _worker(request).folder.files, "file")


def _batch(request: Request) -> Batch:
    return _named(request, _worker(request).folder.batches, "batch")


def _named(request: Request, given: Mapping[str, T], what: str) -> T:
    """The record that the path names, if it is the caller's own."""
    number = request.path_params["id"]
    found = given.get(number)
    if found is None or found.owner != _owner(request):
        raise HttpError(404, f"there is no {what} {number!r:.100}", f"{what}_id")
    return found


def _public(record: T) -> T:
    """A record without what clients do not see."""
    made = msgspec.structs.replace(record, owner=msgspec.UNSET)
    if isinstance(made, Batch):
        made.output_seconds = msgspec.UNSET
    return made


def _told(record: T) -> Response:
    return json_response(_public(record))


def _page(request: Request, found: Sequence[Any], most: int, usual: int | None = None) -> Any:
    """The part of a list that a request asks for: `limit` of them after `after`, the newest first.
    Raises HttpError."""
    asked = request.query_params
    order, limit = asked.get("order", "desc"), asked.get("limit", str(usual or most))
    if order not in ("asc", "desc"):
        raise HttpError(400, f"order is {order[:40]!r}; expected asc or desc", "order")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= most:
        raise HttpError(400, f"limit is {limit[:40]!r}; expected 1 to {most}", "limit")
    rows = list(found)[:: 1 if order == "asc" else -1]
    if (after := asked.get("after")) is not None:
        at = next((i for i, one in enumerate(rows) if one.id == after), None)
        if at is None:
            raise HttpError(404, f"there is no {after!r:.100} to list after", "after")
        rows = rows[at + 1 :]
    data = [_public(one) for one in rows[: int(limit[:9])]]
    ends = [data[0].id, data[-1].id] if data else [None, None]
    more = len(rows) > len(data)
    return {"data": data, "first_id": ends[0], "last_id": ends[1], "has_more": more}


def routes() -> list[Described]:
    """The routes of files and batches."""
    return [
        route("/v1/files", create_file, UploadForm, answer=StoredFile, media=FORM),
        route("/v1/files", files, answer=FileList),
        route("/v1/files/{id}", file, answer=StoredFile),
        route("/v1/files/{id}", delete_file, method="DELETE", answer=FileDeleted),
        route("/v1/files/{id}/content", content),
        route("/v1/batches", create_batch, CreateBatch, answer=Batch),
        route("/v1/batches", batches, answer=BatchList),
        route("/v1/batches/{id}", batch, answer=Batch),
        route("/v1/batches/{id}/cancel", cancel, method="POST", answer=Batch),
    ]


def open_folder(path: Path) -> BatchFolder:
    """The batch folder at `path`, for the server. Raises UsageError."""
    need()
    check_folder(path)
    return BatchFolder(path, time.time)
