"""Answers the requests of batches, in addition to those of clients.

A batch goes through `validating`, `in_progress` and `finalizing` to `completed`; or it ends as
`failed` (its input is wrong), `expired` or `cancelled`. Each request has one line in the output or
the error file, in the end, whatever happens between: its answer counts once it is on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import ASGIApp

from weft.serve.batches.asking import Reply, ask
from weft.serve.batches.folder import BatchFolder, new_id
from weft.serve.batches.journal import Journal
from weft.serve.batches.lines import Line, lines_of, request_of
from weft.serve.batches.owners import Owners
from weft.serve.batches.types import ENDED, Batch, BatchError, BatchErrors, Status
from weft.serve.keys import ApiKey
from weft.serve.wire import HttpError

_log = logging.getLogger(__name__)
LATER = 1 << 30  # the priority of requests that give none: after what clients wait for
TRIES = 5  # of a request that the server could not answer (503), each after a pause
PAUSE = 5.0  # seconds after a failure of the server or the disk
LOOK = 1.0  # seconds between looks at the clock
SWEEP = 60  # looks between two sweeps of the folder
_SAID: dict[Status, tuple[str, str]] = {
    "expired": ("batch_expired", "the batch expired before this request was answered"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was answered"),
}


@dataclass(eq=False)
class Running:
    """A batch at work: its waiting requests, the tasks of running ones, and when it may go on (the
    event loop's time)."""

    batch: Batch
    journal: Journal
    left: deque[Line]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    after: float = 0.0
    tries: dict[str, int] = field(default_factory=dict)


class BatchWorker:
    """Works at the batches in `folder`, `lanes` requests at once, of the batches in turn. `app`
    answers them."""

    def __init__(self, folder: BatchFolder, app: ASGIApp, owners: Owners, lanes: int) -> None:
        self.folder, self._app, self._owners, self._lanes = folder, app, owners, lanes
        self._running: deque[Running] = deque()
        self._new = deque(b for b in folder.batches.values() if b.status not in ENDED)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._looks = 0

    def start(self) -> None:
        """Begins, and goes on with what an earlier server left."""
        self._task = asyncio.ensure_future(self._work())

    def add(self, batch: Batch) -> None:
        """Takes a new batch."""
        self._new.append(batch)
        self._news.set()

    def wake(self) -> None:
        """Looks at the batches now: one has changed."""
        self._news.set()

    async def close(self) -> None:
        """Stops. Requests without an answer are asked again by the next server."""
        tasks = [task for one in self._running for task in one.tasks]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.folder.close()

    async def _work(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._look()
            except OSError as e:
                _log.warning("batches wait: %s", e)
                await asyncio.sleep(PAUSE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK)

    async def _look(self) -> None:
        """Begins, goes on with and ends whatever is due."""
        while self._new:
            await self._begin(self._new[0])
            self._new.popleft()
        for one in list(self._running):
            if (status := self._due(one)) is not None:
                await self._end(one, status)
        while sum(len(one.tasks) for one in self._running) < self._lanes:
            if (found := self._next()) is None:
                break
            one, line = found
            task = asyncio.ensure_future(self._answer(one, line))
            one.tasks.add(task)
            task.add_done_callback(one.tasks.discard)
            task.add_done_callback(lambda task: self.wake())
        if self._looks % SWEEP == 0:
            await asyncio.to_thread(self.folder.sweep)
        self._looks += 1

    def _due(self, one: Running) -> Status | None:
        """The state in which a batch ends now; None: it goes on."""
        batch = one.batch
        if batch.status == "cancelling":
            return "cancelled"
        if batch.status == "finalizing":
            return "completed"
        if batch.finalizing_at is not None or batch.expires_at <= self.folder.now():
            return "expired"
        return None if one.left or one.tasks else "completed"

    def _next(self) -> tuple[Running, Line] | None:
        """The next request, of the batches in turn. Those of a key that was removed wait: it may
        come back, and they expire."""
        now = asyncio.get_running_loop().time()
        for _ in range(len(self._running)):
            one = self._running[0]
            self._running.rotate(-1)
            if one.left and one.after <= now and self._owners.knows(one.batch.owner):
                return one, one.left.popleft()
        return None

    async def _begin(self, batch: Batch) -> None:
        """Reads a batch's input, and what was answered of it before."""
        if batch.finalizing_at is not None:  # all is answered; the files are being made
            self._running.append(Running(batch, Journal(self.folder, batch), deque()))
            return None
        file = self.folder.files.get(batch.input_file_id)
        journal = await asyncio.to_thread(Journal, self.folder, batch)
        done = journal.done[True] | journal.done[False]
        fault = None
        if not self._owners.knows(batch.owner):
            fault = BatchError(code="key_missing", message="the key of this batch is not known")
        elif file is None:
            fault = BatchError(code="file_missing", message="the input file is not there")
        if file is None or fault is not None:
            self._fail(batch, [fault] if fault else [])
            return None
        path = self.folder.content(file)
        found = await asyncio.to_thread(lines_of, path, batch.endpoint, done)
        if found.errors:
            self._fail(batch, found.errors)
            return None
        if batch.in_progress_at is None:
            batch.in_progress_at = self.folder.now()
            batch.status = "in_progress" if batch.status == "validating" else batch.status
            batch.request_counts.total = len(found.lines)
            self.folder.save(batch)
        one = Running(batch, journal, deque(found.lines))
        self._count(one)
        self._running.append(one)
        return None

    def _fail(self, batch: Batch, errors: list[BatchError]) -> None:
        batch.status, batch.failed_at = "failed", self.folder.now()
        batch.errors = BatchErrors(data=errors)
        self.folder.save(batch)
        self.folder.clear(batch)

    async def _answer(self, one: Running, line: Line) -> None:
        """Asks a request and writes its answer; or puts it back, to be asked again."""
        try:
            reply = await self._asked(one, line)
            wait = reply.retry
            tries = one.tries[line.custom_id] = one.tries.get(line.custom_id, 0) + 1
            late = reply.status == 429 or (reply.status == 503 and tries < TRIES)
            if wait is not None and late:
                self._put_back(one, line, wait)
                return
            made = {
                "id": new_id("batch_req_"), "custom_id": line.custom_id,
                "response": {"status_code": reply.status, "request_id": secrets.token_hex(16),
                             "body": msgspec.Raw(bytes(reply.body))},
                "error": None,
            }  # fmt: skip
            await self._write(one, line, made, reply.status == 200)
        except asyncio.CancelledError:
            one.left.appendleft(line)
            raise
        except OSError as e:
            _log.warning("batch %s waits: %s", one.batch.id, e)
            self._put_back(one, line, PAUSE)
        except Exception:
            _log.exception("a request of batch %s failed", one.batch.id)
            self._put_back(one, line, PAUSE)

    async def _asked(self, one: Running, line: Line) -> Reply:
        file, endpoint = self.folder.files[one.batch.input_file_id], one.batch.endpoint
        body = await asyncio.to_thread(request_of, self.folder.content(file), line)
        key = self._owners.key(one.batch.owner)
        if endpoint.endswith("completions"):
            body = _later(body)
        if key is not None:
            try:
                key.enter()
            except HttpError as e:
                return Reply(e.status, {k.lower(): v for k, v in e.headers.items()})
        held: list[int] = []
        try:
            salt = self._owners.salt(one.batch.owner)
            return await ask(self._app, endpoint, body, salt, key, held, one.batch.id)
        finally:
            if isinstance(key, ApiKey):
                key.leave(sum(held))

    def _put_back(self, one: Running, line: Line, wait: float) -> None:
        one.left.appendleft(line)
        one.after = asyncio.get_running_loop().time() + wait

    async def _write(self, one: Running, line: Line, made: dict[str, Any], ok: bool) -> None:
        """Writes an answer, all of it or nothing, even where the task is cancelled meanwhile."""
        writing = asyncio.ensure_future(
            asyncio.to_thread(one.journal.write, line.custom_id, made, ok)
        )
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            if writing.exception() is not None:
                raise
        self._count(one)

    def _count(self, one: Running) -> None:
        counts, done = one.batch.request_counts, one.journal.done
        counts.completed, counts.failed = len(done[True]), len(done[False])

    async def _end(self, one: Running, status: Status) -> None:
        """Ends a batch: its answers become files."""
        tasks = list(one.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        batch, now = one.batch, self.folder.now()
        if status in _SAID:
            code, message = _SAID[status]
            error = {"code": code, "message": message}
            while one.left:
                line = one.left[0]
                made = {"id": new_id("batch_req_"), "custom_id": line.custom_id, "response": None,
                        "error": error}  # fmt: skip
                await self._write(one, line, made, False)
                one.left.popleft()
        if batch.finalizing_at is None:
            counts = batch.request_counts
            batch.output_file_id = new_id("file-") if counts.completed else None
            batch.error_file_id = new_id("file-") if counts.failed else None
            batch.finalizing_at = now
            batch.status = "finalizing" if status == "completed" else batch.status
            self.folder.save(batch)
        await asyncio.to_thread(self.folder.finish, batch)
        batch.status = status
        setattr(batch, f"{status}_at", now)
        self.folder.save(batch)
        self._running.remove(one)
        await asyncio.to_thread(self.folder.clear, batch)


def _later(body: bytes) -> bytes:
    """The request with the last place in the queue, unless it names one. The route rejects a body
    that is not an object."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return body
    named = bytes(given.get("priority", b"null")) != b"null"  # null counts as left out
    priority = given["priority"] if named else LATER
    return msgspec.json.encode({**given, "priority": priority})
