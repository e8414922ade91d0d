"""The times of words: dynamic time warping over the cross attention of chosen heads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from weft.audio.align import token_frames
from weft.models.run.hearing import Feed
from weft.models.run.speech_rules import STEP
from weft.models.run.transcript import Word

if TYPE_CHECKING:
    from weft.models.run.whisper import Whisper

_BEFORE = "\"'“¡¿([{-"
_AFTER = "\"'.。,，!！?？:：”)]}、"
_SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}
_UNKNOWN = "\ufffd"


def words_of(
    model: Whisper, begin: Sequence[int], tokens: Sequence[int], frames: int, at: float
) -> Generator[Feed, Any, list[Word]]:
    """Returns the words of a segment with their times; the window of `frames` that it is in, which
    the work's slot holds, begins at `at` seconds. `begin` are the window's first special tokens."""
    s, tokenizer = model.settings, model.need_tokenizer("words need one")
    text = [t for t in tokens if t < s.times and t != s.end]
    if not text:
        return []
    first = [t for t in begin if t != s.no_times] + [s.no_times]
    ids = [*first, *text, s.end][: model.config.max_positions]
    _, maps = yield Feed(ids, 0, [], s.heads)
    assert maps is not None
    starts = token_frames(maps[:, len(first) - 1 : -1, : max(1, frames // 2)])
    times = [at + STEP * int(i) for i in starts]
    code = next((k for k, v in s.languages.items() if v in begin), "en")
    out, k = [], 0
    for word, count in grouped(tokenizer.decode, text, code not in _UNSPACED):
        if k + count < len(times):
            out.append(Word(word, times[k], times[k + count]))
        k += count
    return out


def grouped(
    decode: Callable[[list[int]], str], tokens: Sequence[int], spaced: bool
) -> list[tuple[str, int]]:
    """Returns the words of tokens, and how many tokens each has; a sign belongs to the word before
    or after it."""
    parts: list[tuple[str, int]] = []
    now: list[int] = []
    for token in tokens:
        now.append(token)
        text = decode(now)
        if _UNKNOWN not in text or len(now) > 8:
            parts.append((text, len(now)))
            now = []
    if now:
        parts.append((decode(now), len(now)))
    words: list[tuple[str, int]] = []
    for text, count in parts:
        alone = text.startswith(" ") or text.strip() in _SIGNS
        if not words or not spaced or alone:
            words.append((text, count))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + count
    return _with_signs(words)


def _with_signs(words: list[tuple[str, int]]) -> list[tuple[str, int]]:
    out: list[tuple[str, int]] = []
    held: tuple[str, int] = ("", 0)
    for text, count in words:
        if text.startswith(" ") and text.strip() and text.strip() in _BEFORE:
            held = held[0] + text, held[1] + count
        elif out and not held[1] and text in _AFTER and not out[-1][0].endswith(" "):
            out[-1] = out[-1][0] + text, out[-1][1] + count
        else:
            out.append((held[0] + text, held[1] + count))
            held = "", 0
    return [*out, held] if held[1] else out
