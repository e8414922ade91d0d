"""The tools of a Responses request: their form for a chat template, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.serve.responses.types import (
    SKIPPED_TOOLS,
    TOOLS,
    ChosenTool,
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ToolFields,
    converted,
    kind_of,
)
from weft.serve.tooling import function, object_of
from weft.serve.wire import HttpError

INPUT = "input"
"""The one parameter of the function that a model is told of a custom tool."""


@dataclass(frozen=True)
class Offered:
    """One tool: its own name, that of its namespace, and its description for a chat template."""

    name: str
    namespace: str | None
    custom: bool
    told: Mapping[str, Any]
    echo: Mapping[str, Any]


@dataclass
class Tools:
    """The tools of a request, by the names that the model sees."""

    offered: dict[str, Offered] = field(default_factory=dict)
    echo: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, given: Sequence[Mapping[str, Any]], where: str) -> None:
        """Takes tools in, without SKIPPED_TOOLS. Raises HttpError for one that is wrong, of a kind
        that is not taken, or named twice."""
        for i, tool in enumerate(given):
            if kind_of(tool) in SKIPPED_TOOLS:
                continue
            place = f"{where}[{i}]"
            made = converted(tool, TOOLS, place)
            if not isinstance(made, NamespaceTool):
                self.echo.append(self._offer(made, None, place))
                continue
            inner = [
                self._offer(converted(t, _INNER, f"{place}.tools[{j}]"), made.name, place)
                for j, t in enumerate(made.tools)
            ]
            self.echo.append({"type": "namespace", "name": made.name,
                              "description": made.description or "", "tools": inner})  # fmt: skip

    def _offer(self, tool: ToolFields, namespace: str | None, where: str) -> Mapping[str, Any]:
        name = told_name(tool.name, namespace)
        if name in self.offered:
            raise HttpError(400, f"{where}: two tools are called {name!r:.140}", f"{where}.name")
        made = _function(tool, name, namespace) if isinstance(tool, FunctionTool) else None
        if made is None:
            assert isinstance(tool, CustomTool)
            made = _custom(tool, name, namespace)
        self.offered[name] = made
        return made.echo

    def chosen(self, choice: str | ChosenTool | None) -> Tools:
        """Those that a tool_choice leaves. Raises HttpError for names that are not offered."""
        if choice == "none":
            return Tools(echo=self.echo)
        if not isinstance(choice, ChosenTool) or choice.type != "allowed_tools":
            return self
        names = {tool.get("name", "") for tool in choice.tools or ()}
        unknown = names - self.offered.keys()
        if unknown:
            raise HttpError(400, f"unknown tool {min(unknown)!r:.140}", "tool_choice.tools")
        return Tools({n: t for n, t in self.offered.items() if n in names}, self.echo)


_INNER: dict[str, type[ToolFields]] = {"function": FunctionTool, "custom": CustomTool}


def told_name(name: str, namespace: str | None) -> str:
    """The name that the model sees for a tool: chat templates know no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


def input_of(arguments: str) -> str:
    """The text that a call of a custom tool gives, of its JSON; other JSON is the text."""
    found = object_of(arguments)
    text = found.get(INPUT) if found is not None and len(found) == 1 else None
    return text if isinstance(text, str) else arguments


def _function(tool: FunctionTool, name: str, namespace: str | None) -> Offered:
    parameters = tool.parameters or {}
    echo = {
        "type": "function", "name": tool.name, "description": tool.description,
        "parameters": parameters, "strict": bool(tool.strict),
    }  # fmt: skip
    return Offered(tool.name, namespace, False, function(name, tool.description, parameters), echo)


def _custom(tool: CustomTool, name: str, namespace: str | None) -> Offered:
    form = tool.format
    text = tool.description or ""
    made: dict[str, Any] = {"type": "text"}
    if form is not None and form.type == "grammar":
        made = {"type": "grammar", "syntax": form.syntax, "definition": form.definition}
        text = f"{text}\nThe input follows this {form.syntax} grammar:\n{form.definition}".lstrip()
    parameters = {
        "type": "object", "required": [INPUT], "additionalProperties": False,
        "properties": {INPUT: {"type": "string", "description": "The tool's whole input."}},
    }  # fmt: skip
    echo = {"type": "custom", "name": tool.name, "description": tool.description, "format": made}
    return Offered(tool.name, namespace, True, function(name, text, parameters), echo)
