"""Tokens that are likely to come next, proposed by whoever guesses them.

Proposed tokens are fed as further rows of their sequence, and those count which the rows before
them choose, sampled or not: so they change no token, only how many a step gives (Leviathan et al.,
"Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192, whose acceptance is
exact here because a draw belongs to its position).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.engine.costs import Worth
from weft.engine.job import Job


@dataclass(frozen=True)
class Asked:
    """A sequence that decodes: `tokens` (prompt, then answer), after which at most `most` may be
    proposed. `number` is its job's."""

    number: int
    job: Job
    tokens: Sequence[int]
    most: int
    worth: Worth


class Drafts(Protocol):
    """Proposes what may follow. Called by whoever plays the engine, one thread at a time."""

    def propose(self, asked: Sequence[Asked]) -> list[list[int]]:
        """For each sequence at most `most` tokens, [] where it has no guess that pays."""

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        """Says how many of those tokens were fed, and how many of these were right."""

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        """A job has ended, with these tokens."""


class NoDrafts:
    """Proposes nothing."""

    def propose(self, asked: Sequence[Asked]) -> list[list[int]]:
        return [[] for _ in asked]

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        pass

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        pass


class Either:
    """The proposals of the first source that has any."""

    def __init__(self, *sources: Drafts) -> None:
        self._sources = sources
        self._whose: dict[int, Drafts] = {}

    def propose(self, asked: Sequence[Asked]) -> list[list[int]]:
        made: dict[int, list[int]] = {}
        for source in self._sources:
            open_ = [ask for ask in asked if not made.get(ask.number)]
            for ask, draft in zip(open_, source.propose(open_) if open_ else ()):
                made[ask.number] = draft
                self._whose[ask.number] = source
        return [made.get(ask.number, []) for ask in asked]

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        if number in self._whose:
            self._whose[number].learn(number, proposed, accepted)

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        self._whose.pop(number, None)
        for source in self._sources:
            source.leave(number, job, tokens)
