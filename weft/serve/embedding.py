"""Vectors of texts and pictures, whatever the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from starlette.requests import Request

from weft.core.errors import WeftError
from weft.models.arch.pooling import normalized
from weft.serve.keys import spent
from weft.serve.served import ServedEncoder
from weft.serve.served_pictures import Item, ServedPictures
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, refusal, while_there

MAX_TEXTS = 2048


@dataclass(frozen=True)
class Embedded:
    """Vectors float32 [n, dim] of length 1, the model that made them, how many tokens it read."""

    vectors: np.ndarray
    model: str
    tokens: int


async def embedded(
    request: Request,
    name: str | None,
    items: Sequence[Item],
    dimensions: int | None = None,
    cut: bool = False,
    prompt: str | None = None,
    keep: float | None = None,
) -> Embedded:
    """The vectors of texts, token ids or pictures by the model called `name`, their first
    `dimensions` numbers. Raises HttpError: also for more of them than the model has, and for a text
    that is too long, unless it is to be `cut`. `prompt` names one of the model's, to go before
    texts. `keep`: see ModelShelf.use."""
    if len(items) > MAX_TEXTS:
        raise HttpError(400, f"{len(items)} texts; at most {MAX_TEXTS} are taken", "input")
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(name, keep) as model:
        if not isinstance(model, ServedEncoder | ServedPictures):
            raise HttpError(400, f"{model.name} does not embed", "model")
        dim = model.model.dim
        if dimensions is not None and dimensions > dim:
            raise HttpError(400, f"dimensions is {dimensions}; this model has {dim}", "dimensions")
        try:
            vectors, tokens = await while_there(request, _vectors(model, items, cut, prompt))
        except WeftError as e:
            raise refusal(e) from None
    spent(request.scope, tokens)
    return Embedded(normalized(vectors[:, :dimensions]), model.name, tokens)


async def _vectors(
    model: ServedEncoder | ServedPictures, items: Sequence[Item], cut: bool, prompt: str | None
) -> tuple[np.ndarray, int]:
    if isinstance(model, ServedPictures):
        if prompt is not None:
            raise HttpError(400, f"{model.name} has no prompts; leave it out", "prompt_name")
        return await model.vectors(items)
    texts = [item for item in items if not isinstance(item, dict)]
    if len(texts) < len(items):
        raise HttpError(400, f"{model.name} embeds texts, no pictures", "input")
    return await model.vectors(texts, cut, prompt)
