"""From a conversation to answers: what the chat protocols share.

A protocol translates its request into a `Turn`, awaits `begin`, and translates the `Piece`s of each
choice into its own words.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.errors import LimitError, UsageError, WeftError
from weft.engine.job import Chosen, Constraint, Finish, Job, Usage
from weft.engine.sampler import Sampling
from weft.serve.player import Answer, submit_all
from weft.serve.served import ServedDecoder
from weft.serve.toolcalls.events import Content, Event, Parser
from weft.serve.toolcalls.formats import Context
from weft.serve.wire import Refused, refusal

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_LOGPROBS = 20


@dataclass(frozen=True)
class Piece:
    """What one output adds to an answer: `events` of its text, the tokens behind it. The last has
    `finish` and `usage`; one before the first token has the tokens of the `prompt`, where their
    logprobs were asked for."""

    events: tuple[Event, ...] = ()
    tokens: tuple[Chosen, ...] = ()
    finish: Finish | None = None
    usage: Usage | None = None
    prompt: tuple[Chosen, ...] = ()

    @property
    def content(self) -> str:
        """The text that is said to the user."""
        return "".join(e.text for e in self.events if isinstance(e, Content))


@dataclass(frozen=True)
class Options:
    """How answers are to be made, whatever the protocol. seed None: one is drawn. constraint: what
    compiles to one, off the event loop."""

    max_new_tokens: int | None = None  # None: as many as the context holds
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    salt: bytes = b""
    special: bool = False  # whether texts show special tokens, as parsers want them
    ends: bool = True  # whether an end-of-text token ends it
    constraint: Callable[[ServedDecoder], Callable[[], Constraint]] | None = None


@dataclass(frozen=True)
class Turn:
    """A conversation and what is wanted next. `messages` are as chat templates take them, content
    as text; `variables` are the template's. tools: the schemas of the parameters of those that may
    be called, by name."""

    messages: Sequence[Mapping[str, Any]]
    options: Options
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


async def prompt_of(model: ServedDecoder, turn: Turn) -> tuple[str, list[int]]:
    """The conversation through the model's own chat template: text and ids. Raises Refused."""

    def made() -> tuple[str, list[int]]:
        tokenizer = model.tokenizer
        text = tokenizer.chat(turn.messages, **turn.variables)
        return text, tokenizer.encode(text, special=False)

    try:
        return await asyncio.to_thread(made)
    except UsageError as e:
        raise Refused(400, str(e), "messages") from None
    except WeftError as e:
        raise refusal(e) from None


async def begin(model: ServedDecoder, turn: Turn) -> list[Choice]:
    """The choices of a turn, being made. Raises Refused."""
    text, ids = await prompt_of(model, turn)
    make = model.parser
    context = Context(text, turn.tools)
    options = replace(turn.options, special=True)
    return await begin_ids(model, [ids], options, lambda: make(context))


async def begin_ids(
    model: ServedDecoder,
    prompts: Sequence[Sequence[int]],
    options: Options,
    parser: Callable[[], Parser] | None = None,
) -> list[Choice]:
    """`options.n` choices of each prompt, side by side, being made; `parser` makes what reads the
    text of each (None: all of it is content). Raises Refused."""
    constraint = None
    try:
        if options.constraint is not None:
            constraint = await asyncio.to_thread(options.constraint, model)
        jobs = [
            replace(job, constraint=constraint)
            for ids in prompts
            for job in _jobs(model, tuple(ids), options)
        ]
        parsers = [None if parser is None else parser() for _ in jobs]
        answers = submit_all(model.player, jobs)
    except WeftError as e:
        raise refusal(e) from None
    return [Choice(answer, made) for answer, made in zip(answers, parsers)]


def _jobs(model: ServedDecoder, ids: tuple[int, ...], options: Options) -> list[Job]:
    context = model.model.context
    limit = options.max_new_tokens
    if not ids:
        raise UsageError("the prompt is empty; give at least one token")
    if len(ids) > context or (len(ids) + (limit or 0) > context + 1):
        asked = f" and {limit} new ones" if limit is not None else ""
        raise LimitError(
            f"the prompt has {len(ids)} tokens{asked}; the context holds {context}: shorten one"
        )
    seed = secrets.randbits(63) if options.seed is None else options.seed
    whole = limit if limit is not None else context - len(ids) + 1
    job = Job(
        ids, whole, options.sampling, seed, 0, model.eos if options.ends else frozenset(),
        options.stop, options.logprobs, options.prompt_logprobs, salt=options.salt,
        texts=(lambda: model.tokenizer.stream(True)) if options.special else None,
    )  # fmt: skip
    return [replace(job, index=i) for i in range(options.n)]


class Choice:
    """One answer being made: iterate once over its pieces. Raises Refused where it fails."""

    def __init__(self, answer: Answer, parser: Parser | None) -> None:
        self._answer, self._parser = answer, parser

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            async for output in self._answer:
                ended = output.finish is not None
                yield Piece(
                    tuple(self._events(output.text, ended)), output.tokens, output.finish,
                    output.usage, output.prompt,
                )  # fmt: skip
        except WeftError as e:
            raise refusal(e) from None

    def _events(self, text: str, ended: bool) -> list[Event]:
        if self._parser is None:
            return [Content(text)] if text else []
        return [*self._parser.feed(text), *(self._parser.finish() if ended else ())]

    def close(self) -> None:
        """Ends it, where it is not done: the next step leaves it out."""
        self._answer.close()


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[int, Piece]]:
    """The pieces of all choices as they come, with each choice's number; all are closed at the
    end."""
    if len(choices) == 1:
        try:
            async for piece in choices[0]:
                yield 0, piece
        finally:
            choices[0].close()
        return
    queue: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue()

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


async def gathered(choices: Sequence[Choice]) -> list[list[Piece]]:
    """All pieces of each choice."""
    made: list[list[Piece]] = [[] for _ in choices]
    stream = merged(choices)
    try:
        async for number, piece in stream:
            made[number].append(piece)
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
    return made
