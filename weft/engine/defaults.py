"""The author's advice on how to sample from a model, which callers may override field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.engine.sampler import MOST_ADDED, Sampling

_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_DRAWN = ("top_k", "top_p", "min_p")  # fields without effect at temperature 0


@dataclass(frozen=True)
class GenerationDefaults:
    """Settings for what neither the user nor the request says. None or (): the author says nothing.

    `suppressed` are ids that shall not be chosen. `max_new_tokens` limits answers; `max_length`
    limits prompt and answer together. `stop` strings end an answer. `where` names the file.
    """

    where: str = ""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    suppressed: tuple[int, ...] = ()
    max_new_tokens: int | None = None
    max_length: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of Sampling that the author gives."""
        return {n: value for n in _FIELDS if (value := getattr(self, n)) is not None}

    def sampling(self, given: Mapping[str, Any], usual: Mapping[str, Any] = {}) -> Sampling:
        """Returns the Sampling from the fields that the caller gives, then the author's, then the
        `usual` ones; None counts as not given. Raises UsageError for values out of range."""
        first, last = ({k: v for k, v in x.items() if v is not None} for x in (usual, given))
        made = first | self.settings | last
        if self.suppressed:
            banned = dict.fromkeys(self.suppressed, -MOST_ADDED)
            made["logit_bias"] = banned | dict(Sampling(**made).logit_bias)
        return Sampling(**made)

    def limit(self, prompt: int, given: int | None, usual: int | None = None) -> int | None:
        """Returns how many new tokens may follow a prompt of this many: as the caller says, the
        author's max_new_tokens, or the `usual` number within the author's max_length (None: no
        limit). Raises UsageError for a prompt that leaves no room in max_length."""
        if given is not None or self.max_new_tokens is not None:
            return self.max_new_tokens if given is None else given
        if self.max_length is None:
            return usual
        room = self.max_length - prompt
        if room < 1:
            raise UsageError(
                f"the prompt has {prompt} tokens; {self.where} has max_length {self.max_length} "
                "for prompt and answer together: give a number of new tokens"
            )
        return room if usual is None else min(room, usual)

    def told(self, given: Mapping[str, Any] = {}, usual: Mapping[str, Any] = {}) -> str:
        """Returns the author's settings as text: "temperature 0.6, top_p 0.95", or "" if there are
        none. Settings that the caller gives, or without effect, are left out."""
        names = [*_FIELDS, "max_new_tokens", "max_length"]
        temperatures = (each.get("temperature") for each in (given, vars(self), usual))
        if not next((t for t in temperatures if t is not None), 0.0):
            names = [name for name in names if name not in _DRAWN]
        if given.get("max_new_tokens", self.max_new_tokens) is not None:
            names.remove("max_length")
        values = {name: getattr(self, name) for name in names if given.get(name) is None}
        said = [f"{name} {value:g}" for name, value in values.items() if value is not None]
        if self.suppressed:
            said.append(f"{len(self.suppressed)} suppressed tokens")
        if self.stop and not given.get("stop"):
            said.append(f"stop strings {', '.join(map(repr, self.stop))}"[:80])
        return ", ".join(said)


NO_DEFAULTS = GenerationDefaults()
