"""OpenAI's answers, field by field: what the OpenAPI file says of them, and tests hold them to."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Finish = Literal["stop", "length", "tool_calls"]


class AnswerFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """An answer, which has only its declared fields."""


class PromptDetails(AnswerFields):
    cached_tokens: int


class NewDetails(AnswerFields):
    """reasoning_tokens: how many the text of the reasoning has."""

    accepted_prediction_tokens: int
    reasoning_tokens: int


class UsageFields(AnswerFields):
    """Tokens: of the prompt, those of them that the cache held, new ones, those of them that were
    proposed and right."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: NewDetails


class Head(AnswerFields):
    """The fields that answers begin with. system_fingerprint identifies the model's files, weft's
    version and the device."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class TopLogprob(AnswerFields):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerFields):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(AnswerFields):
    name: str
    arguments: str


class CallOfTool(AnswerFields):
    id: str
    type: Literal["function"]
    function: CalledFunction


class Said(AnswerFields):
    """reasoning and reasoning_content are the same text under both of the names in use."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallOfTool] | None = None


class ChatChoice(AnswerFields):
    index: int
    message: Said
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ScoredToken(AnswerFields):
    logprob: float
    rank: int
    decoded_token: str


ScoredPrompt = list[dict[str, ScoredToken] | None]
"""Logprobs of a prompt's tokens, by their ids; the first has none."""


class ChatAnswer(Head):
    """The answer of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageFields
    prompt_logprobs: ScoredPrompt | None = None


class TextLogprobs(AnswerFields):
    """A list's entry for each token; a prompt's first has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(AnswerFields):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish
    prompt_logprobs: ScoredPrompt | None = None


class CompletionAnswer(Head):
    """The answer of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: UsageFields


class EmbeddingVector(AnswerFields):
    """embedding is a list of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(AnswerFields):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(AnswerFields):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage


class ModelAnswer(AnswerFields):
    """A model; an adapter also has: parent, the model that takes it. A loaded model also has `chat`
    (true with a chat template), `fingerprint`, the system_fingerprint of its answers, and the
    `sampling` that its author advises."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None = None
    chat: bool | None = None
    fingerprint: str | None = None
    sampling: dict[str, float] | None = None


class ModelsAnswer(AnswerFields):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class TokenPiece(AnswerFields):
    """A token with its text, or with its bytes if it is not whole characters."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(AnswerFields):
    """max_model_len: how many a sequence may have."""

    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int | None


class DetokenizeAnswer(AnswerFields):
    """The answer of POST /detokenize, by vLLM's name and llama-server's."""

    prompt: str
    content: str


class TokenizerAnswer(AnswerFields):
    """The answer of GET /tokenizer_info, by the names of tokenizer_config.json."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    unk_token: str | None = None
    sep_token: str | None = None
    pad_token: str | None = None
    cls_token: str | None = None
    mask_token: str | None = None


class HealthAnswer(AnswerFields):
    """failed: why a model's engine ended, by the model's name."""

    status: Literal["ok", "failed", "leaving"]
    version: str
    models: list[str]
    failed: dict[str, str] | None = None
