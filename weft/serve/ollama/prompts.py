"""Prompts of /api/generate: a turn of the model's template, a text as it is, or one with a gap to
fill in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.core.errors import WeftError
from weft.serve.chatting import AnswerOptions, Turn, begin, begin_ids, least, prompt_of, room
from weft.serve.choices import Choice
from weft.serve.infill import infill
from weft.serve.ollama.types import Generate
from weft.serve.pictures import content_of, from_text
from weft.serve.served import ServedDecoder
from weft.serve.wire import refusal


async def begun(
    model: ServedDecoder, body: Generate, options: AnswerOptions, variables: Mapping[str, Any]
) -> list[Choice]:
    """The choices of a request with a prompt, being made. With `truncate` the beginning of a prompt
    that is too long leaves it. Raises HttpError."""
    if model.recipe is not None:
        options = model.recipe.filled(options)
    text, cut = body.prompt or "", 0
    if body.suffix:
        prompt: _Prompt = _Gap(model, options, body.suffix)
    elif body.raw or not (body.system or _has_form(model)):
        prompt = _Plain(model, options)
    else:
        prompt = _Turned(model, options, body, variables)
    try:
        if body.truncate:
            most = room(model, options)

            async def fits(at: int) -> bool:
                return len(await prompt.ids(text[at:])) <= most

            cut = await least(range(len(text)), fits)
        made = await prompt.begin(text[cut:])
    except WeftError as e:
        raise refusal(e) from None
    for choice in made:
        choice.left = f"the first {cut} characters" if cut else ""
    return made


def _has_form(model: ServedDecoder) -> bool:
    """True if the model's prompts are more than their texts."""
    made = model.recipe
    return model.has_chat or bool(made is not None and (made.system or made.messages))


class _Prompt:
    """The way from a text to a prompt."""

    def __init__(self, model: ServedDecoder, options: AnswerOptions) -> None:
        self.model, self.options = model, options

    async def ids(self, text: str) -> Sequence[int]:
        """The prompt's tokens, even if the context does not hold them."""
        raise NotImplementedError

    async def begin(self, text: str) -> list[Choice]:
        """The answer's choices, being made."""
        raise NotImplementedError


class _Plain(_Prompt):
    """The text is the prompt."""

    async def ids(self, text: str) -> Sequence[int]:
        return (await self.model.encoded([text], unlimited=True))[0]

    async def begin(self, text: str) -> list[Choice]:
        return await begin_ids(self.model, await self.model.encoded([text]), self.options)


class _Gap(_Prompt):
    """The text precedes what is to be filled in."""

    def __init__(self, model: ServedDecoder, options: AnswerOptions, suffix: str) -> None:
        super().__init__(model, options)
        self.suffix = suffix

    async def ids(self, text: str) -> Sequence[int]:
        return (await infill(self.model, text, self.suffix, unlimited=True)).ids

    async def begin(self, text: str) -> list[Choice]:
        made = await infill(self.model, text, self.suffix)
        return await begin_ids(self.model, [made.ids], replace(self.options, stop_ids=made.ends))


class _Turned(_Prompt):
    """The text is what the user says in the model's template."""

    def __init__(
        self, model: ServedDecoder, options: AnswerOptions, body: Generate,
        variables: Mapping[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(model, options)
        self.body, self.variables = body, variables

    async def ids(self, text: str) -> Sequence[int]:
        return (await prompt_of(self.model, self._turn(text), unlimited=True))[1]

    async def begin(self, text: str) -> list[Choice]:
        return await begin(self.model, self._turn(text))

    def _turn(self, text: str) -> Turn:
        asked: dict[str, Any] = {"role": "user", "content": shown(text, self.body.images)}
        system = [{"role": "system", "content": self.body.system}] * bool(self.body.system)
        return Turn([*system, asked], self.options, self.variables)


def shown(text: str | None, images: Sequence[Any] | None) -> str | list[dict[str, Any]]:
    """The content of a message: text, after its pictures if there are any."""
    return content_of([*(from_text(one, "images") for one in images or ()), text or ""])
