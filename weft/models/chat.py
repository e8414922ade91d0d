"""Chat templates: Jinja from a stranger, run in Jinja's immutable sandbox.

Same environment as transformers gives templates (whitespace trimming, loop controls, `tojson`
without HTML escapes, `raise_exception`, `strftime_now`, `{% generation %}` blocks).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from weft.core.errors import ModelError, UsageError
from weft.importers.hf_config import read_bounded

MAX_TEMPLATE = 1 << 20  # bytes
MAX_TEXT = 16 << 20  # characters of a rendered conversation
MAX_SECONDS = 10


def read_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's source from chat_template.jinja or tokenizer_config.json, or None."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_bounded(path, MAX_TEMPLATE).decode("utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{path}: not UTF-8 text") from None
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):  # named templates; "default" is the one for chatting
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    if found is None:
        return None
    if not isinstance(found, str) or len(found) > MAX_TEMPLATE:
        raise ModelError(f"{folder}: chat_template must be a string under {MAX_TEMPLATE} bytes")
    return found


class ChatTemplate:
    """A compiled chat template. Raises ModelError when the template itself is broken."""

    def __init__(self, source: str) -> None:
        try:
            self._environment = _environment()
            self._template = self._environment.from_string(source)
        except Exception as e:  # the source is a stranger's: SyntaxError, RecursionError, ...
            raise ModelError(f"the chat template does not compile: {_line(e)}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation_prompt: bool,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt for `messages`. Raises UsageError when the template refuses them."""
        from jinja2.exceptions import TemplateError

        for m in messages:
            if not isinstance(m, Mapping) or not isinstance(m.get("role"), str):
                raise UsageError(f"a chat message needs a role and content, got {str(m)[:80]}")
        values: dict[str, Any] = {"tools": None, "documents": None, **special_tokens, **variables}
        plain = [dict(m) for m in messages]
        try:
            self._environment.start_clock()
            parts = self._template.generate(
                messages=plain, add_generation_prompt=generation_prompt, **values
            )
            return "".join(_bounded(parts))
        except TemplateError as e:
            raise UsageError(f"the chat template refuses these messages: {_line(e)}") from None
        except Exception as e:  # whatever a stranger's program may do to itself
            raise UsageError(f"the chat template failed on these messages: {_line(e)}") from None


def _bounded(parts: Iterator[str]) -> Iterator[str]:
    total = 0
    for part in parts:
        total += len(part)
        if total > MAX_TEXT:
            raise ValueError(f"it wrote more than {MAX_TEXT} characters")
        yield part


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training; here it only renders."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def strftime_now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    class Environment(ImmutableSandboxedEnvironment):
        """The sandbox, with ends to how long a template may run and what it may build at once."""

        intercepted_binops = frozenset({"*", "**"})
        deadline = 0.0

        def start_clock(self) -> None:
            self.deadline = time.monotonic() + MAX_SECONDS

        def tick(self) -> str:
            if time.monotonic() > self.deadline:
                raise TemplateError(f"it ran for more than {MAX_SECONDS} s")
            return ""

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            tree = super()._parse(source, name, filename)
            loops: list[Any] = list(tree.find_all((nodes.For, nodes.Macro)))
            for node in loops:
                clock = nodes.EnvironmentAttribute("tick")
                node.body.insert(0, nodes.ExprStmt(nodes.Call(clock, [], [], None, None)))
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            a, b = (len(v) if isinstance(v, str | list | tuple) else v for v in (left, right))
            huge = a * b > MAX_TEXT if operator == "*" else max(abs(a), abs(b)) > 1000
            if huge:
                raise ValueError(f"a result of {operator} is too large")
            return super().call_binop(context, operator, left, right)

    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def _line(e: BaseException) -> str:
    text = str(e) or type(e).__name__
    return text.splitlines()[0][:200]
