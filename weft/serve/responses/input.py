"""The items of a Responses request as the messages that chat templates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.serve.openai.chat import arguments, check_arguments, parts_of, text_of
from weft.serve.pictures import Part, content_of
from weft.serve.responses.tools import INPUT, told_name
from weft.serve.responses.types import (
    ITEMS,
    SKIPPED_ITEMS,
    CallItem,
    CustomCallItem,
    Item,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponsePart,
    converted,
    kind_of,
)
from weft.serve.tooling import called
from weft.serve.wire import HttpError


def items_of(given: str | Sequence[Mapping[str, Any]]) -> list[Item]:
    """The items of an input, without SKIPPED_ITEMS. Raises HttpError."""
    if isinstance(given, str):
        return [MessageItem(role="user", content=given)]
    for i, item in enumerate(given):
        if kind_of(item) == "item_reference":
            raise HttpError(
                400, f"input[{i}] refers to a stored item, but this server stores none: send the "
                "whole item (clients do so with store: false)", f"input[{i}].type",
            )  # fmt: skip
    return [
        converted(item, ITEMS, f"input[{i}]")
        for i, item in enumerate(given)
        if kind_of(item) not in SKIPPED_ITEMS
    ]


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Instructions and items as messages. Many templates want one system message at the front and
    alternating turns. So neighbouring items of the system or the user become one message, joined by
    an empty line; an assistant's reasoning, text and calls also become one. Raises HttpError."""
    calls = (item.arguments for item in items if isinstance(item, CallItem))
    check_arguments(calls, "input")
    talk = _Talk()
    if instructions:
        talk.say("system", instructions)
    for item in items:
        talk.add(item)
    return talk.whole()


_ORDER = ("reasoning_content", "content", "tool_calls")
"""The parts of an assistant's message, as templates write them."""


def _shown(content: str | Sequence[ResponsePart] | None) -> list[Part]:
    """The texts of an item as one, or its texts and pictures in order."""
    if not isinstance(content, list) or all(part.type != "input_image" for part in content):
        return [text_of(content, "input")]
    return parts_of(content, "input")


class _Talk:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._said: list[
            Part
        ] = []  # texts of the last message, if it is the system's or the user's
        self._names: dict[str, str] = {}  # tool names by the ids of their calls
        self._last = -1  # the part that the assistant's message has come to

    def add(self, item: Item) -> None:
        match item:
            case MessageItem(role="assistant"):
                self._assistant("content", text_of(item.content, "input"))
            case MessageItem(role="user"):
                self.say("user", *_shown(item.content))
            case MessageItem():
                self.say("system", text_of(item.content, "input"))
            case ReasoningItem():
                self._think(item.content or item.summary)
            case CallItem():
                self._call(item, arguments(item.arguments))
            case CustomCallItem():
                self._call(item, {INPUT: item.input})
            case OutputItem():
                self._result(item)

    def say(self, role: str, *parts: Part) -> None:
        if not (self.messages and self.messages[-1]["role"] == role):
            self._append({"role": role})
        self._said += parts

    def whole(self) -> list[dict[str, Any]]:
        """All messages."""
        if self._said:
            self.messages[-1]["content"] = content_of(self._said, "\n\n")
            self._said = []
        return self.messages

    def _append(self, message: dict[str, Any]) -> None:
        self.whole().append(message)

    def _assistant(self, part: str, value: Any) -> None:
        """Adds more of the assistant's message; a part that cannot follow the last one begins a new
        message."""
        at = _ORDER.index(part)
        speaking = bool(self.messages) and self.messages[-1]["role"] == "assistant"
        if not speaking or at < self._last or at == self._last != 2:
            self._append({"role": "assistant", "content": ""})
        self._last = at
        if part == "tool_calls":
            self.messages[-1].setdefault(part, []).append(value)
        else:
            self.messages[-1][part] = value

    def _think(self, parts: Sequence[ResponsePart]) -> None:
        text = "\n".join(part.text or "" for part in parts)
        if text:
            self._assistant("reasoning_content", text)

    def _call(self, item: CallItem | CustomCallItem, given: Any) -> None:
        name = told_name(item.name, item.namespace)
        self._names[item.call_id] = name
        self._assistant("tool_calls", called(name, given, item.call_id))

    def _result(self, item: OutputItem) -> None:
        made: dict[str, Any] = {"role": "tool", "content": text_of(item.output, "input")}
        name = self._names.get(item.call_id or "")
        if name is None and item.name is not None:
            name = told_name(item.name, item.namespace)
        if item.call_id is not None:
            made["tool_call_id"] = item.call_id
        if name is not None:
            made["name"] = name
        self._append(made)
