"""OpenAI's models and embeddings, and routes about tokens."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import WeftError
from weft.models.chat import read_template
from weft.serve.openai_chat import message_of
from weft.serve.openai_types import Detokenize, Embeddings, Tokenize, prompts_of
from weft.serve.served import Served, ServedEncoder
from weft.serve.shelf import Shelf
from weft.serve.wire import Refused, json_response, read, refusal, while_there

MAX_TEXTS = 2048


async def models(request: Request) -> Response:
    """The models that are served."""
    shelf: Shelf = request.app.state.shelf
    data = [_told(shelf, name) for name in shelf.paths]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """One of them."""
    shelf: Shelf = request.app.state.shelf
    name = request.path_params["name"]
    if name not in shelf.paths:
        raise Refused(404, f"there is no model {name!r:.100}", "model")
    return json_response(_told(shelf, name))


def _told(shelf: Shelf, name: str) -> dict[str, Any]:
    model = next((m for m in shelf.loaded() if m.name == name), None)
    created = shelf.created if model is None else model.created
    made = {"id": name, "object": "model", "created": created, "owned_by": "weft"}
    if model is None:
        return made
    return {**made, "chat": model.has_chat, "fingerprint": model.print}


async def embeddings(request: Request) -> Response:
    """Vectors of texts."""
    body = await read(request, Embeddings)
    texts = prompts_of(body.input, "input")
    if len(texts) > MAX_TEXTS:
        raise Refused(400, f"{len(texts)} texts; at most {MAX_TEXTS} are taken", "input")
    shelf: Shelf = request.app.state.shelf
    async with shelf.use(body.model) as model:
        vectors, tokens = await while_there(request, embedded(model, texts))
        if body.dimensions not in (None, vectors.shape[1]):
            raise Refused(400, f"dimensions is {body.dimensions}; this model has "
                          f"{vectors.shape[1]}, and no fewer", "dimensions")  # fmt: skip
        made = [
            {"object": "embedding", "index": i, "embedding": _written(row, body.encoding_format)}
            for i, row in enumerate(vectors)
        ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": made, "model": model.name, "usage": usage})


async def embedded(model: Served, texts: list[str | list[int]]) -> tuple[np.ndarray, int]:
    """Vectors float32 [n, dim] of texts or token ids, of length 1, and how many tokens they had.
    Raises Refused: also for a text that is too long, which is not cut."""
    if not isinstance(model, ServedEncoder):
        raise Refused(400, f"{model.name} writes, it does not embed", "model")
    encoder = model.model

    def made() -> tuple[np.ndarray, int]:
        rows = [model.ids(text) for text in texts]
        vectors = encoder.embed_ids(rows)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1e-12), sum(map(len, rows))

    try:
        return await asyncio.to_thread(made)
    except WeftError as e:
        raise refusal(e) from None


def _written(row: np.ndarray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()


async def tokenize(request: Request) -> Response:
    """The token ids of a text or a conversation."""
    body = await read(request, Tokenize)
    if (body.prompt is None) == (body.messages is None):
        raise Refused(400, "give prompt or messages, one of them", "prompt")
    shelf: Shelf = request.app.state.shelf

    def made(model: Served) -> list[int]:
        if body.prompt is not None:
            return model.tokenizer.encode(body.prompt, special=body.add_special_tokens)
        text = model.chat([message_of(m) for m in body.messages or ()], {})
        return model.tokenizer.encode(text, special=False)

    async with shelf.use(body.model) as model:
        try:
            ids = await asyncio.to_thread(made, model)
        except WeftError as e:
            raise refusal(e) from None
        limit = getattr(model.model, "context", None)
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": limit})


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await read(request, Detokenize)
    shelf: Shelf = request.app.state.shelf
    async with shelf.use(body.model) as model:
        try:
            text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, False)
        except WeftError as e:
            raise refusal(e) from None
    return json_response({"prompt": text})


async def tokenizer_info(request: Request) -> Response:
    """Special tokens and the chat template of a model's tokenizer."""
    shelf: Shelf = request.app.state.shelf
    async with shelf.use(request.query_params.get("model")) as model:
        tokenizer = model.tokenizer
        template = read_template(tokenizer.path.parent, tokenizer.config)
    special = {"bos_token": None, "eos_token": None, **tokenizer.special_tokens}
    return json_response({**special, "chat_template": template})
