"""The server as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

import weft
from weft.serve import anthropic_messages, ollama_models, openai_answers as answers, openai_other
from weft.serve.metrics import TEXT
from weft.serve.openai_chat import chat
from weft.serve.openai_completions import completions
from weft.serve.openai_types import Chat, Completion, Detokenize, Embeddings, Tokenize
from weft.serve.openapi import openapi
from weft.serve.pages import page
from weft.serve.responses import input_tokens, responses
from weft.serve.responses_answers import CountAnswer, ResponseAnswer
from weft.serve.responses_types import Responses
from weft.serve.routing import App, Described, assembled, route
from weft.serve.shelf import Shelf
from weft.serve.wire import json_response


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
    return Response(request.app.state.metrics.text(), media_type=TEXT)


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
        *ollama_models.routes(),
        route("/metrics", metrics),
        route("/openapi.json", openapi),
        route("/", page),
        route("/page/{name}", page),
    ]


def make_app(shelf: Shelf, key: bytes | None = None, hosts: Iterable[str] | None = None) -> App:
    """The application over the models of `shelf`. key: what every request has to bring. hosts:
    names that requests may call this server by (None: any)."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await shelf.close()

    state = {"shelf": shelf, "metrics": shelf.metrics}
    return assembled(routes(), lifespan, state, key, hosts)
