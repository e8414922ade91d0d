"""The settings of a speech model's author, and the rules of timestamps for its next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.core.records import dataclass
from weft.importers.hf_config import Fields, read_object
from weft.models.arch.seq2seq_config import Seq2SeqConfig

NAME = "generation_config.json"
STEP = 0.02  # seconds between timestamps
TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class SpeechSettings:
    """Special ids and what generation_config.json says of them. Ids from `times` on are
    timestamps."""

    start: int
    end: int
    no_times: int
    languages: Mapping[str, int]  # code -> id
    tasks: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    latest_first: int | None  # the greatest number of a first timestamp
    previous: int | None  # the id before the text so far
    heads: tuple[tuple[int, int], ...]
    longest: int  # tokens without those before them

    @property
    def times(self) -> int:
        return self.no_times + 1

    @property
    def silence(self) -> int:
        """The id of silence: no speech in the window."""
        return self.no_times - 1


def read_settings(folder: Path, c: Seq2SeqConfig) -> SpeechSettings:
    """Reads a folder's generation_config.json. Raises ModelError, FileFormatError."""
    path = folder / NAME
    if not path.exists():
        raise ModelError(f"{path} is missing; a speech model's ids of timestamps are there")
    f, top = Fields(read_object(path), str(path)), c.vocab - 1
    ends = f.data.get("eos_token_id")
    f = f.over({"eos_token_id": ends[0] if isinstance(ends, list) and ends else ends})
    heads = f.data.get("alignment_heads")
    return SpeechSettings(
        start=f.integer("decoder_start_token_id", 0, top, c.start_id),
        end=f.integer("eos_token_id", 0, top, c.end_ids[0] if c.end_ids else 0),
        no_times=f.integer("no_timestamps_token_id", 1, top - 1),
        languages={k.strip("<|>"): v for k, v in _ids_by_name(f, "lang_to_id", top).items()},
        tasks=_ids_by_name(f, "task_to_id", top),
        suppressed=_ids(f, "suppress_tokens", top),
        suppressed_first=_ids(f, "begin_suppress_tokens", top),
        latest_first=f.integer("max_initial_timestamp_index", 0, 1 << 16, None),
        previous=f.integer("prev_sot_token_id", 0, top, None),
        heads=_heads(f, heads, c) if heads else _upper_half(c),
        longest=f.integer("max_length", 1, 1 << 20, c.max_positions),
    )


def _ids(f: Fields, name: str, top: int) -> tuple[int, ...]:
    found = f.data.get(name) or []
    if not isinstance(found, list):
        raise ModelError(f"{f.where}: {name} is {str(found)[:60]!r}; expected a list of ids")
    return tuple(f.over({name: each}).integer(name, -1, top) for each in found)


def _ids_by_name(f: Fields, name: str, top: int) -> dict[str, int]:
    found = f.data.get(name) or {}
    if not isinstance(found, dict):
        raise ModelError(f"{f.where}: {name} is {str(found)[:60]!r}; expected ids by name")
    return {str(k): f.over({name: v}).integer(name, 0, top) for k, v in found.items()}


def _heads(f: Fields, found: object, c: Seq2SeqConfig) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((int(a), int(b)) for a, b in found)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        pairs = ((-1, -1),)
    if not all(0 <= a < c.layers and 0 <= b < c.heads for a, b in pairs):
        raise ModelError(
            f"{f.where}: alignment_heads is {str(found)[:60]}; expected pairs of a layer below "
            f"{c.layers} and a head below {c.heads}"
        )
    return pairs


def _upper_half(c: Seq2SeqConfig) -> tuple[tuple[int, int], ...]:
    return tuple((i, h) for i in range(c.layers // 2, c.layers) for h in range(c.heads))


def language_id(s: SpeechSettings, language: str) -> int:
    """Returns the id of a language by its code ("de"). Raises UsageError."""
    code = str(language).lower().strip("<|>")
    if code not in s.languages:
        known = ", ".join(sorted(s.languages)) or "none: the model knows one language"
        raise UsageError(f"language is {language!r:.40}; this model has: {known}")
    return s.languages[code]


def allowed(s: SpeechSettings, logits: np.ndarray, made: Sequence[int], timed: bool) -> np.ndarray:
    """Returns logits [vocab] with -inf for tokens that may not follow `made`, the tokens so far of
    this window (transformers' SuppressTokens and WhisperTimeStampLogitsProcessor)."""
    x = logits.astype(np.float32)
    if not made:
        x[list(s.suppressed_first)] = -np.inf
    if s.suppressed:
        x[[i for i in s.suppressed if i >= 0]] = -np.inf
    if not timed:
        return x
    x[s.no_times] = -np.inf
    _paired(s, x, made)
    if not made:
        x[: s.times] = -np.inf
        if s.latest_first is not None:
            x[s.times + s.latest_first + 1 :] = -np.inf
    # A timestamp follows where all of them together are likelier than any other token.
    best = x.max()
    if np.isfinite(best):
        together = np.log(np.exp(x[s.times :] - best).sum() or 1e-45)
        if together > x[: s.times].max() - best:
            x[: s.times] = -np.inf
    return x


def _paired(s: SpeechSettings, x: np.ndarray, made: Sequence[int]) -> None:
    """Allows timestamps in pairs, that never go back, or one before the end."""
    last = len(made) >= 1 and made[-1] >= s.times
    before = len(made) < 2 or made[-2] >= s.times
    if last:
        if before:
            x[s.times :] = -np.inf
        else:
            x[: s.end] = -np.inf
    times = [i for i in made if i >= s.times]
    if times:
        x[s.times : times[-1] + (0 if last and not before else 1)] = -np.inf
