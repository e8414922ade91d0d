"""Reads the author's advice on sampling in generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import listed, say, say_unknown
from weft.engine.defaults import NO_DEFAULTS, GenerationDefaults
from weft.engine.sampler import PENALTIES
from weft.importers.hf_config import Fields, read_object
from weft.models.arch.inert_fields import GENERATION, UNFOLLOWED

NAME = "generation_config.json"
_TOKENS = ("eos_token_id", "bos_token_id", "pad_token_id")  # models.text.token_ids reads them
_READ = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens",
    "max_length", "suppress_tokens", "bad_words_ids", "stop_strings",
)  # fmt: skip
_HOTTEST = 1e4
_LONGEST = 1 << 31
_STOPS, _STOP = 16, 1024  # strings, and characters in each


def read_defaults(folder: Path, vocab: int) -> GenerationDefaults:
    """Returns the settings in a folder's generation_config.json, and names those that weft does not
    follow. `do_sample` false means temperature 0; true means 1 if the file lacks a temperature.
    Raises ModelError and FileFormatError, which name the file and the field."""
    path = folder / NAME
    if not path.exists():
        return NO_DEFAULTS
    c = Fields(read_object(path), str(path))
    made = sampling_of(c, vocab)
    suppressed, longer = _suppressed(c, vocab)
    _say_others(c, {"bad_words_ids": longer} if longer else {})
    return GenerationDefaults(
        NAME, **made, suppressed=suppressed, stop=_stops(c),
        max_new_tokens=c.integer("max_new_tokens", 1, _LONGEST, None),
        max_length=c.integer("max_length", 1, _LONGEST, None),
    )  # fmt: skip


def sampling_of(c: Fields, vocab: int) -> dict[str, Any]:
    """Returns the fields of GenerationDefaults about drawing one token. Raises ModelError."""
    temperature = c.number("temperature", 0.0, _HOTTEST, None)
    draws = c.flag("do_sample", None)
    if draws is False:
        temperature = 0.0
    elif draws and temperature is None:
        temperature = 1.0
    top_k, top_p = c.integer("top_k", -1, 1 << 31, None), c.number("top_p", 0.0, 1.0, None)
    if top_p == 0.0:
        raise ModelError(f"{c.where}: {c.name('top_p')} is 0; expected more than 0, at most 1")
    return {
        "temperature": temperature,
        "top_k": None if top_k is None else min(max(top_k, 0), vocab),  # -1 is off too
        "top_p": top_p,
        "min_p": c.number("min_p", 0.0, 1.0, None),
        "repetition_penalty": c.number("repetition_penalty", *PENALTIES, None),
    }


def _suppressed(c: Fields, vocab: int) -> tuple[tuple[int, ...], list[object]]:
    """Returns the ids that shall not be chosen, and the bad words of several tokens."""
    ids = set(c.integers("suppress_tokens", 0, vocab - 1))
    words = c.data.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise ModelError(f"{c.where}: bad_words_ids is {words!r:.60}; expected lists of token ids")
    for word in words:
        if len(word) == 1:
            ids |= {
                *Fields({"bad_words_ids": word}, c.where).integers("bad_words_ids", 0, vocab - 1)
            }
    if len(ids) == vocab:
        raise ModelError(f"{c.where}: suppress_tokens leaves no token to choose")
    return tuple(sorted(ids)), [word for word in words if len(word) > 1]


def _stops(c: Fields) -> tuple[str, ...]:
    given = c.data.get("stop_strings")
    if isinstance(given, str):
        c = c.over({"stop_strings": [given]})
    stops = c.texts("stop_strings", _STOPS)
    if not all(0 < len(stop) <= _STOP for stop in stops):
        raise ModelError(
            f"{c.where}: stop_strings holds a text that is not 1 to {_STOP} characters"
        )
    return stops


def _say_others(c: Fields, more: dict[str, object]) -> None:
    """Names the settings that weft does not follow, and the fields that it does not know."""
    asked = {k: v for k, v in c.data.items() if v is not None and v not in UNFOLLOWED.get(k, ())}
    say_unfollowed(c.where, {k: v for k, v in asked.items() if k in UNFOLLOWED} | more)
    say_unknown(c.where, asked, UNFOLLOWED, GENERATION, _TOKENS, _READ)


def say_unfollowed(where: str, asked: Mapping[str, object]) -> None:
    """Names settings that weft does not follow, with their values."""
    said = [f"{name}={value!r}"[:60] for name, value in asked.items()]
    if said:
        say(f"{where}: asks for {listed(said)}, which weft does not follow")
