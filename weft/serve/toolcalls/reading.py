"""Reading a text: parsers are generators that wait for the next character, or for a run of text in
which no character means anything.

So whatever pieces a text comes in, they find the same. The end of the text is the character "".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence

from weft.serve.toolcalls.events import Event, Sink

Wanted = re.Pattern[str] | None
"""What a parser waits for: one character (None), or a run up to a match. A match itself comes as
one character."""
Reader = Generator[Wanted, str, None]
END = ""
ALL = re.compile(r"(?!)")  # a run of whatever follows


class Incremental:
    """A Parser that runs a generator which fills a Sink."""

    def __init__(self, make: Callable[[Sink], Reader], show: Callable[[str], str] = str) -> None:
        self._sink = Sink(show)
        self._run = make(self._sink)
        self._over = False
        self._wanted = next(self._run)

    def feed(self, text: str) -> list[Event]:
        at = 0
        while at < len(text) and not self._over:
            end = at + 1
            if self._wanted is not None:
                found = self._wanted.search(text, at)
                end = len(text) if found is None else max(found.start(), end)
            self._send(text[at:end])
            at = end
        return self._sink.take()

    def finish(self) -> list[Event]:
        self._send(END)
        self._send(END)  # for a reader that has met the end while it looked ahead
        return self._sink.finish()

    def _send(self, c: str) -> None:
        if not self._over:
            try:
                self._wanted = self._run.send(c)
            except StopIteration:
                self._over = True


def until(
    markers: Sequence[str],
    take: Callable[[str], None],
    outside: Callable[[], bool] | None = None,
    begun: str = "",
) -> Generator[Wanted, str, str]:
    """Gives `take` the text up to the first of `markers`, and returns that marker, or END. While
    `outside` is false nothing is a marker. No marker is the beginning of another. begun: earlier
    text, which does not end in a whole marker."""
    firsts = {m[0] for m in markers}
    run = None
    if outside is None:
        run = re.compile(f"[{re.escape(''.join(firsts))}]") if firsts else ALL
    held = ""
    waiting = iter(begun)
    while True:
        c = next(waiting, None) or (yield None if held else run)
        if c == END:
            if held:
                take(held)
            return END
        if not held and (c not in firsts or (outside is not None and not outside())):
            take(c)
            continue
        held += c
        while held and not any(m.startswith(held) for m in markers):
            take(held[0])
            held = held[1:]
            if outside is not None and held and not outside():
                take(held)
                held = ""
        if held in markers:
            return held


def beginning(text: str) -> Generator[Wanted, str, tuple[str, bool]]:
    """The part that was read until it was `text`, or could no longer be, and whether it is; space
    before it belongs to it."""
    spaces: list[str] = []
    found = ""
    while True:
        c = yield None
        if c == END:
            return "".join(spaces) + found, False
        if not found and c.isspace():
            spaces.append(c)
            continue
        found += c
        if found == text or not text.startswith(found):
            return "".join(spaces) + found, found == text


def skip_space() -> Generator[Wanted, str, str]:
    """Returns the first character that is not space, or END."""
    while True:
        c = yield None
        if c == END or not c.isspace():
            return c
