"""Listening: sockets, signals, and what slow or silent clients get."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.core.errors import UsageError, WeftError
from weft.host.pages import trim
from weft.serve import errors
from weft.serve.tls import Certificate
from weft.serve.wire import HttpError

_log = logging.getLogger(__name__)
HEADER_BYTES = 16 << 10
HEADER_SECONDS = 20.0  # time for the head of a request
LINGER_SECONDS = 2.0  # time to read what follows a refused head
KEEP_ALIVE = 75.0  # seconds of an idle connection
DRAIN_SECONDS = 30.0  # time for answers to end when the server shall stop
REFRESH_TICKS = 20  # tenths of a second between looks at a certificate's files
TRIM_TICKS = 600  # ... between two times that freed memory goes back to the system
LAST_SECONDS = 5.0  # time to report the end to what still runs then


class Heads(h11.Connection):
    """HTTP/1.1 with limits on heads. It rejects a head of more than HEADER_BYTES, even if it came
    as a whole. It also rejects a head that leaves the end of its body open, which a proxy may read
    otherwise (RFC 9112, 6.1). `why` describes the error: a status and a message."""

    why = (400, "this is not a request of HTTP/1.1")
    _chunked = False  # True while a response's body is sent in chunks

    def send(self, event: Any) -> Any:
        """Returns the bytes of an event. A stream has a chunk for each token, so chunks are
        written here (RFC 9112, 7.1): they leave h11's state as it is."""
        if self._chunked and isinstance(event, h11.Data) and self.our_state is h11.SEND_BODY:
            data = event.data
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        made = super().send(event)
        if not isinstance(event, h11.Data):
            began = isinstance(event, h11.Response) and made is not None
            self._chunked = began and b"\r\ntransfer-encoding: chunked\r\n" in made.lower()
        return made

    def next_event(self) -> Any:
        begins = self.their_state is h11.IDLE
        before = len(self.trailing_data[0]) if begins else 0
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as e:
            if e.error_status_hint == 431:
                self.why = _TOO_LONG
            elif e.error_status_hint != 400:
                self.why = (e.error_status_hint, str(e))
            raise
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if before - len(self.trailing_data[0]) > HEADER_BYTES:
                self.why = _TOO_LONG
            elif b"transfer-encoding" in names and b"content-length" in names:
                self.why = (400, "give Content-Length or Transfer-Encoding, not both")
            elif b"transfer-encoding" in names and event.http_version < b"1.1":
                self.why = (400, "HTTP/1.0 has no Transfer-Encoding")
            else:
                return event
            raise h11.RemoteProtocolError(self.why[1], self.why[0])
        trailers = event.headers if isinstance(event, h11.EndOfMessage) else ()
        if sum(len(name) + len(value) + 4 for name, value in trailers) > HEADER_BYTES:
            self.why = _TOO_LONG
            raise h11.RemoteProtocolError(self.why[1], self.why[0])
        return event


_TOO_LONG = (431, f"the head of a request holds at most {HEADER_BYTES} bytes")


class Patient(H11Protocol):
    """HTTP/1.1 that closes connections whose request does not come: uvicorn itself waits without
    limit for the rest of a head."""

    _timer: asyncio.TimerHandle | None = None
    _over = False  # True once further input is discarded

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn = Heads(h11.SERVER, HEADER_BYTES)

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: uvicorn would name packages that weft does not use."""

    def send_400_response(self, msg: str) -> None:
        """Rejects input that is not a request, in a form that clients read, and closes."""
        assert isinstance(self.conn, Heads)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, said = self.conn.why
            data = msgspec.json.encode(errors.openai(HttpError(status, said)))
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            self.transport.write(head.encode() + data)
        if self.cycle is not None:  # The error was in the request's body.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        # A socket closed before all input was read may take the answer back. So further input is
        # read for a moment and discarded.
        self._over = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._timer is None:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self._late)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and self.transport is not None:
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises UsageError where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on connections of sockets that name TCP, and on no others: without it
    # every answer on a connection that was used before waits 40 ms for an acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except (OSError, OverflowError) as e:
        made.close()
        reason = getattr(e, "strerror", None) or e
        raise UsageError(f"cannot listen on {host} port {port}: {reason}; choose another") from None
    made.setblocking(False)
    return made


class Server(uvicorn.Server):
    """Serves until a signal ends it. Then it takes no new work (503), and running answers get
    DRAIN_SECONDS to end; the remaining ones end with an error. `ready` is called once requests are
    answered, `leave` when a signal has come. With a certificate it speaks HTTPS. SIGHUP calls
    `reload`, whose error leaves everything as it was."""

    def __init__(
        self, app: ASGIApp, ready: Callable[[], None], leave: Callable[[], None],
        certificate: Certificate | None = None, reload: Callable[[], Awaitable[str]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            uvicorn.Config(
                app, http=Patient, ws="none", log_config=None, access_log=False,
                server_header=False, h11_max_incomplete_event_size=HEADER_BYTES,
                timeout_keep_alive=int(KEEP_ALIVE), backlog=2048, lifespan="on",
                timeout_graceful_shutdown=int(LAST_SECONDS), proxy_headers=False,
            )
        )  # fmt: skip
        self._ready, self._leave, self._certificate = ready, leave, certificate
        self._reload, self._reloading = reload, asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificate is not None:
            self.config.ssl = self._certificate.context
        await super().startup(sockets)
        if self.started:
            self._heed_reloads()
            self._ready()

    def _heed_reloads(self) -> None:
        if self._reload is None or not hasattr(signal, "SIGHUP"):
            return

        terminal = sys.stdin is not None and sys.stdin.isatty()

        def begin() -> None:
            if terminal and not sys.stdin.isatty():  # the terminal was closed: nobody asks
                self.handle_exit(signal.SIGHUP, None)
                return
            self._tasks.add(task := asyncio.ensure_future(self.reload()))
            task.add_done_callback(self._tasks.discard)

        with contextlib.suppress(ValueError, RuntimeError):  # signals come to the main thread alone
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)

    async def reload(self) -> None:
        """Takes the configuration again. If it is wrong, the log says so and the old one stays in
        force."""
        assert self._reload is not None
        async with self._reloading:
            try:
                _log.info("reloaded: %s", await self._reload())
            except (WeftError, OSError) as e:
                _log.warning("the configuration stays as it was: %s", e)
            except Exception:
                _log.exception("the configuration stays as it was")

    async def on_tick(self, counter: int) -> bool:
        if self._certificate is not None and counter % REFRESH_TICKS == 0:
            self._certificate.refresh()
        if counter % TRIM_TICKS == TRIM_TICKS - 1:  # what large requests leave in the heap
            await asyncio.get_running_loop().run_in_executor(None, trim)
        return await super().on_tick(counter)

    async def main_loop(self) -> None:
        await super().main_loop()
        end = time.monotonic() + DRAIN_SECONDS
        while self.server_state.tasks and not self.force_exit:
            if time.monotonic() > end:
                await self.lifespan.shutdown()
                break
            await asyncio.sleep(0.02)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._leave()
        super().handle_exit(sig, frame)
        # The server has ended as the signal asked, so the signal is not repeated.
        self._captured_signals.clear()
