"""Anthropic's conversations as chat templates take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from weft.serve.anthropic_blocks import unsealed
from weft.serve.anthropic_types import (
    AnthropicMessage,
    Blocks,
    CountTokens,
    RedactedThinking,
    TextPart,
    Thinking,
    ToolReference,
    ToolResult,
    ToolUse,
)
from weft.serve.chatting import Options, Turn, continued
from weft.serve.tooling import called, function, needed_of
from weft.serve.wire import Refused

BILLING = "x-anthropic-billing-header:"
"""How a line begins that Claude Code puts before everything else and changes with each request. It
says nothing to a model, and with it no two requests would begin alike."""


def turn_of(body: CountTokens, options: Options) -> Turn:
    """The conversation that a request asks to go on. Raises Refused."""
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    config = body.output_config
    if config is not None and config.effort is not None:
        effort = config.effort
        variables["reasoning_effort"] = effort if effort in ("low", "medium") else "high"
    choice = body.tool_choice
    given = () if choice is not None and choice.type == "none" else body.tools or ()
    made = {t.name: function(t.name, t.description, t.input_schema) for t in given}
    deferred = {tool.name: made.pop(tool.name) for tool in given if tool.defer_loading}
    said = Conversation(deferred)
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


class Conversation:
    """Messages as templates take them: neighbours of one role are one; results of tools stand for
    themselves. deferred: tools by name that are told of where a result first refers to them;
    `told` are those."""

    def __init__(self, deferred: Mapping[str, dict[str, Any]]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.told: dict[str, dict[str, Any]] = {}
        self._deferred = deferred
        self._names: dict[str, str] = {}  # of calls, by their ids

    def read(self, given: Sequence[AnthropicMessage]) -> None:
        """Adds messages. Raises Refused for content that is neither text nor tools."""
        last = max((i for i, m in enumerate(given) if m.role == "user"), default=-1)
        for i, message in enumerate(given):
            content = message.content
            blocks = [TextPart(text=content)] if isinstance(content, str) else content
            if message.role == "assistant":
                _join(self.messages, self._assistant(blocks))
            elif i >= last or message.clear_at != "next_user_message":
                for one in self._user(blocks):
                    _join(self.messages, one)

    def _assistant(self, blocks: Sequence[Blocks]) -> dict[str, Any]:
        texts, thoughts, calls = [], [], []
        for block in blocks:
            if isinstance(block, TextPart):
                texts.append(block.text)
            elif isinstance(block, Thinking):
                thoughts.append(block.thinking or unsealed(block.signature or ""))
            elif isinstance(block, ToolUse):
                self._names[block.id] = block.name
                calls.append(called(block.name, block.input, block.id))
            elif not isinstance(block, RedactedThinking):
                raise _wrong(block, "a message of the assistant's")
        made: dict[str, Any] = {"role": "assistant", "content": _lines(texts)}
        if any(thoughts):
            made["reasoning_content"] = _lines(thoughts)
        if calls:
            made["tool_calls"] = calls
        return made

    def _user(self, blocks: Sequence[Blocks]) -> Iterator[dict[str, Any]]:
        texts: list[str] = []
        for block in blocks:
            if isinstance(block, TextPart):
                texts.append(block.text)
            elif isinstance(block, ToolResult):
                if texts:
                    yield {"role": "user", "content": _lines(texts)}
                    texts = []
                made = {"role": "tool", "tool_call_id": block.tool_use_id}
                name = self._names.get(block.tool_use_id)
                yield made | ({} if name is None else {"name": name}) | self._result(block)
            else:
                raise _wrong(block, "a message of the user's")
        if texts or not blocks:
            yield {"role": "user", "content": _lines(texts)}

    def _result(self, block: ToolResult) -> dict[str, Any]:
        content = block.content or ""
        parts = [TextPart(text=content)] if isinstance(content, str) else content
        text = _lines([self._part(part) for part in parts])
        return {"content": f"Error: {text}" if block.is_error else text}

    def _part(self, part: Blocks) -> str:
        if isinstance(part, TextPart):
            return part.text
        if not isinstance(part, ToolReference):
            raise _wrong(part, "a result")
        tool = self._deferred.get(part.tool_name)
        if tool is None:
            raise Refused(400, f"tool_reference names {part.tool_name!r:.140}, which is no tool "
                          "with defer_loading", "messages")  # fmt: skip
        self.told[part.tool_name] = tool
        return msgspec.json.encode(tool).decode()


def _join(made: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Adds a message, to the last one where both are of one role that is no tool."""
    last = made[-1] if made else None
    if last is None or last["role"] != message["role"] or message["role"] == "tool":
        made.append(message)
        return
    last["content"] = _lines([last["content"], message["content"]])
    if "reasoning_content" in message:
        parts = [last.get("reasoning_content", ""), message["reasoning_content"]]
        last["reasoning_content"] = _lines(parts)
    if "tool_calls" in message:
        last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]


def _system(given: str | Sequence[TextPart] | None) -> list[dict[str, Any]]:
    """The system's message, without lines for Anthropic's own accounting."""
    texts = [given] if isinstance(given, str) else [block.text for block in given or ()]
    said = [text.partition("\n")[2] if text.startswith(BILLING) else text for text in texts]
    text = _lines([text for text in said if text])
    return [{"role": "system", "content": text}] if text else []


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(text for text in texts if text)


def _wrong(block: Blocks, where: str) -> Refused:
    kind = type(block).__struct_config__.tag
    return Refused(400, f"content of type {kind!r} is not taken in {where}", "messages")
