"""Routes: what counts and logs requests, and gives refusals the form of their protocol."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from weft.core.errors import WeftError
from weft.serve.errors import form_of
from weft.serve.wire import Refused, json_response, refusal

_log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


class Described(Route):
    """A route with what the OpenAPI file says of it: the first line of its handler's text, the
    type of its body and of its answer (None: it is no JSON)."""

    summary: str
    body: type | None
    answer: type | None


def route(
    path: str, handler: Handler, body: type | None = None, method: str | None = None,
    answer: type | None = None,
) -> Described:  # fmt: skip
    """A route (POST where it has a body) whose refusals have its protocol's form. No reply holds
    the text of an exception that is not meant for it."""
    form = form_of(path)

    async def answered(request: Request) -> Response:
        started, status = time.monotonic(), 500
        try:
            response = await handler(request)
            status = response.status_code
        except ClientDisconnect:
            status, response = 499, Response(status_code=499)
        except (Refused, WeftError) as e:
            error = e if isinstance(e, Refused) else refusal(e)
            status = error.status
            if status >= 500:
                _log.warning("%s: %d: %s", path, status, e.__cause__ or e)
            response = json_response(form(error), status, error.headers)
        except Exception:
            _log.exception("%s failed", path)
            error = Refused(500, "the server failed on this request; its log says how")
            response = json_response(form(error), 500)
        finally:
            request.app.state.metrics.requests.labels(path, str(status)).inc()
        _log.debug("%s %d %.1f ms", path, status, (time.monotonic() - started) * 1e3)
        return response

    made = Described(path, answered, methods=[method or ("GET" if body is None else "POST")])
    made.summary = (handler.__doc__ or path).split("\n", 1)[0].rstrip(".")
    made.body, made.answer = body, answer
    return made
