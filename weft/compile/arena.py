"""Arena planning: values that are never alive together share bytes.

Greedy by size: the largest value first, each at the lowest offset of the first arena buffer where
it fits between those already placed that are alive at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.core.errors import LimitError

ALIGN = 256  # bytes; what WebGPU asks of binding offsets


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
    apart: set[int] = field(default_factory=set)  # ids of spans


def place(spans: list[Span], limit: int) -> list[int]:
    """Gives each span a buffer and an offset; returns the size of each arena buffer.

    Raises LimitError for a span larger than `limit` bytes, the largest buffer allowed.
    """
    arenas: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (-s.nbytes, s.start)):
        if span.nbytes > limit:
            raise LimitError(
                f"{span.label} needs {span.nbytes:,} bytes in one buffer, the device allows "
                f"{limit:,}"
            )
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
