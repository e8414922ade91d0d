"""Answers in Ollama's words: objects of JSON, one a line, or one that they join to."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.engine.job import TokenUsage
from weft.serve import errors
from weft.serve.choices import AnswerChunk, Choice, merged
from weft.serve.fields import seconds_of
from weft.serve.ollama.types import Answered
from weft.serve.openai.chat import call_id
from weft.serve.replies import ReplyWriter
from weft.serve.served import ServedDecoder
from weft.serve.toolcalls.events import CallArguments, CallStarted, Content
from weft.serve.tooling import input_of
from weft.serve.wire import HttpError


def stamp(seconds: float | None = None) -> str:
    """A time of the clock (None: now) in RFC 3339's form."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(
        seconds, UTC
    )  # fmt: skip
    return at.isoformat().replace("+00:00", "Z")


class RouteReplies:
    """The words of a route, for the model called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def said(
        self, content: str = "", thinking: str = "", calls: Sequence[Any] = (), **more: Any
    ) -> dict[str, Any]:
        """An object of the stream, or the whole answer."""
        head = {"model": self._name, "created_at": stamp()}
        return {**head, **self.body(content, thinking, calls), "done": False, **more}

    def body(self, content: str, thinking: str, calls: Sequence[Any]) -> dict[str, Any]:
        """The fields that hold the answer's text and calls."""
        raise NotImplementedError


class ChatForm(RouteReplies):
    """The form of answers from /api/chat."""

    def body(self, content: str, thinking: str, calls: Sequence[Any]) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": content}
        made |= {"thinking": thinking} if thinking else {}
        return {"message": made | ({"tool_calls": list(calls)} if calls else {})}


class GenerateForm(RouteReplies):
    """The form of answers from /api/generate, which offers no tools."""

    def body(self, content: str, thinking: str, calls: Sequence[Any]) -> dict[str, Any]:
        return {"response": content} | ({"thinking": thinking} if thinking else {})


@dataclass
class ReplyTimes:
    """The times at which a request came, began on a loaded model, and had its first token, in
    nanoseconds of the monotonic clock."""

    came: int
    begun: int = field(default_factory=time.monotonic_ns)
    first: int = 0

    def told(self, usage: TokenUsage | None = None) -> dict[str, int]:
        """The durations and counts that the last object has."""
        now = time.monotonic_ns()
        first = self.first or now
        made = {"total_duration": now - self.came, "load_duration": self.begun - self.came}
        if usage is None:
            return made
        return made | {
            "prompt_eval_count": usage.prompt, "prompt_eval_duration": first - self.begun,
            "eval_count": usage.new, "eval_duration": now - first,
        }  # fmt: skip


class JsonLines(ReplyWriter):
    """Objects of JSON, one a line."""

    media = "application/x-ndjson"
    ping = b""  # an empty line is no JSON

    def __init__(self, form: RouteReplies) -> None:
        self.choices: Sequence[Choice] = ()
        self._form = form

    def objects(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the arguments of Form.said for each object of the stream."""
        raise NotImplementedError

    async def whole(self) -> Mapping[str, Any]:
        made: dict[str, Any] = {}
        async for part in self.objects():
            for name, value in part.items():  # Texts and lists grow; other fields are set once.
                if name in made:
                    made[name] += value
                else:
                    made[name] = value
        return self._form.said(**made)

    async def parts(self) -> AsyncIterator[bytes]:
        async for part in self.objects():
            yield _line(self._form.said(**part))

    def failed(self, error: HttpError) -> bytes:
        return _line(errors.ollama(error))


class Loaded(JsonLines):
    """The answer to a request that asks for nothing but the model, or that it goes."""

    def __init__(self, form: RouteReplies, times: ReplyTimes, keep: float | str | None) -> None:
        super().__init__(form)
        self._times = times
        self._reason = "unload" if seconds_of(keep, "keep_alive") == 0 else "load"

    async def objects(self) -> AsyncIterator[dict[str, Any]]:
        yield {"done": True, "done_reason": self._reason, **self._times.told()}


class Replies(JsonLines):
    """An answer that a model writes. Calls of tools come whole."""

    def __init__(
        self, model: ServedDecoder, body: Answered, choices: Sequence[Choice], form: RouteReplies,
        times: ReplyTimes,
    ) -> None:  # fmt: skip
        super().__init__(form)
        self.choices = choices
        self._model, self._times, self._logs = model, times, bool(body.logprobs)
        self._asked = body
        self._call: CallStarted | None = None
        self._arguments = ""

    async def objects(self) -> AsyncIterator[dict[str, Any]]:
        async for _, piece in merged(self.choices):
            if piece.tokens and not self._times.first:
                self._times.first = time.monotonic_ns()
            tokens = piece.tokens if self._logs else ()
            more = {"logprobs": [self._model.logprob(t) for t in tokens]} if tokens else {}
            for part in self._said(piece):
                yield {**part, **more}
                more = {}
            if piece.finish is not None:
                end = {
                    "done": True,
                    "done_reason": "length" if piece.finish == "length" else "stop",
                }
                yield {**more, **end, **self._times.told(piece.usage),
                       **self._noticed(piece.usage)}  # fmt: skip
            elif more:
                yield more

    def _noticed(self, usage: TokenUsage | None) -> dict[str, list[str]]:
        """Notes of what differs from the request."""
        asked = self._asked.options and self._asked.options.num_ctx
        left, said = self.choices[0].left, list[str]()
        if asked and asked > (has := self._model.model.context):
            said.append(f"num_ctx {asked} is more than the model's context: {has} holds")
        if usage is not None and usage.shifted:
            said.append(f"{usage.shifted} tokens left the context, which became full")
        if left:
            said.append(f"{left} left the prompt, which was too long")
        return {"notices": said} if said else {}

    def _said(self, piece: AnswerChunk) -> Iterator[dict[str, Any]]:
        for found in piece.events:
            if isinstance(found, CallArguments):
                self._arguments += found.text
                continue
            yield from self._called()
            if isinstance(found, CallStarted):
                self._call, self._arguments = found, ""
            else:
                yield {"content" if isinstance(found, Content) else "thinking": found.text}
        if piece.finish is not None:
            yield from self._called()

    def _called(self) -> Iterator[dict[str, Any]]:
        """The call that has ended, where there is one."""
        call, self._call = self._call, None
        if call is not None:
            made = {"index": call.index, "name": call.name, "arguments": input_of(self._arguments)}
            yield {"calls": [{"id": call_id(), "function": made}]}


def _line(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
