"""Reading an answer that has to be a given form: all of it is content, whatever it spells, but what
the form itself has put before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.serve.toolcalls.events import Content, Event, Parser, Sink
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.marks import Marks
from weft.serve.toolcalls.reading import ALL, END, Incremental, Reader, beginning, until


class Verbatim:
    """A parser that takes everything for content."""

    def __init__(self, marks: Marks) -> None:
        self._show = marks.show

    def feed(self, text: str) -> list[Event]:
        return [Content(self._show(text))] if text else []

    def finish(self) -> list[Event]:
        return []


@dataclass(frozen=True)
class Given:
    """Reasoning between `opening` and `closing`, the space `gap`, and content; or calls, which
    begin with `before` ("": there are none)."""

    marks: Marks
    opening: str
    closing: str
    gap: str
    before: str

    def parser(
        self, context: ParserContext, opened: bool, others: Callable[[ParserContext], Parser]
    ) -> Parser:
        """The reader of one answer. opened: True if the prompt has started the reasoning; others:
        makes the parser that reads calls."""
        return _Reading(
            self.marks, lambda sink, calls: self._read(sink, opened, calls), lambda: others(context)
        )

    def _read(self, sink: Sink, opened: bool, calls: Callable[[str], None]) -> Reader:
        hide = self.marks.hide
        read, thinks = "", opened
        if self.opening and not opened:
            read, thinks = yield from beginning(hide(self.opening))
        if thinks:
            sink.border()
            found = yield from until([hide(self.closing)], sink.reasoning)
            sink.border()
            if found == END:
                return
            read = ""
            for expected in self.gap:
                c = yield None
                if c != expected:  # The text does not follow the form, so it is content.
                    read = c
                    break
        yield from self._rest(sink, read, calls)

    def _rest(self, sink: Sink, read: str, calls: Callable[[str], None]) -> Reader:
        """Calls, where the text begins as they do; else content, every space of it."""
        before = self.marks.hide(self.before)
        while before and before.startswith(read) and read != before:
            c = yield None
            if c == END:
                break
            read += c
        if before and read.startswith(before):
            calls(read)
            while (c := (yield ALL)) != END:
                calls(c)
            return
        sink.verbatim(read)
        yield from _all(sink)


def _all(sink: Sink) -> Reader:
    while (c := (yield ALL)) != END:
        sink.verbatim(c)


class _Reading:
    """A parser that passes calls on to another."""

    def __init__(
        self,
        marks: Marks,
        read: Callable[[Sink, Callable[[str], None]], Reader],
        others: Callable[[], Parser],
    ) -> None:
        self._waiting: list[str] = []
        self._own = Incremental(lambda sink: read(sink, self._waiting.append), marks.show)
        self._others = others
        self._other: Parser | None = None

    def feed(self, text: str) -> list[Event]:
        return [*self._own.feed(text), *self._handed()]

    def finish(self) -> list[Event]:
        found = [*self._own.finish(), *self._handed()]
        return found if self._other is None else [*found, *self._other.finish()]

    def _handed(self) -> list[Event]:
        if not self._waiting:
            return []
        text = "".join(self._waiting)
        self._waiting.clear()
        if self._other is None:
            self._other = self._others()
        return self._other.feed(text)
