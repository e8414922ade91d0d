"""The worker process for chat templates: Jinja's immutable sandbox, in a process with limits.

It gives templates the same environment as transformers (whitespace trimming, loop controls,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`, `{% generation %}` blocks). It is
run by `weft.host.confined` and can import nothing of weft.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT = 16 << 20  # characters of a rendered conversation

_template: Any = None


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Handles a request. {"source": ...} compiles; {"values": ...} renders and returns {"text":
    ...}, or {"refused": ...} if the template raised an error of its own; {"parse": source} returns
    {"tree": ...}."""
    global _template
    if "parse" in request:
        return {"tree": _tree(make_environment().parse(request["parse"]))}
    if "source" in request:
        _template = make_environment().from_string(request["source"])
        return {}
    parts, total = [], 0
    try:
        for part in _template.generate(request["values"]):
            total += len(part)
            if total > MAX_TEXT:
                raise ValueError(f"it wrote more than {MAX_TEXT} characters")
            parts.append(part)
    except TemplateError as e:
        return {"refused": (str(e).strip() or type(e).__name__).splitlines()[0][:200]}
    return {"text": "".join(parts)}


def _tree(node: Any) -> Any:
    """Returns a node as a list: its kind, then its fields in jinja2's order."""
    if isinstance(node, nodes.Node):
        return [type(node).__name__, *(_tree(getattr(node, name)) for name in node.fields)]
    return [_tree(n) for n in node] if isinstance(node, list) else node


class GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's words for training; here it only renders."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which also limits operators that could build huge values."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        a, b = (len(v) if isinstance(v, str | list | tuple) else v for v in (left, right))
        huge = a * b > MAX_TEXT if operator == "*" else max(abs(a), abs(b)) > 1000
        if huge:
            raise ValueError(f"a result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def make_environment() -> Environment:
    """Returns the environment for templates."""
    env = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return env


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
