"""A request on its way to a replica, and the answer on its way back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from weft.serve.forms import BESIDE, MAX_FILE, UPLOAD_SECONDS, is_form
from weft.serve.guard import key_of
from weft.serve.keys import ApiKeys
from weft.serve.router import merged
from weft.serve.router.answer import HOP, ReplicaAnswer
from weft.serve.router.asked import RoutedRequest, asked_of
from weft.serve.router.exchange import Broken, Headers
from weft.serve.router.fleet import Fleet
from weft.serve.router.lasting import LastingAnswer
from weft.serve.router.replica import Replica
from weft.serve.routing import App, assembled, route
from weft.serve.wire import HttpError, Streamed, body_of, while_there

BREAKS = 2  # replicas that may break off at one request: the request may be the reason
UPLOADS = 4  # forms, with files of up to MAX_FILE bytes, that are in memory at once
RETRY_SECONDS = 2  # seconds after which a client may try again

_BUSY = (429, 503)  # statuses for which another replica may have room

_log = logging.getLogger(__name__)


# A replica alone would then have the adapter, and answers would depend on the replica.
ADAPTING = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


async def relay(request: Request) -> Response:
    """Hands a request to a replica, and its answer back.

    If a replica breaks off, or is busy, before anything was sent to the client, the router asks
    another. If it breaks off within a stream, another goes on.
    """
    path = request.scope["path"]
    if path in ADAPTING:
        raise HttpError(404, "the router loads no adapters; ask each replica itself")
    if not is_form(request):
        return await _relayed(request, path, await body_of(request))
    async with request.app.state.uploads:
        body = await body_of(request, MAX_FILE + BESIDE, UPLOAD_SECONDS)
        return await _relayed(request, path, body)


async def _relayed(request: Request, path: str, body: bytes) -> Response:
    asked = asked_of(path, body, key_of(request.scope))
    attempts = Attempts(request, asked)
    answer = await while_there(request, attempts.next())
    if answer is None:
        raise HttpError(503, "no replica is there to answer; try again", retry=RETRY_SECONDS)
    if (whole := answer.whole()) is not None:
        return whole
    others = None if attempts.fleet.mixed else attempts
    made = Streamed(LastingAnswer(answer, path, others), ping=b"")
    made.status_code, made.raw_headers = answer.status, answer.headers
    return made


class Attempts:
    """The replicas that are asked for one request."""

    def __init__(self, request: Request, asked: RoutedRequest) -> None:
        self.fleet: Fleet = request.app.state.fleet
        self._request, self._asked = request, asked
        self._tried: set[Replica] = set()
        self._broke = 0

    async def next(self) -> ReplicaAnswer | None:
        """An answer that has begun, of a replica that was not asked before; of a busy one if all
        are. None if no replica is there. Raises HttpError where the request itself seems to end
        replicas."""
        busy: ReplicaAnswer | None = None
        while (replica := self.fleet.choose(self._asked, self._tried)) is not None:
            if self._tried:
                self._request.app.state.metrics.retries.inc()
            self._tried.add(replica)
            try:
                answer = await self._answer(replica)
            except Broken as e:
                replica.doubt()
                _log.warning("an answer is lost before it began: %s", e)
                self._broke += e.sent
                if self._broke >= BREAKS:
                    raise HttpError(503, f"{self._broke} replicas broke off at this request") from e
                continue
            if answer.status not in _BUSY:
                if busy is not None:
                    busy.close()
                return answer
            if busy is not None:
                busy.close()
            busy = answer
        return busy

    async def again(self) -> ReplicaAnswer | None:
        """An answer for a stream that broke off; None if no replica is there now."""
        try:
            answer = await self.next()
        except HttpError:
            return None
        if answer is None:
            self._tried.clear()  # one that comes back may go on itself
        return answer

    def resumed(self) -> None:
        """Counts a stream that goes on."""
        self._request.app.state.metrics.resumed.inc()

    def lost(self) -> bool:
        """Counts a replica that broke off during the answer. Returns True if another may be
        asked."""
        self._broke += 1
        return self._broke < BREAKS

    async def _answer(self, replica: Replica) -> ReplicaAnswer:
        scope = self._request.scope
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        async with replica.asking() as exchange:
            headers = onwards(scope["headers"], replica.key)
            await exchange.ask(self._request.method, target, headers, self._asked.body)
            made = ReplicaAnswer(replica, exchange)
            await made.begin()
            return made


def onwards(headers: Headers, key: Headers) -> list[tuple[bytes, bytes]]:
    """A request's headers for a replica: without those of the connection and of the browser's page,
    with the replica's own key where it has one."""
    drop = HOP | {b"origin"} | ({b"authorization", b"x-api-key"} if key else set())
    return [*((name, value) for name, value in headers if name not in drop), *key]


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
    state = {"fleet": fleet, "metrics": merged.RouterMetrics(fleet),
             "uploads": asyncio.Semaphore(UPLOADS)}  # fmt: skip
    return assembled(routes, lifespan, state, keys, hosts, origins)
