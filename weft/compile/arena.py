"""Arena planning: values that are never alive together share bytes.

Greedy by size: the largest value first, each at the lowest offset of the first arena buffer where
it fits between those already placed that are alive at the same time. A program of very many values
is placed in the order of its steps instead, which takes less time and, at worst, more memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush

from weft.core.errors import LimitError

ALIGN = 256  # bytes; what WebGPU asks of binding offsets
MANY = 4096  # from this many spans on, they are placed in the order of the steps


@dataclass(eq=False)
class Span:
    """`nbytes` alive from step `start` to step `end`, both included; `apart` are spans that may
    not share an arena buffer with it."""

    nbytes: int
    start: int
    end: int
    label: str = ""
    buffer: int = -1
    offset: int = -1
    apart: set[int] = field(default_factory=set)  # ids of spans that need another buffer


def place(spans: list[Span], limit: int) -> list[int]:
    """Gives each span a buffer and an offset; returns the size of each arena buffer.

    Raises LimitError for a span larger than `limit` bytes, the largest buffer allowed.
    """
    for span in spans:
        if span.nbytes > limit:
            raise LimitError(
                f"{span.label} needs {span.nbytes:,} bytes in one buffer, the device allows "
                f"{limit:,}"
            )
    if len(spans) > MANY:
        return _place_in_turn(spans, limit)
    arenas: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (-s.nbytes, s.start)):
        for number, placed in enumerate(arenas):
            if span.apart and any(id(other) in span.apart for other in placed):
                continue
            offset = _lowest(span, placed)
            if offset + span.nbytes <= limit:
                span.buffer, span.offset = number, offset
                placed.append(span)
                break
        else:
            span.buffer, span.offset = len(arenas), 0
            arenas.append([span])
    return [max(_round(s.offset + s.nbytes) for s in placed) for placed in arenas]


def _place_in_turn(spans: list[Span], limit: int) -> list[int]:
    """Places spans as a program that allocates and frees would: in order of their start, each in
    the smallest gap that holds it. Time grows with the number of spans."""
    arenas: list[_Heap] = []
    by_id = {id(span): span for span in spans}
    ending: list[tuple[int, int, Span]] = []  # a heap by last step
    for count, span in enumerate(sorted(spans, key=lambda s: (s.start, -s.nbytes))):
        while ending and ending[0][0] < span.start:
            gone = heappop(ending)[2]
            arenas[gone.buffer].free(gone.offset, max(_round(gone.nbytes), ALIGN))
        taken = {by_id[key].buffer for key in span.apart if key in by_id}
        size = max(_round(span.nbytes), ALIGN)
        for number in range(len(arenas) + 1):
            if number in taken:
                continue
            if number == len(arenas):
                arenas.append(_Heap())
            offset = arenas[number].take(size, limit - span.nbytes)
            if offset is not None:
                break
        span.buffer, span.offset = number, offset or 0
        heappush(ending, (span.end, count, span))
    return [heap.end for heap in arenas]


class _Heap:
    """The gaps of one arena buffer, by size and by place."""

    def __init__(self) -> None:
        self.end = 0  # bytes ever used
        self._gaps: list[tuple[int, int]] = []  # (size, offset), sorted
        self._from: dict[int, int] = {}  # offset -> size
        self._to: dict[int, int] = {}  # end -> offset

    def take(self, size: int, last: int) -> int | None:
        """Returns the offset of `size` bytes at `last` or before, or None if they do not fit."""
        for at in range(bisect_left(self._gaps, (size, 0)), len(self._gaps)):
            found, offset = self._gaps[at]
            if offset <= last:
                self._drop(offset)
                if found > size:
                    self._keep(offset + size, found - size)
                return offset
        tail = self._to.get(self.end)
        offset = self.end if tail is None else tail
        if offset > last:
            return None
        if tail is not None:
            self._drop(tail)
        self.end = offset + size
        return offset

    def free(self, offset: int, size: int) -> None:
        """Gives bytes back; gaps that touch become one."""
        if offset in self._to:
            before = self._to[offset]
            size += self._drop(before)
            offset = before
        if offset + size in self._from:
            size += self._drop(offset + size)
        self._keep(offset, size)

    def _keep(self, offset: int, size: int) -> None:
        insort(self._gaps, (size, offset))
        self._from[offset], self._to[offset + size] = size, offset

    def _drop(self, offset: int) -> int:
        size = self._from.pop(offset)
        del self._to[offset + size]
        self._gaps.pop(bisect_left(self._gaps, (size, offset)))
        return size


def _lowest(span: Span, placed: list[Span]) -> int:
    """The lowest aligned offset that no span alive at the same time covers."""
    alive = [s for s in placed if s.start <= span.end and span.start <= s.end]
    offset = 0
    for other in sorted(alive, key=lambda s: s.offset):
        if offset + span.nbytes <= other.offset:
            break
        offset = max(offset, _round(other.offset + other.nbytes))
    return offset


def _round(n: int) -> int:
    return -(-n // ALIGN) * ALIGN
