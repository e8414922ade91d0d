"""POST /completion and /infill."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import WeftError
from weft.engine.job import SampledToken, TokenUsage
from weft.serve.chatting import MAX_BIASES, AnswerOptions, begin_ids
from weft.serve.choices import AnswerChunk, Choice, merged
from weft.serve.fields import between, sampling, seed_of, slot_of, stops, tops
from weft.serve.guard import key_of
from weft.serve.infill import infill as middle
from weft.serve.llama.types import LlamaCompletion, LlamaInfill, LlamaOptions
from weft.serve.openai.options import made_constraint, schema_constraint
from weft.serve.replies import ReplyWriter, reply
from weft.serve.served import ServedDecoder
from weft.serve.wire import HttpError, event, read, refusal

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""Options that neither the request nor the model's author gives, as in llama-server."""
BANNED = -1e6  # the bias of a token that logit_bias maps to false
STOPS = {"eos": "eos", "length": "limit", "stop": "word"}

Ids = Callable[[ServedDecoder], Awaitable[tuple[list[int], tuple[int, ...]]]]
"""Makes a prompt's token ids, and further tokens that end the answer."""


async def completion(request: Request) -> Response:
    """Continues a prompt, as llama-server does."""
    body = await read(request, LlamaCompletion)

    async def ids(model: ServedDecoder) -> tuple[list[int], tuple[int, ...]]:
        return await _joined(model, body.prompt), ()

    return await _answered(request, body, ids)


async def infill(request: Request) -> Response:
    """Writes what is between a prefix and a suffix, as llama-server does."""
    body = await read(request, LlamaInfill)
    files = [(one.filename, one.text) for one in body.input_extra or ()]

    async def ids(model: ServedDecoder) -> tuple[list[int], tuple[int, ...]]:
        made = await middle(model, body.input_prefix + body.prompt, body.input_suffix, files)
        return made.ids, () if body.ignore_eos else made.ends

    return await _answered(request, body, ids)


async def _answered(request: Request, body: LlamaOptions, make: Ids) -> Response:
    body.refuse()
    options = options_of(body, key_of(request.scope))

    async def start(model: ServedDecoder) -> ReplyWriter:
        try:
            ids, ends = await make(model)
        except WeftError as e:
            raise refusal(e) from None
        (choice,) = await begin_ids(model, [ids], options(ends))
        return _LlamaWriter(model, body, choice)

    return await reply(request, body.model, start, bool(body.stream))


async def _joined(model: ServedDecoder, prompt: str | Sequence[int | str]) -> list[int]:
    """The ids of a prompt; only what it begins with gets the tokenizer's own tokens."""
    made: list[int] = []
    for is_text, parts in groupby([prompt] if isinstance(prompt, str) else prompt, _is_text):
        if is_text:
            for part in parts:
                made += (await model.encoded([str(part)], special=not made))[0]
        else:
            made += model.model.check_ids([*parts])
    return made


def _is_text(part: int | str) -> bool:
    return isinstance(part, str)


def options_of(body: LlamaOptions, key: bytes) -> Callable[[tuple[int, ...]], AnswerOptions]:
    """Returns what makes the AnswerOptions from further end tokens. Raises HttpError, naming the
    field."""
    between("repeat_penalty", body.repeat_penalty, 0.01, 100)
    how = sampling(
        DEFAULTS,
        temperature=None if body.temperature is None else max(body.temperature, 0.0),
        top_k=None if body.top_k is None else max(body.top_k, 0),
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=1.0 if body.repeat_last_n == 0 else body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_biases(body.logit_bias),
    )
    forms = {
        "grammar": made_constraint("grammar", body.grammar or None),
        "json_schema": schema_constraint(body.json_schema, "json_schema"),
    }
    given = [name for name, form in forms.items() if form is not None]
    if len(given) > 1:
        raise HttpError(400, f"{' and '.join(given)} cannot both be followed", given[0])
    endless = body.n_predict is None or body.n_predict < 0
    seed, stop = None if body.seed == -1 else seed_of(body.seed), stops(body.stop or None)
    logs = tops(body.n_probs, "n_probs") or None

    def made(ends: tuple[int, ...]) -> AnswerOptions:
        return AnswerOptions(
            max_new_tokens=None if endless else body.n_predict, sampling=how, seed=seed, stop=stop,
            logprobs=logs, salt=key, ends=not body.ignore_eos, stop_ids=ends, cut=endless,
            constraint=forms[given[0]] if given else None, slot=slot_of(body.id_slot),
        )  # fmt: skip

    return made


def _biases(given: Any) -> tuple[tuple[int, float], ...] | None:
    """Pairs of ids and numbers; false excludes a token."""
    if not given:
        return None
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if len(pairs) > MAX_BIASES:
        raise HttpError(400, f"logit_bias names at most {MAX_BIASES} tokens", "logit_bias")
    made = {}
    for token, value in pairs:
        if isinstance(token, str) and not (token.isascii() and token.isdecimal()):
            raise HttpError(400, f"logit_bias maps token ids to numbers, not {token!r:.20}",
                            "logit_bias")  # fmt: skip
        made[int(token)] = BANNED if value is False else value
    return tuple(made.items())


class _LlamaWriter(ReplyWriter):
    """An answer in llama-server's words: one object, or events of objects."""

    def __init__(self, model: ServedDecoder, body: LlamaOptions, choice: Choice) -> None:
        self.choices = [choice]
        self._model, self._body = model, body
        self._begun, self._first = time.monotonic(), 0.0
        self._text, self._ids = "", list[int]()

    async def whole(self) -> Mapping[str, Any]:
        scored: list[Any] = []
        async for _, piece in merged(self.choices):
            self._took(piece)
            scored += self._scored(piece.tokens)
            if piece.finish is not None:
                made = self._end(piece)
        ids = self._ids if self._body.return_tokens else []
        made |= {"content": self._text, "tokens": ids}
        return made | ({"completion_probabilities": scored} if self._body.n_probs else {})

    async def parts(self) -> AsyncIterator[bytes]:
        async for _, piece in merged(self.choices):
            self._took(piece)
            if piece.content or piece.tokens:
                part: dict[str, Any] = {
                    "index": 0, "content": piece.content,
                    "tokens": [t.id for t in piece.tokens], "stop": False, "id_slot": -1,
                    "tokens_predicted": len(self._ids), "tokens_evaluated": self.choices[0].prompt,
                }  # fmt: skip
                if self._body.n_probs:
                    part["completion_probabilities"] = self._scored(piece.tokens)
                yield event(part)
            if piece.finish is not None:
                yield event(self._end(piece))

    def _took(self, piece: AnswerChunk) -> None:
        if piece.tokens and not self._first:
            self._first = time.monotonic()
        self._text += piece.content
        self._ids += [token.id for token in piece.tokens]

    def _end(self, piece: AnswerChunk) -> dict[str, Any]:
        """The last object, without content."""
        usage = piece.usage or TokenUsage(self.choices[0].prompt, 0, len(self._ids))
        return {
            "index": 0, "content": "", "tokens": [], "id_slot": -1, "stop": True,
            "model": self._model.name, "tokens_predicted": usage.new,
            "tokens_evaluated": usage.prompt, "tokens_cached": usage.cached, "truncated": False,
            "has_new_line": "\n" in self._text, "stop_type": STOPS[piece.finish or "eos"],
            "stopping_word": piece.stopped or "", "generation_settings": self._settings(),
            "timings": self._timings(usage),
        }  # fmt: skip

    def _settings(self) -> dict[str, Any]:
        """The options that the request gave."""
        names = [name for name in LlamaOptions.__struct_fields__ if name not in ("model", "stream")]
        found = {name: getattr(self._body, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _timings(self, usage: TokenUsage) -> dict[str, Any]:
        now = time.monotonic()
        first = self._first or now
        prompt, new = first - self._begun, now - first
        return {
            "prompt_n": usage.prompt - usage.cached, "prompt_ms": prompt * 1e3,
            "prompt_per_second": (usage.prompt - usage.cached) / prompt if prompt else None,
            "predicted_n": usage.new, "predicted_ms": new * 1e3,
            "predicted_per_second": usage.new / new if new else None,
        }  # fmt: skip

    def _scored(self, tokens: Sequence[SampledToken]) -> list[dict[str, Any]]:
        if not self._body.n_probs:
            return []

        def told(i: int, logprob: float | None) -> dict[str, Any]:
            text, data = self._model.token(i)
            return {"id": i, "token": text, "bytes": list(data), "logprob": logprob}

        return [
            {**told(t.id, t.logprob), "top_logprobs": [told(*pair) for pair in t.top]}
            for t in tokens
        ]
