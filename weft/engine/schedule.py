"""Decides which tokens the next step feeds, and into which pages. Pure policy: no device, no clock.

Prefill and decode are not separate phases. A sequence has tokens, of which the first `fed` are in
the cache, and each step feeds some of the rest. A step has a budget of rows. Decoding sequences,
which lack one token, come first; then prompts, which share the remaining rows (`shares`).

If pages run out, the youngest running sequence gives its pages back and waits. Their contents are
copied to the host or computed again. Such a step admits no sequence. The oldest running sequence is
never preempted, and a job too large to fit alone is rejected on submission. So every step makes
progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from weft.engine.pages import Chain, Pages
from weft.engine.sequence import Feed, SavedCache, SequenceState, needed
from weft.engine.shares import kept, shares

Copy = Callable[..., Mapping[str, np.ndarray] | None]
"""What some pages (numbers), or twins if True follows, hold on the host; None where it cannot be
had."""


class Schedule:
    """The running and waiting sequences on `slots` slots and a pool of pages.
    `shared` is True if a sequence may continue from pages that another one filled. A step has
    `budget` rows. Prompts get at most `beside(fed, decoding)` of them if the deepest prompt has
    `fed` tokens in the cache, and others decode or none does. `copy` saves the pages of
    preempted sequences on the host, up to half of the pool.
    """

    def __init__(
        self, pages: Pages, slots: int, budget: int, shared: bool = True,
        beside: Callable[[int, bool], int] | None = None, copy: Copy = lambda *given: None,
    ) -> None:  # fmt: skip
        self._copy = copy
        self.windows = pages.windows
        self.most = budget if self.windows is None else min(budget, self.windows.pool.rows)
        self.pages, self.budget, self.shared = pages, max(self.most, slots), shared
        self.beside = beside or (lambda fed, decoding: self.budget)
        self.running: list[SequenceState] = []
        self.waiting: list[SequenceState] = []
        self.lent: list[SequenceState] = []
        self.preemptions = self.found = 0
        self._full = False  # True while the next one lacks pages
        self._free = list(range(slots))[::-1]

    def add(self, place: SequenceState) -> None:
        """Adds a sequence to those that wait."""
        self.waiting.append(place)
        self._full = False

    def plan(self) -> list[Feed]:
        """Returns the parts that the next step feeds, with their pages reserved. It is empty only
        without sequences."""
        if self.waiting and not self.running:
            for place in list(self.lent):
                self.lent_back(place)
        before = self.preemptions
        running = sorted(self.running, key=lambda p: p.number)
        prompts = [place for place in running if place.rest != 1]
        decode = len(running) - len(prompts)
        budget = self._rows(prompts, decode)
        wanted = shares(prompts, self._open(prompts, budget - decode), self.most)
        parts = []
        for place in running:
            count = wanted[place.number] if place.number in wanted else place.cut(1, self.most)
            if count and place.slot is not None and self._reserve(place, place.fed + count):
                parts.append(Feed(place, count))
        if self.preemptions == before:
            parts += self._admit(budget - sum(part.count for part in parts), not decode)
        return parts

    def _rows(self, prompts: Sequence[SequenceState], decode: int) -> int:
        """Returns the most rows that the next step may have, beside `decode` that decode."""
        deepest = max((place.fed for place in prompts if place.rest), default=0)
        return min(self.budget, decode + self.beside(deepest, decode > 0))

    def _open(self, prompts: Sequence[SequenceState], left: int) -> int:
        """Returns how many of `left` rows the running prompts do not leave to those that wait."""
        waits = prompts and self.waiting and self._free and left > 1 and not self._full
        return left - kept(prompts, self._next(), left) if waits else left

    def _reserve(self, place: SequenceState, positions: int) -> bool:
        """Reserves pages for the first `positions` of a running sequence and preempts the youngest
        if needed. Returns False if the sequence itself was preempted."""
        while not self.extend(place, positions):
            youngest = max(self.running, key=lambda p: p.number)
            self._preempt(youngest)
            if youngest is place:
                return False
        return True

    def extend(self, place: SequenceState, positions: int) -> bool:
        """Takes pages for the first `positions` of a running sequence, and twins for those that its
        next rows see. Returns False if too few are idle."""
        if enough := self._extend(place, positions):
            self._widen(place, positions)
        return enough

    def _extend(self, place: SequenceState, positions: int) -> bool:
        lacks = needed(positions, self.pages.size) - len(place.pages)
        if lacks > 0:
            taken = self.pages.take(lacks)
            if taken is None:
                return False
            place.pages += taken
        return True

    def _widen(self, place: SequenceState, positions: int) -> None:
        """Takes twins of a sequence's pages up to the first `positions`."""
        if self.windows is not None:
            end = needed(positions, self.pages.size)
            for page in place.pages[place.end : end]:
                self.windows.take(page)
            place.end = max(place.end, end)

    def slide(self, place: SequenceState) -> None:
        """Gives back the twins that the next rows of a sequence do not see. They are spent unless
        the prompt ends there."""
        windows, size = self.windows, self.pages.size
        if windows is None:
            return
        stop = windows.first(place.fed)
        ends = range(windows.first(place.prompt), needed(place.prompt, size))
        for i in range(place.seen, min(stop, place.end)):
            windows.release(place.pages[i], i not in ends)
        place.seen = max(place.seen, stop)

    def _close(self, place: SequenceState) -> None:
        """Gives back all twins of a sequence; those with known content can be found again."""
        if self.windows is not None:
            for page in reversed(place.pages[place.seen : place.end]):
                self.windows.release(page, not self.pages.known(page))
        place.seen = place.end = 0

    def restart(self, place: SequenceState) -> None:
        """Starts a sequence over from its first token in the same slot: an interrupted step leaves
        a running state undefined."""
        self._close(place)
        place.fed = place.filled = 0

    def _preempt(self, place: SequenceState) -> None:
        self.preemptions += 1
        place.preempted += 1
        held = place.held if place.pending else self._saved(place)
        self.leave(place)
        place.held = held
        self.waiting.append(place)

    def _saved(self, place: SequenceState) -> SavedCache | None:
        """Returns a copy of the cache of a running sequence, or None."""
        size = self.pages.size
        n = needed(place.fed, size)
        there = sum(needed(p.held.fed, size) for p in self.waiting if p.held is not None)
        if not (self.shared and n and n + there <= self.pages.count // 2):
            return None
        return self._copied(place.fed, place.pages[:n], place.seen)

    def _copied(
        self, fed: int, pages: Sequence[int], seen: int, first: int = 0
    ) -> SavedCache | None:
        """Returns a copy of pages, the number `first` of a sequence and those after it, and of
        their twins from the number `seen` on."""
        planes = self._copy(pages)
        if planes is None or self.windows is None:
            return None if planes is None else SavedCache(fed, planes, first)
        twins = self._copy(self.windows.at(pages[seen - first :]), True)
        return None if twins is None else SavedCache(fed, planes, first, twins, seen)

    def forget(self) -> None:
        """Discards everything that the runner has written, in pages and on the host."""
        self.pages.clear()
        for place in self.waiting:
            place.held = None

    def _admit(self, left: int, alone: bool) -> list[Feed]:
        """Seats waiting sequences, whose parts have at most `left` rows; `alone`: none decodes."""
        parts: list[Feed] = []
        if not self.waiting:
            return parts
        while left > 0 and self._free:
            place = self._next()
            self._full = place is not None and not self._seat(place)
            if place is None or self._full:
                break
            most = min(left, self.most, self.beside(place.fed, not alone))
            count = place.cut(min(place.rest, most), self.most)
            parts.append(Feed(place, count))
            self._widen(place, place.fed + parts[-1].count)
            left -= parts[-1].count
        return parts

    def _next(self) -> SequenceState | None:
        """Returns the sequence to admit next: preempted ones first, then by fewest running jobs of
        the same owner, then by priority, then by age. A sequence whose next page a running one is
        about to fill is admitted when it can be found. Returns None if there is none to admit."""
        runs = Counter(p.owner for p in self.running)
        soon = set(self._coming()) if self.waiting else set()
        order = sorted(self.waiting, key=lambda p: (not p.preempted, runs[p.owner], *p.rank))
        # in order and no further: who stands behind is neither hashed nor looked up
        ready = (p for p in order if p.preempted or not soon or self._lacks(p) not in soon)
        return next(ready, None)

    def _coming(self) -> Iterator[bytes]:
        """Yields the digests of the full pages that the running sequences are about to fill."""
        for place in self.running if self.shared else ():
            for n in range(place.filled, len(place.tokens) // self.pages.size):
                yield place.chain.at(n + 1, place.keys)

    def _lacks(self, place: SequenceState) -> bytes | None:
        """Returns the digest of the first page that a waiting sequence would not find."""
        return self.pages.lacks(place.chain, place.keys, self._most(place))

    def _most(self, place: SequenceState) -> int:
        """Returns how many tokens of a waiting sequence may come from the cache."""
        return min(place.reads, len(place.tokens) - 1) if self.shared else 0

    def _seat(self, place: SequenceState) -> bool:
        """Gives a waiting sequence a slot and pages for all its tokens, including cached ones.
        Returns False if too few pages would stay idle for the next tokens of the running
        sequences."""
        pages, tokens = self.pages, place.keys
        most = self._most(place)
        held = pages.find(place.chain, tokens, most)
        lacks = needed(len(tokens), pages.size) - len(held)
        if lacks + self.soon > pages.idle:
            pages.release(held)
            return False
        place.filled, place.fed, place.pages = len(held), len(held) * pages.size, held
        if not (
            place.held and place.held.first <= len(held) and place.fed < place.held.fed <= most
        ):
            place.held = self._continued(place, most)
        place.pending = place.held is not None
        if place.held is not None:
            place.fed = place.held.fed
        place.seen = place.end = self.windows.first(place.fed) if self.windows else 0
        if not place.preempted:
            place.cached = place.fed
            self.found += place.fed
        assert self._extend(place, len(tokens))
        self._widen(place, place.fed)
        self.waiting.remove(place)
        self.running.append(place)
        place.slot = self._free.pop()
        return True

    def _continued(self, place: SequenceState, most: int) -> SavedCache | None:
        """Continues in a page that begins as the next one would: takes it over, or, if others need
        it, returns a copy."""
        pages, n = self.pages, place.filled
        if most <= place.fed:
            return None
        parent, rest = place.chain.at(n, place.keys), place.keys[place.fed : most]
        own, shared = pages.alike(parent, rest, idle=True)
        other, more = pages.alike(parent, rest, idle=False)
        few = pages.size // 8  # so many tokens are read again sooner than a page is copied
        if more - shared > few and (copy := self._copied(place.fed + more, [other], n, n)):
            return copy
        if shared:
            pages.take_over(own)
            place.pages.append(own)
            place.fed += shared
        return None

    @property
    def soon(self) -> int:
        """The number of pages that the running sequences need for one more token each."""
        ends = ((min(len(p.tokens) + 1, p.most), p) for p in self.running)
        return sum(needed(end, self.pages.size) > len(p.pages) for end, p in ends)

    def advance(self, place: SequenceState, count: int) -> None:
        """Records that a step fed `count` tokens, and registers the pages that became full."""
        place.fed += count
        size, chain, keys = self.pages.size, place.chain, place.keys
        while self.shared and (place.filled + 1) * size <= place.fed:
            n = place.filled
            parent, digest = chain.at(n, keys), chain.at(n + 1, keys)
            self.pages.fill(place.pages[n], parent, digest, keys[n * size : (n + 1) * size])
            place.filled += 1
        self.slide(place)

    def leave(self, place: SequenceState) -> None:
        """Removes a running or waiting sequence; its pages can still be found."""
        pending = place.pending
        place.held, place.pending, self._full = None, False, False
        if place.slot is None:
            self.waiting.remove(place)
            return
        n, size = place.filled, self.pages.size
        if self.shared and n * size < place.fed and not pending:
            parent = place.chain.at(n, place.keys)
            self.pages.fill(place.pages[n], parent, None, place.keys[n * size : place.fed])
        self._close(place)
        self.pages.release(place.pages)
        self.running.remove(place)
        self._free.append(place.slot)
        place.slot, place.fed, place.pages, place.filled = None, 0, [], 0

    def lend(self, positions: int) -> SequenceState:
        """Lends a slot and pages outside the queue until `lent_back`. Preempts the youngest running
        sequences if needed; without any, takes back earlier loans."""
        n = needed(positions, self.pages.size)
        while not self._free or n > self.pages.idle:
            if self.running:
                self._preempt(max(self.running, key=lambda p: p.number))
            else:
                self.lent_back(self.lent[0])
        place = SequenceState(0, [], b"", Chain(b"", self.pages.size), slot=self._free.pop())
        place.pages = self.pages.take(n) or []
        self.lent.append(place)
        return place

    def lent_back(self, place: SequenceState) -> None:
        """Takes back a loan if it is still out; its slot is then None."""
        if place.slot is not None:
            self.lent.remove(place)
            self._close(place)
            self.pages.release(place.pages)
            self._free.append(place.slot)
            place.slot = None

    def check(self, tables: np.ndarray | None = None) -> None:
        """Raises AssertionError if sequences and pool disagree, or `tables` with them."""
        self.pages.check()
        seated = [*self.running, *self.lent]
        if self.windows is not None:
            self.windows.check(Counter(q for p in seated for q in p.pages[p.seen : p.end]))
        held = Counter(page for place in seated for page in place.pages)
        assert held == Counter({p: n for p, n in enumerate(self.pages.refs) if n})
        slots = [p.slot for p in seated]
        assert len({*slots, *self._free}) == len(slots) + len(self._free)
        assert all(p.slot is None and not p.pages for p in self.waiting)
        for place in self.running:
            assert place.pending == (place.held is not None)
            assert place.fed <= len(place.pages) * self.pages.size
            # pages still to be written are not shared
            own = place.pages[place.fed // self.pages.size :]
            assert all(self.pages.refs[page] == 1 for page in own)
            if tables is not None and place.slot is not None:
                row = tables[place.slot, : needed(place.fed, self.pages.size)]
                assert row.tolist() == place.pages[: len(row)]
