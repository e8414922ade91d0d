"""The formats in which models write reasoning and calls of tools, each as a generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.serve.toolcalls.events import Sink
from weft.serve.toolcalls.json_call import CallObject
from weft.serve.toolcalls.marks import Marks
from weft.serve.toolcalls.reading import END, Reader, beginning, skip_space, until
from weft.serve.toolcalls.values import gemma_arguments, xml_arguments

Body = Callable[[Sink, "ParserContext"], Reader]
"""Reads a call after its opening marker, the closing one included."""


@dataclass(frozen=True)
class ParserContext:
    """Facts for a parser in addition to the text.

    - `prompt`: the text before the answer.
    - `tools`: the schemas of the tools' parameters by name (empty: none are offered).
    - `marks`: the marks that are tokens (None: unknown).
    - `begun`: the prompt's last part if it belongs to the answer and is known. It never contains a
    user's text.
    """

    prompt: str = ""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    marks: Marks | None = None
    begun: str | None = None

    def hide(self, text: str) -> str:
        """A mark as it is found in the text."""
        return text if self.marks is None else self.marks.hide(text)

    def show(self, text: str) -> str:
        return text if self.marks is None else self.marks.show(text)

    def opened(self, opening: str, closing: str) -> bool:
        """True if the answer continues a region that this mark opened."""
        if self.begun is None:
            return self.prompt.rstrip().endswith(opening)
        _, found, after = self.begun.rpartition(opening)
        return bool(found) and closing not in after


@dataclass(frozen=True)
class Format:
    """Text with marked parts: `thinking`, marks around reasoning, and `calls`, what opens a call
    and what reads it. `ends` are marks that mean nothing."""

    thinking: tuple[str, str] | None = None
    calls: Mapping[str, Body] = field(default_factory=dict)
    ends: Sequence[str] = ()

    def read(self, sink: Sink, context: ParserContext) -> Reader:
        calls = self.calls if context.tools else {}
        opening, closing = self.thinking or ("", "")
        readers = {context.hide(mark): read for mark, read in calls.items()}
        ends = [context.hide(mark) for mark in self.ends]
        if context.marks is not None:  # text that spells one is text
            ends = [end for end, mark in zip(ends, self.ends) if end != mark]
        read = ""
        if opening and context.opened(opening, closing):
            yield from self._think(sink, context.hide(closing))
        elif opening:
            read, thinks = yield from beginning(context.hide(opening))
            if thinks:
                read = ""
                yield from self._think(sink, context.hide(closing))
        while True:
            found = yield from until([*readers, *ends], sink.content, begun=read)
            read = ""
            if found == END:
                return
            if found in readers:
                yield from readers[found](sink, context)

    @staticmethod
    def _think(sink: Sink, closing: str) -> Reader:
        sink.border()
        yield from until([closing], sink.reasoning)
        sink.border()


def tagged(opening: str, closing: str) -> dict[str, Body]:
    """A JSON object between marks: Qwen's and Hermes' <tool_call>."""

    def body(sink: Sink, context: ParserContext) -> Reader:
        call = CallObject(sink)
        mark = context.hide(closing)
        found = yield from until([mark], call.push, lambda: not call.in_string)
        if call.finish(bare=True):
            sink.border()
        else:
            sink.content(opening + "".join(call.text) + found)

    return {opening: body}


def functions_of_xml(sink: Sink, context: ParserContext) -> Reader:
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>, as
    Qwen3-Coder writes it. A value is text unless the tool's schema says otherwise."""
    parts: list[str] = []
    found = yield from until([context.hide("</tool_call>")], parts.append)
    _whole(sink, "<tool_call>", "".join(parts), found, xml_arguments, context)


def tagged_gemma(opening: str, closing: str, quote: str) -> dict[str, Body]:
    """call:NAME{key:value} between marks, texts between `quote`s: Gemma 4 and FunctionGemma."""

    def body(sink: Sink, context: ParserContext) -> Reader:
        parts: list[str] = []
        found = yield from until([context.hide(closing)], parts.append)
        text = "".join(parts)
        _whole(sink, opening, text, found, lambda t, _: gemma_arguments(t, quote), context)

    return {opening: body}


def _whole(
    sink: Sink,
    opening: str,
    text: str,
    closing: str,
    parse: Callable[[str, Mapping[str, Any]], tuple[str, str] | None],
    context: ParserContext,
) -> None:
    """A call that is understood only when it is whole."""
    call = parse(context.show(text), context.tools) if closing else None
    if call is None:
        sink.content(opening + text + closing)
        return
    sink.start(call[0])
    sink.arguments(call[1])
    sink.border()


def mistral(sink: Sink, context: ParserContext) -> Reader:
    """After [TOOL_CALLS]: a list of JSON objects, or a name, perhaps [CALL_ID] and an id, [ARGS],
    and the arguments' object."""
    header: list[str] = []
    blank = True
    c = yield None
    while c != END and c != "{" and not (c == "[" and blank):
        header.append(c)
        blank = blank and c.isspace()
        c = yield None
    text = "".join(header)
    if c == "[":
        yield from _list(sink, f"[TOOL_CALLS]{text}[")
        return
    name = text.split(context.hide("[CALL_ID]"))[0].split(context.hide("[ARGS]"))[0].strip()
    if c == END or not name or any(letter.isspace() for letter in name):
        sink.content(f"[TOOL_CALLS]{text}{c}")
        return
    sink.start(name)
    yield from _object(c, sink.arguments)
    sink.border()


def _object(first: str, take: Callable[[str], None]) -> Reader:
    """A JSON value in brackets, of which `first` is the first."""
    from weft.serve.toolcalls.json_call import JsonScanner

    value, c = JsonScanner(), first
    while c != END:
        value.push(c)
        take(c)
        if value.over:
            return
        c = yield None


def _list(sink: Sink, opening: str) -> Reader:
    """Reads JSON objects up to a closing bracket; anything else ends the list and is text."""
    calls, before = 0, [opening]  # the characters since the last call
    while True:
        c = yield None
        if c != END and (c == "," or c.isspace()):
            before.append(c)
            continue
        if c != "{":
            sink.border() if calls else None
            if c != "]" or not calls:
                sink.content("".join(before) + c)
            return
        call = CallObject(sink)
        yield from _object(c, call.push)
        if not call.finish(bare=True):
            sink.content("".join([*before, *call.text]))
            return
        calls, before = calls + 1, []


def llama(sink: Sink, context: ParserContext) -> Reader:
    """A whole answer that is {"name": ..., "parameters": {...}}, after <|python_tag|> or not; more
    of them after semicolons. Anything else is text."""
    tag, spaces = context.hide("<|python_tag|>"), list[str]()
    c = yield None
    while c != END and c.isspace():
        spaces.append(c)
        c = yield None
    space, held = "".join(spaces), ""
    while c != END and context.tools and tag.startswith(held + c):
        held, c = held + c, (yield None)
        if held == tag:
            break
    tagged_by = held if held == tag else ""
    while tagged_by and c != END and c.isspace():
        held, c = held + c, (yield None)
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
        before = ""
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


def harmony(sink: Sink, context: ParserContext) -> Reader:
    """gpt-oss: messages of a channel each. analysis is reasoning, commentary to=functions.NAME a
    call, everything else is said to the user. A header that ends nowhere is text."""
    message, *stops = (context.hide(f"<|{m}|>") for m in HARMONY)
    prompt = context.prompt if context.begun is None else context.begun
    if prompt.endswith("<|message|>"):  # the prompt has written a header
        at = prompt.rfind("<|channel|>")
        header, found = prompt[at + len("<|channel|>") : -len("<|message|>")], message
    else:
        header, found = "", stops[3]
    marked = False  # True once the answer has had a mark
    while True:
        if found != message:
            parts = [header]
            found = yield from until((message, *stops[:3]), parts.append)
            header = context.show("".join(parts))
            marked |= found != END or "<|" in header
            if found != message:
                shown = header if not (marked and _is_header(header)) else ""
                sink.content(shown)
                if found == END:
                    return
                header = ""
                continue
        marked = True
        take, call = _channel(sink, header)
        found = yield from until(stops, take)
        if call or take is sink.reasoning:
            sink.border()
        if found == END:
            return
        header = ""


HARMONY = ("message", "end", "call", "return", "start", "channel")


def _is_header(text: str) -> bool:
    """True if the text only names a speaker and a channel."""
    words = text.replace("<|channel|>", " ").replace("<|start|>", " ").replace("<|constrain|>", " ")
    known = {"assistant", "analysis", "commentary", "final", "json"}
    return all(w in known or w.startswith("to=") for w in words.split())


def _channel(sink: Sink, header: str) -> tuple[Callable[[str], None], bool]:
    """The function that takes the text of a message, and True if the message is a call."""
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
