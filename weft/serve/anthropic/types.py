"""Anthropic's requests (docs.anthropic.com/en/api/messages, November 2026), field by field.

The server rejects a field that is not here with an error naming it. Some fields are inert: they
change nothing on this server, as their docstrings say. `refuse` rejects values that ask for what it
does not do.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.wire import HttpError

Count = Annotated[int, Meta(ge=0)]
NO_THREAD = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""The details that have Anthropic's tool runner send the whole conversation."""


class ContentBlock(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """A block of content. cache_control is inert: all is cached."""

    cache_control: Any = None


class TextPart(ContentBlock, kw_only=True, tag="text"):
    """citations are inert: they came with an answer that is read as text."""

    text: str
    citations: Any = None


class ToolUse(ContentBlock, kw_only=True, tag="tool_use"):
    """A call that the assistant made. caller is inert: it says that no program of Anthropic's
    made it."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None


class ToolResult(ContentBlock, kw_only=True, tag="tool_result"):
    """The result of a call. With is_error, the model reads "Error: " and the text."""

    tool_use_id: str
    content: str | list[Blocks] | None = None
    is_error: bool | None = None


class Thinking(ContentBlock, kw_only=True, tag="thinking"):
    """The assistant's reasoning; a template without a place for it drops it. signature holds the
    text if the client had it omitted, and is otherwise inert: nothing depends on its writer."""

    thinking: str
    signature: str | None = None


class RedactedThinking(ContentBlock, kw_only=True, tag="redacted_thinking"):
    """Inert: only Anthropic can read it."""

    data: str


class ToolReference(ContentBlock, kw_only=True, tag="tool_reference"):
    """In the result of a search among deferred tools: the definition of one."""

    tool_name: str


class Image(ContentBlock, kw_only=True, tag="image"):
    """A picture of the user's, or of a tool's result."""

    source: Any = None


class Document(ContentBlock, kw_only=True, tag="document"):
    """Rejected: weft reads text only."""

    source: Any = None
    title: Any = None
    context: Any = None
    citations: Any = None


Blocks = (
    TextPart | ToolUse | ToolResult | Thinking | RedactedThinking | ToolReference | Image | Document
)


class AnthropicMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a conversation. A system message inside the conversation stays at its place, as
    text of the user. With clear_at next_user_message it is dropped once the user has said something
    since."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Blocks]
    clear_at: Literal["next_user_message", "never"] | None = None


class AnthropicTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs. The model learns of a tool with defer_loading where a
    tool_reference names it, so the cache keeps the text before. Inert: eager_input_streaming (all
    is streamed
    as it is written), input_examples, allowed_callers, and cache_control. The last four fields are
    those of Anthropic's own tools, which are refused."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None
    defer_loading: bool | None = None
    eager_input_streaming: Any = None
    input_examples: Any = None
    allowed_callers: Any = None
    max_uses: Any = None
    allowed_domains: Any = None
    blocked_domains: Any = None
    user_location: Any = None


class ToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """The switch of the model's reasoning, for templates that have one. `budget_tokens` is inert:
    it is a wish, and max_tokens bounds thinking and text together. `display` "omitted" leaves the
    thinking out of the answer; "summarized" shows all of it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonSchema(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """effort: the template's reasoning_effort, at most high."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonSchema | None = None
    task_budget: Any = None


class Edit(Struct, forbid_unknown_fields=True, kw_only=True):
    """A change to a conversation that the server is to make. Taken: clear_thinking_20251015 that
    keeps all."""

    type: str
    keep: Any = None
    trigger: Any = None
    clear_at_least: Any = None
    exclude_tools: Any = None
    clear_tool_inputs: Any = None
    instructions: Any = None
    pause_after_compaction: Any = None


class ContextManagement(Struct, forbid_unknown_fields=True, kw_only=True):
    edits: list[Edit] | None = None


class CountTokens(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages/count_tokens. Inert: cache_control, metadata, speed and service_tier unless
    they ask for a faster service, betas (a beta is known here by its fields), inference_geo,
    user_profile_id and workspace_id."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    system: str | list[Blocks] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=512)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: JsonSchema | None = None
    context_management: ContextManagement | None = None
    cache_control: Any = None
    betas: list[str] | None = None
    metadata: dict[str, Any] | None = None
    speed: str | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None
    diagnostics: Any = None
    thread: Any = None

    def refuse(self) -> None:
        """Raises HttpError for a value that asks for what is not done here."""
        if self.thread is not None:
            raise HttpError(
                400, "thread is not supported, since no conversation is kept here: leave it out "
                "and send all messages", "thread", details=NO_THREAD,
            )  # fmt: skip
        wrong = {
            "container": self.container is not None,
            "mcp_servers": bool(self.mcp_servers),
            "diagnostics": self.diagnostics is not None,
            "speed": self.speed not in (None, "standard"),
            "service_tier": self.service_tier not in (None, "auto", "standard_only"),
            "output_config.task_budget": self.output_config is not None
            and self.output_config.task_budget is not None,
        }
        for field, found in wrong.items():
            if found:
                raise HttpError(
                    400, f"{field} is not supported with that value; leave it out", field
                )
        managed = self.context_management
        for edit in (managed.edits if managed is not None else None) or ():
            if edit.type != "clear_thinking_20251015" or edit.keep not in (None, "all"):
                raise HttpError(
                    400, f"an edit of type {edit.type!r:.60} is not made here, except "
                    "clear_thinking_20251015 that keeps all", "context_management",
                )  # fmt: skip
        for tool in self.tools or ():
            self._refuse_tool(tool)

    @staticmethod
    def _refuse_tool(tool: AnthropicTool) -> None:
        if tool.type not in (None, "custom"):
            raise HttpError(400, f"a tool of type {tool.type!r:.60} runs at Anthropic; here tools "
                            "are the client's own", "tools")  # fmt: skip
        if tool.input_schema is None:
            raise HttpError(400, f"the tool {tool.name!r:.140} lacks input_schema", "tools")


class Messages(CountTokens, kw_only=True):
    """POST /v1/messages. seed and cache_salt are not Anthropic's: the same request with the same
    seed gives the same answer, and only requests of one salt share a cache."""

    max_tokens: Count
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    cache_salt: str | None = None
