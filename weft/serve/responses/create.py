"""POST /v1/responses: OpenAI's Responses API without a memory, as Codex CLI calls it."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from weft.engine.job import TokenUsage
from weft.serve.chatting import Turn, begin, tokens_of
from weft.serve.choices import Choice, merged
from weft.serve.fields import tops
from weft.serve.guard import key_of
from weft.serve.openai.options import followed, options_of
from weft.serve.replies import ReplyWriter, counted, reply
from weft.serve.responses import events
from weft.serve.responses.answers import CountAnswer, ResponseAnswer
from weft.serve.responses.input import items_of, messages_of
from weft.serve.responses.tools import Tools
from weft.serve.responses.types import (
    ChosenTool,
    ReasoningOptions,
    Responses,
    TextOptions,
    ToolsItem,
)
from weft.serve.routing import Described, route
from weft.serve.served import ServedDecoder
from weft.serve.tooling import needed_of, thinking
from weft.serve.wire import HttpError, event, json_response, read

LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True)
class ParsedRequest:
    """A request, its conversation and its tools."""

    body: Responses
    turn: Turn
    tools: Tools


async def responses(request: Request) -> HttpResponse:
    """Answers a conversation, item by item."""
    asked = await _asked(request)

    async def start(model: ServedDecoder) -> ReplyWriter:
        return _ResponseWriter(model, asked, await begin(model, asked.turn))

    return await reply(request, asked.body.model, start, bool(asked.body.stream))


async def input_tokens(request: Request) -> HttpResponse:
    """How many tokens a request to /v1/responses has."""
    asked = await _asked(request)
    found = await counted(request, asked.body.model, asked.turn)
    return json_response({"object": "response.input_tokens", "input_tokens": found})


async def _asked(request: Request) -> ParsedRequest:
    body = await read(request, Responses)
    body.refuse()
    items = items_of(body.input)
    tools = Tools()
    tools.add(body.tools or (), "tools")
    for item in items:
        if isinstance(item, ToolsItem):
            tools.add(item.tools, "input.tools")
    tools = tools.chosen(body.tool_choice)
    messages = messages_of(body.instructions, items)
    if not messages:
        raise HttpError(400, "input has no item for the model; send a message", "input")
    turn = _turn(body, tools, key_of(request.scope))
    return ParsedRequest(body, replace(turn, messages=messages), tools)


def _turn(body: Responses, tools: Tools, key: bytes) -> Turn:
    options = options_of(body, body.max_output_tokens, key)
    if body.top_logprobs is not None or LOGPROBS in (body.include or ()):
        # A step of several tokens would blur which of them are the message's.
        wanted = tops(body.top_logprobs, "top_logprobs") or 0
        options = replace(options, logprobs=wanted, drafts=False)
    form = None if body.text is None else body.text.format
    if form is not None:
        if form.type == "json_schema" and form.schema is None:
            raise HttpError(400, "text.format.schema is missing", "text.format.schema")
        options = replace(options, constraint=followed(form.type, form.schema))
    choice: str | Sequence[str] | None
    parallel = body.parallel_tool_calls is not False
    if isinstance(body.tool_choice, ChosenTool):
        one = body.tool_choice.name
        allowed = body.tool_choice.type == "allowed_tools"
        choice = body.tool_choice.mode if allowed else (one or "",)
        parallel &= allowed  # OpenAI: exactly one call of a tool that is named
    else:
        choice = body.tool_choice
    variables = thinking(None if body.reasoning is None else body.reasoning.effort)
    told = [tool.told for tool in tools.offered.values()]
    return Turn(
        (), options, variables, told, parallel,
        needed=needed_of(choice, list(tools.offered)),
        strict=any(tool.echo.get("strict") for tool in tools.offered.values()),
    )  # fmt: skip


class _ResponseWriter(ReplyWriter):
    """A response, whole or as events."""

    def __init__(
        self, model: ServedDecoder, asked: ParsedRequest, choices: Sequence[Choice]
    ) -> None:
        self.choices = choices
        self._model = model
        self._logs = asked.turn.options.logprobs is not None
        reasoning = asked.body.reasoning
        summary = reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)
        head = _head(model, asked)
        self._response = events.Response(head, asked.tools.offered, summary)

    async def whole(self) -> Mapping[str, Any]:
        async for _ in self._told():
            pass
        return self._response.made

    async def parts(self) -> AsyncIterator[bytes]:
        async for made in self._told():
            yield event(made, made["type"])

    def failed(self, error: HttpError) -> bytes:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        made = self._response.fail(code, error.message)
        return event(made, made["type"])

    async def _told(self) -> AsyncIterator[dict[str, Any]]:
        for made in self._response.begin():
            yield made
        async for _, piece in merged(self.choices):
            logprobs = [self._model.logprob(t) for t in piece.tokens] if self._logs else ()
            for made in self._response.add(piece.events, logprobs):
                yield made
            if piece.finish is not None:
                cut = "max_output_tokens" if piece.finish == "length" else None
                usage = await self._usage(piece.usage)
                for made in self._response.end(cut, usage=usage, completed_at=int(time.time())):
                    yield made

    async def _usage(self, found: TokenUsage | None) -> dict[str, Any]:
        assert found is not None
        reasoning = await tokens_of(self._model, self._response.reasoning)
        return {
            "input_tokens": found.prompt,
            "input_tokens_details": {
                "cached_tokens": found.cached, "cache_write_tokens": found.prompt - found.cached
            },
            "output_tokens": found.new,
            "output_tokens_details": {"reasoning_tokens": min(reasoning, found.new)},
            "total_tokens": found.prompt + found.new,
        }  # fmt: skip


def routes() -> list[Described]:
    """Those of responses."""
    return [
        route("/v1/responses", responses, Responses, answer=ResponseAnswer),
        route("/v1/responses/input_tokens", input_tokens, Responses, answer=CountAnswer),
    ]


def _head(model: ServedDecoder, asked: ParsedRequest) -> dict[str, Any]:
    """The first state of a response: itself, and the settings of its request."""
    body, choice = asked.body, asked.body.tool_choice
    sampling = asked.turn.options.sampling.under(model.model.defaults)
    text, reasoning = body.text or TextOptions(), body.reasoning or ReasoningOptions()
    form = {"type": "text"} if text.format is None else _plain(text.format)
    return {
        "id": "resp_" + secrets.token_hex(24), "object": "response",
        "created_at": int(time.time()), "completed_at": None, "model": model.name,
        "system_fingerprint": model.print, "error": None, "incomplete_details": None,
        "instructions": body.instructions, "previous_response_id": None,
        "background": False, "store": False, "truncation": "disabled", "service_tier": "default",
        "max_output_tokens": body.max_output_tokens, "max_tool_calls": body.max_tool_calls,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "tools": asked.tools.echo,
        "tool_choice": _plain(choice) if isinstance(choice, ChosenTool) else choice or "auto",
        "text": {"format": form, "verbosity": text.verbosity or "medium"},
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_logprobs": body.top_logprobs or 0, "metadata": body.metadata or {},
        "prompt_cache_key": body.prompt_cache_key, "user": body.user,
        "safety_identifier": body.safety_identifier, "usage": None,
    }  # fmt: skip


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """The value as JSON has it, without fields that were left out."""
    return {k: v for k, v in msgspec.to_builtins(value).items() if v is not None}
