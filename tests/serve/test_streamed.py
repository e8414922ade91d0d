"""A streamed response by itself: what it sends, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import h11
import pytest

from weft.serve import wire
from weft.serve.running import HEADER_BYTES, Heads


class Connection:
    """What an ASGI server gives a response: a reader that takes everything or, from its `stalls`-th
    message on, nothing; the client leaves once it has so many parts."""

    def __init__(self, stalls: int | None = None, leaves: int | None = None) -> None:
        self.sent: list[bytes] = []
        self.leave = asyncio.Event()
        self._stalls, self._leaves, self._messages = stalls, leaves, 0

    async def receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self._messages += 1
        if self._messages == self._stalls:
            await asyncio.Event().wait()
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])
        if len(self.sent) == self._leaves:
            self.leave.set()


Until = Callable[[], bool]
NOW: Until = lambda: True  # noqa: E731
NEVER: Until = lambda: False  # noqa: E731


class Parts:
    """Parts, each of which comes once something holds; `closed` once it has ended."""

    def __init__(self, waits: list[Until]) -> None:
        self.waits, self.closed = waits, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for number, holds in enumerate(self.waits):
                while not holds():
                    await asyncio.sleep(0.001)
                yield b"%d" % number
        finally:
            self.closed = True


def played(parts: Parts, connection: Connection) -> None:
    async def play() -> None:
        response = wire.Streamed(aiter(parts), ping=b"!")
        async with asyncio.timeout(20):
            await response({"type": "http"}, connection.receive, connection.send)

    asyncio.run(play())
    assert parts.closed


def test_parts_in_their_order() -> None:
    turns = iter([False, False, True])
    played(Parts([NOW, NOW, lambda: next(turns), NOW]), made := Connection())
    assert made.sent == [b"0", b"1", b"2", b"3", b""]


def test_silence_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PING_SECONDS", 0.02)
    made = Connection()
    played(Parts([NOW, lambda: len(made.sent) > 3]), made)
    assert made.sent[0] == b"0" and made.sent[-2:] == [b"1", b""]
    assert len(made.sent) > 5 and set(made.sent[1:-2]) == {b"!"}


def test_a_reader_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SEND_SECONDS", 0.05)
    played(Parts([NOW] * 100), made := Connection(stalls=4))
    assert made.sent == [b"0", b"1"]


def test_a_reader_that_takes_no_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(wire, "PING_SECONDS", 0.01)
    played(Parts([NOW, NEVER]), made := Connection(stalls=3))
    assert made.sent == [b"0"]


def test_a_client_that_leaves() -> None:
    played(Parts([NOW, NEVER]), made := Connection(leaves=1))
    assert made.sent == [b"0"]


def test_parts_that_fail() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"0"
        raise ValueError("broken")

    async def play() -> None:
        made = Connection()
        with pytest.raises(ValueError, match="broken"):
            await wire.Streamed(broken())({"type": "http"}, made.receive, made.send)
        assert made.sent == [b"0"]

    asyncio.run(play())


@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("length", [[], [("content-length", "5")]])
def test_the_bytes_of_a_response_are_those_of_h11(
    method: str, version: bytes, length: list[tuple[str, str]]
) -> None:
    def written(conn: h11.Connection) -> list[bytes | None]:
        conn.receive_data(b"%b / HTTP/%b\r\nHost: x\r\n\r\n" % (method.encode(), version))
        while not isinstance(conn.next_event(), h11.EndOfMessage):
            pass
        parts = [b""] if method == "HEAD" else [b"ab", b"", b"\0\r\n"]
        response = h11.Response(status_code=200, headers=[("x-said", "chunked"), *length])
        events = [response, *(h11.Data(data=part) for part in parts), h11.EndOfMessage()]
        made = [conn.send(one) for one in events]
        with pytest.raises(h11.LocalProtocolError):
            conn.send(h11.Data(data=b"late"))
        return made

    assert written(Heads(h11.SERVER, HEADER_BYTES)) == written(h11.Connection(h11.SERVER))
