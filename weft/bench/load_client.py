"""The HTTP/1.1 client of a load generator: one streamed completion per connection, each event with
its time of arrival. It parses nothing while others stream, so that reading takes as little as
possible of the measured machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from weft.core.errors import UsageError


@dataclass
class RequestTrace:
    """One request: its due time, the times of events with a choice (seconds, one clock), and the
    server's token counts. `error` is set if the answer was incomplete."""

    due: float
    times: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    new: int = 0
    error: str | None = None

    @property
    def first(self) -> float:
        """Seconds from when it was due to the first event."""
        return self.times[0] - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds between events."""
        return [b - a for a, b in zip(self.times, self.times[1:])]


def place_of(url: str) -> tuple[str, int]:
    """Host and port of an http address. Raises UsageError."""
    try:
        parts = urlsplit(url)
        found = parts.hostname, parts.port or 80
    except ValueError:
        raise UsageError(f"{url[:80]!r} is not an address; expected http://HOST:PORT") from None
    if parts.scheme != "http" or not found[0]:
        raise UsageError(f"{url[:80]!r} is not an address; expected http://HOST:PORT")
    return found[0], found[1]


async def complete(
    url: str, body: Mapping[str, Any], due: float, key: str = "", seconds: float = 600.0
) -> RequestTrace:
    """Posts to /v1/completions and reads the stream. Faults of the server are put into
    `RequestTrace.error`, not raised."""
    trace = RequestTrace(due)
    events: list[tuple[float, bytes]] = []
    try:
        async with asyncio.timeout(seconds):
            status = await _ask(url, body, key, events)
        if status != 200:
            said = b" ".join(line.strip() for _, line in events).decode(errors="replace")
            trace.error = f"status {status}: {said[:200]}"
        else:
            _note(trace, events)
    except (OSError, EOFError, ValueError, TimeoutError) as e:
        trace.error = f"{type(e).__name__}: {e}"
    return trace


async def _ask(
    url: str, body: Mapping[str, Any], key: str, events: list[tuple[float, bytes]]
) -> int:
    """Sends the request, gathers the lines of the answer; its status."""
    host, port = place_of(url)
    data = json.dumps(body).encode()
    head = [
        "POST /v1/completions HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json",
        f"Content-Length: {len(data)}", "Connection: close",
    ]  # fmt: skip
    if key:
        head.append(f"Authorization: Bearer {key}")
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + data)
        status = int((await reader.readuntil(b"\r\n")).split()[1])
        while (await reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        while line := await reader.readline():  # lines with the sizes of chunks are ignored
            if line.startswith(b"data: ") or status != 200:
                events.append((time.perf_counter(), line))
        return status
    finally:
        writer.close()


def _note(trace: RequestTrace, events: list[tuple[float, bytes]]) -> None:
    ended = False
    for at, line in events:
        if line.strip() == b"data: [DONE]":
            ended = True
            continue
        told = json.loads(line[len(b"data: ") :])
        if "error" in told:
            trace.error = str(told["error"])[:200]
            return
        if told.get("choices"):
            trace.times.append(at)
        if usage := told.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            trace.prompt, trace.new = usage["prompt_tokens"], usage["completion_tokens"]
            trace.cached = details.get("cached_tokens") or 0
    if not ended or not trace.times:
        trace.error = f"the stream broke off after {len(trace.times)} events"
