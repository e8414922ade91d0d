"""Models that requests have made of served ones: another name, with a system prompt, parameters, a
template and turns of its own, over the same weights (Ollama's /api/create)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct

from weft.core.places import remove
from weft.host.files import write_bytes
from weft.serve.chatting import SYSTEM, AnswerOptions
from weft.serve.ollama.given import options_in
from weft.serve.ollama.go_template import parsed
from weft.serve.ollama.types import ModelOptions
from weft.serve.prints import digest_of
from weft.serve.served import Served, ServedDecoder
from weft.serve.wire import HttpError, mistaken

MAX_BYTES = 1 << 20  # of one file
MAX_RECIPES = 1000
MAX_FOLDER = 64 << 20  # bytes of all files
_END = ".model.json"

_log = logging.getLogger(__name__)


class RecipeMessage(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A turn that begins every conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Recipe(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A model called `name`, made of the served `base`. `parameters` are Ollama's options,
    `template` is a Go template ("": the base's own). Fields of a request win."""

    name: str
    base: str
    system: str = ""
    template: str = ""
    parameters: dict[str, Any] = {}
    messages: list[RecipeMessage] = []
    license: list[str] = []

    def check(self) -> None:
        """Raises HttpError and UsageError for parameters or a template that are not understood."""
        self._own()
        if self.template:
            parsed(self.template)

    def of(self, model: Served) -> Served:
        """The model as requests for this name see it. Raises HttpError for one that does not
        write."""
        if not isinstance(model, ServedDecoder):
            raise HttpError(
                400, f"{self.base} does not write texts: no model is made of it", "from"
            )
        made = copy.copy(model)
        made.name, made.recipe = self.name, self
        made.print = digest_of(model.print, msgspec.json.encode(self))
        if self.template:
            made.__dict__["has_chat"] = True

        def chat(
            messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], begin: bool = True
        ) -> str:
            said = self._before(messages)
            if self.template:
                return parsed(self.template).render(said, begin, {}, variables)
            return model.chat(said, variables, begin)

        made.chat = chat  # type: ignore[method-assign]
        return made

    def filled(self, options: AnswerOptions) -> AnswerOptions:
        """A request's options, and the parameters for what it leaves open."""
        own = self._own()
        given = {**own.sampling.given, **options.sampling.given}
        limits = own if options.max_new_tokens is None else options
        return replace(
            options,
            sampling=replace(options.sampling, given=given),
            seed=own.seed if options.seed is None else options.seed,
            stop=own.stop if options.stop is None else options.stop,
            context=own.context if options.context is None else options.context,
            max_new_tokens=limits.max_new_tokens, cut=limits.cut or options.cut,
        )  # fmt: skip

    def _own(self) -> AnswerOptions:
        try:
            given = msgspec.convert(self.parameters, ModelOptions)
        except msgspec.ValidationError as e:
            raise mistaken(e, ModelOptions, "parameters") from None
        given.refuse()
        return options_in(given)

    def _before(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """A conversation with what begins it: the request's own system prompt replaces this one's,
        which precedes the turns of the recipe."""
        first = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM), len(messages))
        system = messages[:first] or (
            [{"role": "system", "content": self.system}] * bool(self.system)
        )
        turns = [msgspec.structs.asdict(m) for m in self.messages]
        return [*system, *turns, *messages[first:]]


class RecipeFolder:
    """The recipes in a folder: a file each, written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Recipe]:
        """The recipes by name. The log names files that hold none."""
        made = {}
        for path in sorted(self.path.glob(f"*{_END}"))[:MAX_RECIPES]:
            try:
                if path.stat().st_size > MAX_BYTES:
                    raise ValueError(f"it has more than {MAX_BYTES} bytes")
                recipe = msgspec.json.decode(path.read_bytes(), type=Recipe)
                if path.name != _file(recipe.name):
                    raise ValueError(f"it is about {recipe.name!r:.60}")
                recipe.check()
                made[recipe.name] = recipe
            except Exception as e:
                _log.warning("%s is left out: %s", path, e)
        return made

    def write(self, recipe: Recipe) -> None:
        """Keeps a recipe. Raises HttpError where it is too large, OSError where the disk is
        full."""
        data = msgspec.json.encode(recipe)
        if len(data) > MAX_BYTES:
            raise HttpError(413, f"the model's texts have {len(data)} bytes; expected {MAX_BYTES}")
        others = [p for p in self.path.glob(f"*{_END}") if p.name != _file(recipe.name)]
        if sum(p.stat().st_size for p in others) + len(data) > MAX_FOLDER:
            raise HttpError(507, f"the models that were made take {MAX_FOLDER} bytes, as many as "
                            "may; delete one first")  # fmt: skip
        write_bytes(self.path / _file(recipe.name), data)

    def drop(self, name: str) -> None:
        """Forgets a recipe. Raises OSError."""
        remove(self.path / _file(name), self.path)


def _file(name: str) -> str:
    return quote(name, safe="") + _END
