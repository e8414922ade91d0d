"""From a conversation to answers: what the chat protocols share.

A protocol translates its request into a `Turn`, awaits `begin`, and translates each choice's
`AnswerChunk`s into its own words.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.errors import UsageError, WeftError
from weft.engine.job import Constraint, Job
from weft.models.run.own_adapter import adapted
from weft.models.text.picture_prompt import PicturePrompt
from weft.serve.choices import Choice
from weft.serve.fields import SamplingRequest
from weft.serve.forcing import AnswerShape, forced, shaped
from weft.serve.keys import hold_tokens
from weft.serve.pictures import pictured_ids
from weft.serve.served import ServedDecoder
from weft.serve.toolcalls.asked import Calls
from weft.serve.toolcalls.events import Parser
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.tooling import Follow, check_names, parameters_of
from weft.serve.wire import HttpError, TooLong, refusal

Make = Callable[[ServedDecoder], Callable[[], Constraint]]
"""Compiles what the text must be, when the model is known."""

SYSTEM = ("system", "developer")
ANSWER = 4  # the part of the context that is kept for an answer of which nobody says how long
MAX_CHOICES = 16
UNBOUNDED = 1 << 31  # tokens; the engine allows fewer
MAX_BIASES = 1024


@dataclass(frozen=True)
class AnswerOptions:
    """Settings of an answer, in any protocol. `stop` None takes the author's, `seed` None draws
    one. `context` is the number of positions for prompt and answer, at most the model's.
    `constraint` compiles to a Constraint, off the event loop."""

    max_new_tokens: int | None = None  # None: the author's, or `usual_tokens`
    usual_tokens: int | None = None  # None: up to the end of the context
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    salt: bytes = b""
    special: bool = False  # True if texts show special tokens, as parsers want them
    ends: bool = True  # True if an end-of-text token ends the answer
    drafts: bool = True  # True if a step may make several tokens
    constraint: Follow | None = None
    context: int | None = None
    cut: bool = False  # True if the context may end an answer before max_new_tokens
    min_new_tokens: int = 0
    stop_ids: tuple[int, ...] = ()  # end the answer as the model's own end tokens do
    priority: int = 0
    truncate: int | None = None  # how many tokens of a prompt's end are kept; -1: as many as fit
    shifts: bool = False  # True if the oldest turns leave a conversation that is too long
    keeps: int | None = None  # first tokens that stay where the full context is shifted
    slot: int | None = None  # under which the conversation may be kept
    shows_stop: bool = False  # True if a stop string is part of the text that it ends


@dataclass(frozen=True)
class Turn:
    """A conversation and a request for its next answer. `messages` are as chat templates take them,
    content as text; `variables` are the template's.

    - `tools`: the tools that the model may call, as templates take them.
    - `parallel`: True if one answer may call several tools.
    - `prefix`: the required beginning of the answer; it is not part of it.
    - `needed`: names of tools, one of which the answer must call, if any.
    - `strict`: True if arguments must satisfy the schemas.
    - `later`: further tools that the model may call, which the messages introduce.
    - `opens`: True if the template's beginning of an answer follows the messages.
    """

    messages: Sequence[Mapping[str, Any]]
    options: AnswerOptions
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    parallel: bool = True
    prefix: str = ""
    needed: Sequence[str] = ()
    strict: bool = False
    later: Sequence[Mapping[str, Any]] = ()
    opens: bool = True

    def __post_init__(self) -> None:
        """Raises HttpError for two tools of one name."""
        check_names(tool["function"]["name"] for tool in (*self.tools, *self.later))

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of the parameters of all that may be called, by name."""
        return parameters_of([*self.tools, *self.later])

    @property
    def values(self) -> dict[str, Any]:
        """The template's variables besides the messages."""
        return {**self.variables, **({"tools": self.tools} if self.tools else {})}


def continued(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """A conversation without a last message of the assistant's, and the text of that message, with
    which the answer must begin ("" without one). Raises HttpError if that message calls tools or is
    empty."""
    if not messages or messages[-1]["role"] != "assistant":
        return messages, ""
    last = messages[-1]
    if "tool_calls" in last or not last["content"]:
        raise HttpError(400, "the last message is a call of tools, or empty; expected results of "
                        "the call, or text to go on from", "messages")  # fmt: skip
    return messages[:-1], last["content"]


async def prompt_of(
    model: ServedDecoder, turn: Turn, unlimited: bool = False
) -> tuple[str, Sequence[int], str | None]:
    """The conversation in the model's own chat template: text, ids, and the part of the answer that
    it already contains (None: unknown). unlimited: allows more tokens than the context holds.
    Raises HttpError."""

    def made() -> tuple[str, str | None, list[Any]]:
        messages, pictures = model.model.parted(turn.messages)
        chat, begun = model.chat(messages, turn.values, turn.opens), None
        with contextlib.suppress(WeftError):  # a template may refuse to begin nothing
            asked = model.chat(messages, turn.values, False)
            if chat.startswith(asked):
                begun = chat[len(asked) :] + turn.prefix
        return chat + turn.prefix, begun, pictures

    try:
        text, begun, pictures = await model.pools.templates.run(made)
        if pictures:
            return text, await pictured_ids(model, text, pictures), begun
        long = unlimited or turn.options.truncate is not None
        ids = (await model.encoded([text], special=False, unlimited=long))[0]
        return text, truncated(model, ids, turn.options), begun
    except UsageError as e:
        raise HttpError(400, str(e), "messages") from None
    except WeftError as e:
        raise refusal(e) from None


def truncated(model: ServedDecoder, ids: list[int], options: AnswerOptions) -> list[int]:
    """The end of a prompt that a request wants kept."""
    most = options.truncate
    if most is None:
        return ids
    if most < 0:
        most = model.model.context - max(options.max_new_tokens or 1, 1) + 1
    return ids[max(len(ids) - most, 0) :]


async def shortened(model: ServedDecoder, turn: Turn) -> tuple[Turn, int]:
    """The turn without so many of its oldest messages that the context holds the rest and an
    answer, and how many left. Messages of the system at the start stay, and the last of the user's
    with all that follows. Raises HttpError."""
    messages, most = turn.messages, room(model, turn.options)
    first = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM), len(messages))
    starts = [i for i, m in enumerate(messages) if m["role"] == "user" and i > first]

    async def fits(at: int) -> bool:
        kept = [*messages[:first], *messages[at:]]
        _, ids, _ = await prompt_of(model, replace(turn, messages=kept), unlimited=True)
        return len(ids) <= most

    at = await least([first, *starts], fits)
    return replace(turn, messages=[*messages[:first], *messages[at:]]), at - first


def room(model: ServedDecoder, options: AnswerOptions) -> int:
    """The most tokens of a prompt that leave place for an answer."""
    context = min(model.model.context, options.context or model.model.context)
    free = context // ANSWER if options.cut else options.max_new_tokens or context // ANSWER
    return context + 1 - free


async def least(ways: Sequence[int], fits: Callable[[int], Awaitable[bool]]) -> int:
    """The first of the ways, each shorter than the one before, that fits, or the last."""
    low, high = 0, len(ways) - 1
    while low < high:
        middle = (low + high) // 2
        if await fits(ways[middle]):
            high = middle
        else:
            low = middle + 1
    return ways[low]


async def tokens_of(model: ServedDecoder, text: str) -> int:
    """The number of tokens of a text; for reasoning, it does not depend on the way its answer was
    made."""
    return len((await model.encoded([text], special=False))[0]) if text else 0


async def begin(model: ServedDecoder, turn: Turn) -> list[Choice]:
    """The choices of a turn, being made. Raises HttpError."""
    left = 0
    if model.recipe is not None:
        turn = replace(turn, options=model.recipe.filled(turn.options))
    if turn.options.shifts:
        turn, left = await shortened(model, turn)
    text, ids, begun = await prompt_of(model, turn)
    context = ParserContext(text, turn.parameters, begun=begun)
    options = replace(turn.options, special=True)
    calls = None if turn.parallel else 1
    make, parser = _constraint(turn, context), model.parser
    shape: list[AnswerShape] = []

    def compiled(model: ServedDecoder) -> Callable[[], Constraint]:
        assert make is not None
        shape.append(make(model))
        return shape[-1].start

    def read() -> Parser:
        return parser(context) if not shape else shape[-1].parser(context)

    made = await begin_ids(model, [ids], options, read, calls, compiled if make else None)
    for choice in made:
        choice.left = f"the oldest {left} messages" if left else ""
    return made


def _constraint(
    turn: Turn, context: ParserContext
) -> Callable[[ServedDecoder], AnswerShape] | None:
    """The form that an answer must have: text or calls if tools are offered. None without a
    constraint."""
    content, tools = turn.options.constraint, turn.parameters
    if content is not None and not tools:
        return lambda model: shaped(model, context, turn.values, content)
    if not tools or not (turn.needed or turn.strict or content):
        return None
    tools = {name: tools[name] for name in turn.needed or tools}
    calls = Calls(tools, bool(turn.needed), turn.parallel)
    return lambda model: forced(model, context, turn.values, calls, content)


async def begin_ids(
    model: ServedDecoder,
    prompts: Sequence[Sequence[int]],
    options: AnswerOptions,
    parser: Callable[[], Parser] | None = None,
    calls: int | None = None,
    constraint: Make | None = None,
) -> list[Choice]:
    """Starts `options.n` choices of each prompt, side by side. `parser` makes the reader of each
    text (None: all of it is content). A choice ends before a call of a tool beyond `calls`.
    constraint: replaces the options'. Raises HttpError."""
    if model.recipe is not None:
        options = model.recipe.filled(options)
    _check_numbers(model, options)
    make, made = constraint or options.constraint, None
    try:
        if make is not None:
            made = await model.constraint(make)
        # A constrained answer ends where its form does, even if the request ignores ends of text.
        jobs = [
            job if made is None else replace(job, constraint=made, eos=job.eos | model.eos)
            for ids in prompts
            for job in _jobs(model, ids, options)
        ]
        new = sum(job.max_new_tokens for job in jobs if options.max_new_tokens is not None)
        hold_tokens(sum(len(job.prompt) for job in jobs) + new)
        parsers = [None if parser is None else parser() for _ in jobs]
        answers = model.player.submit(jobs)
    except WeftError as e:
        raise refusal(e) from None
    if options.slot is not None:
        model.slots.note(options.salt, options.slot, answers[0])
    return [
        Choice(answer, made, job, calls, model.marks, options.shows_stop)
        for answer, made, job in zip(answers, parsers, jobs)
    ]


def _check_numbers(model: ServedDecoder, options: AnswerOptions) -> None:
    """Raises HttpError, naming the field, for a slot or ids of tokens that the model lacks."""
    most, vocab = model.runner.slots, model.model.config.vocab
    if options.slot is not None and options.slot >= most:
        said = f"id_slot is {options.slot}; expected 0 to {most - 1}, or -1 for any"
        raise HttpError(400, said, "id_slot")
    biased = [token for token, _ in options.sampling.given.get("logit_bias", ())]
    for name, ids in (("logit_bias", biased), ("stop_token_ids", options.stop_ids)):
        if max(ids, default=0) >= vocab:
            raise HttpError(400, f"{name}: token id {max(ids)} is outside the vocabulary "
                            f"0..{vocab - 1}", name)  # fmt: skip


def _jobs(model: ServedDecoder, prompt: Sequence[int], options: AnswerOptions) -> list[Job]:
    ids = tuple(prompt)
    context, limit = model.model.context, options.max_new_tokens
    context = min(context, options.context or context)
    if options.min_new_tokens > (context if limit is None else limit):
        raise UsageError(f"min_tokens is {options.min_new_tokens}; expected at most max_tokens")
    if not ids:
        raise UsageError("the prompt is empty; give at least one token")
    room = context - len(ids) + 1
    if options.keeps is not None:
        if context < model.model.context:
            raise UsageError("num_ctx does not go with shift: the model's whole context is shifted")
        room = UNBOUNDED
    if len(ids) > context or (not options.cut and (limit or 0) > room):
        raise TooLong(len(ids), context, None if options.cut else limit)
    seed = secrets.randbits(63) if options.seed is None else options.seed
    defaults = model.model.defaults
    limit = defaults.limit(len(ids), limit, options.usual_tokens)
    whole = room if limit is None else min(limit, room)
    stop = defaults.stop if options.stop is None else options.stop
    job = Job(
        ids, whole, options.sampling.under(defaults), seed, 0,
        frozenset(options.stop_ids) | (model.eos if options.ends else frozenset()), stop,
        options.logprobs, options.prompt_logprobs, salt=options.salt, adapter=model.adapter,
        drafts=options.drafts, min_new_tokens=options.min_new_tokens, priority=options.priority,
        texts=(lambda: model.tokenizer.stream(True)) if options.special else None,
        insets=prompt.insets if isinstance(prompt, PicturePrompt) else None, shift=options.keeps,
    )  # fmt: skip
    job = adapted(job, model.model.adapters)
    return [replace(job, index=i) for i in range(options.n)]
