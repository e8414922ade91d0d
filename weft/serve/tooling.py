"""The constraints that tools and formats put on an answer, in any protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.engine.job import Constraint
from weft.serve.served import ServedDecoder
from weft.serve.wire import HttpError


def function(
    name: str, description: str | None, parameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A tool as chat templates take it; parameters: their JSON schema."""
    made: dict[str, Any] = {"name": name}
    if description is not None:
        made["description"] = description
    if parameters is not None:
        made["parameters"] = parameters
    return {"type": "function", "function": made}


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The schemas of the parameters of such tools, by name."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def check_names(names: Iterable[str]) -> None:
    """Raises HttpError for two tools of one name: a call would not say which it means."""
    for name, count in Counter(names).items():
        if count > 1:
            raise HttpError(
                400, f"tools: {count} are called {name!r:.140}; names must differ", "tools"
            )


def called(name: str, arguments: Any, id: str | None = None) -> dict[str, Any]:
    """A call of a tool as chat templates take it."""
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {"id": id, **made}


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that a text encodes; None if it does not."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def needed_of(choice: str | Sequence[str] | None, names: Sequence[str]) -> Sequence[str]:
    """The tools of which one has to be called: of `names`, those that are offered, none (choice
    None, "none", "auto"), all ("required") or some. Raises HttpError for what is not offered."""
    if choice in (None, "none", "auto"):
        return ()
    wanted = names if choice == "required" else choice or ()
    if not wanted or not set(wanted) <= set(names):
        raise HttpError(400, "tool_choice asks for a tool that tools does not have", "tool_choice")
    return wanted


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object. Arguments that are wrong or incomplete become
    {"INVALID_JSON": text}, as in Anthropic's documents."""
    found = object_of(arguments or "{}")
    return {"INVALID_JSON": arguments} if found is None else found


def thinking(effort: str | None) -> dict[str, Any]:
    """The variables that tell chat templates how much to think."""
    made: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    return made | {"enable_thinking": False} if effort == "none" else made


@dataclass(frozen=True)
class Follow:
    """A Make that compiles the grammar which `make` builds with the functions of
    weft.models.grammar.grammars."""

    make: Callable[[Any], Any]

    def part(self) -> Any:
        """The grammar as llguidance takes it."""
        from weft.models.grammar import grammars as grammar

        return self.make(grammar)

    def __call__(self, model: ServedDecoder) -> Callable[[], Constraint]:
        return model.grammars().compile(self.part())


def follow_schema(schema: Mapping[str, Any]) -> Follow:
    """JSON that satisfies `schema`."""
    return Follow(lambda grammar: grammar.json_schema(schema))


def follow_json() -> Follow:
    """Any JSON object."""
    return Follow(lambda grammar: grammar.json_object())
