"""The answer to one job: takes rows of logits, chooses tokens, and ends."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from weft.core.errors import ModelError, UsageError, WeftError
from weft.engine import logprobs
from weft.engine.job import (
    Constraint,
    Finish,
    Job,
    LogitsFunction,
    Output,
    SampledToken,
    Texts,
    TokenUsage,
)
from weft.engine.sampler import choose, generator
from weft.engine.text import TextEnd

Explain = Callable[[], WeftError]
"""What is wrong where logits are not finite."""


class Answer:
    """The state of one answer.

    `tokens` are the prompt and the new ids; `ids` are the new ones, at most `limit`. `finish` says
    how the answer ended; it is None until then.
    """

    def __init__(self, job: Job, limit: int, texts: Texts, explain: Explain) -> None:
        self.job, self.limit = job, limit
        self.ids: list[int] = []
        self.tokens = list(job.prompt)
        self.finish: Finish | None = None
        self.scored: list[SampledToken] = []  # scored prompt tokens, if the job asks for them
        self.drafted = self.shifted = 0  # tokens that were proposed; that left the context
        self.news = False  # True while something final has not been sent in an output
        self._explain = explain
        self._stream = generator(job.seed, job.index) if job.sampling.temperature > 0 else None
        self._text = TextEnd(texts if job.decoded else lambda: None, job.stop)
        self._constraint: Constraint | None = None
        self._told = ""
        self._tokens: list[SampledToken] = []
        self._prompt: tuple[SampledToken, ...] = ()

    def begin(self) -> None:
        """Starts the constraint, and ends the answer if no token may follow."""
        if self.job.constraint is not None:
            self._constraint = guarded("constraint", self.job.constraint)
        if self.limit <= 0:
            self.finish = "length"
        elif self._constraint is not None and self._constraint.ended:
            self.finish = "eos"

    def score(self, logits: np.ndarray) -> None:
        """Takes the logits [n, vocab] of the prompt's next n positions."""
        prompt, top = self.job.prompt, self.job.prompt_logprobs
        for row in logits:
            if not self.scored:
                self.scored.append(SampledToken(prompt[0]))
            if len(self.scored) == len(prompt):
                break
            self._check(row, int(np.argmax(row)))
            self.scored.append(logprobs.chosen(row, prompt[len(self.scored)], top))
        if len(self.scored) == len(prompt):
            self._prompt, self.news = tuple(self.scored), True

    def next(self, logits: np.ndarray) -> int | None:
        """Returns the next token, chosen from its row of logits, float32 [vocab]. Returns None if
        the answer ended without a token. Raises WeftError if the model or the constraint fails."""
        job = self.job
        allowed = None
        if self._constraint is not None:
            allowed = guarded("constraint", self._constraint.allowed)
            if allowed is not None and not allowed.any():
                raise ModelError(
                    f"the constraint allows no token after {len(self.ids)} tokens; expected one "
                    "that the text can go on by, or an end"
                )
        early = len(self.ids) < job.min_new_tokens
        if early and job.eos:
            allowed = _but(job.eos, allowed, len(logits))
        row = logits if job.logits is None else self._changed(logits, job.logits)
        token = choose(row, self.tokens, job.sampling, self._stream, self.ids, allowed)
        self._check(logits, token)
        if token in job.eos:
            self._end("eos")
            return None
        if self._constraint is not None:
            guarded("constraint", self._constraint.accept, token)
        self.ids.append(token)
        self.tokens.append(token)
        new, at = guarded("tokenizer", self._text.read, token)
        chosen = logprobs.chosen(logits, token, job.logprobs, at)
        self._add(self._text.push(chosen, new, not early))
        if self._text.stopped is not None:
            self._end("stop")
        elif self._constraint is not None and self._constraint.ended:
            self._end("eos")
        elif len(self.ids) >= self.limit:
            self._end("length")
        return token

    def forced(self, most: int) -> list[int]:
        """Returns at most `most` tokens that the constraint forces, as a guess: other tokens may
        spell the same text. Returns [] on failure, which `next` will report."""
        constraint = self._constraint
        return [] if constraint is None else self._guess(lambda: constraint.forced()[:most])

    def fitting(self, draft: list[int]) -> list[int]:
        """Returns the longest prefix of `draft` that the constraint allows."""
        constraint = self._constraint
        if constraint is None or not draft:
            return draft
        return self._guess(lambda: draft[: constraint.fits(draft)])

    @staticmethod
    def _guess(work: Callable[[], list[int]]) -> list[int]:
        try:
            made: list[int] = guarded("constraint", work)
        except WeftError:
            return []
        return made

    def output(self, cached: int, error: WeftError | None = None) -> Output:
        """Returns what has become final since the last output, with `usage` if the answer has
        ended."""
        told, tokens, prompt = self._told, tuple(self._tokens), self._prompt
        self._told, self._tokens, self._prompt, self.news = "", [], (), False
        usage = None
        if self.finish is not None or error is not None:
            usage = TokenUsage(len(self.job.prompt), cached, len(self.ids), self.drafted,
                               self.shifted)  # fmt: skip
        finish = None if error else self.finish
        return Output(told, tokens, finish, error, usage, prompt, self._text.stopped)

    def _changed(self, logits: np.ndarray, change: LogitsFunction) -> np.ndarray:
        """Returns the row that the job's function makes of a row of logits."""
        self._check(logits, int(np.argmax(logits)))
        found = guarded("logits function", lambda: change(list(self.tokens), logits.copy()))
        row = np.asarray(found)
        if row.shape != logits.shape or row.dtype.kind != "f":
            raise UsageError(
                f"the logits function returned {row.dtype} {list(row.shape)}; expected float32 "
                f"{list(logits.shape)}"
            )
        row = row.astype(np.float32, copy=False)
        if not np.isfinite(row.max()):
            raise UsageError(
                "the logits function returned a row whose largest value is not finite; expected "
                "numbers, and -inf for some tokens at most"
            )
        return row

    def _add(self, sent: tuple[str, tuple[SampledToken, ...]]) -> None:
        self._told += sent[0]
        self._tokens += sent[1]
        self.news = True

    def _end(self, finish: Finish) -> None:
        self._add(guarded("tokenizer", self._text.finish))
        # The held-back bytes of the last token may have completed a stop string.
        stopped = self._text.stopped is not None and finish == "length"
        self.finish = "stop" if stopped else finish

    def _check(self, logits: np.ndarray, token: int) -> None:
        if not isfinite(logits[token]):
            raise self._explain()


def _but(ends: frozenset[int], allowed: np.ndarray | None, vocab: int) -> np.ndarray | None:
    """Returns the allowed tokens (None: all) but the ends; with them if nothing else is left."""
    made = np.ones(vocab, bool) if allowed is None else allowed.copy()
    made[[i for i in ends if i < vocab]] = False
    return made if made.any() else allowed


def guarded(what: str, work: Callable[..., Any], *given: Any) -> Any:
    """Runs work that concerns one job only and returns its result. Raises WeftError for any
    exception."""
    try:
        return work(*given)
    except WeftError:
        raise
    except Exception as e:
        raise ModelError(f"the {what} failed: {type(e).__name__}: {str(e)[:200]}") from e
