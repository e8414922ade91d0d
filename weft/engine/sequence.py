"""The state of one sequence in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import overload

import numpy as np

from weft.core.records import dataclass
from weft.engine.insets import Insets, Keys
from weft.engine.pages import Chain


@dataclass(frozen=True)
class SavedCache:
    """The saved cache of a sequence on the host: the planes of the pages of its first `fed`
    positions, from the page number `first` on, and those of the twins (`windows`), from `seen`
    on."""

    fed: int
    planes: Mapping[str, np.ndarray]
    first: int = 0
    twins: Mapping[str, np.ndarray] = field(default_factory=dict)
    seen: int = 0


class Shifted(Sequence[int]):
    """The tokens of `all` without those between the first `keep` and `start`; it grows with
    `all`."""

    def __init__(self, all: list[int], keep: int, start: int) -> None:
        self._all, self._keep, self._start = all, keep, start

    def __len__(self) -> int:
        return self._keep + len(self._all) - self._start

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            places = range(*at.indices(len(self)))
            return [self._all[self._place(i)] for i in places]
        return self._all[self._place(range(len(self))[at])]

    def _place(self, i: int) -> int:
        return i if i < self._keep else i - self._keep + self._start


OWNER = 32  # bytes of a salt that say whose a job is; the rest parts caches of one owner


@dataclass(eq=False)
class SequenceState:
    """The state of a sequence: `tokens` (prompt, then answer), of which `fed` are in `pages`.
    `number` is its age, `salt` and `priority` are its job's. At most `reads` tokens may come from
    the cache, and at most `most` positions are fed."""

    number: int
    tokens: Sequence[int]
    salt: bytes
    chain: Chain
    reads: int = 0
    most: int = 0
    slot: int | None = None
    fed: int = 0
    pages: list[int] = field(default_factory=list)
    cached: int = 0  # prompt tokens found in the cache on first admission
    preempted: int = 0  # number of preemptions
    filled: int = 0  # pages that are full and registered
    held: SavedCache | None = None
    pending: bool = False  # True while `held` has yet to be written to its pages
    prompt: int = 0  # the number of tokens of the prompt
    seen: int = 0  # the first page whose twin it refers to (`windows`)
    end: int = 0  # the page after the last such page
    priority: int = 0
    insets: Insets | None = None

    @property
    def owner(self) -> bytes:
        """Whose it is: the digest of a key with which its salt begins."""
        return self.salt[:OWNER]

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among the waiting jobs of the same owner: by priority, then by age."""
        return self.priority, self.number

    @property
    def urgency(self) -> tuple[int, int]:
        """Its place among the prompts of the same owner: by priority, then the shortest."""
        return self.priority, self.rest

    @property
    def keys(self) -> Sequence[int]:
        """The tokens as the cache sees them."""
        return self.tokens if self.insets is None else Keys(self.tokens, self.insets)

    def cut(self, count: int, room: int) -> int:
        """Returns how many tokens a step of at most `room` rows feeds, about `count`."""
        return self.insets.cut(self.fed, count, room) if self.insets and count else count

    @property
    def rest(self) -> int:
        """The number of tokens still to be fed."""
        return len(self.tokens) - self.fed


@dataclass(frozen=True, slots=True)
class Feed:
    """The part of a sequence that a step feeds: `count` tokens after its first `fed`."""

    place: SequenceState
    count: int


def needed(positions: int, size: int) -> int:
    """Returns the number of pages of `size` positions that `positions` need."""
    return -(-positions // size)
