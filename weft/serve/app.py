"""The server as an ASGI application."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

import weft
from weft.serve import anthropic_messages, openai_answers as answers, openai_other
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
from weft.serve.routing import Described, route
from weft.serve.shelf import Shelf
from weft.serve.wire import Refused, json_response

_log = logging.getLogger(__name__)


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
        *anthropic_messages.routes(),
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
