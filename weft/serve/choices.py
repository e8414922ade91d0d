"""Answers in progress, one or several to a request, and their chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from weft.core.errors import WeftError
from weft.core.records import dataclass
from weft.engine.job import Finish, Job, Output, SampledToken, TokenUsage
from weft.serve.player import JobOutputs
from weft.serve.toolcalls.events import CallStarted, Content, Event, Parser
from weft.serve.toolcalls.marks import NONE, Marks
from weft.serve.wire import HttpError, refusal


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """The part of an answer from one output: `events` of its text, its tokens. The last piece has
    `finish` and `usage`, and `stopped` with the stop string that ended it. A piece before the first
    token has the tokens of the `prompt`, if their logprobs were asked for."""

    events: tuple[Event, ...] = ()
    tokens: tuple[SampledToken, ...] = ()
    finish: Finish | None = None
    usage: TokenUsage | None = None
    prompt: tuple[SampledToken, ...] = ()
    stopped: str | None = None

    @property
    def content(self) -> str:
        """The text that is said to the user."""
        return "".join(e.text for e in self.events if isinstance(e, Content))


class Choice:
    """An answer in progress: iterate once over its chunks. Raises HttpError if it fails. `prompt`
    is the prompt's number of tokens, `limit` the most that the answer may get."""

    def __init__(
        self, answer: JobOutputs, parser: Parser | None, job: Job, calls: int | None = None,
        marks: Marks = NONE, shows_stop: bool = False,
    ) -> None:  # fmt: skip
        self._answer, self._parser, self._marks = answer, parser, marks
        self._read = 0  # characters
        self.prompt, self.limit = len(job.prompt), job.max_new_tokens
        self._calls, self._shows_stop = calls, shows_stop
        self.left = ""  # the part of the request that its prompt leaves out
        self._over = False  # True if the following output is left out

    async def __aiter__(self) -> AsyncIterator[AnswerChunk]:
        try:
            async for output in self._answer:
                ended = output.finish is not None
                tokens = () if self._over else output.tokens
                events = self._events(output, ended)
                if self._calls is not None:
                    events = [*self._kept(events)]
                finish = "stop" if ended and self._over else output.finish
                if finish == "cancelled":  # not by who reads this
                    raise HttpError(503, "the server had to end this answer; ask again", retry=5)
                stopped = None if self._over else output.stopped
                yield AnswerChunk(
                    tuple(events), tokens, finish, output.usage, output.prompt, stopped
                )
        except WeftError as e:
            raise refusal(e) from None

    def _kept(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events before a call that is one too many, which ends the answer."""
        for found in events:
            if isinstance(found, CallStarted) and found.index == self._calls:
                self._over = True
                self.close()
            if not self._over:
                yield found

    def _events(self, output: Output, ended: bool) -> list[Event]:
        text = output.text
        if self._shows_stop and ended:
            text += output.stopped or ""
        if self._parser is None:
            return [Content(text)] if text else []
        read = self._marks.read(text, self._read, output.tokens)
        self._read += len(text)
        return [*self._parser.feed(read), *(self._parser.finish() if ended else ())]

    def close(self) -> None:
        """Ends it, where it is not done: the next step leaves it out."""
        self._answer.close()


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[int, AnswerChunk]]:
    """The pieces of all choices as they come, with each choice's number; all are closed at the
    end."""
    if len(choices) == 1:
        try:
            async for piece in choices[0]:
                yield 0, piece
        finally:
            choices[0].close()
        return
    queue: asyncio.Queue[tuple[int, AnswerChunk | BaseException | None]] = asyncio.Queue()

    async def pour(number: int) -> None:
        try:
            async for piece in choices[number]:
                queue.put_nowait((number, piece))
            queue.put_nowait((number, None))
        except Exception as e:
            queue.put_nowait((number, e))

    tasks = [asyncio.ensure_future(pour(i)) for i in range(len(choices))]
    left = len(choices)
    try:
        while left:
            number, found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield number, found
    finally:
        for choice in choices:
            choice.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def gathered(choices: Sequence[Choice]) -> list[list[AnswerChunk]]:
    """All pieces of each choice."""
    made: list[list[AnswerChunk]] = [[] for _ in choices]
    stream = merged(choices)
    try:
        async for number, piece in stream:
            made[number].append(piece)
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
    return made
