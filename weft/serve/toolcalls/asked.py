"""The form of an answer that must or may call tools: a grammar (Lark's syntax, as llguidance reads
it) of reasoning, text and calls, in the model's own form of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.errors import UsageError
from weft.serve.toolcalls.written import IDS, CallForm

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_MARK = re.compile(r"<[^<>\n]+>|\[[^\[\]\n]+\]")
_ANY = "/(?s:.*)/"


@dataclass(frozen=True)
class Calls:
    """The calls that an answer may make. `tools`: the schemas of their parameters, by name.
    `needed`: the answer must be calls, without text. `several`: it may have more than one call.
    `content`: the form of a text without calls, in Lark's syntax ("": anything)."""

    tools: Mapping[str, Mapping[str, Any]]
    needed: bool = False
    several: bool = True
    content: str = ""


class Grammar:
    """The rules for one model. `special`: its special tokens by their text; `opened`: True if the
    prompt has started reasoning."""

    def __init__(self, form: CallForm, special: Mapping[str, int], opened: bool) -> None:
        self._form, self._special, self._opened = form, special, opened
        self._rules: dict[str, str] = {}
        self._split = re.compile("|".join(map(re.escape, [*IDS, *special])))

    def text(self, calls: Calls) -> str:
        """The whole grammar. Raises UsageError for names that no grammar can hold, and where text
        and calls cannot be told apart."""
        if calls.several and self._form.joint is None and calls.needed:
            calls = Calls(calls.tools, True, False, calls.content)  # one is all it can write
        start = self._thinking(bool(calls.content))
        if calls.needed:
            start += f" {self._literal(self._form.before)} calls"
        else:
            start += f" ({self._free(calls.content)})"
        self._rules["calls"] = self._calls(calls)
        return self._whole(start)

    def thought(self, content: str) -> str:
        """The grammar of reasoning, and then of what `content` says in Lark's syntax."""
        return self._whole(f"{self._thinking(True)} {content}")

    def _whole(self, start: str) -> str:
        return "\n".join([f"start:{start}", *(f"{n}: {r}" for n, r in self._rules.items())])

    def _thinking(self, exact: bool) -> str:
        """Reasoning at the beginning, where the prompt has opened it or the model may. exact: the
        space after it is the template's, so that what follows keeps its own."""
        form = self._form
        if not form.closing or not (self._opened or form.opening):
            return ""
        thought = self._until("thought", form.closing)
        if exact:
            thought = f"{thought} {self._literal(form.gap)}"
        else:
            thought += " SPACE"
            self._rules["SPACE"] = r"/\s{0,4}/"
        return f" {thought}" if self._opened else f" ({self._literal(form.opening)} {thought})?"

    def _until(self, name: str, mark: str) -> str:
        """Text up to a mark, which it includes."""
        first = self._split.match(mark)
        if first is not None:
            return f"{_ANY} {self._literal(mark)}"
        self._rules[f"{name}[suffix={json.dumps(mark, ensure_ascii=False)}]"] = _ANY
        return name

    def _free(self, content: str) -> str:
        """Text alone, or calls after text."""
        before = self._form.before
        mark = _MARK.match(before)
        if content:
            return f"{content} | {self._literal(before)} calls"
        if mark is None:
            if not before:
                raise UsageError("the model's calls begin with nothing that tells them from text")
            first = _regex(before[0])
            self._rules["WORDS"] = rf"/\s*[^\s{first}](?s:.*)/"
            return f"WORDS? | {self._literal(before)} calls"
        if mark[0] in self._special:
            self._rules["WORDS"] = "/(?s:.+)/"
        else:
            never = f"/(?s:.*){_regex(mark[0])}(?s:.*)/"
            self._rules["WORDS"] = f"/(?s:.+)/ & ~{never}"
        rest = self._literal(before[mark.end() :])
        return f"WORDS? | {self._until('words', mark[0])} {rest} calls"

    def _calls(self, calls: Calls) -> str:
        from weft.models.grammar.grammars import check_size

        check_size(json.dumps(list(calls.tools.values()), ensure_ascii=False))
        form = self._form
        between = self._literal(form.between)
        names = []
        for i, (name, schema) in enumerate(calls.tools.items()):
            if not _PLAIN.fullmatch(name):
                raise UsageError(f"a tool is called {name[:40]!r}; expected letters, digits, _ - .")
            self._rules[f"call{i}"] = f"{self._literal(name)} {between} json{i}"
            self._rules[f"json{i}"] = f"%json {_schema(schema)}"
            names.append(f"call{i}")
        self._rules["call"] = " | ".join(names)
        more = ""
        if calls.several and form.joint is not None:
            more = f" ({self._literal(form.joint)} call)*"
        return f"call{more} {self._literal(form.after)}".rstrip()

    def _literal(self, text: str) -> str:
        """Text in which special tokens are tokens and ids are any."""
        made, at = [], 0
        for found in self._split.finditer(text):
            made.append(_quoted(text[at : found.start()]))
            if found[0] in IDS:
                self._rules["ID"] = "/[A-Za-z0-9]{9}/"
                made.append("ID")
            else:
                made.append(f"<[{self._special[found[0]]}]>")
            at = found.end()
        made.append(_quoted(text[at:]))
        return " ".join(part for part in made if part)


def _schema(schema: Mapping[str, Any]) -> str:
    from weft.models.grammar.grammars import json_schema

    made = json_schema({"type": "object", **schema})["json_schema"]
    return json.dumps(made, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _regex(text: str) -> str:
    """A pattern of this text alone, in the form between slashes."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text)
