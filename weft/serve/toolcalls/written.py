"""A model's own form of tool calls, learnt from its chat template. It renders a conversation with a
call; the text around the call's name and arguments is the form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.errors import UsageError

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""A conversation as the template writes it, and whether with what begins the next answer."""

NAME, IDS, TEXT = "weftname", ("weftcall1", "weftcall2"), "wefttext"
THOUGHT = "weftthought"
ARGUMENTS = {"weftkey": "weftvalue"}
_JSON = re.compile(r'\{\s*"weftkey"\s*:\s*"weftvalue"\s*\}')
_ASK = [{"role": "user", "content": "?"}]


@dataclass(frozen=True)
class CallForm:
    """`before` NAME `between` ARGUMENTS `after`: a call. Further ones: `joint` NAME `between`
    ARGUMENTS, before `after` (None: the template takes one call only). Ids of calls in these texts
    are those of IDS. `closing` ends reasoning, which `opening` begins ("": none is known); `gap` is
    the space after it."""

    before: str
    between: str
    after: str
    joint: str | None = None
    opening: str = ""
    closing: str = ""
    gap: str = ""

    @property
    def example(self) -> str:
        """A call as an answer writes it."""
        return f"{self.before}{NAME}{self.between}{json.dumps(ARGUMENTS)}{self.after}"


def call_form(render: Render, ends: Iterable[str]) -> CallForm:
    """The form of a template; `ends` are texts of tokens that end an answer. Raises UsageError
    where the template writes no JSON after a name, or refuses a call."""
    prompt = render(_ASK, True)
    closing, gap = closing_of(render)
    body = _body(render, prompt, 1)
    names, found = body.count(NAME), _JSON.search(body)
    if names != 1 or found is None or found.start() < body.index(NAME):
        raise UsageError("the model's chat template writes calls otherwise than as a name and JSON")
    before, between = body[: body.index(NAME)], body[body.index(NAME) + len(NAME) : found.start()]
    opening = ""
    if closing and closing in before:  # reasoning that is empty
        opening, before = before.split(closing, 1)
    after = body[found.end() :]
    for end in ends:
        after = after.split(end)[0]
    return CallForm(
        before.lstrip(), between, after.rstrip(), _joint(render, prompt), opening.strip(), closing,
        gap,
    )  # fmt: skip


def _body(render: Render, prompt: str, count: int) -> str:
    """The text of an answer with `count` calls, including its end."""
    calls = [
        {"id": i, "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}
        for i in IDS[:count]
    ]
    whole = render([*_ASK, {"role": "assistant", "content": "", "tool_calls": calls}], False)
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    said = render([*_ASK, {"role": "assistant", "content": TEXT}], False)
    header = said[: said.find(TEXT)] if TEXT in said else prompt
    if not whole.startswith(header):
        raise UsageError("the model's chat template changes what stands before a call")
    return whole[len(header) :]


def _joint(render: Render, prompt: str) -> str | None:
    """The text between the arguments of a call and the name of the next."""
    try:
        body = _body(render, prompt, 2)
    except UsageError:  # a template may take one call only
        return None
    found = _JSON.search(body)
    second = body.find(NAME, found.end()) if found is not None else -1
    return None if found is None or second < 0 else body[found.end() : second]


def closing_of(render: Render) -> tuple[str, str]:
    """The text that ends reasoning, and the space after it: both are between a thought and the text
    that follows."""
    message = {"role": "assistant", "content": TEXT, "reasoning_content": THOUGHT}
    text = render([*_ASK, message], False)
    begin, end = text.find(THOUGHT), text.find(TEXT)
    between = text[begin + len(THOUGHT) : end].lstrip() if 0 <= begin < end else ""
    return between.rstrip(), between[len(between.rstrip()) :]
