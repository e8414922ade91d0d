"""Answers that have to call a tool, or may only in the form that its schema says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.engine.job import Constraint
from weft.serve.served import ServedDecoder
from weft.serve.toolcalls.asked import Calls, Grammar
from weft.serve.toolcalls.events import Reasoning, message
from weft.serve.toolcalls.formats import Context
from weft.serve.toolcalls.written import ARGUMENTS, NAME, CallForm, Render, call_form, closing_of
from weft.serve.tooling import Follow, object_of

if TYPE_CHECKING:
    from weft.serve.grammar import Part


def forced(
    model: ServedDecoder,
    prompt: str,
    variables: Mapping[str, Any],
    calls: Calls,
    content: Follow | None,
) -> Callable[[], Constraint]:
    """What an answer to `prompt`, made with the template's `variables`, has to be: `calls`, or a
    text as `content` says. Takes what compiling a grammar takes, off the event loop. Raises
    UsageError where the model's template writes no calls that could be asked for, or its parser
    does not read them."""
    grammars = model.grammars()
    form = _form(model, variables)
    more: list[Part] = []
    if content is not None and not calls.needed:
        more = [{"name": "content", **content.part()}]
        calls = replace(calls, content="@content")
    text = Grammar(form, grammars.special, _opened(model, prompt)).text(calls)
    return grammars.compile({"lark_grammar": text}, *more)


def formed(
    model: ServedDecoder, prompt: str, variables: Mapping[str, Any], content: Follow
) -> Callable[[], Constraint]:
    """What an answer to `prompt` has to be that is as `content` says: where the prompt has begun
    reasoning, after that. Raises UsageError where nothing is known to end it."""
    if not _opened(model, prompt):
        return content(model)
    grammars = model.grammars()
    closing = closing_of(_render(model, variables)) or "</think>"
    parser = model.parser(Context(prompt))
    if message([*parser.feed(f"x{closing}y"), *parser.finish()]).content != "y":
        raise UsageError("a form cannot be asked for: the prompt begins reasoning, and nothing in "
                         "the model's chat template ends it")  # fmt: skip
    form = CallForm("", "", "", closing=closing)
    text = Grammar(form, grammars.special, True).thought("@content")
    return grammars.compile({"lark_grammar": text}, {"name": "content", **content.part()})


def _opened(model: ServedDecoder, prompt: str) -> bool:
    """Whether what follows the prompt is reasoning."""
    events = model.parser(Context(prompt)).feed("x")
    return any(isinstance(e, Reasoning) for e in events)


def _render(model: ServedDecoder, variables: Mapping[str, Any]) -> Render:
    tokenizer = model.tokenizer
    template, special = tokenizer.chat_template(), tokenizer.special_tokens
    return lambda messages, begin: template.render(messages, begin, special, variables)


def _form(model: ServedDecoder, variables: Mapping[str, Any]) -> CallForm:
    ends = [model.tokenizer.decode([i], skip_special=False) for i in model.eos]
    form = call_form(_render(model, variables), [end for end in ends if end])
    parser = model.parser(Context("", {NAME: {}}))
    read = message([*parser.feed(form.example), *parser.finish()]).calls
    if [(c.name, object_of(c.arguments)) for c in read] != [(NAME, ARGUMENTS)]:
        raise UsageError(
            f"calls cannot be asked for: the parser {model.parser_name!r} does not read what the "
            "model's chat template writes; name another with --tool-parser"
        )
    return form
