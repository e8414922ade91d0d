"""Values of fields that several protocols have: what is allowed, and what names the field where it
is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.engine.sampler import Sampling, check_seed
from weft.serve.wire import HttpError

MAX_STOPS = 16
MAX_LOGPROBS = 20


def between(field: str, value: float | None, low: float, high: float) -> None:
    """Raises HttpError for a value outside of [low, high]."""
    if value is not None and not low <= value <= high:
        raise HttpError(400, f"{field} is {value}; expected {low} to {high}", field)


def seed_of(seed: int | None) -> int | None:
    """A seed from 0 to 2^64 - 1; negative ones count from its end. Raises HttpError."""
    if seed is None:
        return None
    try:
        check_seed(seed % (1 << 64) if seed < 0 else seed)
    except UsageError as e:
        raise HttpError(400, str(e), "seed") from None
    return seed % (1 << 64)


def sampling(**given: Any) -> Sampling:
    """The Sampling with the given fields; None counts as left out. Raises HttpError."""
    try:
        return Sampling(**{name: value for name, value in given.items() if value is not None})
    except UsageError as e:
        raise HttpError(400, str(e), str(e).split(" ")[0]) from None


def stops(given: str | Sequence[str] | None, field: str = "stop") -> tuple[str, ...]:
    """Stop strings. Raises HttpError for too many, too long or empty ones."""
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > MAX_STOPS or any(not 0 < len(s) <= 1024 for s in found):
        raise HttpError(
            400, f"{field} holds at most {MAX_STOPS} texts of 1 to 1024 characters", field
        )
    return found


def tops(given: int | None, field: str) -> int | None:
    """The number of most probable tokens that the answer lists. Raises HttpError."""
    between(field, given, 0, MAX_LOGPROBS)
    return given
