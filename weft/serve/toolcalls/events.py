"""The events that a parser makes from an answer's text, piece by piece, and the message that they
join to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from weft.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """More of what is said to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model says to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The `index`th call of a tool begins, counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Content | Reasoning | CallStarted | CallArguments


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool: its name and the JSON text of its arguments, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedAnswer:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class Parser(Protocol):
    """Reads one answer. However its text is cut into pieces, the events join to the same; no text
    makes it raise, and the time is linear in the text."""

    def feed(self, text: str) -> list[Event]:
        """Returns the events that `text` adds."""

    def finish(self) -> list[Event]:
        """Returns the events held back so far, when no text follows."""


def message(events: Iterable[Event]) -> ParsedAnswer:
    """The message that the events of an answer join to."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStarted(_, name):
                calls.append((name, []))
            case CallArguments(index, text):
                calls[index][1].append(text)
    return ParsedAnswer(
        "".join(content), "".join(reasoning), tuple(ToolCall(n, "".join(a)) for n, a in calls)
    )


class Sink:
    """Takes what a parser finds, character by character, and gives events of longer pieces.

    Space goes where nothing is lost by it: before and after reasoning, and between a call and what
    surrounds it. show: what each text goes through.
    """

    def __init__(self, show: Callable[[str], str] = str) -> None:
        self.calls = 0
        self._show = show
        self._events: list[Event] = []
        self._parts: list[str] = []  # texts of the growing event
        self._kind: type[Content] | type[Reasoning] | type[CallArguments] = Content
        # space that may be dropped
        self._space: dict[type, list[str]] = {Content: [], Reasoning: []}
        self._fresh = {Content: False, Reasoning: True}  # True if leading space is dropped

    def content(self, text: str) -> None:
        self._text(Content, text)

    def reasoning(self, text: str) -> None:
        self._text(Reasoning, text)

    def verbatim(self, text: str, reasoning: bool = False) -> None:
        """Text whose spaces all stay."""
        kind = Reasoning if reasoning else Content
        self._add(kind, "".join(self._space[kind]) + text)
        self._space[kind], self._fresh[kind] = [], False

    def border(self) -> None:
        """Here ends reasoning or a call: space on both sides goes."""
        self._space = {Content: [], Reasoning: []}
        self._fresh = {Content: True, Reasoning: True}

    def start(self, name: str) -> None:
        self.border()
        self._close()
        self._events.append(CallStarted(self.calls, self._show(name)))
        self.calls += 1

    def arguments(self, text: str) -> None:
        self._add(CallArguments, text)

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._close()
        out, self._events = self._events, []
        return out

    def finish(self) -> list[Event]:
        """The last ones: a space that ends the content is part of it."""
        self._add(Content, "".join(self._space[Content]))
        self.border()
        return self.take()

    def _text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        body = text.lstrip() if self._fresh[kind] else text
        if not body:
            return
        kept = body.rstrip()
        if kept:
            self._fresh[kind] = False
            self._add(kind, "".join(self._space[kind]) + kept)
            self._space[kind] = [body[len(kept) :]]
        else:
            self._space[kind].append(body)

    def _add(self, kind: type[Content] | type[Reasoning] | type[CallArguments], text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._close()
            self._kind = kind
        self._parts.append(text)

    def _close(self) -> None:
        if not self._parts:
            return
        text, self._parts = self._show("".join(self._parts)), []
        if self._kind is CallArguments:
            self._events.append(CallArguments(self.calls - 1, text))
        else:
            self._events.append(Content(text) if self._kind is Content else Reasoning(text))


def joined(events: Iterable[Event]) -> list[Event]:
    """The same events, neighbours of one kind made one."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if type(last) is type(event) and not isinstance(event, CallStarted):
            assert last is not None and not isinstance(last, CallStarted)
            out[-1] = replace(last, text=last.text + event.text)
        else:
            out.append(event)
    return out
