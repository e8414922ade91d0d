"""The part of Go's templates that Ollama's TEMPLATE needs for text: fields, `if` and `range`.

Source: docs/template.mdx of ollama/ollama, November 2026. Understood are `.System`, `.Prompt`,
`.Response`, `range .Messages` with `.Role` and `.Content` (and `$.System`), `if`, `else if`,
`else`, `end`, comments, trimming by `-`, and `eq`, `ne`, `not`, `and`, `or`. Anything else is
refused by name.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weft.core.errors import UsageError

LONGEST = 64 << 10  # characters of a template
_DEEPEST = 32  # blocks in blocks
_ACTION = re.compile(r"\{\{(?:(-)(?=\s))?(.*?)(?:(?<=\s)(-))?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|[()]|\$?(?:\.\w+)+|\w+|\S')
_ROOT, _EACH = {"System", "Prompt", "Response", "Messages"}, {"Role", "Content"}

Scope = Mapping[str, Any]
Value = Callable[[Scope, Scope], Any]
"""An expression's value, from the fields of `$` and of `.`."""
Block = list[Any]
"""Texts, values, ("if", value, block, block) and ("range", block)."""


class GoTemplate:
    """A template, parsed. Raises UsageError, naming what is not understood."""

    def __init__(self, source: str) -> None:
        if len(source) > LONGEST:
            raise UsageError(f"the template has {len(source)} characters; expected {LONGEST}")
        self.fields: set[str] = set()
        self._words = list(_split(source))
        self._block, end = self._parse(0, False)
        if end:
            raise _not(end)
        self._rounds = "Messages" not in self.fields
        if self._rounds and "Response" not in self.fields:
            self._block.append(_Field("Response"))

    def render(
        self, messages: Sequence[Mapping[str, Any]], begin: bool, special: Mapping[str, str],
        variables: Mapping[str, Any],
    ) -> str:  # fmt: skip
        """The prompt for messages, as ChatTemplate.render gives it. Raises UsageError for what the
        template cannot say: tools, parts other than text, a prompt without what begins an
        answer."""
        if variables.get("tools"):
            raise UsageError("this model's template (TEMPLATE) takes no tools")
        if not begin:
            raise UsageError("this model's template (TEMPLATE) always begins an answer")
        if any(not isinstance(m.get("content"), str) for m in messages):
            raise UsageError("this model's template (TEMPLATE) takes messages of text alone")
        if self._rounds:
            return "".join(self._in_rounds(messages))
        system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        turns = [{"Role": m["role"], "Content": m["content"]} for m in messages]
        root = {"System": system, "Prompt": "", "Response": "", "Messages": turns}
        return "".join(_said(self._block, root, root))

    def _in_rounds(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """The template once for each prompt; the last time up to where the answer goes."""
        now = dict.fromkeys(("System", "Prompt", "Response"), "")

        def whole() -> str:
            said = "".join(_said(self._block, now, now))
            now.update(System="", Prompt="", Response="")
            return said

        for message in messages:
            role, text = message["role"], message["content"]
            over = {"system": now["Prompt"] or now["Response"], "user": now["Response"]}
            if over.get(role):
                yield whole()
            name = {"system": "System", "assistant": "Response"}.get(role, "Prompt")
            now[name] = f"{now[name]}\n\n{text}" if now[name] else text
        for part in _said(self._block, now, now, cut=True):
            if part is None:
                return
            yield part

    # -- parsing ----------------------------------------------------------------------------------

    def _parse(self, depth: int, each: bool) -> tuple[Block, str]:
        """The nodes up to an `else` or `end`, and that word with what follows it."""
        if depth > _DEEPEST:
            raise UsageError("the template has too many blocks in blocks")
        made: Block = []
        while self._words:
            kind, text = self._words.pop(0)
            head, _, rest = text.partition(" ")
            if kind == "text":
                made.append(text)
            elif text.startswith("/*") and text.endswith("*/"):
                continue
            elif head in ("end", "else"):
                return made, text
            elif head == "if":
                made.append(self._if(rest, depth, each))
            elif head == "range":
                if rest.strip() not in (".Messages", "$.Messages") or each:
                    raise _not(text)
                self.fields.add("Messages")
                inner, end = self._parse(depth + 1, True)
                if end != "end":
                    raise _not(end or "range without end")
                made.append(("range", inner))
            else:
                made.append(value := self._value(text, each))
                if isinstance(value, _Field) and value.name == "Messages":
                    raise _not(text)
        return made, ""

    def _if(self, condition: str, depth: int, each: bool) -> Any:
        asked = self._value(condition, each)
        then, end = self._parse(depth + 1, each)
        other: Block = []
        if end.startswith("else if "):
            return ("if", asked, then, [self._if(end.removeprefix("else if "), depth + 1, each)])
        if end == "else":
            other, end = self._parse(depth + 1, each)
        if end != "end":
            raise _not(end or "if without end")
        return ("if", asked, then, other)

    def _value(self, text: str, each: bool) -> Value:
        words = _WORD.findall(text)
        made = self._call(words, each, text)
        if words:
            raise _not(text)
        return made

    def _call(self, words: list[str], each: bool, text: str) -> Value:
        if words and words[0] in _CALLS:
            name = words.pop(0)
            given = []
            while words and words[0] != ")":
                given.append(self._operand(words, each, text))
            if not _COUNTS[name][0] <= len(given) <= _COUNTS[name][1]:
                raise _not(text)
            call = _CALLS[name]
            return lambda root, dot: call([one(root, dot) for one in given])
        return self._operand(words, each, text)

    def _operand(self, words: list[str], each: bool, text: str) -> Value:
        word = words.pop(0) if words else ""
        if word == "(":
            made = self._call(words, each, text)
            if not words or words.pop(0) != ")":
                raise _not(text)
            return made
        if word[:1] == '"' and len(word) > 1:
            try:
                found = json.loads(word)
            except ValueError:
                raise _not(text) from None
            return lambda root, dot: found
        if word[:1] == "`" and len(word) > 1:
            return lambda root, dot: word[1:-1]
        top = word.startswith("$.") or not each
        name = word.lstrip("$").removeprefix(".")
        if not word.startswith((".", "$.")) or name not in (_ROOT if top else _EACH):
            raise _not(text)
        self.fields.add(name)
        return _Field(name, top)


class _Field:
    def __init__(self, name: str, top: bool = True) -> None:
        self.name, self.top = name, top

    def __call__(self, root: Scope, dot: Scope) -> Any:
        return (root if self.top else dot)[self.name]


_CALLS: dict[str, Callable[[list[Any]], Any]] = {
    "eq": lambda given: given[0] in given[1:],
    "ne": lambda given: given[0] != given[1],
    "not": lambda given: not given[0],
    "and": lambda given: next((one for one in given if not one), given[-1]),
    "or": lambda given: next((one for one in given if one), given[-1]),
}
_COUNTS = {"eq": (2, 16), "ne": (2, 2), "not": (1, 1), "and": (1, 16), "or": (1, 16)}


def _said(block: Block, root: Scope, dot: Scope, cut: bool = False) -> Iterator[Any]:
    """The texts of a block; with `cut` None follows the answer's place."""
    for node in block:
        if isinstance(node, str):
            yield node
        elif not isinstance(node, tuple):
            found = node(root, dot)
            yield found if isinstance(found, str) else str(found).lower()
            if cut and isinstance(node, _Field) and node.name == "Response":
                yield None
        elif node[0] == "if":
            yield from _said(node[2] if node[1](root, dot) else node[3], root, dot, cut)
        else:
            for message in root["Messages"]:
                yield from _said(node[1], root, message)


def _split(source: str) -> Iterator[tuple[str, str]]:
    """Texts and actions, trimmed as the actions say."""
    at, strip = 0, False
    for found in _ACTION.finditer(source):
        text = source[at : found.start()]
        text = text.lstrip() if strip else text
        text = text.rstrip() if found[1] else text
        if text:
            yield "text", text
        yield "action", " ".join(found[2].split()) if '"' not in found[2] else found[2].strip()
        at, strip = found.end(), bool(found[3])
    rest = source[at:].lstrip() if strip else source[at:]
    if "{{" in rest:
        raise _not(rest[:40])
    if rest:
        yield "text", rest


def _not(action: str) -> UsageError:
    return UsageError(
        f"the template has {{{{ {action[:80]} }}}}, which is not understood; expected .System, "
        ".Prompt, .Response, range .Messages with .Role and .Content, if, else, end, eq, ne, not, "
        "and, or"
    )


parsed = functools.lru_cache(64)(GoTemplate)
"""A template by its source. Raises UsageError."""
