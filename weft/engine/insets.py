"""The content of a prompt besides tokens: vectors in place of the embeddings of some tokens, which
are placeholders. The cache must tell apart two prompts with different content at their
placeholders. So it looks at `keys`, which has negative numbers from the content's digest in place
of the placeholders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np

from weft.core.errors import UsageError
from weft.core.records import dataclass


@dataclass(frozen=True, eq=False)
class Inset:
    """Vectors float32 [N, ...] in place of the embeddings of N tokens of a prompt, from position
    `start` on. `digest` names their content and all that they depend on, in 32 bytes. The tokens of
    one that is `whole` see each other, so one step feeds them all."""

    start: int
    digest: bytes
    vectors: np.ndarray
    whole: bool = False

    @property
    def end(self) -> int:
        """The position after the last of its tokens."""
        return self.start + len(self.vectors)

    @cached_property
    def keys(self) -> list[int]:
        """A negative number per token, drawn from the digest."""
        drawn = hashlib.shake_256(self.digest).digest(8 * len(self.vectors))
        signed = np.frombuffer(drawn, "<i8") | np.int64(-(1 << 63))
        return [int(n) for n in signed]


@dataclass(frozen=True, eq=False)
class Insets:
    """The insets of a prompt of `length` tokens, in order. `turns`, int32 [length, 3], are the
    rotary positions of its tokens if these are not their positions in the text: in time, height and
    width. Later tokens go on after the largest."""

    parts: Sequence[Inset]
    length: int
    turns: np.ndarray | None = None

    def __post_init__(self) -> None:
        ends = [0, *(end for part in self.parts for end in (part.start, part.end)), self.length]
        if any(b < a for a, b in pairwise(ends)):
            raise UsageError("insets of a prompt overlap, or go beyond its end")
        if self.turns is not None and self.turns.shape != (self.length, 3):
            raise UsageError(f"turns are {self.turns.shape}; expected {(self.length, 3)}")

    @cached_property
    def _next_turn(self) -> int:
        return self.length if self.turns is None else int(self.turns.max(initial=-1)) + 1

    def turned(self, pos: np.ndarray) -> np.ndarray:
        """Returns the rotary positions of tokens at positions int32 [N]: int32 [N, 3]."""
        out = np.repeat(pos.astype(np.int32)[:, None], 3, axis=1)
        if self.turns is None:
            return out
        inside = pos < self.length
        out[inside] = self.turns[pos[inside]]
        out[~inside] += self._next_turn - self.length
        return out

    def between(self, begin: int, end: int) -> Iterator[Inset]:
        """Yields the insets that have tokens among positions `begin` to `end` - 1."""
        return (part for part in self.parts if part.start < end and begin < part.end)

    def cut(self, begin: int, count: int, room: int) -> int:
        """Returns how many tokens from `begin` on a step should feed, about `count` and at most
        `room`: it ends in no inset that is whole."""
        end = begin + count
        for part in self.between(end, end + 1):
            if part.whole and part.start < end:
                return part.start - begin if part.start > begin else min(part.end - begin, room)
        return count


class Keys(Sequence[int]):
    """A growing list of tokens as the cache sees it: keys in place of placeholders."""

    def __init__(self, tokens: Sequence[int], insets: Insets) -> None:
        self._tokens, self._insets = tokens, insets

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, int):
            at = at % len(self)
            return self[at : at + 1][0]
        begin, end, _ = at.indices(len(self))
        found = list(self._tokens[begin:end])
        for part in self._insets.between(begin, end):
            first, last = max(part.start, begin), min(part.end, end)
            found[first - begin : last - begin] = part.keys[first - part.start : last - part.start]
        return found
