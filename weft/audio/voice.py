"""Places where somebody may speak, by loudness alone, without a model; and cuts of a long sound.

Levels are decibels of the loudest mel of each frame. A frame counts as speech if it is above the
quietest tenth by a quarter of the way to the loudest twentieth, and at most 40 decibels below that.
Music and loud noise count too. A sound whose level hardly changes is kept whole.
"""

from __future__ import annotations

import numpy as np

CONTRAST = 10.0  # decibels between quiet and loud; with less, nothing is left out
BELOW = 40.0  # decibels below the loudest that may be speech
GAP, SHORT, PAD = 50, 10, 20  # frames: shorter pauses are closed, shorter sounds dropped; margins
SMOOTH = 20  # frames whose mean level is compared for a cut

Span = tuple[int, int]


def speech(levels: np.ndarray) -> list[Span]:
    """Returns the spans of frames in which somebody may speak, by levels float32 [frames]."""
    total = len(levels)
    quiet, loud = np.quantile(levels, (0.1, 0.95))
    if loud - quiet < CONTRAST:
        return [(0, total)]
    heard = levels > max(quiet + (loud - quiet) / 4, loud - BELOW)
    edges = np.flatnonzero(np.diff(heard, prepend=False, append=False))
    spans = _joined([(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])], GAP)
    wide = [(max(0, a - PAD), min(total, b + PAD)) for a, b in spans if b - a >= SHORT]
    return _joined(wide, 1)


def _joined(spans: list[Span], gap: int) -> list[Span]:
    """Joins spans with fewer than `gap` frames between them."""
    out: list[Span] = []
    for start, end in spans:
        if out and start - out[-1][1] < gap:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def passages(levels: np.ndarray, most: int, voiced: bool) -> list[Span]:
    """Cuts a sound into spans of `most` frames or fewer, at the quietest moment of the last third
    of each. `voiced` leaves out what is not speech, and keeps short pauses within a span."""
    spans = speech(levels) if voiced else [(0, len(levels))]
    pieces = [piece for span in spans for piece in _cut(levels, *span, most)]
    out: list[Span] = []
    for start, end in pieces:
        if out and end - out[-1][0] <= most:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def _cut(levels: np.ndarray, start: int, end: int, most: int) -> list[Span]:
    out = []
    while end - start > most:
        first = start + max(1, most * 2 // 3)
        near = levels[first : start + most]
        width = min(SMOOTH, len(near))
        level = np.convolve(near, np.ones(width) / width, "valid")
        cut = first + int(level.argmin()) + width // 2
        out.append((start, cut))
        start = cut
    return [*out, (start, end)]
