"""The events of a Responses stream, and the items that they build.

Source: platform.openai.com/docs/api-reference/responses-streaming, November 2026. A reply that is
not streamed is the content of the last event.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.serve.openai.chat import call_id
from weft.serve.responses.tools import Offered, input_of
from weft.serve.toolcalls.events import CallArguments, CallStarted, Content, Event, Reasoning

Made = dict[str, Any]
"""An event, as JSON has it."""


@dataclass(frozen=True)
class ItemEvents:
    """The events of one kind of item: `name` precedes .delta and .done, `text` is the field that
    grows. If the text is in a part: the list with the part, the part's type, its events and its
    index."""

    item: str
    prefix: str
    name: str
    text: str
    list: str = ""
    part: str = ""
    parts: str = ""
    index: str = ""


MESSAGE = ItemEvents(
    "message", "msg_", "response.output_text", "text", "content", "output_text",
    "response.content_part", "content_index",
)  # fmt: skip
REASONING = ItemEvents(
    "reasoning", "rs_", "response.reasoning_text", "text", "content", "reasoning_text",
    "response.content_part", "content_index",
)  # fmt: skip
SUMMARY = ItemEvents(
    "reasoning", "rs_", "response.reasoning_summary_text", "text", "summary", "summary_text",
    "response.reasoning_summary_part", "summary_index",
)  # fmt: skip
FUNCTION = ItemEvents("function_call", "fc_", "response.function_call_arguments", "arguments")
CUSTOM = ItemEvents("custom_tool_call", "ctc_", "response.custom_tool_call_input", "input")


class Response:
    """A growing response: `made` is the object so far. summary: True if reasoning is reported as a
    summary (in full: nothing shortens it). tools: the offered tools, by the names that the model
    knows."""

    def __init__(self, head: Made, tools: Mapping[str, Offered], summary: bool) -> None:
        self.made: Made = {**head, "status": "in_progress", "output": []}
        self._tools, self._summary = tools, summary
        self._sequence = 0
        self._kind: ItemEvents | None = None  # the kind of the growing item
        self._item: Made = {}
        # arguments of a custom tool's call, whose text is known once they are complete
        self._arguments = ""
        self._logprobs: list[Made] = []  # logprobs of tokens whose text is to come

    def begin(self) -> Iterator[Made]:
        """The first events."""
        yield self._event("response.created", response=self.made)
        yield self._event("response.in_progress", response=self.made)

    def add(self, events: Iterable[Event], logprobs: Iterable[Made] = ()) -> Iterator[Made]:
        """Yields the events for more of the answer and the logprobs of its tokens: a message gets
        its own logprobs."""
        self._logprobs += logprobs
        for event in events:
            told, self._logprobs = self._logprobs, []
            match event:
                case Content(text):
                    yield from self._grow(MESSAGE, text, told)
                case Reasoning(text):
                    yield from self._grow(SUMMARY if self._summary else REASONING, text)
                case CallStarted(_, name):
                    yield from self._call(name)
                case CallArguments(_, text) if self._kind is CUSTOM:
                    self._arguments += text
                case CallArguments(_, text):
                    yield from self._delta(text)

    def end(self, incomplete: str | None, **fields: Any) -> Iterator[Made]:
        """The last events. incomplete: why it is not whole; fields: what is known only now."""
        if self._kind is MESSAGE:  # tokens that ended it, without a text of their own
            self._item[MESSAGE.list][0]["logprobs"] += self._logprobs
        yield from self._close("completed" if incomplete is None else "incomplete")
        self.made |= fields
        self.made["status"] = "completed" if incomplete is None else "incomplete"
        if incomplete is not None:
            self.made["incomplete_details"] = {"reason": incomplete}
        yield self._event(f"response.{self.made['status']}", response=self.made)

    def fail(self, code: str, message: str) -> Made:
        """The last event where the answer breaks off."""
        self.made |= {"status": "failed", "error": {"code": code, "message": message}}
        return self._event("response.failed", response=self.made)

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        items = [item for item in self.made["output"] if item["type"] == "reasoning"]
        return "".join(p["text"] for i in items for p in (*i["summary"], *i.get("content", ())))

    def _event(self, kind: str, **fields: Any) -> Made:
        made = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return made

    def _about(self, kind: str, **fields: Any) -> Made:
        """An event about the item that grows."""
        about = {"item_id": self._item["id"], "output_index": len(self.made["output"]) - 1}
        if self._kind is not None and self._kind.index:
            about[self._kind.index] = 0
        return self._event(kind, **about, **fields)

    def _open(self, kind: ItemEvents, **fields: Any) -> Iterator[Made]:
        yield from self._close("completed")
        self._kind = kind
        item: Made = {"id": kind.prefix + secrets.token_hex(16), "type": kind.item, **fields}
        if kind is not CUSTOM:  # Items of custom tools have no status.
            item["status"] = "in_progress"
        self._item = item
        self.made["output"].append(item)
        yield self._event(
            "response.output_item.added", output_index=len(self.made["output"]) - 1, item=item
        )
        if kind.part:
            part: Made = {"type": kind.part, "text": ""}
            if kind is MESSAGE:
                part |= {"annotations": [], "logprobs": []}
            item[kind.list].append(part)
            yield self._about(f"{kind.parts}.added", part=part)

    def _grow(
        self, kind: ItemEvents, text: str, logprobs: list[Made] | None = None
    ) -> Iterator[Made]:
        if self._kind is not kind:
            if kind is MESSAGE:
                yield from self._open(kind, role="assistant", content=[])
            else:
                more: Made = {"content": []} if kind is REASONING else {}
                yield from self._open(kind, summary=[], **more, encrypted_content=None)
        yield from self._delta(text, logprobs)

    def _call(self, told: str) -> Iterator[Made]:
        offered = self._tools.get(told)
        custom = offered is not None and offered.custom
        kind = CUSTOM if custom else FUNCTION
        fields: Made = {"call_id": call_id(), "name": told if offered is None else offered.name}
        if offered is not None and offered.namespace is not None:
            fields["namespace"] = offered.namespace
        yield from self._open(kind, **fields, **{kind.text: ""})

    def _delta(self, text: str, logprobs: list[Made] | None = None) -> Iterator[Made]:
        kind = self._kind
        assert kind is not None
        holder = self._item[kind.list][0] if kind.part else self._item
        holder[kind.text] += text
        more: Made = {}
        if kind is MESSAGE:
            holder["logprobs"] += logprobs or []
            more["logprobs"] = logprobs or []
        yield self._about(f"{kind.name}.delta", delta=text, **more)

    def _close(self, status: str) -> Iterator[Made]:
        kind = self._kind
        if kind is None:
            return
        if kind is CUSTOM:
            text, self._arguments = input_of(self._arguments), ""
            yield from self._delta(text)
        holder = self._item[kind.list][0] if kind.part else self._item
        more: Made = {kind.text: holder[kind.text]}
        if kind is MESSAGE:
            more["logprobs"] = holder["logprobs"]
        if kind is FUNCTION:
            more["name"] = self._item["name"]
        yield self._about(f"{kind.name}.done", **more)
        if kind.part:
            yield self._about(f"{kind.parts}.done", part=holder)
        if kind is not CUSTOM:
            self._item["status"] = status
        self._kind = None
        yield self._event(
            "response.output_item.done", output_index=len(self.made["output"]) - 1, item=self._item
        )
