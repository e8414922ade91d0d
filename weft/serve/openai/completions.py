"""POST /v1/completions: text that continues a prompt, and the probability of the prompt."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import WeftError
from weft.engine.job import SampledToken, TokenUsage
from weft.serve.chatting import AnswerOptions, begin_ids, truncated
from weft.serve.choices import AnswerChunk, Choice, gathered, merged
from weft.serve.fields import tops
from weft.serve.guard import key_of
from weft.serve.infill import infill
from weft.serve.openai.chat import FINISH, usage_of
from weft.serve.openai.options import choices_of, new_tokens
from weft.serve.openai.scored import scored
from weft.serve.openai.types import Completion, prompts_of
from weft.serve.replies import ReplyWriter, reply
from weft.serve.served import ServedDecoder
from weft.serve.wire import HttpError, event, read, refusal, written

MAX_PROMPTS = 256
MAX_SCORED = 1 << 22  # logprobs of prompts' tokens in one answer
NEW_TOKENS = 16  # OpenAI's default


async def completions(request: Request) -> Response:
    """Answers prompts of text or token ids."""
    body = await read(request, Completion)
    body.refuse()
    prompts = prompts_of(body.prompt, "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise HttpError(400, f"{len(prompts)} prompts; at most {MAX_PROMPTS} are taken", "prompt")
    limit = new_tokens(body) if body.max_tokens is None else body.max_tokens
    options = choices_of(body, limit, key_of(request.scope))
    wanted = tops(body.logprobs, "logprobs")
    asked = [options.prompt_logprobs, wanted if body.echo else None]
    options = replace(
        options,
        usual_tokens=None if body.n_predict == -1 else NEW_TOKENS,
        logprobs=wanted,
        prompt_logprobs=max((n for n in asked if n is not None), default=None),
    )

    async def start(model: ServedDecoder) -> ReplyWriter:
        how = options
        if body.suffix is None:
            ids = await _ids(model, prompts, options, body.add_special_tokens is not False)
        else:
            ids, how = await _middles(model, prompts, body.suffix, options)
        starts: list[list[int]] = []
        if options.prompt_logprobs is not None:
            values = options.n * sum(map(len, ids)) * (options.prompt_logprobs + 1)
            if values > MAX_SCORED:
                raise HttpError(400, f"{values} logprobs of prompts; the limit is {MAX_SCORED} per "
                                f"request: send fewer prompts", "logprobs")  # fmt: skip
            starts = [await model.pools.texts.run(model.tokenizer.starts, one) for one in ids]
        shown = ids if options.truncate is not None else prompts
        echoes = await _echoes(model, shown) if body.echo else [""] * len(prompts)
        choices = await begin_ids(model, ids, how)
        return _CompletionWriter(model, body, choices, starts, echoes, options.n)

    return await reply(request, body.model, start, bool(body.stream))


async def _ids(
    model: ServedDecoder, prompts: Sequence[str | list[int]], options: AnswerOptions, special: bool
) -> list[list[int]]:
    check, long = model.model.check_ids, options.truncate is not None
    texts = [p for p in prompts if isinstance(p, str)]
    try:
        coded = iter(await model.encoded(texts, special, unlimited=long))
        made = [next(coded) if isinstance(p, str) else check(p) for p in prompts]
        return [truncated(model, ids, options) for ids in made]
    except WeftError as e:
        raise refusal(e) from None


async def _middles(
    model: ServedDecoder, prompts: Sequence[str | list[int]], suffix: str, options: AnswerOptions
) -> tuple[list[list[int]], AnswerOptions]:
    """The ids that ask for what lies between each prompt and the suffix, and what ends it."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise HttpError(400, "suffix goes with prompts of text, not of token ids", "suffix")
    try:
        made = [await infill(model, text, suffix) for text in texts]
    except WeftError as e:
        raise refusal(e) from None
    ends = made[0].ends if options.ends else ()
    return [one.ids for one in made], replace(options, stop_ids=(*options.stop_ids, *ends))


async def _echoes(model: ServedDecoder, prompts: Sequence[str | list[int]]) -> list[str]:
    """The texts of prompts."""
    decode = model.tokenizer.decode
    return await model.pools.texts.each(lambda p: p if isinstance(p, str) else decode(p), prompts)


class _CompletionWriter(ReplyWriter):
    """A text completion, whole or as chunks."""

    def __init__(
        self, model: ServedDecoder, body: Completion, choices: Sequence[Choice],
        starts: Sequence[list[int]], echoes: Sequence[str], n: int,
    ) -> None:  # fmt: skip
        self.choices = choices
        self._model, self._body, self._n = model, body, n
        self._starts, self._echoes = starts, echoes  # the starts and echoes of the prompts
        self._head = {
            "id": "cmpl-" + secrets.token_hex(16), "object": "text_completion",
            "created": int(time.time()), "model": model.name, "system_fingerprint": model.print,
        }  # fmt: skip

    async def whole(self) -> Mapping[str, Any]:
        made, usages = [], []
        for index, pieces in enumerate(await gathered(self.choices)):
            text = self._echo(index) + "".join(piece.content for piece in pieces)
            tokens = [t for piece in pieces for t in piece.tokens]
            prompt = [t for piece in pieces for t in piece.prompt]
            finish = FINISH[pieces[-1].finish or "stop"]
            choice = {"index": index, "text": text, "finish_reason": finish,
                      "logprobs": self._logprobs(index, prompt, tokens)}  # fmt: skip
            if self._body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = scored(self._model, prompt)
            made.append(await written(choice))
            usages.append([piece.usage for piece in pieces if piece.usage is not None][-1])
        return {**self._head, "choices": made, "usage": self._usage(usages)}

    async def parts(self) -> AsyncIterator[bytes]:
        options = self._body.stream_options
        count = options is not None and options.include_usage
        usages: dict[int, TokenUsage] = {}
        fresh = set(range(len(self.choices)))
        async for index, piece in merged(self.choices):
            text = piece.content
            if index in fresh:
                text = self._echo(index) + text
            fresh.discard(index)
            if piece.usage is not None:
                usages[index] = piece.usage
            if text or piece.tokens or piece.prompt or piece.finish is not None:
                yield self._chunk(index, text, piece, count)
        if count:
            told = self._usage([usages[i] for i in sorted(usages)])
            yield event({**self._head, "choices": [], "usage": told})
        yield event("[DONE]")

    def _chunk(self, index: int, text: str, piece: AnswerChunk, count: bool) -> bytes:
        told = self._logprobs(index, piece.prompt, piece.tokens)
        finish = None if piece.finish is None else FINISH[piece.finish]
        choice = {"index": index, "text": text, "finish_reason": finish,
                  "logprobs": told if piece.prompt or piece.tokens else None}  # fmt: skip
        made = {**self._head, "choices": [choice]}
        return event({**made, "usage": None} if count else made)

    def _echo(self, index: int) -> str:
        """The prompt's text, if it is echoed before the new text; else ""."""
        return self._echoes[index // self._n]

    def _usage(self, usages: Sequence[TokenUsage]) -> dict[str, Any]:
        made = usage_of(usages)
        prompts = usages[:: self._n]  # n choices of a prompt read it once
        made["prompt_tokens"] = sum(u.prompt for u in prompts)
        made["prompt_tokens_details"] = {"cached_tokens": sum(u.cached for u in prompts)}
        made["total_tokens"] = made["prompt_tokens"] + made["completion_tokens"]
        return made

    def _logprobs(
        self, index: int, prompt: Sequence[SampledToken], new: Sequence[SampledToken]
    ) -> dict[str, Any] | None:
        """Logprobs of the prompt's tokens and of new ones; text_offset counts characters of the
        choice's text, which begins with the prompt where that is echoed."""
        if self._body.logprobs is None:
            return None
        prompt = prompt if self._body.echo else ()
        size = len(self._echo(index))
        starts = self._starts[index // self._n] if prompt else []
        offsets = [min(at, size) for at in starts] + [size + token.at for token in new]
        tokens = [*prompt, *new]
        return {
            "tokens": [self._model.token(t.id)[0] for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [self._tops(t) for t in tokens],
            "text_offset": offsets,
        }

    def _tops(self, token: SampledToken) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        # If a name occurs twice, the token's own value wins.
        pairs = [*token.top[: self._body.logprobs], (token.id, token.logprob)]
        return {self._model.token(i)[0]: p for i, p in pairs}
