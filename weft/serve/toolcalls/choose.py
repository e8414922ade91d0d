"""The choice of a model's parser: by its response_template, else by the marks in its chat
template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.core.errors import ModelError, UsageError
from weft.models.text.chat import read_template
from weft.models.text.tokenizer import Tokenizer
from weft.serve.toolcalls import formats
from weft.serve.toolcalls.events import Parser, Sink
from weft.serve.toolcalls.formats import Format, ParserContext, tagged, tagged_gemma
from weft.serve.toolcalls.marks import Marks
from weft.serve.toolcalls.reading import Incremental, Reader
from weft.serve.toolcalls.template import ResponseTemplate, mark_texts

Read = Callable[[Sink, ParserContext], Reader]


@dataclass(frozen=True)
class Maker:
    """Makes a parser for each answer; `marks` are those that it knows as tokens."""

    make: Callable[[ParserContext], Parser]
    marks: Marks

    def __call__(self, context: ParserContext) -> Parser:
        return self.make(context)


_THINK = ("<think>", "</think>")
_ENDS = ("<|im_end|>", "<|endoftext|>")

# Each format, and the texts in the chat template of a model with it; the first match counts.
FORMATS: dict[str, tuple[Read, tuple[str, ...]]] = {
    "harmony": (formats.harmony, ("<|channel|>", "<|message|>")),
    "gemma4": (
        Format(
            ("<|channel>thought\n", "<channel|>"),
            tagged_gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
            ("<turn|>", "<|tool_response>"),
        ).read,
        ("<|tool_call>",),
    ),
    "functiongemma": (
        Format(
            None, tagged_gemma("<start_function_call>", "<end_function_call>", "<escape>"),
            ("<start_function_response>", "<end_of_turn>"),
        ).read,
        ("<start_function_call>",),
    ),
    "mistral": (
        Format(("[THINK]", "[/THINK]"), {"[TOOL_CALLS]": formats.mistral}).read,
        ("[TOOL_CALLS]",),
    ),
    "qwen-xml": (
        Format(_THINK, {"<tool_call>": formats.functions_of_xml}, _ENDS).read,
        ("<tool_call>", "<function="),
    ),
    "hermes": (
        Format(_THINK, tagged("<tool_call>", "</tool_call>"), _ENDS).read, ("<tool_call>",)
    ),
    "llama": (formats.llama, ("<|python_tag|>",)),
    "llama-json": (formats.llama, ("<|start_header_id|>", "parameters")),
    "think": (Format(_THINK).read, ("<think>",)),
    "text": (Format().read, ()),
}  # fmt: skip
NAMES = ("auto", "template", *FORMATS)
MARKS: dict[str, tuple[str, ...]] = {
    "harmony": tuple(f"<|{m}|>" for m in (*formats.HARMONY, "constrain")),
    "gemma4": ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<turn|>",
               "<|tool_response>", '<|"|>'),
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<start_function_response>",
                      "<end_of_turn>", "<escape>"),
    "mistral": ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "qwen-xml": (*_THINK, "<tool_call>", "</tool_call>", *_ENDS),
    "hermes": (*_THINK, "<tool_call>", "</tool_call>", *_ENDS),
    "llama": ("<|python_tag|>",), "llama-json": ("<|python_tag|>",),
    "think": _THINK, "text": (),
}  # fmt: skip
"""The marks that each format is written with."""


def choose(tokenizer: Tokenizer, name: str = "auto") -> tuple[str, Maker]:
    """The name of the parser for the model of `tokenizer`, or the one asked for by `name`, and a
    maker of one parser per answer. Raises UsageError for a name outside NAMES, or for a "template"
    that the model lacks. Raises ModelError for a response_template that weft does not support."""
    if name not in NAMES:
        raise UsageError(f"--tool-parser is {name[:40]!r}; expected one of {', '.join(NAMES)}")
    config = tokenizer.config
    template = config.get("response_template")
    if name == "template" and template is None:
        raise UsageError(f"{tokenizer.path.parent} lacks a response_template; expected another "
                         "--tool-parser")  # fmt: skip
    if template is not None and name in ("auto", "template"):
        return "template", _template(tokenizer, template)
    if name == "auto":
        source = read_template(tokenizer.path.parent, config) or ""
        name = next(n for n, (_, signs) in FORMATS.items() if all(s in source for s in signs))
    read = FORMATS[name][0]
    marks = Marks(tokenizer.added, MARKS[name])

    def make(context: ParserContext) -> Parser:
        known = replace(context, marks=marks)
        return Incremental(lambda sink: read(sink, known), marks.show)

    return name, Maker(make, marks)


def _template(tokenizer: Tokenizer, spec: Mapping[str, Any]) -> Maker:
    try:
        marks = Marks(tokenizer.added, mark_texts(spec))
        template = ResponseTemplate(spec, marks)
    except UsageError as e:
        raise ModelError(
            f"{tokenizer.path.parent}: {e}\nname a parser instead: --tool-parser "
            f"{'|'.join(FORMATS)}"
        ) from None
    return Maker(template.parser, marks)
