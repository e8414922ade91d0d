"""Hugging Face's response_template: a declarative inverse of the chat template (transformers 5.13,
docs/source/en/chat_response_parsing.md), read from a checkpoint's tokenizer_config.json.

Regions lie between marks or patterns. Text outside of regions belongs to the field without an
opening, if there is one. A region of calls is parsed when it closes; if that fails, it is text for
the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.errors import UsageError
from weft.serve.toolcalls.contents import Parse, parser, transformed
from weft.serve.toolcalls.events import Event, Sink
from weft.serve.toolcalls.formats import ParserContext
from weft.serve.toolcalls.marks import NONE, Marks
from weft.serve.toolcalls.pattern import END, Match, Pattern, PatternSearch, find_all
from weft.serve.toolcalls.values import kinds, typed

_TOP = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD = {
    "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join",
    "optional", "transform", "transform_each",
}  # fmt: skip
MAX_PREFILL = 20_000  # characters of a prompt that are searched for a pattern
_REASONING = {"reasoning_content", "reasoning", "thinking"}
_CALLS = "tool_calls"


@dataclass(frozen=True)
class _Region:
    name: str
    opening: Pattern | None
    closing: Pattern | None
    parse: Parse
    strip: bool
    shape: Any
    each: bool


class ResponseTemplate:
    """A template that was checked, whose `marks` are tokens. Raises UsageError for keys, patterns
    and parsers that weft does not know, by name."""

    def __init__(self, spec: object, marks: Marks = NONE) -> None:
        self.marks = marks
        top = _object("response_template", spec, _TOP)
        if top.get("version", 1) != 1:
            raise UsageError(f"response_template has version {top['version']!r}; expected 1")
        fields = _object("response_template.fields", top.get("fields"), None)
        self.regions = [_region(name, field, marks) for name, field in fields.items()]
        open_ended = [r for r in self.regions if r.opening is None]
        if len(open_ended) > 1 or not self.regions:
            raise UsageError("response_template: expected fields, at most one without an opening")
        self.implicit = open_ended[0] if open_ended else None
        anchor = _mark("response_template", top, "start_anchor")
        if anchor is None:
            raise UsageError("response_template lacks a start_anchor")
        self._anchor = anchor
        literal = top.get("start_anchor") or []
        self._literals = [literal] if isinstance(literal, str) else literal

    def parser(self, context: ParserContext) -> TemplateParser:
        """A parser for one answer, which continues at the end of the prompt."""
        run = TemplateParser(self, context)
        run.feed(self.marks.hide(self._since_anchor(context.prompt)))
        return run

    def _since_anchor(self, prompt: str) -> str:
        """The part of the answer that the prompt already contains: everything after its last
        anchor."""
        if self._literals:
            ends = [at + len(a) for a in self._literals if (at := prompt.rfind(a)) >= 0]
        else:
            prompt = prompt[-MAX_PREFILL:]
            ends = [m.end for m in find_all(self._anchor, prompt)]
        return prompt[max(ends) :] if ends else ""


class TemplateParser:
    """One answer being read: a Parser."""

    def __init__(self, template: ResponseTemplate, context: ParserContext) -> None:
        self._template, self._tools = template, context.tools
        self._sink = Sink(template.marks.show)
        self._text = ""  # the text from position `_base` on
        self._base = self._seen = self._taken = 0
        self._ended = self._lost = self._any = False
        self._region = template.implicit
        self._opened = ""  # the text that opened the region
        self._body: list[str] = []
        self._groups: dict[str, str] = {}
        self._outside: list[str] = []
        self._steps = 0
        self._watch(0)

    def feed(self, text: str) -> list[Event]:
        self._push(text)
        return self._sink.take()

    def finish(self) -> list[Event]:
        self._ended = True
        self._push("")
        if self._lost:
            self._sink.verbatim(self._text[self._taken - self._base :])
        else:
            self._take(self._base + len(self._text))
            self._close("")
        if not self._any and self._template.implicit is None:
            self._sink.content("".join(self._outside))
        return self._sink.finish()

    def _watch(self, at: int) -> None:
        """Looks, from position `at` on, for what can come now."""
        region = self._region
        watched: list[tuple[_Region | None, Pattern]] = []
        if region is not None and region.opening is not None:
            watched = [(None, region.closing)] if region.closing is not None else []
        else:
            watched = [(r, r.opening) for r in self._template.regions if r.opening is not None]
            if region is not None and region.closing is not None:
                watched.append((None, region.closing))
        self._searches = [(r, PatternSearch(p, at, whole=at == 0)) for r, p in watched]
        self._seen = at

    def _push(self, text: str) -> None:
        self._text += text
        end = self._base + len(self._text)
        while not self._lost and self._seen < end + self._ended:
            at = self._seen - self._base
            c = self._text[at] if at < len(self._text) else END
            for _, search in self._searches:
                before = search.steps
                search.push(c)
                self._steps += search.steps - before
            self._seen += 1
            self._decide(min(self._seen, end))
            # the limit stops a template that looks back without end
            if self._steps > 100_000 + 500 * self._seen:
                self._lost = True
        drop = self._taken - self._base
        if drop > 1 << 12 or drop == len(self._text):
            self._text, self._base = self._text[drop:], self._taken

    def _decide(self, seen: int) -> None:
        pending = [s.pending for _, s in self._searches if s.pending is not None]
        found = [
            (s.found.start, s.found.start - s.found.end, region is None, n)
            for n, (region, s) in enumerate(self._searches)
            if s.found is not None and s.pending is None
        ]
        first = min(found, default=None)
        if first is not None and all(first[0] < p for p in pending):
            region, search = self._searches[first[3]]
            assert search.found is not None
            self._cross(region, search.found)
            return
        self._take(min([*pending, *(f[0] for f in found), seen]))

    def _cross(self, opening: _Region | None, match: Match) -> None:
        """Goes over a border: into a region, or out of the one that is open."""
        self._take(match.start)
        shown = self._text[match.start - self._base : match.end - self._base]
        named = {
            n: self._text[a - self._base : b - self._base] for n, (a, b) in match.groups.items()
        }
        self._groups |= named
        self._close(shown if opening is None else "")
        if opening is not None:
            self._region, self._opened, self._groups, self._any = opening, shown, named, True
            self._sink.border()
        self._taken = match.end
        self._steps += 1
        self._watch(match.end)

    def _take(self, end: int) -> None:
        """The text up to `end` belongs to what is open."""
        if end <= self._taken:
            return
        text = self._text[self._taken - self._base : end - self._base]
        self._taken = end
        region = self._region
        if region is None:
            self._outside.append(text)
        elif region.name == _CALLS and self._tools:
            self._body.append(text)
        elif region.strip:
            (self._sink.reasoning if region.name in _REASONING else self._sink.content)(text)
        else:
            self._sink.verbatim(text, region.name in _REASONING)

    def _close(self, shown: str) -> None:
        region = self._region
        if region is not None and region.name == _CALLS and self._tools:
            self._calls(region, "".join(self._body), shown)
        if region is not None:
            self._sink.border()
        self._region, self._body, self._opened = self._template.implicit, [], ""
        self._groups = {}

    def _calls(self, region: _Region, body: str, shown: str) -> None:
        if not (body or self._opened):
            return
        show = self._template.marks.show
        try:
            groups = {name: show(text) for name, text in self._groups.items()}
            calls = _flat(_shaped(region, show(body), groups))
        except (ValueError, RecursionError):  # UsageError is a ValueError
            self._sink.content(self._opened + body + shown)
            return
        for name, arguments in calls:
            self._sink.start(name)
            self._sink.arguments(_written(arguments, self._tools.get(name)))


def _shaped(region: _Region, body: str, groups: Mapping[str, str]) -> Any:
    value = region.parse(body)
    if region.shape is None:
        return value
    if not region.each:
        return transformed(region.shape, {**groups, "content": value})
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ValueError
    return [transformed(region.shape, {**groups, **item}) for item in value]


def _flat(value: Any) -> list[tuple[str, Any]]:
    """(name, arguments) of the calls in {"function": {...}}, its inside, or a list of them."""
    if isinstance(value, list):
        return [call for item in value for call in _flat(item)]
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    if (
        not isinstance(inner, Mapping)
        or not isinstance(inner.get("name"), str)
        or not inner["name"]
    ):
        raise ValueError
    return [(inner["name"], inner.get("arguments", {}))]


def _written(arguments: Any, schema: Mapping[str, Any] | None) -> str:
    """JSON of the arguments, texts made what the schema of the tool says."""
    if isinstance(arguments, str):
        return arguments
    properties = (schema or {}).get("properties")
    if isinstance(arguments, Mapping) and isinstance(properties, Mapping):
        arguments = {
            k: typed(v, properties[k]) if isinstance(v, str) and kinds(properties.get(k)) else v
            for k, v in arguments.items()
        }
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def mark_texts(spec: object) -> list[str]:
    """The texts that a response template may name as marks: its literals and patterns, without
    escapes."""
    found: list[str] = []
    fields = spec.get("fields") if isinstance(spec, Mapping) else None
    for field in fields.values() if isinstance(fields, Mapping) else ():
        for key in ("open", "close", "open_pattern", "close_pattern"):
            value = field.get(key) if isinstance(field, Mapping) else None
            texts = value if isinstance(value, list) else [value]
            found += [re.sub(r"\\(\W)", r"\1", text) for text in texts if isinstance(text, str)]
    return found


def _region(name: str, field: object, marks: Marks) -> _Region:
    scope = f"response_template field {name[:40]!r}"
    spec = _object(scope, field, _FIELD)
    shape, each = spec.get("transform"), spec.get("transform_each", False)
    args = _object(f"{scope}.content_args", spec.get("content_args", {}), None)
    return _Region(
        name,
        _mark(scope, spec, "open", marks),
        _mark(scope, spec, "close", marks),
        parser(spec.get("content", "text"), args),
        bool(args.get("strip", True)),
        shape,
        bool(each),
    )


def _object(scope: str, value: object, known: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{scope} is {str(value)[:40]!r}; expected an object")
    if known is not None and (unknown := sorted(map(str, set(value) - known))):
        raise UsageError(f"{scope} has unknown keys: {', '.join(unknown)[:100]}")
    return value


def _mark(scope: str, spec: Mapping[str, Any], key: str, marks: Marks = NONE) -> Pattern | None:
    """A literal, one of several, or a pattern."""
    literal, pattern = spec.get(key), spec.get(f"{key}_pattern")
    if literal is not None and pattern is not None:
        raise UsageError(f"{scope} has both {key} and {key}_pattern")
    if pattern is not None and isinstance(pattern, str):
        return Pattern(marks.hide_pattern(pattern))
    texts = [literal] if isinstance(literal, str) else literal
    if texts is None and pattern is None:
        return None
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise UsageError(f"{scope}: {key} is neither a text nor a list of texts")
    return Pattern.literals([marks.hide(text) for text in texts])
