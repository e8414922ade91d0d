"""A replica's answer on its way to the client."""

from __future__ import annotations

import logging

from starlette.responses import Response

from weft.serve import errors
from weft.serve.guard import SAFE
from weft.serve.router.exchange import Broken, Exchange
from weft.serve.router.replica import Replica
from weft.serve.wire import HttpError, event, json_response

WHOLE = 8 << 20  # bytes of an answer that are awaited before any is sent

# the ends of a stream's events
_ENDS = {b"text/event-stream": b"\n\n", b"application/x-ndjson": b"\n"}
HOP = {
    b"host", b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect",
}  # fmt: skip
"""Headers of a connection, not of what it carries."""
# headers that this server sets itself
_BACK = HOP | {b"date", b"server"} | {name for name, _ in SAFE}

_log = logging.getLogger(__name__)


class ReplicaAnswer:
    """A replica's answer to one exchange. `end` is the end of a stream's events; None: no stream
    of events."""

    def __init__(self, replica: Replica, exchange: Exchange) -> None:
        self._replica, self._exchange = replica, exchange
        self.status, self._headers = exchange.status, exchange.headers
        kind = dict(self._headers).get(b"content-type", b"").partition(b";")[0].strip()
        self.end = _ENDS.get(kind) if self.status == 200 else None
        self._held = b""  # the incomplete end of the last event
        self._first = b""
        self._ended = False

    async def begin(self) -> None:
        """Waits for what is sent first: a stream's first event, else the whole answer, unless it
        is very long. Raises Broken: nothing was sent yet, so another replica can be asked."""
        if self.end is not None:
            self._first = await self._part()
            return
        whole = bytearray()
        while len(whole) < WHOLE and (part := await self._part()):
            whole += part
        self._first = bytes(whole)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Those that go on to the client."""
        return [(name, value) for name, value in self._headers if name not in _BACK]

    def whole(self) -> Response | None:
        """The response to the client, if all of it is here."""
        if not self._ended:
            return None
        self.close()
        made = Response(self._first, self.status)
        size = (b"content-length", str(len(self._first)).encode())
        made.raw_headers = [*self.headers, size]
        return made

    async def next(self) -> bytes:
        """The next part, for streams whole events; b"" at the end. Raises Broken."""
        part, self._first = self._first or await self._part(), b""
        return part

    def lost(self, error: Broken) -> None:
        """It broke off: the replica is looked at."""
        self._replica.doubt()
        _log.warning("an answer broke off: %s", error)
        self.close()

    def close(self) -> None:
        """Nobody waits any more: the replica ends what it does."""
        self._replica.done(self._exchange)

    async def _part(self) -> bytes:
        while not self._ended:
            data = await self._exchange.read()
            self._ended = not data
            if self.end is None or not data:
                data, self._held = self._held + data, b""
                return data
            whole, found, self._held = (self._held + data).rpartition(self.end)
            if found:
                return whole + found
        return b""


def broken_off(path: str, end: bytes) -> bytes:
    """The event that marks a stream as incomplete."""
    error = HttpError(503, "the replica broke off before this answer ended; ask again")
    form = errors.form_of(path)
    if end == b"\n":
        return bytes(json_response(form(error)).body) + end
    return event(form(error), "error" if form is errors.anthropic else None)
