"""Anthropic's answers, field by field: what the OpenAPI file says of them, and tests hold them
to."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from weft.serve.openai.answers import Answer

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class AnswerBlock(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """A block of an answer's content."""


class TextBlock(AnswerBlock, kw_only=True, tag="text"):
    text: str


class ToolUseBlock(AnswerBlock, kw_only=True, tag="tool_use"):
    """input: the arguments; {"INVALID_JSON": text} where the model wrote them wrong."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingBlock(AnswerBlock, kw_only=True, tag="thinking"):
    """signature: a digest of the text."""

    thinking: str
    signature: str


class ThinkingDetails(Answer):
    thinking_tokens: int


class MessageUsage(Answer):
    """Tokens: of the prompt, without and within the cache, and new ones, of which some thought."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessagesAnswer(Answer):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ToolUseBlock | ThinkingBlock]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage


class CountTokensAnswer(Answer):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int
