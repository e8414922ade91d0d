"""One request to a replica, and its answer, on a connection of its own.

A closed connection tells the replica that the client has gone; a connection that is kept for the
next request could not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from weft.core.errors import UsageError

CONNECT_SECONDS = 5.0
SEND_SECONDS = 60.0  # time for a replica to take the request
_CHUNK = 1 << 16  # bytes read at once
Headers = Iterable[tuple[bytes, bytes]]


class Broken(ConnectionError):
    """The replica is not there, or (`sent`: it has had the request) broke off before it had
    answered."""

    def __init__(self, message: str, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class ReplicaAddress:
    """The address of a replica."""

    host: str
    port: int

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> ReplicaAddress:
        """The address in http://HOST:PORT. Raises UsageError."""
        try:
            found = urlsplit(url)
            host, port = found.hostname, found.port
        except ValueError:
            host = port = None
        if not host or not port or url.rstrip("/") != f"http://{found.netloc}" or "@" in url:
            raise UsageError(
                f"{url[:80]!r} is not a replica's address; expected http://HOST:PORT (between "
                "machines, a tunnel brings encryption)"
            )
        return cls(host, port)


class Exchange:
    """Begin with `ask`, then `read` until it gives b""; `close` in any case."""

    status: int
    headers: list[tuple[bytes, bytes]]

    def __init__(self, address: ReplicaAddress) -> None:
        self._address = address
        self._http = h11.Connection(h11.CLIENT)
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, target: bytes, headers: Headers, body: bytes = b"") -> None:
        """Sends the request and waits for the head of the answer. Raises Broken."""
        whole = [(b"host", self._address.netloc.encode()), *headers, (b"connection", b"close")]
        if body or method == "POST":
            whole.append((b"content-length", str(len(body)).encode()))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                where = self._address.host, self._address.port
                self._reader, self._writer = await asyncio.open_connection(*where, limit=_CHUNK)
            sent = self._http.send(h11.Request(method=method, target=target, headers=whole)) or b""
            sent += self._http.send(h11.Data(data=body)) or b""
            sent += self._http.send(h11.EndOfMessage()) or b""
            self._writer.write(sent)
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        except (OSError, UnicodeError, h11.LocalProtocolError) as e:
            raise Broken(f"{self._address.netloc}: {str(e) or type(e).__name__}") from None
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                self.status, self.headers = event.status_code, list(event.headers)
                return

    async def read(self) -> bytes:
        """The next bytes of the body, as they come; b"" at its end. Raises Broken."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return b""

    def close(self) -> None:
        """Lets go of the connection, at once."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _event(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_CHUNK))
        except (OSError, h11.RemoteProtocolError) as e:
            raise Broken(f"{self._address.netloc} broke off: {e}", sent=True) from None
        if isinstance(event, h11.ConnectionClosed | type):
            raise Broken(f"{self._address.netloc} broke off", sent=True)
        return event
