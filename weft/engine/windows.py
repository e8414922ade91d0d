"""Pages of layers with a sliding window, which keep what the next rows can read.

Such layers have a small pool of their own. Each of its pages is the *twin* of a page of the large
pool (`Pages`): it holds the same positions, for the window layers. A sequence refers to the twins
of the positions that its next rows see and gives earlier ones back. Twins without references stay
until their space is needed: spent ones, in the middle of texts, go before those of the ends of
prompts and sequences, from which others may resume.

The pool never runs out. A running sequence refers to no more twins than a step needs, and to none
but those of its own pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from weft.core.records import dataclass


@dataclass(frozen=True)
class WindowPool:
    """The facts that a runner states about its window layers: they have `count` pages and read at
    most the last `window` positions. A step writes at most `rows` positions of a sequence."""

    count: int
    window: int
    rows: int


class Windows:
    """The twins of pages of `size` positions. Not thread-safe."""

    def __init__(self, pool: WindowPool, size: int) -> None:
        self.pool, self.size = pool, size
        self.refs = [0] * pool.count
        self._of: dict[int, int] = {}  # page -> twin
        self._page: dict[int, int] = {}  # twin -> page
        self._spent: OrderedDict[int, None] = OrderedDict.fromkeys(range(pool.count))
        self._idle: OrderedDict[int, None] = OrderedDict()

    def first(self, fed: int) -> int:
        """Returns the first page of a sequence that is read after `fed` positions, also if it
        resumes from the end of the last full page."""
        return max(fed // self.size * self.size - self.pool.window + 1, 0) // self.size

    def has(self, page: int) -> bool:
        """Returns True if the page has a twin."""
        return page in self._of

    def at(self, pages: Sequence[int]) -> list[int]:
        """Returns the twins of pages that have one."""
        return [self._of[page] for page in pages]

    def resumable(self, pages: Sequence[int]) -> int:
        """Returns from how many of a sequence's first `pages` it can resume: the last window of
        them has twins."""
        n = len(pages)
        while n:
            seen = range(n - 1, self.first(n * self.size) - 1, -1)
            gap = next((i for i in seen if pages[i] not in self._of), None)
            if gap is None:
                break
            n = gap
        return n

    def take(self, page: int) -> None:
        """Adds a reference to the page's twin, a new one of unknown content if there is none."""
        twin = self._of.get(page)
        if twin is None:
            twin, _ = (self._spent or self._idle).popitem(last=False)
            self._of.pop(self._page.pop(twin, -1), None)
            self._of[page], self._page[twin] = twin, page
        self.refs[twin] += 1
        self._spent.pop(twin, None)
        self._idle.pop(twin, None)

    def release(self, page: int, spent: bool) -> None:
        """Drops a reference to the page's twin. Raises AssertionError if there is none."""
        twin = self._of[page]
        assert self.refs[twin] > 0, f"the twin of page {page} is freed twice"
        self.refs[twin] -= 1
        if not self.refs[twin]:
            (self._spent if spent else self._idle)[twin] = None

    def drop(self, page: int) -> None:
        """Takes the twin from an unreferenced page, whose content is forgotten."""
        twin = self._of.pop(page, None)
        if twin is not None:
            assert not self.refs[twin]
            del self._page[twin]
            self._idle.pop(twin, None)
            self._spent[twin] = None
            self._spent.move_to_end(twin, last=False)

    def check(self, held: dict[int, int]) -> None:
        """Raises AssertionError unless `held` are the references to each page's twin, and the
        bookkeeping is consistent."""
        assert held == {page: self.refs[t] for page, t in self._of.items() if self.refs[t]}
        assert {t: page for page, t in self._of.items()} == self._page
        free = {*self._spent, *self._idle}
        assert len(free) == len(self._spent) + len(self._idle)
        assert free == {t for t, refs in enumerate(self.refs) if not refs}
