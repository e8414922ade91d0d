"""The server as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response

import weft
from weft.serve.adapting import routes as adapter_routes
from weft.serve.anthropic.messages import routes as anthropic_routes
from weft.serve.batches.folder import BatchFolder
from weft.serve.batches.owners import Owners
from weft.serve.batches.routes import routes as batch_routes
from weft.serve.batches.work import BatchWorker
from weft.serve.judging import routes as judging_routes
from weft.serve.keys import ApiKeys
from weft.serve.llama.properties import routes as llama_routes
from weft.serve.metrics import TEXT
from weft.serve.ollama.models import routes as ollama_routes
from weft.serve.openai import answers
from weft.serve.openai.answers import HealthAnswer
from weft.serve.openai.audio import routes as audio_routes
from weft.serve.openai.chat import chat
from weft.serve.openai.completions import completions
from weft.serve.openai.other import (
    detokenize,
    embeddings,
    model,
    models,
    tokenize,
    tokenizer_info,
)  # fmt: skip
from weft.serve.openai.types import Chat, Completion, Detokenize, Embeddings, Tokenize
from weft.serve.openapi import openapi
from weft.serve.responses.create import routes as responses_routes
from weft.serve.routing import App, Described, assembled, route
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, json_response

FOLDER = Path(__file__).with_name("page")
FILES = {path.name: path for path in FOLDER.iterdir() if path.is_file()}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css",
          ".svg": "image/svg+xml"}  # fmt: skip


async def page(request: Request) -> Response:
    """A page to chat on."""
    name = request.path_params.get("name", "index.html")
    path = FILES.get(name)
    if path is None:
        raise HttpError(404, "there is no such file")
    return FileResponse(path, headers=_HEADERS, media_type=_KINDS[path.suffix])


async def health(request: Request) -> Response:
    """Whether it serves.

    200 while every loaded model answers, 503 where a device was lost or the server is going."""
    shelf: ModelShelf = request.app.state.shelf
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


def openai_routes() -> list[Described]:
    """OpenAI's."""
    return [
        route("/v1/chat/completions", chat, Chat, answer=answers.ChatAnswer),
        route("/v1/completions", completions, Completion, answer=answers.CompletionAnswer),
        route("/v1/embeddings", embeddings, Embeddings, answer=answers.EmbeddingsAnswer),
        route("/v1/models", models, answer=answers.ModelsAnswer),
        route("/v1/models/{name:path}", model, answer=answers.ModelAnswer),
        route("/tokenize", tokenize, Tokenize, answer=answers.TokenizeAnswer),
        route("/detokenize", detokenize, Detokenize, answer=answers.DetokenizeAnswer),
        route("/tokenizer_info", tokenizer_info, answer=answers.TokenizerAnswer),
    ]


def routes() -> list[Described]:
    """All of the server's."""
    return [
        *openai_routes(),
        *audio_routes(),
        *batch_routes(),
        *judging_routes(),
        *adapter_routes(),
        *responses_routes(),
        *anthropic_routes(),
        *ollama_routes(),
        *llama_routes(),
        route("/health", health, answer=HealthAnswer),
        route("/metrics", metrics),
        route("/openapi.json", openapi),
        route("/", page),
        route("/page/{name}", page),
    ]


def make_app(
    shelf: ModelShelf, keys: ApiKeys | None = None, hosts: Iterable[str] | None = None,
    origins: Iterable[str] = (), batches: BatchFolder | None = None,
) -> App:  # fmt: skip
    """The application over the models of `shelf`. Each request must have one of `keys`, and use one
    of `hosts` as the server's name (None: any). Pages of `origins` are answered too. `batches` is
    the folder of files and batches, if any."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if (traces := shelf.metrics.traces) is not None:
                stack.push_async_callback(traces.close)
            stack.push_async_callback(shelf.close)
            if batches is not None:
                lanes = max(1, shelf.settings.sequences // 2)
                app.state.batches = worker = BatchWorker(
                    batches, app if around is None else around(app), Owners(keys), lanes
                )
                worker.start()
                stack.push_async_callback(worker.close)
            yield

    if keys is not None:
        shelf.metrics.count_keys(keys)
    traces = shelf.metrics.traces
    around = None if traces is None else traces.around
    state = {"shelf": shelf, "metrics": shelf.metrics, "batches": None}
    return assembled(routes(), lifespan, state, keys, hosts, origins, around)
