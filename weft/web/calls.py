"""The form of a model's calls of tools, as data for pages (js/toolcalls.js). The formats are the
server's own table, and the chat template gives the form of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from weft.core.errors import ModelError, UsageError
from weft.models.text.tokenizer import Tokenizer
from weft.serve.forcing import reads
from weft.serve.toolcalls.choose import FORMATS, MARKS, Maker, choose
from weft.serve.toolcalls.formats import Format
from weft.serve.toolcalls.written import Render, call_form


def page_calls(tokenizer: Tokenizer, eos: Iterable[int]) -> dict[str, Any]:
    """The format of the calls of a model whose answers end by `eos`. A format that pages do not
    read has its name alone; `form` is None where no call can be asked for."""
    try:
        name, maker = choose(tokenizer)
    except ModelError:  # a response_template that weft does not read
        return {"format": "template"}
    if name == "template":
        return {"format": name}
    ends = [tokenizer.decode([i], skip_special=False) for i in eos]
    marks = {text: i for i, text in maker.marks.ids.items()}
    found = described(name)
    found["ends"] = [end for end in found["ends"] if end in marks]
    return found | {"marks": marks, "form": _form(tokenizer, maker, ends)}


def described(name: str) -> dict[str, Any]:
    """A format of the server's table as data: the marks of reasoning, of a call, and those that
    mean nothing."""
    made: dict[str, Any] = {"format": name, "thinking": None, "opening": None, "ends": []}
    table = getattr(FORMATS[name][0], "__self__", None)
    if isinstance(table, Format):
        opening = next(iter(table.calls), None)
        made |= {"thinking": table.thinking, "opening": opening, "ends": [*table.ends]}
        pairs = (("<", "</"), ("<|", "<"), ("start", "end"))  # </a>, <a|>, <end_a>
        found = [(opening or "").replace(*pair, 1) for pair in pairs]
        found[1] = found[1].replace(">", "|>")
        closing = next((end for end in found if end != opening and end in MARKS[name]), None)
        made |= {} if closing is None else {"closing": closing}
    return made


def _form(tokenizer: Tokenizer, maker: Maker, ends: Iterable[str]) -> dict[str, Any] | None:
    template, special = tokenizer.chat_template(), tokenizer.special_tokens
    render: Render = lambda messages, begin: template.render(messages, begin, special, {})  # noqa: E731
    try:
        form = call_form(render, [end for end in ends if end])
    except (UsageError, ModelError):
        return None
    return asdict(form) if reads(maker, maker.marks, form) else None
