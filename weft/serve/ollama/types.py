"""Ollama's requests (docs/api.md of ollama/ollama, November 2026), field by field.

The server rejects a field that is not here with an error naming it. Some fields are inert: they
change nothing on this server, as their docstrings say. Others have values that ask for what it does
not do, which it rejects.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.openai.types import Open, Tool
from weft.serve.wire import HttpError

Effort = Literal["low", "medium", "high"]


class ModelOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of an answer. num_ctx: the most tokens of prompt and answer. If it is more than the
    model's context, that holds, and the answer's notices say so. num_keep is of shift. The first
    eleven others after num_ctx are inert: Ollama loads a model by them."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Open | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    num_ctx: Annotated[int, Meta(ge=1)] | None = None
    numa: bool | None = None
    num_batch: float | None = None
    num_gpu: float | None = None
    main_gpu: float | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    num_thread: float | None = None
    num_keep: int | None = None
    draft_num_predict: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    penalize_newline: bool | None = None

    def refuse(self) -> None:
        """Raises HttpError for a value that asks for what is not done here."""
        penalised = self.repeat_penalty not in (None, 1.0)
        wrong = {
            "mirostat": bool(self.mirostat),
            "tfs_z": self.tfs_z not in (None, 1.0),
            "typical_p": self.typical_p not in (None, 1.0),
            "penalize_newline": penalised and self.penalize_newline is False,
            "repeat_last_n": penalised and self.repeat_last_n not in (None, 0, -1),
        }
        for field, found in wrong.items():
            if found:
                raise HttpError(400, f"options.{field} is not supported with that value; leave it "
                                "out", field)  # fmt: skip


class OfModel(Struct, forbid_unknown_fields=True, kw_only=True):
    """keep_alive: how long the model stays loaded after this request, in seconds or as Go writes
    durations; 0: not at all, negative: until another needs its memory."""

    model: str
    options: ModelOptions | None = None
    keep_alive: float | str | None = None


class Answered(OfModel, kw_only=True):
    """The fields that /api/chat and /api/generate share. truncate lets the oldest messages leave a
    conversation that is too long, or the first characters a prompt, and the answer's notices say
    so. With shift, half of the tokens after the first options.num_keep (4) leave a context that
    becomes full while the answer is written, and the notices say so. Without it the answer ends
    there. seed and similar fields are in options."""

    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Effort | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None

    def refuse(self) -> None:
        """Raises HttpError for a value that asks for what is not done here."""
        keep = None if self.options is None else self.options.num_keep
        if self.shift and keep is not None and keep < 0:
            raise HttpError(400, "num_keep goes with shift as a number of tokens, 0 or more",
                            "num_keep")  # fmt: skip
        if self.top_logprobs is not None and not self.logprobs:
            raise HttpError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
        if self.options is not None:
            self.options.refuse()


class OllamaFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """index is inert: calls come in their order."""

    name: str
    arguments: dict[str, Any]
    index: int | None = None


class OllamaCall(Struct, forbid_unknown_fields=True, kw_only=True):
    function: OllamaFunction
    id: str | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: list[Any] | None = None


class OllamaChat(Answered, kw_only=True):
    """POST /api/chat. Without messages the model is loaded, and that is all."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=10_000)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=512)] | None = None


class Generate(Answered, kw_only=True):
    """POST /api/generate. Without a prompt the model is loaded, and that is all. template is one of
    Go, as /api/create takes it, in place of the model's own."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    template: str | None = None
    suffix: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None

    def refuse(self) -> None:
        super().refuse()
        for field in ("context", "width", "height", "steps"):
            if getattr(self, field):
                raise HttpError(400, f"{field} is not supported; leave it out", field)
        if self.suffix and self.system:
            raise HttpError(400, "suffix does not go with system: leave one out", "suffix")
        if self.images and (self.suffix or self.raw):
            raise HttpError(400, "images do not go with suffix or raw: leave one out", "images")
        if self.template and (self.suffix or self.raw):
            raise HttpError(
                400, "template does not go with suffix or raw: leave one out", "template"
            )
        if self.raw and self.system:
            raise HttpError(
                400, "system cannot be used with a raw prompt: write it into the prompt", "system"
            )


class Embed(OfModel, kw_only=True):
    """POST /api/embed. A text that is too long is an error unless truncate says to cut it."""

    input: str | list[str]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class OneEmbedding(OfModel, kw_only=True):
    """POST /api/embeddings."""

    prompt: str


class Show(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /api/show. verbose is inert: there is no more to tell."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
