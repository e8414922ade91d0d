"""Requests' bodies on their way in, JSON and events on their way out, and what a refusal is."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from weft.core.errors import (
    BusyError,
    DeviceError,
    LimitError,
    OutOfMemoryError,
    RankError,
    StorageError,
    UsageError,
    WeftError,
)
from weft.serve.mistakes import mistake_in

MAX_BODY = 8 << 20  # bytes
MAX_DEPTH = 100  # levels of JSON's nesting
MAX_PARTS = 1 << 17  # objects, lists and texts, names included
MAX_VALUES = 1 << 20  # parts and numbers together: ids of 2,048 texts of 512 tokens
BODY_SECONDS = 30.0  # time for a whole body
SEND_SECONDS = 60.0  # time for a reader to take the written bytes
PING_SECONDS = 15.0  # seconds of silence in a stream
MAX_NULLS = 16  # places of unknown fields that are null
MAX_SAID = 1000  # characters of a refusal, which may quote what was sent

T = TypeVar("T")

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EACCES,
                  errno.EPERM, errno.EISDIR))  # fmt: skip
"""Errors of a disk that is full, read-only or failing, or of a place that is another's."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.S)
_STEP = re.compile(r"\.([^.\[]+)|(\[[^\]]*\])")


class HttpError(Exception):
    """A rejected request: an HTTP status and a message of one or two lines. It may have the name of
    the wrong parameter, the seconds to wait before a retry, and OpenAI's code or Anthropic's
    details for clients that read them."""

    def __init__(
        self, status: int, message: str, param: str | None = None, retry: int | None = None,
        code: str | None = None, details: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code, self.details = code, details
        self.status, self.message, self.retry = status, message[:MAX_SAID], retry
        self.param = None if param is None else param[:MAX_SAID]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response: Retry-After if a retry makes sense."""
        return {} if self.retry is None else {"Retry-After": str(self.retry)}


class TooLong(HttpError):
    """A prompt of more tokens than the context holds, with the `new` ones that were asked for."""

    def __init__(self, tokens: int, context: int, new: int | None = None) -> None:
        asked = "" if new is None else f" and {new} new ones"
        super().__init__(
            400, f"the prompt has {tokens} tokens{asked}; the context holds {context}: shorten one",
            code="context_length_exceeded",
        )  # fmt: skip
        self.tokens, self.context = tokens, context


def refusal(error: WeftError) -> HttpError:
    """The HttpError for weft's error: in full if the client can correct it, else only its kind."""
    if isinstance(error, BusyError):
        return HttpError(429, str(error), retry=1)
    if isinstance(error, OutOfMemoryError):
        return HttpError(503, "out of memory; try again, or ask for less", retry=5)
    if isinstance(error, UsageError | LimitError):
        return HttpError(400, str(error))
    if isinstance(error, StorageError):
        return unkept(error)
    if isinstance(error, RankError):
        return HttpError(503, "another machine of this server was lost; try again", retry=30)
    if isinstance(error, DeviceError):
        return HttpError(503, "the device failed; the server's log says how", retry=5)
    return HttpError(500, "the model failed on this request; the server's log says how")


def unkept(error: OSError) -> HttpError:
    """The HttpError for a file that the disk does not take; its path is the operator's alone."""
    return HttpError(507, f"the server cannot keep this: {os.strerror(error.errno or errno.EIO)}")


async def read(request: Request, kind: type[T]) -> T:
    """The request's body as `kind`, a msgspec Struct. Raises HttpError as `body_of` does, and with
    400 for what is not such JSON (an unknown field is named, unless it is null)."""
    body = await body_of(request)
    if why := too_much(body):
        raise HttpError(400, why)
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as e:
            if "unknown field" not in str(e):
                raise
        return struct_of(msgspec.json.decode(body), kind)
    except msgspec.ValidationError as e:
        raise mistaken(e, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise HttpError(400, f"the body is not JSON: {e}") from None
    except RecursionError:
        raise HttpError(400, "the JSON is nested too deeply") from None


def mistaken(error: msgspec.ValidationError, kind: Any, where: str = "") -> HttpError:
    """The HttpError for JSON that is not of `kind`, at the place `where` in the request."""
    field, said = mistake_in(error, kind, where)
    return HttpError(400, said, field or None)


def struct_of(given: Any, kind: type[T]) -> T:
    """JSON's values as `kind`, a msgspec Struct. An unknown field that is null counts as left out:
    clients send answers back with fields that only their newer versions know. `given` loses such
    fields. Raises msgspec.ValidationError."""
    for _ in range(MAX_NULLS):
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as e:
            found = _UNKNOWN.fullmatch(str(e))
            if found is None or not _drop_nulls(given, found[2] or "", found[1]):
                raise
    return msgspec.convert(given, kind)


def _drop_nulls(given: Any, path: str, field: str) -> bool:
    """Takes `field` from the objects at `path` of msgspec's, whatever the numbers in it, where it
    is null. True if there was one."""
    level = [given]
    for name, index in _STEP.findall(path):
        if index:
            inside = (one.values() if isinstance(one, dict) else one for one in level)
            level = [part for parts in inside for part in parts]
        else:
            level = [one[name] for one in level if isinstance(one, dict) and name in one]
        level = [one for one in level if isinstance(one, dict | list)]
    null = [one for one in level if isinstance(one, dict) and one.get(field, "") is None]
    for one in null:
        del one[field]
    return bool(null)


async def body_of(request: Request, most: int = MAX_BODY, seconds: float | None = None) -> bytes:
    """Reads the request's body. Raises HttpError: 413 for more than `most` bytes, 415 for a
    compressed one, 408 if it takes longer than `seconds` (None: BODY_SECONDS)."""
    seconds = BODY_SECONDS if seconds is None else seconds
    try:
        async with asyncio.timeout(seconds):
            return await _body(request, most)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {seconds:.0f} seconds") from None


def check_coding(request: Request) -> None:
    """Raises HttpError 415 for a body that is compressed: it could grow beyond all limits."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise HttpError(415, f"Content-Encoding is {coding[:40]!r}; send the body as it is")


async def _body(request: Request, most: int) -> bytes:
    check_coding(request)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise HttpError(413, f"a body holds at most {most} bytes")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HttpError(413, f"a body holds at most {most} bytes")
    return bytes(body)


def too_much(*texts: bytes) -> str:
    """The reason why texts of JSON are not read ("": they are), in linear time. To decode them
    holds up everybody, the longer the more parts they have in all."""
    opened = sum(text.count(b"[") + text.count(b"{") for text in texts)
    quotes, commas = (sum(text.count(mark) for text in texts) for mark in (b'"', b","))
    if opened <= MAX_DEPTH and opened + quotes // 2 <= MAX_PARTS and commas <= MAX_VALUES:
        return ""
    found = [measured(text) for text in texts]
    if max(depth for depth, _, _ in found) > MAX_DEPTH:
        return f"the JSON is nested more than {MAX_DEPTH} deep"
    for most, count, what in (
        (MAX_PARTS, sum(parts for _, parts, _ in found), "objects, lists and texts"),
        (MAX_VALUES, sum(commas for _, _, commas in found), "values"),
    ):
        if count > most:
            return f"the JSON has {count} {what}; at most {most} are read: send fewer at once"
    return ""


def measured(text: bytes) -> tuple[int, int, int]:
    """The depth of JSON's nesting, the number of its objects, lists and texts, and the number of
    commas."""
    if b"\\" in text:
        text = text.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    letters = np.frombuffer(text, np.uint8)
    quotes = letters == ord('"')
    outside = np.bitwise_xor.accumulate(quotes.view(np.uint8)) == 0  # True outside of all texts
    either = letters | 0x20  # brackets and braces differ by this bit
    opened, closed = outside & (either == ord("{")), outside & (either == ord("}"))
    steps = (opened.view(np.int8) - closed.view(np.int8))[opened | closed]
    depth = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    parts = np.count_nonzero(opened) + np.count_nonzero(quotes) // 2
    return depth, int(parts), int(np.count_nonzero(outside & (letters == ord(","))))


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`value` as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def written(value: Any) -> msgspec.Raw:
    """A part of a longer answer as JSON; before it, others have their turn on the event loop."""
    await asyncio.sleep(0)
    return msgspec.Raw(msgspec.json.encode(value))


def event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event (HTML Living Standard, 9.2) whose data is `value`: JSON, or text as it
    is."""
    data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, data)


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. If the client leaves earlier, it cancels `work` and raises
    ClientDisconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Streamed(Response):
    """A response whose parts come as they are made. Where the client leaves, or takes nothing for
    about SEND_SECONDS, `parts` is closed. After about PING_SECONDS of silence `ping` is sent
    (b"": nothing). One task watches over the clock, so that a part costs neither task nor timer."""

    def __init__(
        self, parts: AsyncIterator[bytes], media_type: str = "text/event-stream",
        ping: bytes = b": \n\n", headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(None, 200, {"Cache-Control": "no-store", **(headers or {})}, media_type)
        self._parts, self._ping = parts, ping
        self._sending = False  # True while the server may wait for the reader
        self._since = time.monotonic()  # the last beginning of a send
        self.raw_headers = [h for h in self.raw_headers if h[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = (self._write(send), _gone(receive), self._watch(send))
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(done[0], Exception) and not isinstance(done[0], OSError):
            raise done[0]

    async def _write(self, send: Send) -> None:
        try:
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await self._sent(send, head)
            async for part in self._parts:
                await self._sent(send, _body_part(part))
            await self._sent(send, _body_part(b"", more=False))
        finally:
            await self._parts.aclose()  # type: ignore[attr-defined]

    async def _watch(self, send: Send) -> None:
        """Pings during silence, and returns if the reader takes nothing."""
        while True:
            await asyncio.sleep(min(PING_SECONDS, SEND_SECONDS) / 4)
            seconds = time.monotonic() - self._since
            if self._sending:
                if seconds >= SEND_SECONDS:
                    return
            elif seconds >= PING_SECONDS and self._ping:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._sent(send, _body_part(self._ping))

    async def _sent(self, send: Send, message: dict[str, Any]) -> None:
        self._since, self._sending = time.monotonic(), True
        try:
            await send(message)
        finally:
            self._sending = False


def _body_part(part: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": part, "more_body": more}
