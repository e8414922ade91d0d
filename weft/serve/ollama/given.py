"""Ollama's options of an answer as the server's own."""

from __future__ import annotations

from weft.serve.chatting import AnswerOptions
from weft.serve.fields import between, sampling, seed_of, stops
from weft.serve.ollama.types import ModelOptions
from weft.serve.wire import HttpError

UNLIMITED = 1 << 31  # new tokens; the context ends an answer earlier
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Options that neither the request nor the model's author gives, as in Ollama; others are off."""


def options_in(given: ModelOptions) -> AnswerOptions:
    """The AnswerOptions of `options`, which are also the parameters of a model that is made. Raises
    HttpError, naming the field."""
    between("temperature", given.temperature, 0, 2)
    between("repeat_penalty", given.repeat_penalty, 0.01, 100)
    how = sampling(
        DEFAULTS,
        temperature=given.temperature,
        top_k=None if given.top_k is None else max(given.top_k, 0),
        top_p=given.top_p,
        min_p=given.min_p,
        repetition_penalty=1.0 if given.repeat_last_n == 0 else given.repeat_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
    )
    limit = given.num_predict
    if limit is not None and limit < -2:
        raise HttpError(400, f"num_predict is {limit}; expected -1 for no limit, or 0 and more",
                        "num_predict")  # fmt: skip
    return AnswerOptions(
        max_new_tokens=UNLIMITED if limit is not None and limit < 0 else limit,
        sampling=how,
        seed=None if given.seed == -1 else seed_of(given.seed),
        stop=stops(given.stop),
        context=given.num_ctx,
        cut=limit is not None and limit < 0,
    )
