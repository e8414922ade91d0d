"""Anthropic's conversations as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weft.serve.anthropic.blocks import unsealed
from weft.serve.anthropic.types import (
    AnthropicMessage,
    Blocks,
    CountTokens,
    Image,
    RedactedThinking,
    TextPart,
    Thinking,
    ToolReference,
    ToolResult,
    ToolUse,
)
from weft.serve.chatting import AnswerOptions, Turn, continued
from weft.serve.pictures import Part, content_of, from_source
from weft.serve.tooling import called, check_names, function, needed_of
from weft.serve.wire import HttpError

BILLING = "x-anthropic-billing-header:"
"""How a line begins that Claude Code puts before everything else and changes with each request. It
says nothing to a model, and with it no two requests would begin alike."""


def turn_of(body: CountTokens, options: AnswerOptions) -> Turn:
    """The conversation that a request asks to go on. Raises HttpError."""
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    config = body.output_config
    if config is not None and config.effort is not None:
        effort = config.effort
        variables["reasoning_effort"] = effort if effort in ("low", "medium") else "high"
    choice = body.tool_choice
    given = () if choice is not None and choice.type == "none" else body.tools or ()
    check_names(tool.name for tool in given)
    made = {t.name: function(t.name, t.description, t.input_schema) for t in given}
    deferred = {tool.name: made.pop(tool.name) for tool in given if tool.defer_loading}
    said = TemplateMessages(deferred)
    said.read(body.messages)
    messages, prefix = continued([*_system(body.system), *said.messages])
    wanted: str | Sequence[str] | None = None
    if choice is not None:
        wanted = {"any": "required", "tool": (choice.name or "",)}.get(choice.type)
    return Turn(
        messages, options, variables, list(made.values()),
        parallel=choice is None or not choice.disable_parallel_tool_use,
        prefix=prefix,
        needed=needed_of(wanted, [*made, *said.told]),
        strict=any(tool.strict for tool in given),
        later=list(said.told.values()),
    )  # fmt: skip


class TemplateMessages:
    """Messages in the form that templates take. Adjacent messages of one role are one, and each
    result of a tool is a message. `deferred`: tools by name, of which the model learns when a
    result first refers to them. `told`: the tools it knows."""

    def __init__(self, deferred: Mapping[str, dict[str, Any]]) -> None:
        self.told: dict[str, dict[str, Any]] = {}
        self._deferred = deferred
        self._names: dict[str, str] = {}  # tool names by the ids of their calls
        self._said: list[_Said] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [said.message() for said in self._said]

    def read(self, given: Sequence[AnthropicMessage]) -> None:
        """Adds messages. Raises HttpError for content that is neither text nor tools."""
        last = max((i for i, m in enumerate(given) if m.role == "user"), default=-1)
        for i, message in enumerate(given):
            blocks = _blocks(message.content)
            if message.role == "assistant":
                self._assistant(blocks)
            elif i >= last or message.clear_at != "next_user_message":
                self._user(blocks)

    def _in(self, role: str) -> _Said:
        """The message that more of a role goes to."""
        if not self._said or self._said[-1].role != role:
            self._said.append(_Said(role))
        return self._said[-1]

    def _assistant(self, blocks: Sequence[Blocks]) -> None:
        said = self._in("assistant")
        for block in blocks:
            if isinstance(block, TextPart):
                said.texts.append(block.text)
            elif isinstance(block, Thinking):
                said.thoughts.append(block.thinking or unsealed(block.signature or ""))
            elif isinstance(block, ToolUse):
                self._names[block.id] = block.name
                said.calls.append(called(block.name, block.input, block.id))
            elif not isinstance(block, RedactedThinking):
                raise _wrong(block, "a message of the assistant's")

    def _user(self, blocks: Sequence[Blocks]) -> None:
        for block in blocks:
            if isinstance(block, TextPart):
                self._in("user").texts.append(block.text)
            elif isinstance(block, Image):
                self._in("user").texts.append(from_source(block.source))
            elif isinstance(block, ToolResult):
                self._said.append(self._result(block))
            else:
                raise _wrong(block, "a message of the user's")
        if not blocks:
            self._in("user")

    def _result(self, block: ToolResult) -> _Said:
        said = _Said("tool", [self._part(part) for part in _blocks(block.content)])
        if block.is_error:
            said.texts.insert(0, "Error: " + str(said.texts.pop(0) if said.texts else ""))
        said.more["tool_call_id"] = block.tool_use_id
        if block.tool_use_id in self._names:
            said.more["name"] = self._names[block.tool_use_id]
        return said

    def _part(self, part: Blocks) -> str:
        if isinstance(part, TextPart):
            return part.text
        if not isinstance(part, ToolReference):
            raise _wrong(part, "a result")
        name = part.tool_name
        tool = self._deferred.get(name)
        if tool is None:
            raise HttpError(400, f"tool_reference names {name!r:.140}, which is not a tool with "
                            f"defer_loading", "messages")  # fmt: skip
        if name in self.told:
            return name
        self.told[name] = tool
        return msgspec.json.encode(tool).decode()


@dataclass
class _Said:
    """A message, part by part: joined once, however many there are."""

    role: str
    texts: list[Part] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "role": self.role,
            "content": content_of([part for part in self.texts if part]),
        }
        if any(self.thoughts):
            made["reasoning_content"] = _lines(self.thoughts)
        if self.calls:
            made["tool_calls"] = self.calls
        return made | self.more


def _system(given: str | Sequence[Blocks] | None) -> list[dict[str, Any]]:
    """The system's message, without lines for Anthropic's own accounting."""
    texts = []
    for block in _blocks(given):
        if not isinstance(block, TextPart):
            raise _wrong(block, "system")
        texts.append(block.text)
    said = [text.partition("\n")[2] if text.startswith(BILLING) else text for text in texts]
    text = _lines([text for text in said if text])
    return [{"role": "system", "content": text}] if text else []


def _blocks(content: str | Sequence[Blocks] | None) -> Sequence[Blocks]:
    return [TextPart(text=content)] if isinstance(content, str) else content or ()


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(text for text in texts if text)


def _wrong(block: Blocks, where: str) -> HttpError:
    kind = type(block).__struct_config__.tag
    return HttpError(400, f"content of type {kind!r} is not taken in {where}", "messages")
