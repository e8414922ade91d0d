"""The order of tasks, kept free of cycles while conditions are added.

The order stays topological at every addition: only tasks between the two ends of a violated new
condition are examined and moved (Pearce & Kelly 2006, "A dynamic topological sort algorithm for
directed acyclic graphs").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Precedence:
    """Tasks by number. `after[i]` is the set of tasks that go before i."""

    def __init__(self) -> None:
        self.after: list[set[int]] = []
        self._users: list[list[int]] = []
        self._rank: list[int] = []

    def add(self, after: set[int]) -> set[int]:
        """A new task, last in the order; gives its set in `after`, which grows with conditions."""
        number = len(self.after)
        self.after.append(after)
        self._users.append([])
        self._rank.append(number)
        for a in after:
            self._users[a].append(number)
        return after

    def order(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Adds "first before second" conditions; none of them where they would make a cycle."""
        added: list[tuple[int, int]] = []
        for a, b in pairs:
            if a == b or a in self.after[b]:
                continue
            if self._rank[a] > self._rank[b] and not self._move(a, b):
                for first, second in added:
                    self.after[second].discard(first)
                    self._users[first].remove(second)
                return False
            self.after[b].add(a)
            self._users[a].append(b)
            added.append((a, b))
        return True

    def _move(self, a: int, b: int) -> bool:
        """Moves a before b, where b precedes it; returns False if b leads to a."""
        low, high = self._rank[b], self._rank[a]
        later = self._reached(b, lambda i: self._users[i], lambda r: r <= high)
        if a in later:
            return False
        earlier = self._reached(a, lambda i: self.after[i], lambda r: r >= low)
        moved = [*sorted(earlier, key=self._rank.__getitem__)]
        moved += sorted(later, key=self._rank.__getitem__)
        for i, rank in zip(moved, sorted(self._rank[i] for i in moved)):
            self._rank[i] = rank
        return True

    def _reached(
        self, start: int, steps: Callable[[int], Iterable[int]], within: Callable[[int], bool]
    ) -> set[int]:
        found, stack = {start}, [start]
        while stack:
            for i in steps(stack.pop()):
                if i not in found and within(self._rank[i]):
                    found.add(i)
                    stack.append(i)
        return found
