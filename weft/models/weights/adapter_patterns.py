"""Numbers by layer in adapter_config.json: rank_pattern and alpha_pattern.

A key is a name, the end of a name, or a regular expression of either, as in PEFT. Files are data
from a stranger, so only expressions that match in little time are taken: without a repeated group,
and with few repetitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields

_LENGTH, _REPEATS, _KEYS = 200, 3, 4096
_TAKEN = re.compile(r"(?:[\w.^$|()\[\],*+?-]|\\[.dw])+")


@dataclass(frozen=True)
class Patterns:
    """Numbers by pattern; the first pattern that matches a layer's name, or its end after a dot,
    counts."""

    values: tuple[tuple[re.Pattern[str], float], ...] = ()

    @classmethod
    def read(cls, given: Fields, name: str) -> Patterns:
        """Reads a field. Raises ModelError for an expression that weft does not take, and for a
        number out of range."""
        section = given.section(name)
        if section is None:
            return cls()
        if len(section.data) > _KEYS:
            raise ModelError(f"{given.where}: {name} holds {len(section.data)} names")
        made: list[Any] = []
        for key in section.data:
            if name == "rank_pattern":
                number = section.integer(key, 1, 1 << 14)
            else:
                number = section.number(key, 0.0, 1e9)
            made.append((_compiled(given, name, key), number))
        return cls(tuple(made))

    def value(self, layer: str, usual: Any) -> Any:
        """Returns the number of a layer, or `usual`."""
        ends = [layer[m.end() :] for m in re.finditer(r"\.", layer)]
        for pattern, number in self.values:
            if any(pattern.fullmatch(end) for end in (layer, *ends)):
                return number
        return usual


def _compiled(given: Fields, name: str, key: str) -> re.Pattern[str]:
    repeats = len(re.findall(r"[*+?]", key))
    plain = re.fullmatch(r"[\w.]+", key)
    if plain or (
        len(key) <= _LENGTH and _TAKEN.fullmatch(key) and repeats <= _REPEATS
        and not re.search(r"\)[*+?]|\(\?", key)
    ):  # fmt: skip
        try:
            return re.compile(key)
        except re.error:
            pass
    raise ModelError(
        f"{given.where}: {name} holds {key[:60]!r}; expected names of layers, or expressions with "
        f"at most {_REPEATS} repetitions and no repeated group"
    )
