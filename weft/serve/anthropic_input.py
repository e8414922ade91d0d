"""Anthropic's conversations as chat templates take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.serve.anthropic_types import (
    AnthropicMessage,
    AnthropicTool,
    Blocks,
    CountTokens,
    RedactedThinking,
    TextPart,
    Thinking,
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
    tools = tools_of(body)
    messages, prefix = continued([*_system(body.system), *messages_of(body.messages)])
    parallel = choice is None or not choice.disable_parallel_tool_use
    wanted: str | Sequence[str] | None = None
    if choice is not None:
        wanted = {"any": "required", "tool": (choice.name or "",)}.get(choice.type)
    return Turn(
        messages, options, variables, tools, parallel, prefix,
        needed=needed_of(wanted, [tool["function"]["name"] for tool in tools]),
        strict=any(tool.strict for tool in body.tools or ()),
    )  # fmt: skip


def tools_of(body: CountTokens) -> list[dict[str, Any]]:
    """The tools that may be called."""
    choice = body.tool_choice
    given: Sequence[AnthropicTool] = body.tools or ()
    if choice is not None and choice.type == "none":
        given = ()
    return [function(tool.name, tool.description, tool.input_schema) for tool in given]


def messages_of(given: Sequence[AnthropicMessage]) -> list[dict[str, Any]]:
    """Messages as templates take them: neighbours of one role are one; results of tools stand for
    themselves. Raises Refused for content that is neither text nor tools."""
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in given:
        blocks = [TextPart(text=message.content)] if isinstance(message.content, str) else (
            message.content
        )  # fmt: skip
        if message.role == "assistant":
            names |= {block.id: block.name for block in blocks if isinstance(block, ToolUse)}
            _join(made, _assistant(blocks))
        else:
            for one in _user(blocks, names):
                _join(made, one)
    return made


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


def _assistant(blocks: Sequence[Blocks]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        if isinstance(block, TextPart):
            texts.append(block.text)
        elif isinstance(block, Thinking):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUse):
            calls.append(called(block.name, block.input, block.id))
        elif not isinstance(block, RedactedThinking):
            raise _wrong(block, "assistant")
    made: dict[str, Any] = {"role": "assistant", "content": _lines(texts)}
    if any(thoughts):
        made["reasoning_content"] = _lines(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _user(blocks: Sequence[Blocks], names: dict[str, str]) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, TextPart):
            texts.append(block.text)
        elif isinstance(block, ToolResult):
            if texts:
                yield {"role": "user", "content": _lines(texts)}
                texts = []
            made = {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
            name = names.get(block.tool_use_id)
            yield made if name is None else {**made, "name": name}
        else:
            raise _wrong(block, "user")
    if texts or not blocks:
        yield {"role": "user", "content": _lines(texts)}


def _result(block: ToolResult) -> str:
    content = block.content
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        texts = []
        for part in content:
            if not isinstance(part, TextPart):
                raise _wrong(part, "result")
            texts.append(part.text)
        text = _lines(texts)
    return f"Error: {text}" if block.is_error else text


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
    return Refused(400, f"content of type {kind!r} is not taken in a message of the {where}: "
                   "text and tools are", "messages")  # fmt: skip
