"""What becomes of an answer on its way, whoever gives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from serve_kit import Listening, Routing, routing, stream, until

from weft.serve import wire
from weft.serve.replies import ReplyWriter, StreamParts

TEXT = "/v1/completions"


class Fake(BaseHTTPRequestHandler):
    """A replica that is well, and answers requests to write as a test says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send(b'{"status": "ok", "data": [{"id": "box"}]}')

    def do_POST(self) -> None:
        with contextlib.suppress(OSError):
            self.server.answer(self)  # type: ignore[attr-defined]
        self.close_connection = True

    def send(self, body: bytes, more: int = 0, kind: str = "application/json") -> None:
        """An answer of which `more` bytes do not come."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + more))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def fakes(answer: Callable[[Fake], None], count: int = 1) -> Iterator[Routing]:
    """A router in front of replicas that answer so."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Fake)) for _ in range(count)
        ]
        for server in servers:
            server.answer = answer  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        made = stack.enter_context(
            routing(*(Listening("127.0.0.1", s.server_port) for s in servers))
        )
        assert len(made.fleet.ready) == count
        yield made


def test_a_request_that_ends_replicas_does_not_get_to_all() -> None:
    asked: list[Fake] = []
    with fakes(asked.append, 4) as made:
        status, body, _ = made.ask("POST", TEXT, {"prompt": "x"})
    assert status == 503 and "2 replicas broke off" in body["error"]["message"]
    assert len(asked) == 2


def test_a_long_answer_is_handed_on_as_it_comes() -> None:
    whole = json.dumps({"text": "x" * (20 << 20)}).encode()
    with fakes(lambda fake: fake.send(whole)) as made:
        assert made.ask("POST", TEXT, {})[1] == json.loads(whole)
    with fakes(lambda fake: fake.send(whole, more=1)) as made, pytest.raises(HTTPException):
        made.ask("POST", TEXT, {})  # cut, as the replica cut it


def test_who_reads_nothing_holds_the_replica_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing piles up in between; and after a time the replica is told."""
    written: list[int] = []
    ended = threading.Event()

    def endless(fake: Fake) -> None:
        try:
            fake.send(b"data: {}\n\n", 1 << 40, "text/event-stream")
            while True:
                fake.wfile.write(b"data: " + b"x" * 65526 + b"\n\n")
                written.append(1 << 16)
        finally:
            ended.set()

    monkeypatch.setattr(wire, "SEND_SECONDS", 0.7)
    with fakes(endless) as made:
        with stream(made, TEXT, {}) as response:
            response.readline()
            assert ended.wait(240)
        assert sum(written) < 32 << 20  # what the kernel's buffers of three sockets take
        until(lambda: not made.fleet.replicas[0].outstanding)


class Held(ReplyWriter):
    """An answer of which a part is made, and then no more."""

    def __init__(self) -> None:
        self.choices = (self,)  # type: ignore[assignment]
        self.ended = 0

    async def parts(self) -> AsyncIterator[bytes]:
        yield b"part"
        await asyncio.Event().wait()

    def close(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("sends", [0, 1, 2])
def test_an_answer_ends_wherever_its_reader_stops(sends: int) -> None:
    """At the head of the response, too, before anything of the answer was taken."""
    writer, held, sent = Held(), contextlib.AsyncExitStack(), []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if len(sent) == sends:
            raise TimeoutError
        sent.append(message)

    async def play() -> None:
        held.callback(writer.close)
        response = wire.Streamed(StreamParts(writer, held), ping=b": ")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "PING_SECONDS", 0.01)
            await response({"type": "http"}, receive, send)

    asyncio.run(play())
    assert len(sent) == sends and writer.ended == 2  # the choice, and what was held with it
