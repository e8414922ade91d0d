"""Converts the fields of OpenAI's generating requests to Options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.serve.chatting import MAX_BIASES, MAX_CHOICES, AnswerOptions
from weft.serve.fields import SamplingRequest, between, sampling, seed_of, stops
from weft.serve.openai.types import Chat, Choosing, Completion, Generating
from weft.serve.tooling import Follow, follow_json, follow_schema
from weft.serve.wire import HttpError


def choices_of(body: Choosing, limit: int | None, key: bytes) -> AnswerOptions:
    """Returns the options from the fields that chat and completions share. Raises HttpError with
    the field's name."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_CHOICES:
        raise HttpError(400, f"n is {n}; expected 1 to {MAX_CHOICES}", "n")
    if body.stream_options is not None and not body.stream:
        raise HttpError(400, "stream_options are for streams only", "stream_options")
    return replace(options_of(body, limit, key), n=n)


def options_of(body: Generating, limit: int | None, key: bytes) -> AnswerOptions:
    """Returns the options from the fields that all generating requests share. Raises HttpError with
    the field's name."""
    between("temperature", body.temperature, 0, 2)
    between("presence_penalty", body.presence_penalty, -2, 2)
    between("frequency_penalty", body.frequency_penalty, -2, 2)
    salt = key + (body.cache_salt or "").encode(errors="replace")
    return AnswerOptions(
        limit, sampling=_sampling(body), seed=seed_of(body.seed), stop=stops(body.stop), salt=salt,
        ends=not body.ignore_eos,
    )  # fmt: skip


def _sampling(body: Generating) -> SamplingRequest:
    """The sampling of a request, with OpenAI's defaults: temperature 1, nothing else."""
    return sampling(
        temperature=body.temperature,
        top_k=None if body.top_k is None else max(body.top_k, 0),
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_biases(body.logit_bias),
    )


def constraint_of(body: Chat | Completion) -> Follow | None:
    """The constraint on the text; None: anything. Raises HttpError for more than one constraint."""
    wishes: dict[str, Follow] = {}
    if body.guided_regex is not None:
        pattern = body.guided_regex
        wishes["guided_regex"] = Follow(lambda grammar: grammar.regex(pattern))
    if body.guided_grammar is not None:
        text = body.guided_grammar
        wishes["guided_grammar"] = Follow(lambda grammar: grammar.grammar(text))
    if isinstance(body, Chat):
        form = body.response_format
        if form is not None and form.type == "json_schema" and form.json_schema is None:
            raise HttpError(400, "json_schema is missing", "response_format.json_schema")
        schema = None if form is None or form.json_schema is None else form.json_schema.schema
        wish = None if form is None else followed(form.type, schema)
        if wish is not None:
            wishes["response_format"] = wish
    if len(wishes) > 1:
        raise HttpError(400, f"{' and '.join(wishes)} cannot both be followed", min(wishes))
    return next(iter(wishes.values()), None)


def followed(kind: str, schema: Mapping[str, Any] | None) -> Follow | None:
    """The constraint of a format: text (None: anything), json_object or json_schema."""
    if kind == "text":
        return None
    return follow_json() if kind == "json_object" else follow_schema(schema or {})


def _biases(given: dict[str, float] | None) -> tuple[tuple[int, float], ...] | None:
    if not given:
        return None
    if len(given) > MAX_BIASES:
        raise HttpError(400, f"logit_bias names at most {MAX_BIASES} tokens", "logit_bias")
    made = []
    for token, value in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise HttpError(400, f"logit_bias maps token ids to numbers, not {token!r:.20}",
                            "logit_bias")  # fmt: skip
        between("logit_bias", value, -100, 100)
        made.append((int(token), value))
    return tuple(made)
