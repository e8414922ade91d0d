"""Decodes the tokens of an answer one by one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.models.text.tokenizer import Tokenizer


class StreamDecoder:
    """Incremental decoding: text is returned as soon as it can no longer change.

    A character spread over several tokens shows as U+FFFD at the end until it is complete. Up to
    three such signs (as many as a character of four bytes can lack) are held back. Decoding starts
    a few tokens back. Some tokenizers drop a leading space at the start of a text; this keeps them
    from dropping it in the middle. The pieces and the final `flush` join to the whole.
    """

    _HELD = 3

    def __init__(self, tokenizer: Tokenizer, special: bool = False) -> None:
        self._tokenizer, self._skip = tokenizer, not special
        self._ids: list[int] = []
        self._context = 0  # ids from here on are decoded together
        self._done = 0  # ids before here end in whole characters, all returned
        self._sent = 0  # characters of the decoded part that were returned
        self._before = 0  # characters returned before the decoded part
        self._pending = ""  # the decoded part before the last token, if its end is incomplete
        self.start = 0  # start of the last token's text, in characters of the whole text

    def push(self, token: int) -> str:
        """Returns the text that `token` completes; "" while a character is incomplete."""
        if type(token) is not int or not 0 <= token < 1 << 32:
            (token,) = valid([token])
        self._ids.append(token)
        now = self._text(self._context)
        whole = len(now.rstrip("\ufffd"))
        self.start = self._before + self._start(now, whole)
        self._pending = now if whole < len(now) else ""
        if whole == len(now):
            new = self._take(now, whole)
            if new:  # nothing is pending, so later texts need only this much context
                total = self._before + self._sent
                self._context, self._done = self._done, len(self._ids)
                self._sent = self._length()
                self._before = total - self._sent
            return new
        # Signs from the tokens after the last whole character. Tokenizers with byte fallback mark a
        # whole run of bytes, including good ones before the broken one.
        pending = self._text(self._done)
        broken = len(pending) - len(pending.rstrip("\ufffd")) > self._HELD
        return self._take(now, len(now) - self._HELD if broken else whole)

    def flush(self) -> str:
        """Returns the text still held back; incomplete bytes become U+FFFD."""
        now = self._text(self._context)
        return self._take(now, len(now))

    def _start(self, now: str, whole: int) -> int:
        """Returns where the last token's text begins in the decoded part: after the incomplete
        characters that it shows to be broken."""
        if whole < len(now) or not self._pending:
            return self._sent
        same = next((i for i, (a, b) in enumerate(zip(self._pending, now)) if a != b), None)
        return max(min(len(self._pending), len(now)) if same is None else same, self._sent)

    def _text(self, start: int) -> str:
        return self._tokenizer.decoded(self._ids[start:], self._skip)

    def _length(self) -> int:
        """Returns the length of the part that is decoded; it is most often one token again."""
        ids = self._ids[self._context :]
        if len(ids) == 1:
            return self._tokenizer.length(ids[0], self._skip)
        return len(self._tokenizer.decoded(ids, self._skip))

    def _take(self, now: str, stop: int) -> str:
        new = now[self._sent : stop]
        self._sent = max(self._sent, stop)
        return new


def valid(ids: Sequence[int]) -> list[int]:
    """Returns ids as plain integers. Raises UsageError for those that cannot be ids."""
    try:
        plain = [index(i) for i in ids]
    except TypeError as e:
        raise UsageError(f"token ids must be whole numbers: {e}") from None
    if plain and not 0 <= min(plain) <= max(plain) < 1 << 32:
        raise UsageError(f"token ids go from 0 to 2^32 - 1, got {min(plain)} to {max(plain)}")
    return plain
