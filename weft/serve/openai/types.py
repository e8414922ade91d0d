"""OpenAI's requests (platform.openai.com/docs/api-reference, November 2026), field by field.

The server rejects a field that is not here with an error naming it. Some fields are inert: they
change nothing on this server, as their docstrings say. `refuse` rejects values that ask for what it
does not do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.wire import HttpError

Count = Annotated[int, Meta(ge=0)]
Open = Annotated[int, Meta(ge=-1)]
"""A count or a slot; -1 leaves it open: all, any or no limit."""
Priority = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""The place among the waiting requests of a key: the lowest is first."""
Metadata = dict[str, Any]


class RequestFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request's body. Fields that are inert: they are for the provider's own accounting."""

    user: str | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None


class Generating(RequestFields, kw_only=True):
    """The fields of all generating requests. Some are not OpenAI's; they have vLLM's and
    llama-server's names."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Open | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=1024)] | None = None
    priority: Priority | None = None
    cache_salt: str | None = None


class Choosing(Generating, kw_only=True):
    """The fields that chat and completions share. Those from guided_json on are vLLM's, those from
    grammar on llama-server's.

    Inert: guided_decoding_backend (there is one), use_beam_search, skip_special_tokens and
    spaces_between_special_tokens with their usual values, cache_prompt and id_slot (answers have
    the same bits with any cache in any slot), and samplers that are the server's own."""

    n: int | None = None
    stream_options: StreamOptions | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: Open | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    use_beam_search: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    n_predict: Open | None = None
    cache_prompt: bool | None = None
    id_slot: Open | None = None
    samplers: list[str] | None = None

    def refuse(self) -> None:
        """Raises HttpError for a value that asks for what is not done here."""
        if self.stream and self.prompt_logprobs is not None:
            raise HttpError(400, "prompt_logprobs do not go with stream", "prompt_logprobs")
        wrong = {
            "skip_special_tokens": self.skip_special_tokens is False,
            "spaces_between_special_tokens": self.spaces_between_special_tokens is False,
            "use_beam_search": bool(self.use_beam_search),
            "service_tier": self.service_tier not in (None, "auto", "default"),
        }
        refuse_values(wrong)
        check_samplers(self.samplers)


Choices = Annotated[list[str], Meta(min_length=1, max_length=1024)]

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""The steps of choosing a token, by llama-server's names, in this server's order."""


class StructuredOutputs(Struct, forbid_unknown_fields=True, kw_only=True):
    """The form of an answer, in vLLM's spelling: one of json, regex, choice, grammar and
    json_object. The others are inert when false."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    """include_obfuscation is inert: nothing is added to hide lengths."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ContentPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message's content: text, or a picture of the user's."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    video_url: Any = None  # as vLLM takes it
    input_audio: Any = None
    file: Any = None
    cache_control: Any = None  # inert: all is cached
    prompt_cache_breakpoint: Any = None  # likewise


class FunctionCall(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str
    provider_specific_fields: Any = None  # LiteLLM's, as in a call and a message


class ToolCall(Struct, forbid_unknown_fields=True, kw_only=True):
    function: FunctionCall
    id: str | None = None  # some clients keep none
    type: Literal["function"] = "function"
    index: int | None = None  # a field that merges of streams leave
    provider_specific_fields: Any = None


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a conversation. Clients may send back fields that servers add: they are read
    where the template has a place for it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # inert, as the next two, which LiteLLM adds
    provider_specific_fields: Any = None
    thinking_blocks: Any = None
    audio: None = None
    function_call: None = None


class ToolFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Struct, forbid_unknown_fields=True):
    name: str


class NamedTool(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    function: NamedFunction


class Schema(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class Chat(Choosing, kw_only=True):
    """POST /v1/chat/completions. Inert: prediction (it would only save time), what concerns a
    cache that is always on, and store unless true."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=512)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    store: bool | None = None
    audio: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: Literal[False] | None = None
    documents: Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None = None

    def refuse(self) -> None:
        super().refuse()
        wrong = {
            "audio": self.audio is not None,
            "web_search_options": self.web_search_options is not None,
            "functions": self.functions is not None,
            "function_call": self.function_call is not None,
            "moderation": self.moderation is not None,
            "modalities": self.modalities not in (None, ["text"]),
            "verbosity": self.verbosity not in (None, "medium"),
            "store": bool(self.store),
        }
        refuse_values(wrong)
        if self.continue_final_message and self.add_generation_prompt:
            raise HttpError(400, "continue_final_message continues the last message: it does not "
                            "go with add_generation_prompt", "continue_final_message")  # fmt: skip


class Completion(Choosing, kw_only=True):
    """POST /v1/completions. A prompt is text, token ids, or a list of either."""

    prompt: str | list[Any]
    max_tokens: Count | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None

    def refuse(self) -> None:
        super().refuse()
        if self.suffix is not None and self.echo:
            raise HttpError(400, "suffix does not go with echo", "suffix")
        if self.best_of not in (None, self.n or 1):
            raise HttpError(400, "best_of is not supported beyond n; leave it out", "best_of")


class Embeddings(RequestFields, kw_only=True):
    """POST /v1/embeddings. `input` is a text, token ids, a part of a message's content with a text
    or a picture, or a list of those; or `messages` has one message with one part, in vLLM's form.
    `prompt_name` is one of the prompts that the model's files define."""

    input: str | list[Any] | None = None
    messages: Annotated[list[Message], Meta(max_length=1)] | None = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    prompt_name: str | None = None


class Tokenize(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: of text, or of a conversation. The last four fields are llama-server's."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(max_length=10_000)] | None = None
    add_special_tokens: bool = True
    content: str | None = None
    add_special: bool = False
    parse_special: Literal[True] | None = None
    with_pieces: bool = False


class Detokenize(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


def refuse_values(wrong: Mapping[str, bool]) -> None:
    """Raises HttpError for the first field whose value is wrong."""
    for field, found in wrong.items():
        if found:
            raise HttpError(400, f"{field} is not supported with that value; leave it out", field)


def check_samplers(given: Sequence[str] | None) -> None:
    """Raises HttpError unless the samplers are this server's, in its order."""
    if given is not None and tuple(given) != SAMPLERS:
        raise HttpError(
            400, f"samplers can only be {', '.join(SAMPLERS)}, in this order: leave it out, "
            "and set the options of those that are not wanted to off (top_k 0, top_p 1, min_p 0)",
            "samplers",
        )  # fmt: skip


def prompts_of(given: Any, field: str) -> list[str | list[int]]:
    """A list of prompts of text or ids. Raises HttpError."""
    if isinstance(given, str):
        return [given]
    if given and all(type(x) is int for x in given):
        return [given]
    ok = bool(given) and all(
        isinstance(x, str) or (isinstance(x, list) and x and all(type(i) is int for i in x))
        for x in given
    )
    if not ok:
        raise HttpError(400, f"{field} is text, token ids, or a list of either; not empty", field)
    return list(given)
