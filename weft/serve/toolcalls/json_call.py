"""A call of a tool written as a JSON object, read as it grows: {"name": ..., "arguments": {...}}.

The arguments go out as the model writes them, from the moment the name is known. Wrong JSON is
passed on unchanged, because the caller of a tool checks arguments anyway.
"""

from __future__ import annotations

import json

from weft.serve.toolcalls.events import Sink

NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters", "args")


class JsonScanner:
    """A reader that finds the end of a JSON value, fed from its first character on."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self.over = False
        self._escaped = False
        self._scalar = False

    def push(self, c: str) -> bool:
        """True if `c` belongs to the value; a number or a word ends before the character that
        follows it."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif c == "\\":
                self._escaped = True
            elif c == '"':
                self.in_string = False
                self.over = self.depth == 0
            return True
        if self._scalar and (c in ",}]" or c.isspace()):
            self.over = True
            return False
        if c == '"':
            self.in_string = True
        elif c in "{[":
            self.depth += 1
        elif c in "}]":
            self.depth -= 1
            self.over = self.depth <= 0
        elif self.depth == 0:
            self._scalar = True
        return True


class CallObject:
    """One object. `text` holds what was read until the call has `started`; `over` is true from the
    object's last bracket on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.text: list[str] = []
        self.started = self.over = False
        self._name: str | None = None
        self._key: str | None = None
        self._value: JsonScanner | None = None
        self._part: list[str] = []  # the characters of the present key or value
        self._early: str | None = None  # arguments that came before the name
        self._streams = False
        self._opened = False

    @property
    def in_string(self) -> bool:
        return self._value is not None and self._value.in_string

    def push(self, c: str) -> None:
        if not self.started:
            self.text.append(c)
        if self.over:
            return
        if self._value is None:
            self._between(c)
        elif self._value.push(c):
            self._take(c)
            if self._value.over:
                self._end_value()
        else:
            self._end_value()
            self._between(c)

    def finish(self, bare: bool) -> bool:
        """After the last character: whether there was a call. `bare`: it needs no arguments."""
        known = self._name is not None and (bare or self._early is not None)
        if known and not self.started and self._value is None:
            self._begin(self._early if self._early is not None else "{}")
        return self.started

    def _between(self, c: str) -> None:
        if not self._opened:
            self._opened = c == "{"
        elif c == "}":
            self.over = True
        elif c == ":" and self._key is None and self._part:
            self._key, self._part = _text_of("".join(self._part)) or "", []
        elif not c.isspace() and c != ",":
            self._value = JsonScanner()
            self._part = []
            self._streams = self._key in ARGUMENTS and self._name is not None and c in "{["
            if self._streams and self.started:  # a second one counts for nothing
                self._streams = False
            elif self._streams:
                self._begin("")
            self._value.push(c)
            self._take(c)
            if self._value.over:
                self._end_value()

    def _take(self, c: str) -> None:
        if self._streams:
            self._sink.arguments(c)
        elif not self.started or self._key is None:
            self._part.append(c)

    def _end_value(self) -> None:
        self._value = None
        if self._key is None:
            return  # a key: its colon follows
        key, value = self._key, "".join(self._part)
        self._key, self._part = None, []
        if self._streams or self.started:
            self._streams = False
            return
        if key in NAMES and self._name is None:
            self._name = _text_of(value) or None
        elif key in ARGUMENTS and self._early is None:
            self._early = _arguments(value)
        if self._name is not None and self._early is not None:
            self._begin(self._early)

    def _begin(self, arguments: str) -> None:
        assert self._name is not None
        self.started, self.text = True, []
        self._sink.start(self._name)
        self._sink.arguments(arguments)


def _text_of(literal: str) -> str | None:
    """The text that a JSON literal encodes; None if it is not a text."""
    try:
        found = json.loads(literal)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _arguments(value: str) -> str:
    """The arguments as JSON: the content of a text literal, an empty object for null, else the
    value itself."""
    if value == "null":
        return "{}"
    return _text_of(value) or value
