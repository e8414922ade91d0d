"""Sources of draft tokens for speculative decoding.

Proposed tokens are fed as further rows of their sequence. A proposed token counts only if the row
before it chooses the same token, greedy or sampled. So drafts change how many tokens a step yields,
never which ones.

See Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192.
Acceptance is exact here because each random draw belongs to its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weft.core.records import dataclass
from weft.engine.costs import Worth
from weft.engine.job import Job


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A decoding sequence that wants a draft. At most `most` tokens may follow `tokens` (prompt,
    then answer). `number` is the number of its job."""

    number: int
    job: Job
    tokens: Sequence[int]
    most: int
    worth: Worth


class Drafts(Protocol):
    """A source of draft tokens. The thread that steps the engine calls it, one thread at a time."""

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        """Returns at most `most` tokens for each sequence, [] where no guess pays."""

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        """Records how many of the proposed tokens were fed, and how many of the fed ones were
        right."""

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        """Says that a job has ended with these tokens."""


class NoDrafts:
    """Proposes nothing."""

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        return [[] for _ in asked]

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        pass

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        pass


class Either:
    """Several sources of drafts, in order: the first source with proposals is used."""

    def __init__(self, *sources: Drafts) -> None:
        self._sources = sources
        self._whose: dict[int, Drafts] = {}

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
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
