"""Requests of OpenAI's Responses API (platform.openai.com/docs/api-reference/responses, November
2026), field by field, with what Codex CLI adds.

A field that is not here is refused by name; one that is null counts as left out. `refuse` names
those whose value asks for what is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from weft.serve.openai.types import ContentPart, Count, Generating
from weft.serve.wire import HttpError, mistaken, struct_of

ToolsGiven = Annotated[list[dict[str, Any]], Meta(max_length=512)]
INCLUDES = frozenset({
    "message.output_text.logprobs", "reasoning.encrypted_content",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
})  # fmt: skip
"""What `include` may name. All but the first are inert: there is nothing of that kind to show."""


class TextFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    """The form of the text. strict is inert: a schema is always followed strictly."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """verbosity is inert: only models of OpenAI's were taught what it means."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """`effort` goes to the chat template; `summary` chooses where the answer has reasoning.
    `context` is inert:
    the template decides which turns' reasoning it shows."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class ChosenTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """One tool, or those that are allowed."""

    type: Literal["function", "custom", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[dict[str, str]], Meta(max_length=512)] | None = None


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Both are inert: nothing is added to hide lengths, and summaries are never delivered late."""

    include_obfuscation: bool | None = None
    reasoning_summary_delivery: str | None = None


class Responses(Generating, kw_only=True):
    """POST /v1/responses. Inert: client_metadata, max_tool_calls (it counts the provider's own
    tools) and what concerns a cache that is always on. `store` true is refused, left out it means
    false here."""

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=10_000)]
    instructions: str | None = None
    tools: ToolsGiven | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Count | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    context_management: Any = None
    moderation: Any = None
    client_metadata: dict[str, Any] | None = None
    max_tool_calls: Count | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None

    def refuse(self) -> None:
        """Raises HttpError for a value that asks for what is not done here."""
        kept = "no response is kept here: send the whole conversation as input"
        wrong = {
            "previous_response_id": (self.previous_response_id is not None, kept),
            "conversation": (self.conversation is not None, kept),
            "store": (bool(self.store), "no response is kept here: leave it out"),
            "background": (bool(self.background), kept),
            "prompt": (self.prompt is not None, "no prompt is kept here: send it as input"),
            "truncation": (
                self.truncation == "auto", "a context too long is an error here, never a cut"
            ),
            "context_management": (self.context_management is not None, "leave it out"),
            "moderation": (self.moderation is not None, "leave it out"),
            "service_tier": (
                self.service_tier not in (None, "auto", "default"), "leave it out"
            ),
        }  # fmt: skip
        for field, (found, why) in wrong.items():
            if found:
                raise HttpError(400, f"{field} is not supported with that value; {why}", field)
        for name in self.include or ():
            if name not in INCLUDES:
                raise HttpError(400, f"include names {name!r:.60}, which is unknown", "include")


class ResponsePart(ContentPart, kw_only=True):
    """A part of content as input or as a reply told it: text, or a picture of the user's."""

    annotations: list[Any] | None = None  # inert
    logprobs: list[Any] | None = None  # inert
    detail: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None


class Item(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that items of the input share. All are inert: they say what happened to the item
    elsewhere."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    caller: dict[str, Any] | None = None
    internal_chat_message_metadata_passthrough: Any = None  # Codex's


class MessageItem(Item, kw_only=True):
    """`phase` is inert: templates cannot use it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ResponsePart]
    phase: str | None = None


class ReasoningItem(Item, kw_only=True):
    """encrypted_content is inert: only who wrote it can read it."""

    summary: list[ResponsePart] = []
    content: list[ResponsePart] | None = None
    encrypted_content: str | None = None


class CallItem(Item, kw_only=True):
    name: str
    call_id: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(Item, kw_only=True):
    name: str
    call_id: str
    input: str
    namespace: str | None = None


class OutputItem(Item, kw_only=True):
    """The result of a call. call_id leads to the name of its tool."""

    output: str | list[ResponsePart]
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None


class ToolsItem(Item, kw_only=True):
    """More tools, as Codex sends them to some models."""

    tools: ToolsGiven
    role: str | None = None


ITEMS: dict[str, type[Item]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "custom_tool_call": CustomCallItem,
    "function_call_output": OutputItem,
    "custom_tool_call_output": OutputItem,
    "additional_tools": ToolsItem,
}
SKIPPED_ITEMS = frozenset({
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
    "tool_search_call", "tool_search_output", "mcp_list_tools", "ghost_snapshot",
})  # fmt: skip
"""Records of what OpenAI's own tools did, and of Codex's own: no text that a model was told."""


class ToolFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of tools. defer_loading and output_schema are inert: the model learns of every
    tool at once, by its parameters."""

    type: str
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    defer_loading: bool | None = None


class FunctionTool(ToolFields, kw_only=True):
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None


class CustomFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(ToolFields, kw_only=True):
    """A tool whose input is text. The model sees its grammar but is not constrained by it."""

    format: CustomFormat | None = None


class NamespaceTool(ToolFields, kw_only=True):
    """Tools whose names belong together."""

    tools: ToolsGiven


TOOLS: dict[str, type[ToolFields]] = {
    "function": FunctionTool, "custom": CustomTool, "namespace": NamespaceTool,
}  # fmt: skip
SKIPPED_TOOLS = frozenset({
    "web_search", "web_search_preview", "image_generation", "local_shell", "tool_search",
})  # fmt: skip
"""Tools that Codex offers unasked and OpenAI's servers run: the model is not told of them, and a
reply's `tools` are without them."""

T = TypeVar("T", bound=Struct)


def kind_of(value: Mapping[str, Any]) -> str:
    """The type that an item or a tool has; "" if it is not text. A message may omit its type."""
    kind = value.get("type", "message")
    return kind if isinstance(kind, str) else ""


def converted(value: Mapping[str, Any], kinds: Mapping[str, type[T]], where: str) -> T:
    """`value` as that of `kinds` which its type names. Raises HttpError, with the field's place in
    the request: `where` and its name."""
    kind = kind_of(value)
    if kind not in kinds:
        raise HttpError(400, f"{where}: type {kind!r:.40} is not taken; expected one of "
                        f"{', '.join(kinds)}", f"{where}.type")  # fmt: skip
    given = {name: found for name, found in value.items() if found is not None}
    try:
        return struct_of(given, kinds[kind])
    except msgspec.ValidationError as e:
        raise mistaken(e, kinds[kind], where) from None
