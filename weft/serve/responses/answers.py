"""Replies of /v1/responses, field by field: what the OpenAPI file says of them."""

from __future__ import annotations

from typing import Any, Literal

from weft.serve.openai.answers import AnswerFields, TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(AnswerFields, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(AnswerFields, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(AnswerFields, tag_field="type", tag="summary_text"):
    text: str


class MessageAnswer(AnswerFields, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningAnswer(AnswerFields, tag_field="type", tag="reasoning"):
    """content: what the model wrote; where a summary was asked for, that is all of it."""

    id: str
    status: Status
    summary: list[SummaryText]
    encrypted_content: None
    content: list[ReasoningText] | None = None


class CallAnswer(AnswerFields, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallAnswer(AnswerFields, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CachedDetails(AnswerFields):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningDetails(AnswerFields):
    reasoning_tokens: int


class ResponseUsage(AnswerFields):
    """Numbers of tokens: of the input, of the input in the cache, of the input added to the cache,
    of the output, and of the reasoning in the output."""

    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class ErrorAnswer(AnswerFields):
    code: str
    message: str


class CutDetails(AnswerFields):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(AnswerFields):
    """`tools` are those that the model was told of; it is stored nowhere."""

    id: str
    object: Literal["response"]
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    created_at: int
    completed_at: int | None
    model: str
    system_fingerprint: str
    output: list[MessageAnswer | ReasoningAnswer | CallAnswer | CustomCallAnswer]
    usage: ResponseUsage | None
    error: ErrorAnswer | None
    incomplete_details: CutDetails | None
    instructions: str | None
    previous_response_id: None
    background: Literal[False]
    store: Literal[False]
    truncation: Literal["disabled"]
    service_tier: Literal["default"]
    max_output_tokens: int | None
    max_tool_calls: int | None
    parallel_tool_calls: bool
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    text: dict[str, Any]
    reasoning: dict[str, str | None]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    metadata: dict[str, Any]
    prompt_cache_key: str | None
    user: str | None
    safety_identifier: str | None


class CountAnswer(AnswerFields):
    object: Literal["response.input_tokens"]
    input_tokens: int
