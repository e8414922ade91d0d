"""OpenAI's models and embeddings, and routes about tokens."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import WeftError
from weft.models.text.chat import read_template
from weft.serve.embedding import embedded
from weft.serve.openai.chat import messages_of, parts_of
from weft.serve.openai.types import ContentPart, Detokenize, Embeddings, Tokenize, prompts_of
from weft.serve.served import Served, ServedDecoder
from weft.serve.served_pictures import Item
from weft.serve.shelf import ModelShelf
from weft.serve.wire import (
    HttpError,
    json_response,
    mistaken,
    read,
    refusal,
    struct_of,
    while_there,
)


async def models(request: Request) -> Response:
    """The models that are served."""
    shelf: ModelShelf = request.app.state.shelf
    data = [_told(shelf, name) for name in shelf.paths]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """One of them."""
    shelf: ModelShelf = request.app.state.shelf
    name = request.path_params["name"]
    if name not in shelf.paths:
        raise HttpError(404, f"unknown model {name!r:.100}", "model")
    return json_response(_told(shelf, name))


def _told(shelf: ModelShelf, name: str) -> dict[str, Any]:
    base, own = shelf.own(name)
    own = base if name in shelf.recipes else own
    model = shelf.seen(name)
    created = shelf.created if model is None else model.created
    made = {"id": name, "object": "model", "created": created, "owned_by": "weft"}
    if own != name:
        made["parent"] = own
    if model is None:
        return made
    advice = model.model.defaults.settings if isinstance(model, ServedDecoder) else {}
    more = {"sampling": advice} if advice else {}
    return {**made, "chat": model.has_chat, "fingerprint": model.print, **more}


async def embeddings(request: Request) -> Response:
    """Vectors of texts and pictures."""
    body = await read(request, Embeddings)
    items = _items(body)
    found = await embedded(request, body.model, items, body.dimensions, prompt=body.prompt_name)
    made = [
        {"object": "embedding", "index": i, "embedding": _written(row, body.encoding_format)}
        for i, row in enumerate(found.vectors)
    ]
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    return json_response({"object": "list", "data": made, "model": found.model, "usage": usage})


def _items(body: Embeddings) -> list[Item]:
    """The inputs to be embedded, in order. Raises HttpError."""
    if (body.input is None) == (body.messages is None):
        raise HttpError(400, "give input or messages, one of them", "input")
    if body.messages is not None:
        content = body.messages[0].content if body.messages else None
        return [content if isinstance(content, str) else _part(content or [], "messages")]
    if not isinstance(body.input, list) or not any(isinstance(x, dict) for x in body.input):
        return [*prompts_of(body.input, "input")]
    return [_item(given) for given in body.input]


def _item(given: Any) -> Item:
    """A text, token ids, a part, or {"content": [part]}."""
    if not isinstance(given, dict):
        return prompts_of([given], "input")[0]
    parts = given["content"] if given.keys() == {"content"} else [given]
    try:
        return _part(struct_of(parts, list[ContentPart]), "input")
    except msgspec.ValidationError as error:
        raise mistaken(error, list[ContentPart], "input") from None


def _part(parts: Sequence[ContentPart], field: str) -> Item:
    """The only part of a content: each text or picture gets one vector."""
    if len(parts) != 1:
        raise HttpError(400, f"the content has {len(parts)} parts; a vector is of one text or one "
                        "picture: send the parts by themselves", field)  # fmt: skip
    return parts_of(parts, field)[0]


def _written(row: np.ndarray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()


async def tokenize(request: Request) -> Response:
    """The token ids of a text or a conversation."""
    body = await read(request, Tokenize)
    given = [x for x in (body.prompt, body.messages, body.content) if x is not None]
    if len(given) != 1:
        raise HttpError(400, "give prompt, content or messages, one of them", "prompt")
    shelf: ModelShelf = request.app.state.shelf

    async def made(model: Served) -> list[int]:
        if body.prompt is not None:
            text, special = body.prompt, body.add_special_tokens
        elif body.content is not None:
            text, special = body.content, body.add_special
        else:
            messages, special = messages_of(body.messages or ()), False
            text = await model.pools.templates.run(model.chat, messages, {})
        return (await model.encoded([text], special))[0]

    async with shelf.use(body.model) as model:
        try:
            ids = await while_there(request, made(model))
        except WeftError as e:
            raise refusal(e) from None
        limit = getattr(model.model, "context", None)
        if body.with_pieces and isinstance(model, ServedDecoder):
            tokens: list[Any] = [{"id": i, "piece": _piece(*model.token(i))} for i in ids]
        else:
            tokens = [*ids]
    return json_response({"tokens": tokens, "count": len(ids), "max_model_len": limit})


def _piece(text: str, data: bytes) -> str | list[int]:
    """A token's text, or its bytes if it is not whole characters, as llama-server gives them."""
    return text if text.encode() == data else list(data)


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await read(request, Detokenize)
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(body.model) as model:
        try:
            decode = model.tokenizer.decode
            work = model.pools.texts.run(decode, body.tokens, False)
            text = await while_there(request, work)
        except WeftError as e:
            raise refusal(e) from None
    return json_response({"prompt": text, "content": text})


async def tokenizer_info(request: Request) -> Response:
    """Special tokens and the chat template of a model's tokenizer."""
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(request.query_params.get("model")) as model:
        tokenizer = model.tokenizer
        template = read_template(tokenizer.path.parent, tokenizer.config)
    special = {"bos_token": None, "eos_token": None, **tokenizer.special_tokens}
    return json_response({**special, "chat_template": template})
