"""llama-server's requests and answers (tools/server of ggml-org/llama.cpp, November 2026).

The server rejects a field that is not here with an error naming it. Some fields are inert: they
change nothing on this server, as docstrings say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.openai.answers import AnswerFields
from weft.serve.openai.types import Open, check_samplers, refuse_values

# Samplers that this server lacks: their values that leave them off.
OFF: dict[str, tuple[Any, ...]] = {
    "typical_p": (1,), "mirostat": (0,), "dynatemp_range": (0,), "xtc_probability": (0,),
    "dry_multiplier": (0,), "top_n_sigma": (-1,), "n_indent": (0,), "t_max_predict_ms": (0, -1),
    "post_sampling_probs": (False,), "penalize_nl": (True,), "min_keep": (0, 1),
}  # fmt: skip


class LlamaOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """The options of an answer. Some fields are inert. Answers have the same bits with any
    cache_prompt and id_slot, and none is cut (n_keep). The last part has timings whatever
    timings_per_token says. Fields of samplers that are off, and `samplers` in the server's own
    order, change nothing."""

    model: str | None = None
    stream: bool | None = None
    n_predict: Annotated[int, Meta(ge=-2)] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Open | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    logit_bias: list[tuple[int, float | Literal[False]]] | dict[str, float] | None = None
    n_probs: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    id_slot: Open | None = None
    n_keep: Open | None = None
    timings_per_token: bool | None = None
    samplers: list[str] | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: Open | None = None
    dry_sequence_breakers: list[str] | None = None
    top_n_sigma: float | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    post_sampling_probs: bool | None = None
    penalize_nl: bool | None = None
    min_keep: int | None = None

    def refuse(self) -> None:
        """Raises HttpError for a value that asks for what is not done here."""
        penalised = self.repeat_penalty not in (None, 1.0)
        check_samplers(self.samplers)
        refuse_values({
            **{name: getattr(self, name) not in (None, *off) for name, off in OFF.items()},
            "repeat_last_n": penalised and self.repeat_last_n not in (None, 0, -1),
        })  # fmt: skip


class LlamaCompletion(LlamaOptions, kw_only=True):
    """POST /completion. A prompt is text, token ids, or a list of both kinds that are joined."""

    prompt: str | Annotated[list[int | str], Meta(min_length=1)]


class ExtraFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """Another file of the same repository."""

    text: str
    filename: str = ""


class LlamaInfill(LlamaOptions, kw_only=True):
    """POST /infill: the text between a prefix and a suffix. `prompt` follows the prefix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[list[ExtraFile], Meta(max_length=256)] | None = None
    prompt: str = ""


class Probability(AnswerFields):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbability(Probability):
    top_logprobs: list[Probability]


class Timings(AnswerFields):
    """Times of one answer in milliseconds, and tokens per second."""

    prompt_n: int
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float | None


class LlamaAnswer(AnswerFields):
    """The answer of POST /completion and /infill. stop_type: eos, limit, or word, which is then
    stopping_word."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    has_new_line: bool
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    generation_settings: dict[str, Any]
    timings: Timings
    completion_probabilities: list[TokenProbability] | None = None


class TemplateAnswer(AnswerFields):
    """The answer of POST /apply-template."""

    prompt: str


class Modalities(AnswerFields):
    vision: bool
    audio: bool


class PropertiesAnswer(AnswerFields):
    """The answer of GET /props."""

    model_alias: str
    model_path: str
    total_slots: int
    default_generation_settings: dict[str, Any]
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str
