"""Answers that have to call a tool, or may only in the form that its schema says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.engine.job import Constraint
from weft.serve.served import ServedDecoder
from weft.serve.toolcalls.asked import Calls, Grammar
from weft.serve.toolcalls.events import Parser, Reasoning, message
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.given import Given, Verbatim
from weft.serve.toolcalls.marks import Marks
from weft.serve.toolcalls.written import ARGUMENTS, NAME, CallForm, Render, call_form, closing_of
from weft.serve.tooling import Follow, object_of

if TYPE_CHECKING:
    from weft.models.grammar.grammars import Part


@dataclass(frozen=True)
class AnswerShape:
    """The form that an answer must have, `start`, and its reader."""

    start: Callable[[], Constraint]
    parser: Callable[[ParserContext], Parser]


def forced(
    model: ServedDecoder,
    context: ParserContext,
    variables: Mapping[str, Any],
    calls: Calls,
    content: Follow | None,
) -> AnswerShape:
    """The form of an answer to a prompt made with the template's `variables`: `calls`, or a
    text as `content` says. Takes what compiling a grammar takes, off the event loop. Raises
    UsageError where the model's template writes no calls that could be asked for, or its parser
    does not read them."""
    grammars = model.grammars()
    form = _form(model, variables)
    more: list[Part] = []
    if content is not None and not calls.needed:
        more = [{"name": "content", **content.part()}]
        calls = replace(calls, content="@content")
    opened = _opened(model, context)
    if opened:
        closing, gap = _closing(model, context, variables)
        form = replace(form, closing=closing, gap=gap)
    text = Grammar(form, grammars.special, opened).text(calls)
    start = grammars.compile({"lark_grammar": text}, *more)
    if not more:
        return AnswerShape(start, model.parser)
    opening = form.opening if form.closing else ""
    gap = form.gap if opened or opening else ""
    read = Given(model.marks, "" if opened else opening, form.closing, gap, form.before)
    return AnswerShape(
        start, lambda context: read.parser(replace(context, begun=""), opened, model.parser)
    )


def shaped(
    model: ServedDecoder, context: ParserContext, variables: Mapping[str, Any], content: Follow
) -> AnswerShape:
    """The form of an answer that follows `content`; if the prompt has started reasoning, the form
    starts after it. Raises UsageError if nothing is known to end the reasoning."""
    if not _opened(model, context):
        return AnswerShape(content(model), lambda context: Verbatim(model.marks))
    grammars = model.grammars()
    closing, gap = _closing(model, context, variables)
    form = CallForm("", "", "", closing=closing, gap=gap)
    text = Grammar(form, grammars.special, True).thought("@content")
    start = grammars.compile({"lark_grammar": text}, {"name": "content", **content.part()})
    read = Given(model.marks, "", closing, gap, "")
    return AnswerShape(start, lambda context: read.parser(context, True, model.parser))


def _closing(
    model: ServedDecoder, context: ParserContext, variables: Mapping[str, Any]
) -> tuple[str, str]:
    """The text that ends the reasoning which the prompt has started, and the space after it."""
    closing, gap = closing_of(_render(model, variables))
    closing, gap = (closing, gap) if closing else ("</think>", "\n\n")
    parser = model.parser(context)
    said = model.marks.hide(f"x{closing}y")
    if message([*parser.feed(said), *parser.finish()]).content != "y":
        raise UsageError("response_format cannot be used: the prompt begins reasoning, and the "
                         "model's chat template lacks an end for reasoning")  # fmt: skip
    return closing, gap


def formed(
    model: ServedDecoder, prompt: str, variables: Mapping[str, Any], content: Follow
) -> Callable[[], Constraint]:
    """`shaped`, for a prompt of which nothing else is known: the constraint alone."""
    return shaped(model, ParserContext(prompt), variables, content).start


def _opened(model: ServedDecoder, context: ParserContext) -> bool:
    """True if the text after the prompt is reasoning."""
    events = model.parser(context).feed("x")
    return any(isinstance(e, Reasoning) for e in events)


def _render(model: ServedDecoder, variables: Mapping[str, Any]) -> Render:
    tokenizer = model.tokenizer
    template, special = tokenizer.chat_template(), tokenizer.special_tokens
    return lambda messages, begin: template.render(messages, begin, special, variables)


def _form(model: ServedDecoder, variables: Mapping[str, Any]) -> CallForm:
    ends = [model.tokenizer.decode([i], skip_special=False) for i in model.eos]
    form = call_form(_render(model, variables), [end for end in ends if end])
    if not reads(model.parser, model.marks, form):
        raise UsageError(
            f"calls cannot be asked for: the parser {model.parser_name!r} does not read what the "
            "model's chat template writes; name another with --tool-parser"
        )
    return form


def reads(make: Callable[[ParserContext], Parser], marks: Marks, form: CallForm) -> bool:
    """True if the parsers that `make` makes read the form's example."""
    parser = make(ParserContext("", {NAME: {}}))
    example = marks.hide(form.example)
    read = message([*parser.feed(example), *parser.finish()]).calls
    return [(c.name, object_of(c.arguments)) for c in read] == [(NAME, ARGUMENTS)]
