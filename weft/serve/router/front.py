"""The router as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

from starlette.applications import Starlette

from weft.serve.router import merged
from weft.serve.router.fleet import Fleet
from weft.serve.router.relay import relay
from weft.serve.routing import App, assembled, route


def make_router(fleet: Fleet, key: bytes | None = None, hosts: Iterable[str] | None = None) -> App:
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
    state = {"fleet": fleet, "metrics": merged.Metrics(fleet)}
    return assembled(routes, lifespan, state, key, hosts)
