"""The marks of a format that a model's tokenizer has as tokens.

There the mark is that token alone: the same letters in a text are text. While an answer is read, a
character that no text contains represents each mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.engine.job import SampledToken

_FIRST = 0xDC00  # lone surrogates: decoding gives none
_MOST = 256


class Marks:
    """The marks among `tokens`, a vocabulary's added ones by their ids: those that occur in one of
    `texts`, which a format is written with."""

    def __init__(self, tokens: Mapping[int, str], texts: Iterable[str]) -> None:
        texts = list(texts)
        used = {i: token for i, token in tokens.items() if token and any(token in t for t in texts)}
        longest = sorted(set(used.values()), key=lambda token: (-len(token), token))[:_MOST]
        self._signs = {token: chr(_FIRST + n) for n, token in enumerate(longest)}
        self.ids = {i: token for i, token in used.items() if token in self._signs}
        self._texts = {sign: token for token, sign in self._signs.items()}
        self._find = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        last = chr(_FIRST + max(len(longest), 1) - 1)
        self._found = re.compile(f"[{chr(_FIRST)}-{last}]")

    def hide(self, text: str) -> str:
        """A text of a template or a format in which each mark becomes its sign."""
        return self._find.sub(lambda found: self._signs[found[0]], text)

    def show(self, text: str) -> str:
        """The text with each sign replaced by its mark."""
        return self._found.sub(lambda found: self._texts.get(found[0], found[0]), text)

    def hide_pattern(self, source: str) -> str:
        """A regular expression whose marks, however escaped, become signs."""
        for token, sign in self._signs.items():
            letters = [rf"(?:\\)?{re.escape(c)}" for c in token]
            source = re.sub("".join(letters), lambda _: sign, source)  # noqa: B023
        return source

    def read(self, text: str, at: int, tokens: Sequence[SampledToken]) -> str:
        """The text that `tokens` made, `text` from character `at` of the answer on, its marks as
        signs."""
        made, done = [], 0
        for token in tokens:
            mark, begin = self.ids.get(token.id), token.at - at
            if mark is None or begin < done or not text.startswith(mark, begin):
                continue
            made += [text[done:begin], self._signs[mark]]
            done = begin + len(mark)
        return "".join(made) + text[done:] if made else text


NONE = Marks({}, ())
