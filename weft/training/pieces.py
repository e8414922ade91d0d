"""Cuts long texts, so that the memory of a tokenizer is bounded whatever the length of a text.

A tokenizer takes about 80 bytes per character at once. Text is cut where no usual tokenizer joins
what stands on either side: between a line and the next. A piece is encoded after the last line
before it, whose tokens are then dropped, so that it begins as it does within its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from weft.models.text.tokenizer import Tokenizer

PIECE = 1 << 16  # characters of a piece, if a line ends soon after
_LINE = re.compile(r"(?<=\S)\n(?=\S)")  # a single line break
_WORD = re.compile(r"(?<=\S)(?= \S)")
_BEFORE = 256  # characters before a piece that are encoded with it, at most
_TOGETHER = 64, 4 * PIECE  # the most texts, and about the most characters, encoded together


def cuts(text: str, size: int = PIECE) -> list[int]:
    """Returns the places where a text is cut: the first line's end after `size` characters, a word
    if none follows soon, and any place in a run of twice that many without a space."""
    found, at = [], 0
    while len(text) - at > size:
        first, last = at + size, min(at + 2 * size, len(text))
        line = _LINE.search(text, first, last) or _WORD.search(text, first, last)
        at = line.end() if line else last
        if at < len(text):
            found.append(at)
    return found


def pieces_of(texts: Iterable[str]) -> Iterator[str]:
    """Yields each text in pieces."""
    for text in texts:
        ends = cuts(text)
        yield from (text[a:b] for a, b in zip([0, *ends], [*ends, len(text)]))


def encoded(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[tuple[list[int], bool]]:
    """Yields the ids of each text, in one or more parts; True with the last part of a text."""
    waiting: list[tuple[str, str, bool]] = []
    characters = 0
    for text in texts:
        ends = cuts(text)
        for a, b in zip([0, *ends], [*ends, len(text)]):
            waiting.append((_before(text, a), text[a:b], b == len(text)))
            characters += b - a
            if len(waiting) >= _TOGETHER[0] or characters >= _TOGETHER[1]:
                yield from _encoded(tokenizer, waiting)
                waiting, characters = [], 0
    yield from _encoded(tokenizer, waiting)


def _before(text: str, at: int) -> str:
    """Returns the end of what stands before a piece: its last line, if that is short."""
    if not at:
        return ""
    line = text.rfind("\n", max(at - _BEFORE, 0), at - 1) + 1
    return text[line or max(at - _BEFORE, 0) : at]


def _encoded(
    tokenizer: Tokenizer, parts: list[tuple[str, str, bool]]
) -> Iterator[tuple[list[int], bool]]:
    befores = tokenizer.encode_batch([before for before, _, _ in parts], special=False)
    wholes = tokenizer.encode_batch([b + piece for b, piece, _ in parts], special=False)
    for (_, piece, last), before, whole in zip(parts, befores, wholes):
        if whole[: len(before)] == before:
            yield whole[len(before) :], last
        else:  # a token reaches over the cut
            yield tokenizer.encode(piece, special=False), last
