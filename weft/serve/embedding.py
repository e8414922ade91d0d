"""Vectors of texts, whatever the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from starlette.requests import Request

from weft.core.errors import WeftError
from weft.models.arch.pooling import normalized
from weft.serve.keys import spent
from weft.serve.served import ServedEncoder
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
    texts: Sequence[str | list[int]],
    dimensions: int | None = None,
    cut: bool = False,
    prompt: str | None = None,
    keep: float | None = None,
) -> Embedded:
    """The vectors of texts or token ids by the model called `name`, their first `dimensions`
    numbers. Raises HttpError: also for more of them than the model has, and for a text that is too
    long, unless it is to be `cut`. `prompt` names one of the model's, to go before texts. `keep`:
    see ModelShelf.use."""
    if len(texts) > MAX_TEXTS:
        raise HttpError(400, f"{len(texts)} texts; at most {MAX_TEXTS} are taken", "input")
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(name, keep) as model:
        if not isinstance(model, ServedEncoder):
            raise HttpError(400, f"{model.name} does not embed", "model")
        dim = model.model.dim
        if dimensions is not None and dimensions > dim:
            raise HttpError(400, f"dimensions is {dimensions}; this model has {dim}", "dimensions")
        try:
            vectors, tokens = await while_there(request, model.vectors(texts, cut, prompt))
        except WeftError as e:
            raise refusal(e) from None
    spent(request.scope, tokens)
    return Embedded(normalized(vectors[:, :dimensions]), model.name, tokens)
