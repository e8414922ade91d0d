"""Transcripts as SRT, WebVTT and plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class Timed(Protocol):
    """A piece of a transcript; times are in seconds."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def text(self) -> str: ...


def clock(seconds: float, point: str = ".") -> str:
    """Returns a time as hh:mm:ss.mmm."""
    whole = round(seconds * 1000)
    hours, rest = divmod(whole, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _plain(text: str) -> str:
    """Returns a text that cannot be taken for the arrow of a cue or its end."""
    return " ".join(text.split()).replace("-->", "->")


def srt(pieces: Iterable[Timed]) -> Iterator[str]:
    """Yields the parts of an SRT file, a cue each, as the pieces come."""
    for i, p in enumerate(pieces, 1):
        times = f"{clock(p.start, ',')} --> {clock(p.end, ',')}"
        yield ("\n" if i > 1 else "") + f"{i}\n{times}\n{_plain(p.text)}\n"


def vtt(pieces: Iterable[Timed]) -> Iterator[str]:
    """Yields the parts of a WebVTT file, a cue each, as the pieces come."""
    yield "WEBVTT\n"
    for p in pieces:
        yield f"\n{clock(p.start)} --> {clock(p.end)}\n{_plain(p.text)}\n"
