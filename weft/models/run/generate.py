"""Generation: turns prompts into tokens and text, with an engine.

Sequences are independent: the tokens of a prompt depend on the prompt, the options, the seed and
its index in the call, never on other sequences. Answer k of the n to prompt i of a call with one
`seed` draws from the stream (seed, n * i + k). With a list of seeds, it draws from (seeds[i], k),
as it would alone with that seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from weft.core.errors import UsageError, WeftError
from weft.engine.engine import Engine
from weft.engine.job import Finish, Job, Output, SampledToken, Texts
from weft.engine.text import TextEnd


class Generation:
    """The result for one prompt.

    `ids` are the new tokens, without the end-of-text token that ended them; `text` is their text
    without the stop string ("" without a tokenizer). `reused` counts the first prompt tokens found
    in the cache. finish_reason: "eos" (end-of-text token), "stop" (stop string) or "length"
    (max_new_tokens or the context is full).

    `logprobs` has a SampledToken (id, natural log-probability, the most probable tokens) per new
    token if they were asked for, `prompt_logprobs` one per token of the prompt. `score` is that of
    a beam search: the sum of log-probabilities over length ** length_penalty; else None.
    """

    def __init__(
        self,
        text: str | Callable[[], str],
        ids: tuple[int, ...],
        finish_reason: Finish,
        reused: int = 0,
        logprobs: tuple[SampledToken, ...] = (),
        prompt_logprobs: tuple[SampledToken, ...] = (),
        score: float | None = None,
    ) -> None:
        self._text = text
        self.logprobs, self.prompt_logprobs, self.score = logprobs, prompt_logprobs, score
        self.reused = reused
        self.ids = ids
        self.finish_reason = finish_reason

    @property
    def text(self) -> str:
        """The generated text, without the prompt."""
        if not isinstance(self._text, str):  # decoded on first read, as some callers want only ids
            self._text = self._text()
        return self._text

    def _key(self) -> tuple[object, ...]:
        return self.ids, self.finish_reason, self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Generation) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.ids, self.finish_reason))

    def __repr__(self) -> str:
        return f"Generation({self.text!r}, ids={self.ids}, finish_reason={self.finish_reason!r})"


class TextChunk(str):
    """Text that became final, one piece per token: "" while a character or a possible stop string
    is held back. `ids` are the tokens behind the text; `prompt` is the prompt's number, `answer`
    that of the answer to it."""

    prompt: int
    ids: tuple[int, ...]
    answer: int

    def __new__(
        cls, text: str, prompt: int = 0, ids: tuple[int, ...] = (), answer: int = 0
    ) -> TextChunk:
        made = super().__new__(cls, text)
        made.prompt, made.ids, made.answer = prompt, ids, answer
        return made


class PromptRun:
    """The progress of one answer to a prompt."""

    def __init__(self, number: int, job: Job, answer: int = 0) -> None:
        self.number, self.job, self.answer = number, job, answer
        self.ids: list[int] = []
        self.tokens: list[SampledToken] = []
        self.scored: tuple[SampledToken, ...] = ()
        self.text = ""
        self.end: Output | None = None

    def add(self, output: Output) -> TextChunk | None:
        """Returns the piece for an output; None if it only ends the prompt. Raises the error that
        ended the job."""
        ids = tuple(chosen.id for chosen in output.tokens)
        self.ids += ids
        self.tokens += output.tokens
        self.scored += output.prompt
        self.text += output.text
        if output.error is not None:  # other errors are raised unchanged
            unknown = type(output.error) is WeftError and output.error.__cause__
            raise unknown or output.error
        if output.finish is not None:
            self.end = output
        quiet = not (output.text or ids) and (self.end is not None or bool(output.prompt))
        return None if quiet else TextChunk(output.text, self.number, ids, self.answer)

    def result(self, texts: Texts) -> Generation:
        """Returns the finished prompt as a Generation."""
        if self.end is None or self.end.finish is None or self.end.usage is None:
            raise UsageError("the generation has not finished")
        ids = tuple(self.ids)
        text = self.text if self.job.decoded else lambda: whole(texts, ids)
        told = () if self.job.logprobs is None else tuple(self.tokens)
        return Generation(text, ids, self.end.finish, self.end.usage.cached, told, self.scored)


def whole(texts: Texts, ids: Sequence[int]) -> str:
    """Returns the text of an answer that was not decoded while it was generated."""
    end = TextEnd(texts)
    made = []
    for i in ids:
        new, at = end.read(i)
        made.append(end.push(SampledToken(i, at=at), new)[0])
    return "".join(made) + end.finish()[0]


def play(
    engine: Engine, parts: Sequence[PromptRun], turn: Callable[[], AbstractContextManager[object]]
) -> Iterator[TextChunk]:
    """Yields the pieces of several prompts as they become final. If none is ready, it steps the
    engine within `turn()`, which also advances other jobs. Closing the iterator cancels the
    jobs."""
    outputs: deque[tuple[PromptRun, Output]] = deque()

    def sink(part: PromptRun) -> Callable[[Output], None]:
        return lambda output: outputs.append((part, output))

    tickets = [engine.submit(part.job, sink(part)) for part in parts]
    try:
        while outputs or not all(ticket.done for ticket in tickets):
            if outputs:
                part, output = outputs.popleft()
                piece = part.add(output)
                if piece is not None:
                    yield piece
                continue
            with turn():
                if not outputs and not all(ticket.done for ticket in tickets):
                    engine.step()
    finally:
        for ticket in tickets:
            engine.cancel(ticket)


class Stream(Iterator[TextChunk]):
    """An iterator of pieces; after the last one `results` holds the Generations."""

    def __init__(
        self, pieces: Iterator[TextChunk], parts: Sequence[PromptRun], texts: Texts
    ) -> None:
        self._pieces, self._parts, self._texts = pieces, parts, texts

    def __next__(self) -> TextChunk:
        return next(self._pieces)

    @property
    def results(self) -> list[Generation]:
        """The result of each answer so far, prompt by prompt."""
        return [part.result(self._texts) for part in self._parts]
