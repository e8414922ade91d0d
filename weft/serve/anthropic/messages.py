"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from weft.engine.job import TokenUsage
from weft.serve import errors
from weft.serve.anthropic.blocks import BlockEvents, content_of
from weft.serve.anthropic.input import turn_of
from weft.serve.anthropic.types import CountTokens, Messages
from weft.serve.chatting import AnswerOptions, begin, tokens_of
from weft.serve.choices import AnswerChunk, Choice, gathered
from weft.serve.fields import between, sampling, seed_of, stops
from weft.serve.guard import key_of
from weft.serve.openai.answers import AnswerFields
from weft.serve.replies import ReplyWriter, counted, reply
from weft.serve.routing import Described, route
from weft.serve.served import ServedDecoder
from weft.serve.tooling import follow_schema
from weft.serve.wire import HttpError, event, json_response, read


async def messages(request: Request) -> Response:
    """Answers a conversation, as Anthropic's Messages API does."""
    body = await read(request, Messages)
    body.refuse()
    turn = turn_of(body, options_of(body, key_of(request.scope)))

    async def start(model: ServedDecoder) -> ReplyWriter:
        return _MessageWriter(model, body, (await begin(model, turn))[0])

    return await reply(request, body.model, start, bool(body.stream))


async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation has."""
    body = await read(request, CountTokens)
    body.refuse()
    turn = turn_of(body, AnswerOptions())
    return json_response({"input_tokens": await counted(request, body.model, turn)})


def options_of(body: Messages, key: bytes) -> AnswerOptions:
    """The AnswerOptions that the request asks for. Raises HttpError, naming the field."""
    between("temperature", body.temperature, 0, 2)
    form = body.output_format
    if body.output_config is not None and body.output_config.format is not None:
        form = body.output_config.format
    how = sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )
    return AnswerOptions(
        max_new_tokens=body.max_tokens,
        sampling=how,
        seed=seed_of(body.seed),
        stop=stops(body.stop_sequences, "stop_sequences"),
        salt=key + (body.cache_salt or "").encode(errors="replace"),
        constraint=None if form is None else follow_schema(form.schema),
        cut=True,
    )


class _MessageWriter(ReplyWriter):
    """A message, whole or as events."""

    ping = event({"type": "ping"}, "ping")

    def __init__(self, model: ServedDecoder, body: Messages, choice: Choice) -> None:
        self.choices = (choice,)
        self._model, self._choice, self._limit = model, choice, body.max_tokens
        thinking = body.thinking
        self._hidden = thinking is not None and thinking.display == "omitted"
        self._head = {
            "id": "msg_" + secrets.token_hex(12), "type": "message", "role": "assistant",
            "model": model.name,
        }  # fmt: skip

    async def whole(self) -> Mapping[str, Any]:
        (pieces,) = await gathered(self.choices)
        blocks = BlockEvents(self._hidden)
        events = [e for piece in pieces for found in piece.events for e in blocks.add(found)]
        content = content_of([*events, *blocks.close()])
        return {**self._head, "content": content, **self._end(pieces[-1], blocks.called),
                "usage": await self._usage(pieces[-1], blocks.thoughts)}  # fmt: skip

    async def parts(self) -> AsyncIterator[bytes]:
        begun = {"input_tokens": self._choice.prompt, "output_tokens": 0}
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**self._head, **empty, "usage": begun}
        yield _said({"type": "message_start", "message": message})
        blocks = BlockEvents(self._hidden)
        async for piece in self._choice:
            for found in piece.events:
                for said in blocks.add(found):
                    yield _said(said)
            if piece.finish is not None:
                for said in blocks.close():
                    yield _said(said)
                delta = self._end(piece, blocks.called)
                usage = await self._usage(piece, blocks.thoughts)
                yield _said({"type": "message_delta", "delta": delta, "usage": usage})
        yield _said({"type": "message_stop"})

    def failed(self, error: HttpError) -> bytes:
        return event(errors.anthropic(error), "error")

    async def _usage(self, last: AnswerChunk, thoughts: str) -> dict[str, Any]:
        """The tokens of a request; input_tokens are those that were not in the cache."""
        usage = last.usage or TokenUsage(0, 0, 0)
        return {
            "input_tokens": usage.prompt - usage.cached, "cache_read_input_tokens": usage.cached,
            "cache_creation_input_tokens": 0, "output_tokens": usage.new,
            "output_tokens_details": {"thinking_tokens": await tokens_of(self._model, thoughts)},
        }  # fmt: skip

    def _end(self, last: AnswerChunk, called: bool) -> dict[str, Any]:
        reason = "tool_use" if called else "end_turn"
        if last.finish == "length":
            cut = self._choice.limit < self._limit
            reason = "model_context_window_exceeded" if cut else "max_tokens"
        elif last.stopped is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": last.stopped}


def _said(said: Mapping[str, Any]) -> bytes:
    return event(said, said["type"])


def routes() -> list[Described]:
    """Anthropic's."""
    return [
        route("/v1/messages", messages, Messages, answer=MessagesAnswer),
        route("/v1/messages/count_tokens", count_tokens, CountTokens, answer=CountTokensAnswer),
    ]


# -- answers, field by field -----------------------------------------------------------------------


StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class AnswerBlock(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """A block of an answer's content."""


class TextBlock(AnswerBlock, kw_only=True, tag="text"):
    text: str


class ToolUseBlock(AnswerBlock, kw_only=True, tag="tool_use"):
    """input: the arguments; {"INVALID_JSON": text} where the model wrote them wrong."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingBlock(AnswerBlock, kw_only=True, tag="thinking"):
    """signature: a digest of the text."""

    thinking: str
    signature: str


class ThinkingDetails(AnswerFields):
    thinking_tokens: int


class MessageUsage(AnswerFields):
    """Tokens: of the prompt, without and within the cache, and new ones, of which some thought."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessagesAnswer(AnswerFields):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ToolUseBlock | ThinkingBlock]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage


class CountTokensAnswer(AnswerFields):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int
