"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.engine.job import SampledToken, TokenUsage
from weft.serve.chatting import Turn, begin, continued, tokens_of
from weft.serve.choices import AnswerChunk, gathered, merged
from weft.serve.fields import tops
from weft.serve.guard import key_of
from weft.serve.openai.options import choices_of, new_tokens
from weft.serve.openai.scored import scored
from weft.serve.openai.types import Chat, ContentPart, Message, NamedTool
from weft.serve.pictures import Part, content_of, from_url, video_of
from weft.serve.replies import ReplyWriter, reply
from weft.serve.served import ServedDecoder
from weft.serve.toolcalls.events import (
    CallStarted,
    Content,
    Event,
    Reasoning,
    message,
)
from weft.serve.tooling import called, function, needed_of, object_of, thinking
from weft.serve.wire import HttpError, event, read, too_much, written

FINISH = {"stop": "stop", "eos": "stop", "length": "length"}


async def chat(request: Request) -> Response:
    """Answers a conversation."""
    body = await read(request, Chat)
    body.refuse()
    turn = turn_of(body, key_of(request.scope))

    async def start(model: ServedDecoder) -> ReplyWriter:
        return _ChatWriter(model, body, await begin(model, turn))

    return await reply(request, body.model, start, bool(body.stream))


def turn_of(body: Chat, key: bytes) -> Turn:
    """The conversation that a request asks to go on. Raises HttpError."""
    limit = body.max_completion_tokens
    limit = body.max_tokens if limit is None else limit
    options = choices_of(body, new_tokens(body) if limit is None else limit, key)
    if body.top_logprobs is not None and not body.logprobs:
        raise HttpError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    if body.logprobs:
        options = replace(options, logprobs=tops(body.top_logprobs, "top_logprobs") or 0)
    given = [] if body.tool_choice == "none" else [tool.function for tool in body.tools or ()]
    tools = [function(tool.name, tool.description, tool.parameters) for tool in given]
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    reserved = variables.keys() & {"messages", "tools", "documents", "add_generation_prompt"}
    if reserved:
        raise HttpError(400, f"chat_template_kwargs cannot set {min(reserved)}",
                        "chat_template_kwargs")  # fmt: skip
    variables |= thinking(body.reasoning_effort)
    if body.documents is not None:
        variables["documents"] = body.documents
    messages, prefix = messages_of(body.messages), ""
    if body.continue_final_message:
        messages, prefix = continued(messages)
        if not prefix:
            raise HttpError(400, "continue_final_message needs a last message of the assistant's",
                            "messages")  # fmt: skip
    wish = body.tool_choice
    named = isinstance(wish, NamedTool)  # OpenAI: exactly one call of it
    choice = (wish.function.name,) if isinstance(wish, NamedTool) else wish
    return Turn(
        messages, options, variables, tools, body.parallel_tool_calls is not False and not named,
        needed=needed_of(choice, [tool.name for tool in given]),
        strict=any(tool.strict for tool in given), prefix=prefix,
        opens=bool(prefix) or body.add_generation_prompt is not False,
    )  # fmt: skip


def messages_of(given: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form that chat templates take. Raises HttpError for content that is not text,
    and for calls whose arguments have too many parts."""
    calls = [call for one in given for call in one.tool_calls or ()]
    check_arguments((call.function.arguments for call in calls), "messages")
    return [message_of(one) for one in given]


def check_arguments(texts: Iterable[str], field: str) -> None:
    """Raises HttpError, naming `field`, where arguments of calls hold more JSON than a body may."""
    if why := too_much(*(text.encode(errors="replace") for text in texts)):
        raise HttpError(400, f"the arguments of calls: {why}", field)


def message_of(given: Message) -> dict[str, Any]:
    """A message in the form that chat templates take. Raises HttpError for content that is neither
    text nor a picture of the user's."""
    read = shown_of if given.role == "user" else text_of
    made: dict[str, Any] = {"role": given.role, "content": read(given.content)}
    if given.role == "developer":
        made["role"] = "system"
    if given.name is not None:
        made["name"] = given.name
    reasoning = given.reasoning if given.reasoning is not None else given.reasoning_content
    if reasoning is not None:
        made["reasoning_content"] = reasoning
    if given.tool_calls:
        made["tool_calls"] = [
            called(call.function.name, arguments(call.function.arguments), call.id)
            for call in given.tool_calls
        ]
    if given.tool_call_id is not None:
        made["tool_call_id"] = given.tool_call_id
    return made


def arguments(text: str) -> Any:
    """A call's arguments as templates take them: an object, where they are one."""
    found = object_of(text)
    return text if found is None else found


def shown_of(
    content: str | Sequence[ContentPart] | None, field: str = "messages"
) -> str | list[dict[str, Any]]:
    """The content of a message of the user's: text, or parts with pictures. Raises HttpError."""
    if content is None or isinstance(content, str):
        return content or ""
    return content_of(parts_of(content, field))


def parts_of(content: Sequence[ContentPart], field: str) -> list[Part]:
    """Texts and pictures, in order. Raises HttpError for other parts."""
    return [
        from_url(part.image_url, field)
        if part.type in ("image_url", "input_image")
        else video_of(part.video_url, field)
        if part.type == "video_url"
        else text_of([part], field)
        for part in content
    ]


def text_of(content: str | Sequence[ContentPart] | None, field: str = "messages") -> str:
    """The text of a message. Raises HttpError, naming `field`, for parts that are none."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        text = part.text if part.type in ("text", "input_text", "output_text") else None
        if part.type == "refusal":
            text = part.refusal
        if text is None:
            raise HttpError(400, f"content of type {part.type!r:.40} is not taken: text alone is",
                            field)  # fmt: skip
        texts.append(text)
    return "\n".join(texts)


def usage_of(parts: Sequence[TokenUsage], reasoning: int = 0) -> dict[str, Any]:
    """The tokens of all choices of one prompt, which counts once; `reasoning` of the new ones are
    what the model said to itself."""
    prompt = parts[0].prompt if parts else 0
    new = sum(u.new for u in parts)
    return {
        "prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": parts[0].cached if parts else 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(u.drafted for u in parts),
            "reasoning_tokens": reasoning,
        },
    }  # fmt: skip


def call_id() -> str:
    """An id for a call of a tool."""
    return "call_" + secrets.token_hex(12)


class _ChatWriter(ReplyWriter):
    """A chat completion, whole or as chunks."""

    def __init__(self, model: ServedDecoder, body: Chat, choices: Sequence[Any]) -> None:
        self.choices = choices
        self._model, self._body = model, body
        self._head = {
            "id": "chatcmpl-" + secrets.token_hex(16), "created": int(time.time()),
            "model": model.name, "system_fingerprint": model.print,
        }  # fmt: skip

    async def whole(self) -> Mapping[str, Any]:
        made, usages, reasoning, more = [], [], 0, {}
        for index, pieces in enumerate(await gathered(self.choices)):
            found = message(e for piece in pieces for e in piece.events)
            reasoning += await tokens_of(self._model, found.reasoning)
            said: dict[str, Any] = {"role": "assistant", "content": found.content, "refusal": None}
            if found.reasoning:
                said |= {"reasoning": found.reasoning, "reasoning_content": found.reasoning}
            if found.calls:
                said["content"] = found.content or None
                said["tool_calls"] = [
                    {"id": call_id(), "type": "function",
                     "function": {"name": call.name, "arguments": call.arguments}}
                    for call in found.calls
                ]  # fmt: skip
            if self._body.prompt_logprobs is not None:
                told = scored(self._model, [t for piece in pieces for t in piece.prompt])
                more = {"prompt_logprobs": told}
            tokens = [t for piece in pieces for t in piece.tokens]
            choice = {"index": index, "message": said, "logprobs": self._logprobs(tokens)}
            choice["finish_reason"] = self._finish(pieces[-1], bool(found.calls))
            made.append(await written(choice))
            usages += [piece.usage for piece in pieces if piece.usage is not None]
        head = {"object": "chat.completion", **self._head}
        return {**head, "choices": made, "usage": usage_of(usages, reasoning), **more}

    async def parts(self) -> AsyncIterator[bytes]:
        options = self._body.stream_options
        count = options is not None and options.include_usage
        usages: dict[int, TokenUsage] = {}
        thoughts = [""] * len(self.choices)
        called: set[int] = set()
        for index in range(len(self.choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""}, count=count)
        async for index, piece in merged(self.choices):
            if piece.usage is not None:
                usages[index] = piece.usage
            tokens = list(piece.tokens)
            for found in piece.events:
                if isinstance(found, CallStarted):
                    called.add(index)
                elif isinstance(found, Reasoning):
                    thoughts[index] += found.text
                yield self._chunk(index, _delta(found), tokens, count=count)
                tokens = []
            if tokens and self._body.logprobs:
                yield self._chunk(index, {}, tokens, count=count)
            if piece.finish is not None:
                finish = self._finish(piece, index in called)
                yield self._chunk(index, {}, finish=finish, count=count)
        if count:
            head = {"object": "chat.completion.chunk", **self._head}
            reasoning = sum([await tokens_of(self._model, text) for text in thoughts])
            usage = usage_of([usages[i] for i in sorted(usages)], reasoning)
            yield event({**head, "choices": [], "usage": usage})
        yield event("[DONE]")

    def _chunk(
        self, index: int, delta: Mapping[str, Any], tokens: Sequence[SampledToken] = (),
        finish: str | None = None, count: bool = False,
    ) -> bytes:  # fmt: skip
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        choice["logprobs"] = self._logprobs(tokens) if tokens else None
        made = {"object": "chat.completion.chunk", **self._head, "choices": [choice]}
        return event({**made, "usage": None} if count else made)

    def _finish(self, piece: AnswerChunk, called: bool) -> str:
        finish = FINISH[piece.finish or "stop"]
        return "tool_calls" if called and finish == "stop" else finish

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return {"content": [self._model.logprob(t) for t in tokens], "refusal": None}


def _delta(found: Event) -> dict[str, Any]:
    if isinstance(found, Content):
        return {"content": found.text}
    if isinstance(found, Reasoning):
        return {"reasoning": found.text, "reasoning_content": found.text}
    if isinstance(found, CallStarted):
        call = {"index": found.index, "id": call_id(), "type": "function"}
        return {"tool_calls": [{**call, "function": {"name": found.name, "arguments": ""}}]}
    return {"tool_calls": [{"index": found.index, "function": {"arguments": found.text}}]}
