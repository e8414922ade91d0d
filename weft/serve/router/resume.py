"""The rest of a stream whose replica broke off, from another replica.

An answer depends only on model, request and seed. So another replica gives the same text; only the
cuts between events, ids and times differ. The router compares the part that the client has, and
leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

MAX_SENT = 4 << 20  # bytes of a stream that are kept to go on after

Key = tuple[Any, ...]
Event = dict[str, Any]


class Differs(Exception):
    """The other replica's answer is another one."""


@dataclass(frozen=True)
class Part:
    """One growing value of a stream, by `key`: a text, a list, or a mark that comes once. In an
    event it is `holder[name]`."""

    key: Key
    holder: dict[str, Any]
    name: str

    @property
    def value(self) -> Any:
        return self.holder[self.name]


class StreamRest:
    """The rest of a stream after `sent`, taken from another stream of the same answer."""

    def __init__(self, path: str, sent: bytes) -> None:
        """Raises Differs for events that are not this protocol's."""
        self._parts = FORMS[path]
        self._sent: dict[Key, Any] = {}
        self._head: Event = {}
        self._names = ResponseNames()
        for _, event in events_of(sent):
            self._names.learn(event)
            if not self._head:
                self._head = {k: event[k] for k in ("id", "created") if k in event}
            for part in self._read(event):
                old = self._sent.get(part.key)
                whole = part.value if isinstance(part.value, str | list) else [part.value]
                self._sent[part.key] = whole if old is None else old + whole

    def of(self, events: bytes) -> bytes:
        """Returns the events without what was sent. Raises Differs."""
        made = b""
        for lines, event in events_of(events):
            kept = "error" in event
            self._names.translate(event)
            for part in self._read(event):
                kept |= self._cut(part)
            if kept:
                made += _written(lines, self._names.numbered(event | self._head))
        return made

    def _read(self, event: Event) -> list[Part]:
        try:
            return [*self._parts(event)]
        except (KeyError, TypeError, AttributeError):
            raise Differs from None

    def _cut(self, part: Part) -> bool:
        """Takes from an event what was sent of a part; returns True if something is left."""
        value, sent = part.value, self._sent.get(part.key)
        if not isinstance(value, str | list):  # a mark: its value, such as an id, may be another
            if sent:
                self._sent[part.key] = sent[1:]
                part.holder[part.name] = None
            return not sent
        n = min(len(value), len(sent or ()))
        if sent:
            if value[:n] != sent[:n]:
                raise Differs
            self._sent[part.key] = sent[n:]
            part.holder[part.name] = value[n:]
        return len(value) > n


class ResponseNames:
    """The first replica's names in a stream of the Responses API: ids of the response, its items
    and calls, its time, and the numbers of its events. Other streams have none."""

    def __init__(self) -> None:
        self._known: dict[Key, Any] = {}
        self._as: dict[Any, Any] = {}  # the first replica's names by the other one's
        self._next = 0

    def learn(self, event: Event) -> None:
        """Reads an event that the client has."""
        self._known |= _names_in(event)
        if isinstance(number := event.get("sequence_number"), int):
            self._next = number + 1

    def translate(self, event: Event) -> None:
        """Gives an event of the other replica the first one's names."""
        for key, name in _names_in(event).items():
            if key in self._known:
                self._as[name] = self._known[key]
        response = event.get("response")
        output = response.get("output", ()) if isinstance(response, dict) else ()
        for holder in (event, event.get("item"), response, *output):
            for field in _NAMES if isinstance(holder, dict) else ():
                if isinstance(name := holder.get(field), str | int) and name in self._as:
                    holder[field] = self._as[name]

    def numbered(self, event: Event) -> Event:
        """The event with the number that follows what the client has."""
        if "sequence_number" not in event:
            return event
        self._next += 1
        return event | {"sequence_number": self._next - 1}


_NAMES = ("id", "item_id", "call_id", "created_at")


def _names_in(event: Event) -> dict[Key, Any]:
    """The names that an event introduces, by what they name."""
    at, made = event.get("output_index"), {}
    for where in ("response", "item"):
        holder: Any = event.get(where)
        for field in _NAMES if isinstance(holder, dict) else ():
            if isinstance(name := holder.get(field), str | int):
                made[where, at, field] = name
    return made


def events_of(data: bytes) -> Iterator[tuple[list[bytes], Event]]:
    """Yields the lines and the JSON of each event; [DONE] is {"done": "[DONE]"}. Comments are left
    out."""
    blocks = data.split(b"\n\n") if data.lstrip()[:1] != b"{" else data.split(b"\n")
    for block in blocks:
        lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
        text = next((line[5:].strip() for line in lines if line.startswith(b"data:")), block)
        if not lines:
            continue
        try:
            done = text == b"[DONE]"
            event = {"done": "[DONE]"} if done else msgspec.json.decode(text, type=Event)
        except (msgspec.DecodeError, RecursionError):
            raise Differs from None
        yield lines, event


def _written(lines: list[bytes], event: Event) -> bytes:
    if event.get("done") == "[DONE]":
        return b"data: [DONE]\n\n"
    if not lines[-1].startswith(b"data:"):
        return msgspec.json.encode(event) + b"\n"
    head = b"".join(line + b"\n" for line in lines[:-1])
    return head + b"data: " + msgspec.json.encode(event) + b"\n\n"


def _given(key: Key, holder: dict[str, Any] | None, *names: str) -> Iterator[Part]:
    """Yields the parts that an object has, by name."""
    for name in names:
        if holder is not None and holder.get(name) is not None:
            yield Part((*key, name), holder, name)


def _ends(event: Event) -> Iterator[Part]:
    yield from _given((), event, "usage")
    if event.get("done"):
        yield Part(("done",), event, "done")


def _chat(event: Event) -> Iterator[Part]:
    for choice in event.get("choices", ()):
        i, delta = choice["index"], choice["delta"]
        if "role" in delta:
            yield Part((i, "role"), {"role": True}, "role")
        yield from _given((i,), delta, "content", "reasoning", "reasoning_content")
        for call in delta.get("tool_calls", ()):
            key = (i, "call", call["index"])
            if "id" in call:
                yield Part((*key, "id"), {"id": True}, "id")
            yield from _given(key, call["function"], "arguments")
        yield from _given((i, "logprobs"), choice.get("logprobs"), "content")
        if choice["finish_reason"] is not None:
            yield Part((i, "finish"), {"finish": True}, "finish")
    yield from _ends(event)


def _text(event: Event) -> Iterator[Part]:
    for choice in event.get("choices", ()):
        i = choice["index"]
        yield from _given((i,), choice, "text")
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        yield from _given((i, "logprobs"), choice.get("logprobs"), *names)
        if choice["finish_reason"] is not None:
            yield Part((i, "finish"), {"finish": True}, "finish")
    yield from _ends(event)


def _ollama(event: Event) -> Iterator[Part]:
    yield from _given((), event.get("message"), "content", "thinking")
    calls = (event.get("message") or {}).get("tool_calls", ())
    for call in calls:  # whole, with ids of their own
        yield Part(("call", call["function"].get("index")), {"call": True}, "call")
    yield from _given((), event, "response", "thinking", "logprobs")
    if event.get("done"):
        yield Part(("done",), {"done": True}, "done")


def _messages(event: Event) -> Iterator[Part]:
    kind, i = event["type"], event.get("index")
    if kind == "content_block_delta":
        names = ("text", "thinking", "partial_json", "signature")
        yield from _given((i,), event["delta"], *names)
    elif kind != "ping":
        yield Part((kind, i), {"kind": True}, "kind")


def _responses(event: Event) -> Iterator[Part]:
    kind, i = event["type"], event.get("output_index")
    if kind.endswith(".delta"):
        yield from _given((i, kind), event, "delta", "logprobs")
    else:
        yield Part((kind, i), {"kind": True}, "kind")


FORMS: Mapping[str, Callable[[Event], Iterator[Part]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _text,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
    "/api/chat": _ollama,
    "/api/generate": _ollama,
}
"""The growing values in an event, by the route; other streams cannot go on elsewhere."""
