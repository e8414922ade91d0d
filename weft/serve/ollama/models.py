"""Ollama's other routes: models, vectors, and what is done on the command line here."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import weft
from weft.core.hints import command
from weft.models.text.chat import read_template
from weft.serve.embedding import embedded
from weft.serve.fields import seconds_of
from weft.serve.ollama import answers
from weft.serve.ollama.chat import chat, generate, named
from weft.serve.ollama.create import Copied, Create, Delete, copied, create, deleted
from weft.serve.ollama.replies import ReplyTimes, stamp
from weft.serve.ollama.types import Embed, Generate, OllamaChat, OneEmbedding, Show
from weft.serve.routing import Described, route
from weft.serve.served import Served, ServedDecoder, ServedEncoder
from weft.serve.served_pictures import ServedPictures
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, json_response, read

NEVER = "2318-01-01T00:00:00Z"
"""When a model goes that stays for good: clients expect a time, as far off as Ollama's."""


async def tags(request: Request) -> Response:
    """The models that are served, as Ollama lists them."""
    shelf: ModelShelf = request.app.state.shelf
    loaded = {model.name: model for model in shelf.loaded()}
    found = [_listed(name, Path(path), loaded.get(name)) for name, path in shelf.paths.items()]
    return json_response({"models": found})


async def running(request: Request) -> Response:
    """The models that are loaded."""
    shelf: ModelShelf = request.app.state.shelf
    found = [_running(model, Path(shelf.paths[model.name])) for model in shelf.loaded()]
    return json_response({"models": found})


async def show(request: Request) -> Response:
    """What is known of a model."""
    body = await read(request, Show)
    asked = body.model or body.name
    if not asked:
        raise HttpError(400, "name a model", "model")
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(named(request, asked)) as model:
        template = _template(model)
        return json_response({
            "modified_at": stamp(_changed(Path(shelf.paths[model.name]))), "template": template,
            "details": _details(model, Path(shelf.paths[model.name])),
            "model_info": _info(model), "capabilities": _capabilities(model, template),
            **_made(model),
        })  # fmt: skip


async def version(request: Request) -> Response:
    """The version of weft."""
    return json_response({"version": weft.__version__})


async def embed(request: Request) -> Response:
    """Vectors of texts, as Ollama gives them."""
    body, times = await read(request, Embed), ReplyTimes(time.monotonic_ns())
    texts: list[str | list[int]] = [body.input] if isinstance(body.input, str) else [*body.input]
    name = named(request, body.model)
    keep = seconds_of(body.keep_alive, "keep_alive")
    found = await embedded(request, name, texts, body.dimensions, bool(body.truncate), keep=keep)
    return json_response({
        "model": found.model, "embeddings": found.vectors.tolist(), **times.told(),
        "prompt_eval_count": found.tokens,
    })  # fmt: skip


async def one_embedding(request: Request) -> Response:
    """The vector of a text."""
    body = await read(request, OneEmbedding)
    keep = seconds_of(body.keep_alive, "keep_alive")
    found = await embedded(request, named(request, body.model), [body.prompt], keep=keep)
    return json_response({"embedding": found.vectors[0].tolist()})


async def managed(request: Request) -> Response:
    """Rejected: weights come from the command line."""
    raise HttpError(404, "this server does not fetch or send models; start it with those "
                    f"it is to serve: {command('serve', 'MODEL')}")  # fmt: skip


def routes() -> list[Described]:
    """Ollama's."""
    managing = ("pull", "push", "blobs/{digest}")
    return [
        route("/api/chat", chat, OllamaChat, answer=answers.OllamaChatAnswer),
        route("/api/generate", generate, Generate, answer=answers.GenerateAnswer),
        route("/api/embed", embed, Embed, answer=answers.EmbedAnswer),
        route("/api/embeddings", one_embedding, OneEmbedding, answer=answers.OneEmbeddingAnswer),
        route("/api/tags", tags, answer=answers.TagsAnswer),
        route("/api/ps", running, answer=answers.RunningAnswer),
        route("/api/show", show, Show, answer=answers.ShowAnswer),
        route("/api/version", version, answer=answers.VersionAnswer),
        *[route(f"/api/{path}", managed, method="POST") for path in managing],
        route("/api/create", create, Create, answer=answers.StatusAnswer),
        route("/api/copy", copied, Copied),
        route("/api/delete", deleted, Delete, method="DELETE"),
    ]


def _listed(name: str, path: Path, model: Served | None) -> dict[str, Any]:
    files = _files(path)
    digest = hashlib.sha256("\n".join(f"{p.name} {size}" for p, size in files).encode())
    return {
        "name": name, "model": name, "modified_at": stamp(_changed(path)),
        "size": sum(size for _, size in files), "digest": digest.hexdigest(),
        "details": _details(model, path),
    }  # fmt: skip


def _running(model: Served, path: Path) -> dict[str, Any]:
    device = model.model.device
    own = device is not None and device.info.kind != "cpu"
    made = {**_listed(model.name, path, model), "size": model.nbytes}
    del made["modified_at"]
    at = model.expiry.at
    made["expires_at"] = NEVER if at is None else stamp(at)
    return {**made, "size_vram": model.nbytes if own else 0, "context_length": _context(model)}


def _details(model: Served | None, path: Path) -> dict[str, Any]:
    """The file's format, and the family and precision of a loaded model."""
    family = "" if model is None else model.model.config.family
    return {
        "format": "gguf" if path.suffix == ".gguf" else "safetensors",
        "family": family, "families": [family] if family else [],
        "quantization_level": "" if model is None else model.model.precision,
    }  # fmt: skip


def _info(model: Served) -> dict[str, Any]:
    config = model.model.config
    sizes = {
        "context_length": _context(model), "embedding_length": config.hidden,
        "block_count": config.layers, "attention.head_count": config.heads,
    }  # fmt: skip
    if not isinstance(model, ServedPictures):
        sizes["vocab_size"] = config.vocab
    named = {f"{config.family}.{name}": value for name, value in sizes.items()}
    return {"general.architecture": config.family, **named}


def _capabilities(model: Served, template: str) -> list[str]:
    if not isinstance(model, ServedDecoder):
        if isinstance(model, ServedPictures):
            return ["embedding", "vision"]
        return ["embedding"] if isinstance(model, ServedEncoder) else []
    tools = ["tools"] if "tools" in template and model.parser_name not in ("text", "think") else []
    eyes = ["vision"] if model.model.make_eyes is not None else []
    return ["completion", *tools, *eyes, *(["thinking"] if "think" in template else [])]


def _made(model: Served) -> dict[str, Any]:
    """The ingredients of a model that a request made."""
    recipe = getattr(model, "recipe", None)
    if recipe is None:
        return {}
    lines = [
        f"{name:30} {text}"
        for name, value in recipe.parameters.items()
        for text in (value if isinstance(value, list) else [value])
    ]
    return {
        "system": recipe.system, "parameters": "\n".join(lines),
        "license": "\n".join(recipe.license),
        "messages": [msgspec.structs.asdict(m) for m in recipe.messages],
    }  # fmt: skip


def _template(model: Served) -> str:
    if (recipe := getattr(model, "recipe", None)) is not None and recipe.template:
        return str(recipe.template)
    tokenizer = model.model.tokenizer
    if tokenizer is None:
        return ""
    return read_template(tokenizer.path.parent, tokenizer.config) or ""


def _context(model: Served) -> int:
    if isinstance(model, ServedDecoder):
        return model.model.context
    if isinstance(model, ServedPictures):
        return model.model.longest
    return int(model.model.config.max_positions)


def _files(path: Path) -> list[tuple[Path, int]]:
    """The files of a model and their sizes; none where it has gone, which concerns no other."""
    try:
        found = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        return [(p, p.stat().st_size) for p in found]
    except OSError:
        return []


def _changed(path: Path) -> float:
    """When a model was changed last; 0.0 where it has gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
