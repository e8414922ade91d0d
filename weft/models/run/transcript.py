"""The result of a speech model, and the cut of a window's tokens into segments."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import log2
from typing import Any, NamedTuple

from weft.models.run.speech_rules import STEP, SpeechSettings


class Word(NamedTuple):
    """A word; times are in seconds."""

    text: str
    start: float
    end: float


class Segment(NamedTuple):
    """The text between two times in seconds. `tokens` include timestamps; the other numbers
    are those of the window that it was in."""

    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None


class Transcript(NamedTuple):
    """A whole transcript; `language` is None for a model of one language, `duration` in seconds."""

    text: str
    language: str | None
    duration: float
    segments: list[Segment]
    task: str = "transcribe"

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object with OpenAI's names (verbose_json)."""
        pieces = []
        for i, each in enumerate(self.segments):
            piece = {"id": i, "seek": 0, **each._asdict()}
            piece["words"] = [w._asdict() for w in each.words or []]
            if each.words is None:
                del piece["words"]
            pieces.append(piece)
        return {
            "task": self.task, "language": self.language, "duration": self.duration,
            "text": self.text, "segments": pieces,
        }  # fmt: skip


def compression(tokens: Sequence[int], vocab: int) -> float:
    """Returns how many times smaller zlib makes the tokens; what repeats gives much."""
    size = int(log2(vocab) / 8) + 1
    data = b"".join(t.to_bytes(size, "little") for t in tokens)
    return len(data) / len(zlib.compress(data))


def pieces(
    s: SpeechSettings, tokens: Sequence[int], frames: int
) -> tuple[list[tuple[float, float, list[int]]], int]:
    """Cuts the tokens of a window of `frames` at pairs of timestamps. Returns start and end in
    seconds of the window and the tokens of each piece, and the frames after which the next window
    begins: what follows the last pair is heard again."""
    timed = [t >= s.times for t in tokens]
    cuts = [i + 1 for i in range(len(tokens) - 1) if timed[i] and timed[i + 1]]
    alone = timed[-2:] == [False, True]
    if not cuts:
        last = int(frames * 0.01 / STEP)
        stamps = [t - s.times for t, is_time in zip(tokens, timed) if is_time]
        last = stamps[-1] if stamps and stamps[-1] else last
        return [(0.0, last * STEP, list(tokens))], frames
    if alone:
        cuts.append(len(tokens))
    else:
        cuts[-1] += 1
    out, first = [], 0
    for cut in cuts:
        part = list(tokens[first:cut])
        end = part[-1] if cut != cuts[-1] or alone else part[-2]
        out.append(((part[0] - s.times) * STEP, (end - s.times) * STEP, part))
        first = cut
    return out, frames if alone else (tokens[first - 2] - s.times) * 2
