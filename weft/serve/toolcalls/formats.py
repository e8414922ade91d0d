"""The formats in which models write reasoning and calls of tools, each as a generator."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.serve.toolcalls.events import Sink
from weft.serve.toolcalls.json_call import CallObject
from weft.serve.toolcalls.reading import END, Reader, skip_space, until
from weft.serve.toolcalls.values import gemma_arguments, xml_arguments

Body = Callable[[Sink, "Context"], Generator[None, str, None]]
"""Reads a call after its opening marker, the closing one included."""


@dataclass(frozen=True)
class Context:
    """What a parser may know besides the text: the prompt that it goes on from, and the schemas
    of the tools' parameters by name (empty: none are offered)."""

    prompt: str = ""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """Text with marked parts: `thinking`, marks around reasoning, and `calls`, what opens a call
    and what reads it. `ends` are marks that mean nothing."""

    thinking: tuple[str, str] | None = None
    calls: Mapping[str, Body] = field(default_factory=dict)
    ends: Sequence[str] = ()

    def read(self, sink: Sink, context: Context) -> Reader:
        calls = self.calls if context.tools else {}
        opening, closing = self.thinking or ("", "")
        marks = [m for m in (opening, *calls, *self.ends) if m]
        if opening and context.prompt.rstrip().endswith(opening):
            yield from self._think(sink, closing)
        while True:
            found = yield from until(marks, sink.content)
            if found == END:
                return
            if found == opening:
                yield from self._think(sink, closing)
            elif found in calls:
                yield from calls[found](sink, context)

    @staticmethod
    def _think(sink: Sink, closing: str) -> Generator[None, str, None]:
        sink.border()
        yield from until([closing], sink.reasoning)
        sink.border()


def tagged(opening: str, closing: str) -> dict[str, Body]:
    """A JSON object between marks: Qwen's and Hermes' <tool_call>."""

    def body(sink: Sink, context: Context) -> Generator[None, str, None]:
        call = CallObject(sink)
        found = yield from until([closing], call.push, lambda: not call.in_string)
        if call.finish(bare=True):
            sink.border()
        else:
            sink.content(opening + "".join(call.text) + found)

    return {opening: body}


def functions_of_xml(sink: Sink, context: Context) -> Generator[None, str, None]:
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>, as
    Qwen3-Coder writes it. A value is text unless the tool's schema says otherwise."""
    parts: list[str] = []
    found = yield from until(["</tool_call>"], parts.append)
    _whole(sink, "<tool_call>", "".join(parts), found, xml_arguments, context)


def tagged_gemma(opening: str, closing: str, quote: str) -> dict[str, Body]:
    """call:NAME{key:value} between marks, texts between `quote`s: Gemma 4 and FunctionGemma."""

    def body(sink: Sink, context: Context) -> Generator[None, str, None]:
        parts: list[str] = []
        found = yield from until([closing], parts.append)
        text = "".join(parts)
        _whole(sink, opening, text, found, lambda t, _: gemma_arguments(t, quote), context)

    return {opening: body}


def _whole(
    sink: Sink,
    opening: str,
    text: str,
    closing: str,
    parse: Callable[[str, Mapping[str, Any]], tuple[str, str] | None],
    context: Context,
) -> None:
    """A call that is understood only when it is whole."""
    call = parse(text, context.tools) if closing else None
    if call is None:
        sink.content(opening + text + closing)
        return
    sink.start(call[0])
    sink.arguments(call[1])
    sink.border()


def mistral(sink: Sink, context: Context) -> Generator[None, str, None]:
    """After [TOOL_CALLS]: a list of JSON objects, or a name, perhaps [CALL_ID] and an id, [ARGS],
    and the arguments' object."""
    c = yield from skip_space()
    if c == "[":
        yield from _list(sink, "[TOOL_CALLS][")
        return
    header: list[str] = []
    while c not in (END, "{"):
        header.append(c)
        c = yield
    name = "".join(header).split("[CALL_ID]")[0].split("[ARGS]")[0].strip()
    if c == END or not name:
        sink.content("[TOOL_CALLS]" + "".join(header) + c)
        return
    sink.start(name)
    yield from _object(c, sink.arguments)
    sink.border()


def _object(first: str, take: Callable[[str], None]) -> Generator[None, str, None]:
    """A JSON value in brackets, of which `first` is the first."""
    from weft.serve.toolcalls.json_call import Value

    value, c = Value(), first
    while c != END:
        value.push(c)
        take(c)
        if value.over:
            return
        c = yield


def _list(sink: Sink, opening: str) -> Generator[None, str, None]:
    """JSON objects up to a closing bracket; what is no object ends the list and is text."""
    calls = 0
    while True:
        c = yield from skip_space()
        if c == ",":
            continue
        if c != "{":
            sink.border() if calls else None
            if c != "]" or not calls:
                sink.content((opening if not calls else "") + c)
            return
        call = CallObject(sink)
        yield from _object(c, call.push)
        if not call.finish(bare=True):
            sink.content((opening if not calls else "") + "".join(call.text))
            return
        calls += 1


def llama(sink: Sink, context: Context) -> Reader:
    """A whole answer that is {"name": ..., "parameters": {...}}, after <|python_tag|> or not; more
    of them after semicolons. Anything else is text."""
    tag, spaces = "<|python_tag|>", list[str]()
    c = yield
    while c != END and c.isspace():
        spaces.append(c)
        c = yield
    space, held = "".join(spaces), ""
    while c != END and context.tools and tag.startswith(held + c):
        held, c = held + c, (yield)
        if held == tag:
            break
    tagged_by = held if held == tag else ""
    while tagged_by and c != END and c.isspace():
        c = yield
    if c != "{" or (held and not tagged_by) or not context.tools:
        sink.content(space + held)
        yield from _rest(sink, c)
        return
    before = space + held
    while True:
        call = CallObject(sink)
        yield from _object(c, call.push)
        if not call.finish(bare=False):
            sink.content(before + "".join(call.text))
            break
        sink.border()
        c = yield from skip_space()
        if c == ";":
            before = ";"
            c = yield from skip_space()
        if c != "{":
            yield from _rest(sink, c)
            return
    yield from until((), sink.content)


def _rest(sink: Sink, first: str) -> Reader:
    if first != END:
        sink.content(first)
        yield from until((), sink.content)


def harmony(sink: Sink, context: Context) -> Reader:
    """gpt-oss: messages of a channel each. analysis is reasoning, commentary to=functions.NAME a
    call, everything else is said to the user. A header that ends nowhere is text."""
    stops = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
    if context.prompt.endswith("<|message|>"):  # the prompt has written a header
        at = context.prompt.rfind("<|channel|>")
        header, found = context.prompt[at + len("<|channel|>") : -len("<|message|>")], "<|message|>"
    else:
        header, found = "", "<|start|>"
    while True:
        if found != "<|message|>":
            parts = [header]
            found = yield from until(("<|message|>", *stops[:3]), parts.append)
            header = "".join(parts)
            if found != "<|message|>":
                shown = header if not _is_header(header) else ""
                sink.content(shown)
                if found == END:
                    return
                header = ""
                continue
        take, call = _channel(sink, header)
        found = yield from until(stops, take)
        if call or take is sink.reasoning:
            sink.border()
        if found == END:
            return
        header = ""


def _is_header(text: str) -> bool:
    """Whether it says only who speaks on which channel."""
    words = text.replace("<|channel|>", " ").replace("<|start|>", " ").replace("<|constrain|>", " ")
    known = {"assistant", "analysis", "commentary", "final", "json"}
    return all(w in known or w.startswith("to=") for w in words.split())


def _channel(sink: Sink, header: str) -> tuple[Callable[[str], None], bool]:
    """Where the text of a message goes, and whether it is a call."""
    text = header.replace("<|channel|>", " ").replace("<|constrain|>", " ")
    words = text.replace("<|start|>", " ").split()
    to = next((w[3:] for w in words if w.startswith("to=")), "")
    if to.startswith("functions.") and len(to) > len("functions."):
        sink.start(to[len("functions.") :])
        return sink.arguments, True
    if "analysis" in words:
        sink.border()
        return sink.reasoning, False
    return sink.content, False
