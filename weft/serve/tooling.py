"""What tools and formats of OpenAI's requests ask of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.engine.job import Constraint
from weft.serve.openai_types import Chat, Completion, NamedTool, Tool
from weft.serve.served import ServedDecoder
from weft.serve.wire import Refused

Make = Callable[[ServedDecoder], Callable[[], Constraint]]


def parameters_of(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """The schemas of tools' parameters by name."""
    return {tool.function.name: tool.function.parameters or {} for tool in tools}


def constraint_of(body: Chat | Completion, tools: Sequence[Tool] = ()) -> Make | None:
    """What the text must be, compiled when the model is known; None: anything. Raises Refused for
    more than one wish."""
    wishes: dict[str, Callable[[Any], Any]] = {}
    if body.guided_regex is not None:
        pattern = body.guided_regex
        wishes["guided_regex"] = lambda grammar: grammar.regex(pattern)
    if body.guided_grammar is not None:
        text = body.guided_grammar
        wishes["guided_grammar"] = lambda grammar: grammar.grammar(text)
    if isinstance(body, Chat):
        form = body.response_format
        if form is not None and form.type == "json_object":
            wishes["response_format"] = lambda grammar: grammar.json_object()
        elif form is not None and form.type == "json_schema":
            if form.json_schema is None:
                raise Refused(400, "json_schema is missing", "response_format.json_schema")
            schema = form.json_schema.schema or {}
            wishes["response_format"] = lambda grammar: grammar.json_schema(schema)
        if body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool):
            raise Refused(400, "tool_choice is taken as none or auto", "tool_choice")
    if len(wishes) > 1:
        raise Refused(400, f"{' and '.join(wishes)} cannot both be followed", min(wishes))
    return _maker(*wishes.values()) if wishes else None


def _maker(part: Callable[[Any], Any]) -> Make:
    def make(model: ServedDecoder) -> Callable[[], Constraint]:
        grammars = model.grammars()
        from weft.serve import grammar

        return grammars.compile(part(grammar))

    return make
