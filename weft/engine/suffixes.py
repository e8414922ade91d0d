"""Drafts from text: proposes what followed the last tokens earlier in the sequence or in earlier
answers.

As in SuffixDecoding (Oliaro et al., arXiv:2411.04975) the longest suffix that occurs again decides.
The most frequent continuation is proposed, as far as it is likely enough to pay. Instead of a
suffix tree, the last few places of each run of SIZE tokens are kept and compared backwards, which
bounds memory and time.

Jobs share earlier answers only within one salt and adapter, like pages: a faster answer would
reveal another job's text.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from weft.engine.costs import Trust
from weft.engine.drafts import DraftRequest
from weft.engine.job import Job

SIZE = 3  # tokens per run that is looked up
PLACES = 16  # last places remembered per run
LONGEST = 16  # most tokens of a suffix that are compared
MOST = 31  # tokens proposed at once
KEPT = 8192  # tokens of earlier answers kept per salt and adapter
POOLS = 32  # most such pools: tens of MB if all are full
_END = -1  # marks the end of an answer in a pool


class SuffixIndex:
    """A growing list of tokens, with an index of where each run of SIZE tokens occurs."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = tokens
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._read = 0

    def index(self) -> None:
        """Indexes the runs of all tokens except the last ones, which would find themselves."""
        for end in range(max(self._read, SIZE), len(self.tokens)):
            places = self._ends.setdefault(tuple(self.tokens[end - SIZE : end]), [])
            places.append(end)
            del places[:-PLACES]
        self._read = max(self._read, len(self.tokens))

    def find(self, last: Sequence[int]) -> tuple[int, list[int]]:
        """Returns the length of the longest suffix of `last` that occurs here (0 if shorter than
        SIZE), and the positions after its occurrences, latest first."""
        ends = self._ends.get(tuple(last[-SIZE:]), [])
        lengths = [self._common(end, last) for end in ends]
        longest = max(lengths, default=0)
        return longest, [e for e, n in zip(ends[::-1], lengths[::-1]) if n == longest]

    def _common(self, end: int, last: Sequence[int]) -> int:
        most, n = min(LONGEST, end, len(last)), SIZE
        while n < most and self.tokens[end - n - 1] == last[-n - 1]:
            n += 1
        return n

    def after(self, ends: Sequence[int], most: int) -> tuple[list[int], list[float]]:
        """Returns the most frequent tokens from the positions `ends` on, and the share of places
        that agree up to each. Past the end of the text it continues with its own proposal."""
        made: list[int] = []
        shares: list[float] = []
        places = len(ends)
        while len(made) < most:
            nexts = [self._at(end, made) for end in ends]
            token = nexts[0]
            if nexts.count(token) < len(nexts):
                token = Counter(nexts).most_common(1)[0][0]  # ties: the latest
            if token == _END:
                break
            ends = [end + 1 for end, own in zip(ends, nexts) if own == token]
            made.append(token)
            shares.append(len(ends) / places)
        return made, shares

    def _at(self, end: int, made: Sequence[int]) -> int:
        length = len(self.tokens)
        return self.tokens[end] if end < length else made[end - length]


class _Pool:
    """The last KEPT tokens of answers."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self.text = SuffixIndex(self._tokens)

    def add(self, answer: Sequence[int]) -> None:
        self._tokens += [*answer[-KEPT // 2 :], _END]
        if len(self._tokens) > KEPT:  # drop half of it, so that rebuilding the index is rare
            self._tokens = self._tokens[-KEPT // 2 :]
            self.text = SuffixIndex(self._tokens)
        self.text.index()


class Suffixes:
    """Drafts from a sequence's own tokens and from earlier answers of its salt and adapter."""

    def __init__(self) -> None:
        self._own: dict[int, tuple[SuffixIndex, Trust]] = {}
        self._pools: OrderedDict[tuple[bytes, str], _Pool] = OrderedDict()

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        return [self._one(ask) for ask in asked]

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        if number in self._own:
            self._own[number][1].learn(proposed, accepted)

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        self._own.pop(number, None)
        if not job.drafts or len(tokens) == len(job.prompt):
            return
        pool = self._pools.setdefault((job.salt, job.adapter), _Pool())
        self._pools.move_to_end((job.salt, job.adapter))
        pool.add(tokens[max(len(job.prompt) - SIZE, 0) :])
        while len(self._pools) > POOLS:
            self._pools.popitem(last=False)

    def _one(self, ask: DraftRequest) -> list[int]:
        own = self._own.get(ask.number)
        if own is None:
            own = self._own[ask.number] = SuffixIndex(ask.tokens), Trust()
        text, trust = own
        text.index()
        pool = self._pools.get((ask.job.salt, ask.job.adapter))
        length, ends = text.find(ask.tokens)
        if pool is not None:
            longer, others = pool.text.find(ask.tokens)
            if longer > length:
                text, ends = pool.text, others
        if not ends or not trust.asked:
            return []
        made, shares = text.after(ends, min(ask.most, MOST))
        chances = [share * chance for share, chance in zip(shares, trust.chances(len(shares)))]
        return made[: trust.take(chances, ask.worth)]
