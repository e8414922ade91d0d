"""Values of fields that several protocols have: what is allowed, and what names the field where it
is not."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core.errors import UsageError
from weft.engine.defaults import GenerationDefaults
from weft.engine.sampler import Sampling
from weft.serve.wire import HttpError

MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_SECONDS = 1e9


def between(field: str, value: float | None, low: float, high: float) -> None:
    """Raises HttpError for a value outside of [low, high]."""
    if value is not None and not low <= value <= high:
        raise HttpError(400, f"{field} is {value}; expected {low} to {high}", field)


def seed_of(seed: int | None) -> int | None:
    """A seed from 0 to 2^64 - 1; negative ones of 64 bits count from its end. Raises HttpError."""
    if seed is None:
        return None
    if not -(1 << 63) <= seed < 1 << 64:
        said = f"seed is {str(seed)[:40]}; expected an integer from -2**63 to 2**64 - 1"
        raise HttpError(400, said, "seed")
    return seed % (1 << 64)


@dataclass(frozen=True)
class SamplingRequest:
    """The fields of Sampling that a request gives, and the `usual` ones: what the protocol takes
    for fields that neither the request nor the model's author gives."""

    given: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})

    def under(self, defaults: GenerationDefaults) -> Sampling:
        """Returns the Sampling of the request to a model with these settings of its author."""
        return defaults.sampling(self.given, self.usual)


def sampling(usual: Mapping[str, Any] | None = None, **given: Any) -> SamplingRequest:
    """The fields that a request gives; None counts as left out. `usual`: see SamplingRequest.
    Raises HttpError."""
    given = {name: value for name, value in given.items() if value is not None}
    try:
        Sampling(**given)
    except UsageError as e:
        raise HttpError(400, str(e), str(e).split(" ")[0]) from None
    return SamplingRequest(given) if usual is None else SamplingRequest(given, usual)


def stops(given: str | Sequence[str] | None, field: str = "stop") -> tuple[str, ...] | None:
    """Stop strings; None if the request gives none. Raises HttpError for too many, too long or
    empty ones."""
    if given is None:
        return None
    found = (given,) if isinstance(given, str) else tuple(given)
    if len(found) > MAX_STOPS or any(not 0 < len(s) <= 1024 for s in found):
        raise HttpError(
            400, f"{field} holds at most {MAX_STOPS} texts of 1 to 1024 characters", field
        )
    return found


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"


def seconds_of(given: float | str | None, field: str) -> float | None:
    """Seconds from a number of them, or a duration like 5m or 1h30m as Go writes it. Raises
    HttpError, naming `field`."""
    if given is None:
        return None
    seconds = math.nan
    with contextlib.suppress(ValueError):
        seconds = float(given)
    text = str(given)
    if re.fullmatch(f"-?(?:{_PART})+", text):
        parts = re.findall(_PART, text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        seconds = -seconds if text.startswith("-") else seconds
    if not abs(seconds) <= MAX_SECONDS:
        raise HttpError(400, f"{field} is {text[:40]!r}; expected seconds, or a duration like 5m",
                        field)  # fmt: skip
    return seconds


def slot_of(given: int | None) -> int:
    """The slot that a conversation is kept under: the first where the request names none."""
    return max(given or 0, 0)


def tops(given: int | None, field: str) -> int | None:
    """The number of most probable tokens that the answer lists. Raises HttpError."""
    between(field, given, 0, MAX_LOGPROBS)
    return given
