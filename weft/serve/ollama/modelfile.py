"""Ollama's Modelfile (docs/modelfile.mdx of ollama/ollama, November 2026)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from weft.core.errors import UsageError
from weft.serve.recipes import RecipeMessage

_LINE = re.compile(
    r'[ \t]*(\w+)[ \t]+(?:((?:\w+[ \t]+)?)"""(.*?)"""|([^\n]*))[ \t]*(?:\n|\Z)', re.DOTALL
)
_SKIPPED = re.compile(r"\s*(?:#[^\n]*)?(?:\n|\Z)")


def read_modelfile(text: str) -> dict[str, Any]:
    """The fields of a Modelfile: from, adapter, system, template, parameters, messages, license.
    Raises UsageError for an instruction that is not understood."""
    made: dict[str, Any] = {}
    for word, value in _instructions(text):
        match word.upper():
            case "FROM" | "ADAPTER" | "SYSTEM" | "TEMPLATE":
                made[word.lower()] = value
            case "PARAMETER":
                name, _, given = value.partition(" ")
                _set(made.setdefault("parameters", {}), name, given.strip())
            case "MESSAGE":
                role, _, content = value.partition(" ")
                if role not in ("system", "user", "assistant"):
                    raise UsageError(f"MESSAGE {role[:40]!r}; expected system, user or assistant")
                turn = RecipeMessage(role=role, content=_unquoted(content.strip()))  # type: ignore
                made.setdefault("messages", []).append(turn)
            case "LICENSE":
                made.setdefault("license", []).append(value)
            case _:
                known = "FROM, ADAPTER, PARAMETER, TEMPLATE, SYSTEM, MESSAGE or LICENSE"
                raise UsageError(f"the Modelfile has {word[:40]}; expected {known}")
    return made


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        if skipped := _SKIPPED.match(text, at):
            at = max(skipped.end(), at + 1)
            continue
        found = _LINE.match(text, at)
        if found is None or '"""' in (found[4] or ""):
            raise UsageError(f"the Modelfile has {text[at : at + 40]!r}; expected INSTRUCTION TEXT")
        at = found.end()
        long = found[3] is not None
        yield found[1], (found[2] + found[3]) if long else _unquoted(found[4].strip())


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _set(parameters: dict[str, Any], name: str, given: str) -> None:
    """A parameter by its text; several of stop are a list."""
    value: Any = _unquoted(given)
    if name == "stop":
        value = [*parameters.get("stop", ()), value]
    elif value in ("true", "false"):
        value = value == "true"
    else:
        for kind in (float, int):
            with contextlib.suppress(ValueError):
                value = kind(given)
    parameters[name] = value
