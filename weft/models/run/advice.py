"""The use of the author's settings for generating, where the caller gives none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.core.notices import say
from weft.hub.names import name_of

if TYPE_CHECKING:
    from weft.models.run.generating import Generating

NEW_TOKENS = 64  # of an answer, if neither the caller nor the model's author says a number


def say_defaults(model: Generating, given: Mapping[str, Any]) -> None:
    """Gives a notice, once, of the author's settings that take effect; `given` are the caller's."""
    told = model.defaults.told(given)
    if told:
        say(f"{name_of(model.folder)}: sampling as {model.defaults.where} says: {told}")
