"""The server as an ASGI application."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import weft
from weft.core.errors import WeftError
from weft.serve import openai_answers as answers, openai_other
from weft.serve.errors import form_of
from weft.serve.guard import Guard
from weft.serve.openai_chat import chat
from weft.serve.openai_completions import completions
from weft.serve.openai_types import Chat, Completion, Detokenize, Embeddings, Tokenize
from weft.serve.openapi import openapi
from weft.serve.pages import page
from weft.serve.responses import input_tokens, responses
from weft.serve.responses_answers import CountAnswer, ResponseAnswer
from weft.serve.responses_types import Responses
from weft.serve.shelf import Shelf
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


async def health(request: Request) -> Response:
    """Whether it serves.

    200 while all that is loaded plays, 503 where a device was lost or the server is going."""
    shelf: Shelf = request.app.state.shelf
    failed = {m.name: m.player.failed for m in shelf.decoders() if m.player.failed}
    leaving = request.app.state.leaving
    status = "failed" if failed else "leaving" if leaving else "ok"
    made = {"status": status, "version": weft.__version__, "models": list(shelf.paths)}
    return json_response(
        made | ({"failed": failed} if failed else {}), 200 if status == "ok" else 503
    )


async def metrics(request: Request) -> Response:
    """Counts and times in Prometheus's text format."""
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4")


def routes() -> list[Described]:
    """All of the server's."""
    return [
        route("/v1/chat/completions", chat, Chat, answer=answers.ChatAnswer),
        route("/v1/completions", completions, Completion, answer=answers.CompletionAnswer),
        route("/v1/responses", responses, Responses, answer=ResponseAnswer),
        route("/v1/responses/input_tokens", input_tokens, Responses, answer=CountAnswer),
        route(
            "/v1/embeddings", openai_other.embeddings, Embeddings, answer=answers.EmbeddingsAnswer
        ),
        route("/v1/models", openai_other.models, answer=answers.ModelsAnswer),
        route("/v1/models/{name:path}", openai_other.model, answer=answers.ModelAnswer),
        route("/tokenize", openai_other.tokenize, Tokenize, answer=answers.TokenizeAnswer),
        route("/detokenize", openai_other.detokenize, Detokenize, answer=answers.DetokenizeAnswer),
        route("/tokenizer_info", openai_other.tokenizer_info, answer=answers.TokenizerAnswer),
        route("/health", health, answer=answers.HealthAnswer),
        route("/metrics", metrics),
        route("/openapi.json", openapi),
        route("/", page),
        route("/page/{name}", page),
    ]


@dataclass(frozen=True)
class App:
    """The application, and what says that it is about to end."""

    application: ASGIApp
    leave: Callable[[], None]


def make_app(shelf: Shelf, key: bytes | None = None, hosts: Iterable[str] | None = None) -> App:
    """The application over the models of `shelf`. key: what every request has to bring. hosts:
    names that requests may call this server by (None: any)."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await shelf.close()

    async def missing(request: Request, found: Exception) -> Response:
        path, status = request.scope["path"], getattr(found, "status_code", 404)
        error = Refused(status, f"there is no {request.method} {path!r:.100} here")
        app.state.metrics.requests.labels("none", str(status)).inc()
        return json_response(form_of(path)(error), status, getattr(found, "headers", None))

    app = Starlette(
        routes=routes(), lifespan=lifespan, exception_handlers={404: missing, 405: missing}
    )
    app.state.shelf, app.state.metrics, app.state.leaving = shelf, shelf.metrics, False

    def leave() -> None:
        app.state.leaving = True

    return App(Guard(app, key, hosts), leave)
