"""A request on its way to a replica, and the answer on its way back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from weft.serve import errors
from weft.serve.guard import SAFE, key_of
from weft.serve.keys import ApiKeys
from weft.serve.router import merged
from weft.serve.router.asked import RoutedRequest, asked_of
from weft.serve.router.exchange import Broken, Exchange, Headers
from weft.serve.router.fleet import Fleet
from weft.serve.router.replica import Replica
from weft.serve.routing import App, assembled, route
from weft.serve.wire import HttpError, Streamed, body_of, event, json_response, while_there

WHOLE = 8 << 20  # bytes of an answer that are awaited before any is sent
BREAKS = 2  # replicas that may break off at one request: the request may be the reason
RETRY_SECONDS = 2  # seconds after which a client may try again

# the ends of a stream's events
_ENDS = {b"text/event-stream": b"\n\n", b"application/x-ndjson": b"\n"}
_HOP = {
    b"host", b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect",
}  # fmt: skip
# headers that this server sets itself
_BACK = _HOP | {b"date", b"server"} | {name for name, _ in SAFE}
_BUSY = (429, 503)  # statuses for which another replica may have room

_log = logging.getLogger(__name__)


class ReplicaAnswer:
    """A replica's answer to one exchange."""

    def __init__(self, replica: Replica, exchange: Exchange, path: str) -> None:
        self._replica, self._exchange, self._path = replica, exchange, path
        self.status, self.headers = exchange.status, exchange.headers
        kind = dict(self.headers).get(b"content-type", b"").partition(b";")[0].strip()
        self._end = _ENDS.get(kind) if self.status == 200 else None
        self._held = b""  # the incomplete end of the last event
        self._first = b""
        self._ended = False

    async def begin(self) -> None:
        """Waits for what is sent first: a stream's first event, else the whole answer, unless it
        is very long. Raises Broken: nothing was sent yet, so another replica can be asked."""
        if self._end is not None:
            self._first = await self._part()
            return
        whole = bytearray()
        while len(whole) < WHOLE and (part := await self._part()):
            whole += part
        self._first = bytes(whole)

    def response(self) -> Response:
        """The response to the client."""
        headers = [(name, value) for name, value in self.headers if name not in _BACK]
        if self._ended:
            self.close()
            made: Response = Response(self._first, self.status)
            headers.append((b"content-length", str(len(self._first)).encode()))
        else:
            made = Streamed(self, ping=b"")
            made.status_code = self.status
        made.raw_headers = headers
        return made

    def __aiter__(self) -> ReplicaAnswer:
        return self

    async def __anext__(self) -> bytes:
        """The stream's next part. Where the replica breaks off, the last says so in the protocol's
        own words; what has none is cut (Broken), which a client sees too."""
        try:
            part, self._first = self._first or await self._part(), b""
        except Broken as e:
            self._replica.doubt()
            _log.warning("an answer broke off: %s", e)
            if self._end is None:
                raise
            self._ended = True
            return broken_off(self._path, self._end)
        if not part:
            raise StopAsyncIteration
        return part

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Nobody waits any more: the replica ends what it does."""
        self._replica.done(self._exchange)

    async def _part(self) -> bytes:
        """The bytes that came, for streams only whole events; b"" at the end. Raises Broken."""
        while not self._ended:
            data = await self._exchange.read()
            self._ended = not data
            if self._end is None or not data:
                data, self._held = self._held + data, b""
                return data
            whole, found, self._held = (self._held + data).rpartition(self._end)
            if found:
                return whole + found
        return b""


# A replica alone would then have the adapter, and answers would depend on the replica.
ADAPTING = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


async def relay(request: Request) -> Response:
    """Hands a request to a replica, and its answer back.

    If a replica breaks off, or is busy, before anything was sent to the client, the router asks
    another.
    """
    fleet: Fleet = request.app.state.fleet
    path = request.scope["path"]
    if path in ADAPTING:
        raise HttpError(404, "the router loads no adapters; ask each replica itself")
    asked = asked_of(path, await body_of(request), key_of(request.scope["headers"]))
    tried: set[Replica] = set()
    broke = 0
    busy: Response | None = None
    while (replica := fleet.choose(asked, tried)) is not None:
        if tried:
            request.app.state.metrics.retries.inc()
        tried.add(replica)
        try:
            answer = await while_there(request, _answer(replica, request, asked))
        except Broken as e:
            replica.doubt()
            _log.warning("an answer is lost before it began: %s", e)
            broke += e.sent
            if broke == BREAKS:
                raise HttpError(503, f"{broke} replicas broke off at this request") from None
            continue
        made = answer.response()
        if answer.status not in _BUSY:
            return made
        answer.close()
        busy = made
    if busy is not None:
        return busy
    raise HttpError(503, "no replica is there to answer; try again", retry=RETRY_SECONDS)


async def _answer(replica: Replica, request: Request, asked: RoutedRequest) -> ReplicaAnswer:
    scope = request.scope
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    async with replica.asking() as exchange:
        headers = onwards(scope["headers"], replica.key)
        await exchange.ask(request.method, target, headers, asked.body)
        made = ReplicaAnswer(replica, exchange, scope["path"])
        await made.begin()
        return made


def onwards(headers: Headers, key: Headers) -> list[tuple[bytes, bytes]]:
    """A request's headers for a replica: without those of the connection and of the browser's page,
    with the replica's own key where it has one."""
    drop = _HOP | {b"origin"} | ({b"authorization", b"x-api-key"} if key else set())
    return [*((name, value) for name, value in headers if name not in drop), *key]


def broken_off(path: str, end: bytes) -> bytes:
    """The event that marks a stream as incomplete."""
    error = HttpError(503, "the replica broke off in the midst of this answer; ask again")
    form = errors.form_of(path)
    if end == b"\n":
        return bytes(json_response(form(error)).body) + end
    return event(form(error), "error" if form is errors.anthropic else None)


# -- the application -------------------------------------------------------------------------------


def make_router(
    fleet: Fleet, keys: ApiKeys | None = None, hosts: Iterable[str] | None = None,
    origins: Iterable[str] = (),
) -> App:  # fmt: skip
    """The application in front of a fleet, behind the same guard as a server (app.make_app)."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with fleet.watched():
            yield

    routes = [
        route("/health", merged.health),
        route("/metrics", merged.metrics),
        route("/v1/models", merged.models),
        route("/{path:path}", relay, method="GET"),
        route("/{path:path}", relay, method="POST"),
    ]
    state = {"fleet": fleet, "metrics": merged.RouterMetrics(fleet)}
    return assembled(routes, lifespan, state, keys, hosts, origins)
