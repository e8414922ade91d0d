"""POST /api/chat and /api/generate."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import UsageError
from weft.serve.chatting import AnswerOptions, Turn, begin, continued
from weft.serve.fields import seconds_of, tops
from weft.serve.guard import key_of
from weft.serve.ollama.given import options_in
from weft.serve.ollama.prompts import begun, shown
from weft.serve.ollama.replies import ChatForm, GenerateForm, Loaded, Replies, ReplyTimes
from weft.serve.ollama.types import Answered, Generate, ModelOptions, OllamaChat, OllamaMessage
from weft.serve.recipes import Recipe
from weft.serve.replies import ReplyWriter, reply
from weft.serve.served import ServedDecoder
from weft.serve.tooling import called, follow_json, follow_schema, function
from weft.serve.wire import HttpError, read

SINKS = 4  # first tokens, on which much of a model's attention rests


async def chat(request: Request) -> Response:
    """Answers a conversation, as Ollama does."""
    body, started = await read(request, OllamaChat), time.monotonic_ns()
    body.refuse()
    options = options_of(body, key_of(request.scope))
    tools = [
        function(tool.function.name, tool.function.description, tool.function.parameters)
        for tool in body.tools or ()
    ]
    messages, prefix = continued([message_of(m) for m in body.messages or ()])
    strict = any(tool.function.strict for tool in body.tools or ())
    turn = Turn(messages, options, variables_of(body), tools, prefix=prefix, strict=strict)

    async def start(model: ServedDecoder) -> ReplyWriter:
        times = ReplyTimes(started)
        if not body.messages:
            return Loaded(ChatForm(model.name), times, body.keep_alive)
        return Replies(model, body, await begin(model, turn), ChatForm(model.name), times)

    return await _replied(request, body, start)


async def generate(request: Request) -> Response:
    """Answers a prompt, as Ollama does."""
    body, started = await read(request, Generate), time.monotonic_ns()
    body.refuse()
    options = options_of(body, key_of(request.scope))

    async def start(model: ServedDecoder) -> ReplyWriter:
        times, form = ReplyTimes(started), GenerateForm(model.name)
        if not body.prompt:
            return Loaded(form, times, body.keep_alive)
        if body.template:
            model = _templated(model, body.template)
        made = await begun(model, body, options, variables_of(body))
        return Replies(model, body, made, form, times)

    return await _replied(request, body, start)


async def _replied(
    request: Request, body: Answered, start: Callable[[ServedDecoder], Awaitable[ReplyWriter]]
) -> Response:
    name, keep = named(request, body.model), seconds_of(body.keep_alive, "keep_alive")
    return await reply(request, name, start, body.stream is not False, keep)


def _templated(model: ServedDecoder, template: str) -> ServedDecoder:
    """The model with another template for this request. Raises HttpError."""
    own = model.recipe or Recipe(name=model.name, base=model.name)
    recipe = structs.replace(own, template=template)
    try:
        recipe.check()
    except UsageError as e:
        raise HttpError(400, str(e), "template") from None
    made = recipe.of(model)
    assert isinstance(made, ServedDecoder)
    return made


def named(request: Request, name: str) -> str:
    """The model's own name: Ollama's clients put ":latest" after those without a tag."""
    known = request.app.state.shelf.paths
    return name if name in known else name.removesuffix(":latest")


def options_of(body: Answered, key: bytes) -> AnswerOptions:
    """The AnswerOptions that the request asks for. Raises HttpError, naming the field."""
    form = body.format
    constraint = follow_schema(form) if isinstance(form, dict) else follow_json() if form else None
    return replace(
        options_in(body.options or ModelOptions()),
        logprobs=(tops(body.top_logprobs, "top_logprobs") or 0) if body.logprobs else None,
        salt=key,
        constraint=constraint,
        shifts=isinstance(body, OllamaChat) and bool(body.truncate),
        keeps=_kept(body) if body.shift else None,
    )


def _kept(body: Answered) -> int:
    """The first tokens that stay in a context that is shifted: as many as hold much of the
    attention, unless the request says."""
    keep = None if body.options is None else body.options.num_keep
    return SINKS if keep is None else int(keep)


def variables_of(body: Answered) -> dict[str, Any]:
    """The chat template's variables about thinking."""
    if body.think is None:
        return {}
    made: dict[str, Any] = {"enable_thinking": bool(body.think)}
    return {**made, "reasoning_effort": body.think} if isinstance(body.think, str) else made


def message_of(given: OllamaMessage) -> dict[str, Any]:
    """A message as chat templates take it."""
    made: dict[str, Any] = {"role": given.role, "content": shown(given.content, given.images)}
    if given.thinking:
        made["reasoning_content"] = given.thinking
    if given.tool_calls:
        made["tool_calls"] = [
            called(call.function.name, call.function.arguments, call.id)
            for call in given.tool_calls
        ]
    if given.tool_name is not None:
        made["name"] = given.tool_name
    if given.tool_call_id is not None:
        made["tool_call_id"] = given.tool_call_id
    return made
