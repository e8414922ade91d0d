"""An answer as blocks of Anthropic's: the events of a stream, and what they join to."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weft.serve.toolcalls.events import CallStarted, Content, Event, Reasoning
from weft.serve.tooling import input_of

_SEALED = "weft:"


def signed(thought: str) -> str:
    """A digest of a thought."""
    digest = hashlib.sha256(thought.encode(errors="replace")).digest()
    return base64.b64encode(digest).decode()


def sealed(thought: str) -> str:
    """A thought that its reader is not to see but sends back: at a later turn it is known again."""
    return _SEALED + base64.b64encode(thought.encode(errors="replace")).decode()


def unsealed(signature: str) -> str:
    """The thought that `sealed` put away; "" for any other signature."""
    if not signature.startswith(_SEALED):
        return ""
    try:
        data = base64.b64decode(signature[len(_SEALED) :], validate=True)
        return data.decode()
    except ValueError:  # not base64, or not UTF-8
        return ""


class BlockEvents:
    """Turns events of an answer into those of a stream; one block is open at a time. hidden:
    whether the text of thinking is left out. `called`: whether a tool was called."""

    def __init__(self, hidden: bool = False) -> None:
        self.called = False
        self._hidden, self._index = hidden, -1
        self._kind: str | None = None
        self._thoughts: list[str] = []
        self._first = 0  # index of the open block's first thought

    @property
    def thoughts(self) -> str:
        """All that was thought."""
        return "".join(self._thoughts)

    def add(self, found: Event) -> Iterator[dict[str, Any]]:
        """Yields the stream events that one more parser event causes."""
        if isinstance(found, CallStarted):
            self.called = True
            call = {"id": "toolu_" + secrets.token_hex(12), "name": found.name, "input": {}}
            yield from self._open("tool_use", call)
        elif isinstance(found, Content):
            if self._kind != "text":
                yield from self._open("text", {"text": ""})
            yield self._delta("text_delta", text=found.text)
        elif isinstance(found, Reasoning):
            if self._kind != "thinking":
                yield from self._open("thinking", {"thinking": "", "signature": ""})
            self._thoughts.append(found.text)
            if not self._hidden:
                yield self._delta("thinking_delta", thinking=found.text)
        else:
            yield self._delta("input_json_delta", partial_json=found.text)

    def close(self) -> Iterator[dict[str, Any]]:
        """Ends the block that is open."""
        if self._kind == "thinking":
            text = "".join(self._thoughts[self._first :])
            signature = sealed(text) if self._hidden else signed(text)
            yield self._delta("signature_delta", signature=signature)
        if self._kind is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._kind = None

    def _open(self, kind: str, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self.close()
        self._kind, self._index, self._first = kind, self._index + 1, len(self._thoughts)
        yield {
            "type": "content_block_start", "index": self._index,
            "content_block": {"type": kind, **block},
        }  # fmt: skip

    def _delta(self, kind: str, **delta: str) -> dict[str, Any]:
        said = {"type": kind, **delta}
        return {"type": "content_block_delta", "index": self._index, "delta": said}


def content_of(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that the events of a stream join to."""
    made: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            made.append(dict(event["content_block"]))
            arguments = ""
        elif event["type"] == "content_block_stop":
            if made[-1]["type"] == "tool_use":
                made[-1]["input"] = input_of(arguments)
        else:
            for name, text in event["delta"].items():
                if name == "partial_json":
                    arguments += text
                elif name != "type":
                    made[-1][name] += text
    return made
