"""Ollama's answers, field by field: what the OpenAPI file says of them, and tests hold them to."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from weft.serve.openai.answers import AnswerFields, TokenLogprob
from weft.serve.recipes import RecipeMessage


class OllamaEnd(AnswerFields):
    """The end of an answer; durations in nanoseconds. prompt_eval_count counts the whole prompt,
    prompt_eval_duration goes to the first token. load: the request asked only for the model."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"]
    total_duration: int
    load_duration: int
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[TokenLogprob] | None = None
    notices: list[str] | None = None


class OllamaCalled(AnswerFields):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCallAnswer(AnswerFields):
    id: str
    function: OllamaCalled


class OllamaSaid(AnswerFields):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaCallAnswer] | None = None


class OllamaChatAnswer(OllamaEnd, kw_only=True):
    """The answer of POST /api/chat."""

    message: OllamaSaid


class GenerateAnswer(OllamaEnd, kw_only=True):
    """The answer of POST /api/generate."""

    response: str
    thinking: str | None = None


class EmbedAnswer(AnswerFields):
    """The answer of POST /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbeddingAnswer(AnswerFields):
    """The answer of POST /api/embeddings."""

    embedding: list[float]


class Details(AnswerFields):
    """family and quantization_level are empty where the model is not loaded."""

    format: Literal["gguf", "safetensors"]
    family: str
    families: list[str]
    quantization_level: str


class Listed(AnswerFields):
    """size: bytes of its files; digest: of their names and sizes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class TagsAnswer(AnswerFields):
    """The answer of GET /api/tags."""

    models: list[Listed]


class RunningModel(AnswerFields):
    """size: its bytes in memory; size_vram: the part on another device than the CPU. expires_at:
    when an unused model is released; centuries away if no time is set."""

    name: str
    model: str
    size: int
    size_vram: int
    digest: str
    details: Details
    context_length: int
    expires_at: str


class RunningAnswer(AnswerFields):
    """The answer of GET /api/ps."""

    models: list[RunningModel]


class ShowAnswer(AnswerFields):
    """The answer of POST /api/show. template: the model's chat template, in Jinja, or in Go's
    language where a request gave it. The last four are of models that requests have made."""

    modified_at: str
    template: str
    details: Details
    model_info: dict[str, str | int]
    capabilities: list[Literal["completion", "tools", "thinking", "embedding"]]
    system: str | UnsetType = UNSET
    parameters: str | UnsetType = UNSET
    license: str | UnsetType = UNSET
    messages: list[RecipeMessage] | UnsetType = UNSET


class StatusAnswer(AnswerFields):
    """The answer of POST /api/create; a stream has one of each step."""

    status: str


class VersionAnswer(AnswerFields):
    """The answer of GET /api/version."""

    version: str
