"""Places in a fixed range of addresses: first fit, neighbours joined when freed."""

from __future__ import annotations

import bisect

ALIGN = 256


class Places:
    """Numbers from `start` to `end` (exclusive), handed out in pieces at multiples of ALIGN."""

    def __init__(self, start: int, end: int) -> None:
        self._free = [(start, end)]  # in order, never adjacent to each other
        self._taken: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Returns the start of `size` free numbers, or None if there are none."""
        size = -(-max(size, 1) // ALIGN) * ALIGN
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                rest = [(start + size, end)] if end - start > size else []
                self._free[i : i + 1] = rest
                self._taken[start] = start + size
                return start
        return None

    def give(self, start: int) -> int:
        """Takes a piece back; how long it was."""
        end = self._taken.pop(start)
        size = end - start
        i = bisect.bisect(self._free, (start, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i and self._free[i - 1][1] == start:
            i -= 1
            start = self._free.pop(i)[0]
        self._free.insert(i, (start, end))
        return size
