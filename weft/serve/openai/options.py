"""Converts the fields of OpenAI's generating requests to Options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from weft.serve.chatting import MAX_BIASES, MAX_CHOICES, AnswerOptions
from weft.serve.fields import SamplingRequest, between, sampling, seed_of, slot_of, stops, tops
from weft.serve.openai.types import Chat, Choosing, Generating
from weft.serve.tooling import Follow, follow_json, follow_schema, object_of
from weft.serve.wire import HttpError


def choices_of(body: Choosing, limit: int | None, key: bytes) -> AnswerOptions:
    """Returns the options from the fields that chat and completions share. Raises HttpError with
    the field's name."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_CHOICES:
        raise HttpError(400, f"n is {n}; expected 1 to {MAX_CHOICES}", "n")
    if body.stream_options is not None and not body.stream:
        raise HttpError(400, "stream_options are for streams only", "stream_options")
    if body.min_tokens and limit is not None and body.min_tokens > limit:
        raise HttpError(400, f"min_tokens is {body.min_tokens}; expected at most {limit}, the "
                        "most new tokens", "min_tokens")  # fmt: skip
    if body.truncate_prompt_tokens == 0:
        raise HttpError(400, "truncate_prompt_tokens is 0; expected 1 or more, or -1 for as many "
                        "as fit", "truncate_prompt_tokens")  # fmt: skip
    return replace(
        options_of(body, limit, key),
        n=n,
        truncate=body.truncate_prompt_tokens,
        prompt_logprobs=tops(body.prompt_logprobs, "prompt_logprobs"),
        shows_stop=bool(body.include_stop_str_in_output),
        constraint=constraint_of(body),
        slot=slot_of(body.id_slot),
    )


def new_tokens(body: Choosing) -> int | None:
    """The most new tokens by llama-server's field; None: as many as fit, or the default."""
    return None if body.n_predict in (None, -1) else body.n_predict


def options_of(body: Generating, limit: int | None, key: bytes) -> AnswerOptions:
    """Returns the options from the fields that all generating requests share. Raises HttpError with
    the field's name."""
    between("temperature", body.temperature, 0, 2)
    between("presence_penalty", body.presence_penalty, -2, 2)
    between("frequency_penalty", body.frequency_penalty, -2, 2)
    salt = key + (body.cache_salt or "").encode(errors="replace")
    return AnswerOptions(
        limit, sampling=_sampling(body), seed=seed_of(body.seed), stop=stops(body.stop), salt=salt,
        ends=not body.ignore_eos, min_new_tokens=body.min_tokens or 0,
        stop_ids=tuple(body.stop_token_ids or ()), priority=body.priority or 0,
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


def constraint_of(body: Choosing) -> Follow | None:
    """The constraint on the text; None: anything. Raises HttpError for more than one constraint."""
    wishes = {name: wish for name, wish in _wishes(body) if wish is not None}
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


def _wishes(body: Choosing) -> Iterator[tuple[str, Follow | None]]:
    """The constraints in vLLM's and llama-server's fields, by the field's name."""
    yield "guided_json", schema_constraint(body.guided_json, "guided_json")
    yield "guided_regex", made_constraint("regex", body.guided_regex)
    yield "guided_choice", made_constraint("choice", body.guided_choice)
    yield "guided_grammar", made_constraint("grammar", body.guided_grammar)
    yield "grammar", made_constraint("grammar", body.grammar)
    yield "json_schema", schema_constraint(body.json_schema, "json_schema")
    form, name = body.structured_outputs, "structured_outputs"
    if form is None:
        return
    given = [
        schema_constraint(form.json, f"{name}.json"), made_constraint("regex", form.regex),
        made_constraint("choice", form.choice), made_constraint("grammar", form.grammar),
        follow_json() if form.json_object else None,
    ]  # fmt: skip
    found = [wish for wish in given if wish is not None]
    if len(found) != 1:
        raise HttpError(400, f"{name} has {len(found)} of json, regex, choice, grammar and "
                        "json_object; expected one", name)  # fmt: skip
    yield name, found[0]


def made_constraint(maker: str, given: object) -> Follow | None:
    """The constraint that a function of `grammars` makes; None where nothing is given."""
    if given is None:
        return None
    return Follow(lambda grammar: getattr(grammar, maker)(given))


def schema_constraint(given: Mapping[str, Any] | str | None, field: str) -> Follow | None:
    """The constraint of a schema, which may come as JSON text."""
    if isinstance(given, str):
        if (schema := object_of(given)) is None:
            raise HttpError(400, f"{field} is not a JSON object", field)
        given = schema
    return None if given is None else follow_schema(given)


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
