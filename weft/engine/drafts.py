"""Tokens that are likely to come next, found in the sequence's own text (prompt lookup; Saxena
2023): what followed the last time its last tokens stood there.

Proposed tokens are fed as further rows of their sequence, and those count which the rows before
them choose: so they change no token, only how many a step gives. How many are proposed follows how
many were accepted; where none are, proposing pauses for longer and longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_SIZES = (8, 4, 3)  # of the suffixes that are looked up, the longest first
_LEAST, _MOST = 2, 15  # tokens proposed at once
_MOST_PAUSE = 64  # tokens


class Drafter(Protocol):
    """Proposes what may follow in one sequence."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow `tokens`, which only grow from call to call."""

    def learn(self, proposed: int, accepted: int) -> None:
        """Says how a proposal went."""


class Lookup:
    """The suffixes of one growing sequence, and how well proposing went."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # suffix: the position behind it, of the last
        self._read = 0
        self._most = 4
        self._pause, self._wait = 1, 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        self._index(tokens)
        if self._wait:
            self._wait -= 1
            return []
        most = min(most, self._most)
        for size in _SIZES:
            begin = self._ends.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if begin is not None and most > 0:
                return self._repeat(tokens, begin, most)
        return []

    def learn(self, proposed: int, accepted: int) -> None:
        if accepted:
            self._pause = 1
            grown = 2 * self._most if accepted == proposed else accepted + 1
            self._most = max(_LEAST, min(grown, _MOST))
        else:
            self._most = _LEAST
            self._wait = self._pause = min(2 * self._pause, _MOST_PAUSE)

    def _index(self, tokens: Sequence[int]) -> None:
        """Notes the suffixes of all tokens but the last ones, which would find themselves."""
        for end in range(max(self._read, 1), len(tokens)):
            for size in _SIZES:
                if end >= size:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._read = max(self._read, len(tokens))

    @staticmethod
    def _repeat(tokens: Sequence[int], begin: int, most: int) -> list[int]:
        """What follows from `begin`; at the end of the tokens it goes on by what it proposed."""
        made: list[int] = []
        for n in range(begin, begin + most):
            made.append(tokens[n] if n < len(tokens) else made[n - len(tokens)])
        return made
