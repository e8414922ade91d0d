"""Routes: what counts and logs requests, and gives refusals the form of their protocol; and the
application that they make."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from weft.core.errors import WeftError
from weft.serve.errors import form_of
from weft.serve.guard import Guard
from weft.serve.keys import ApiKeys, present
from weft.serve.wire import FULL, HttpError, json_response, refusal, unkept

_log = logging.getLogger(__name__)
JSON, FORM = "application/json", "multipart/form-data"  # media types of bodies
Handler = Callable[[Request], Awaitable[Response]]


class Described(Route):
    """A route with its description in the OpenAPI file: the first line of its handler's text, the
    types of its body and answer (None: not JSON), and the body's media type."""

    summary: str
    media: str
    body: type | None
    answer: type | None


def route(
    path: str, handler: Handler, body: type | None = None, method: str | None = None,
    answer: type | None = None, media: str = JSON,
) -> Described:  # fmt: skip
    """A route (POST where it has a body) whose refusals have its protocol's form. No reply holds
    the text of an exception that is not meant for it."""

    async def answered(request: Request) -> Response:
        started, status, form = time.monotonic(), 500, form_of(request.scope["path"])
        present.set(request.scope)
        try:
            if request.method == "POST" and request.app.state.leaving:
                raise HttpError(503, "the server is going; ask another", retry=1)
            response = await handler(request)
            status = response.status_code
        except asyncio.CancelledError:  # the server was told to stop at once
            if not request.app.state.leaving:
                raise
            error = HttpError(503, "the server had to end this answer; ask again", retry=5)
            status, response = 503, json_response(form(error), 503, error.headers)
        except ClientDisconnect:
            status, response = 499, Response(status_code=499)
        except (HttpError, WeftError) as e:
            error = e if isinstance(e, HttpError) else refusal(e)
            status = error.status
            if status >= 500:
                _log.warning("%s: %d: %s", path, status, e.__cause__ or e.__context__ or e)
            response = json_response(form(error), status, error.headers)
        except Exception as e:
            if isinstance(e, OSError) and e.errno in FULL:
                _log.warning("%s: 507: %s", path, e)
                error = unkept(e)
            else:
                _log.exception("%s failed", path)
                error = HttpError(500, "the server failed on this request; its log says how")
            status = error.status
            response = json_response(form(error), status)
        finally:
            request.app.state.metrics.requests.labels(path, str(status)).inc()
        _log.debug("%s %d %.1f ms", path, status, (time.monotonic() - started) * 1e3)
        return response

    made = Described(path, answered, methods=[method or ("GET" if body is None else "POST")])
    made.summary = (handler.__doc__ or path).split("\n", 1)[0].rstrip(".")
    made.body, made.answer, made.media = body, answer, media
    return made


@dataclass(frozen=True)
class App:
    """The application, what says that it is about to end, and whether it wants a key."""

    application: Guard
    leave: Callable[[], None]
    keyed: bool


def assembled(
    routes: Sequence[Route], lifespan: Callable[[Starlette], Any], state: Mapping[str, Any],
    keys: ApiKeys | None, hosts: Iterable[str] | None, origins: Iterable[str] = (),
    around: Callable[[ASGIApp], ASGIApp] | None = None,
) -> App:  # fmt: skip
    """An application behind a guard. state: what its routes find in `request.app.state`, where
    `leaving` says whether it is about to end. around: makes what lies between the guard and it."""

    async def missing(request: Request, found: Exception) -> Response:
        path, status = request.scope["path"], getattr(found, "status_code", 404)
        error = HttpError(status, f"there is no {request.method} {path!r:.100} here")
        app.state.metrics.requests.labels("none", str(status)).inc()
        headers = getattr(found, "headers", None)
        if status == 405:  # Starlette names the methods of the first route of that path alone
            near = [r for r in routes if r.matches(request.scope)[0] is not Match.NONE]
            headers = {"Allow": ", ".join(sorted({m for r in near for m in r.methods or ()}))}
        return json_response(form_of(path)(error), status, headers)

    app = Starlette(
        routes=list(routes), lifespan=lifespan, exception_handlers={404: missing, 405: missing}
    )
    for name, value in {**state, "leaving": False}.items():
        setattr(app.state, name, value)

    def leave() -> None:
        app.state.leaving = True

    inner = app if around is None else around(app)
    return App(Guard(inner, keys, hosts, origins), leave, keys is not None)
