"""The growing text of one answer, held back where a stop string may be forming."""

from __future__ import annotations

from weft.engine.job import SampledToken, Texts, TextStream


class TextEnd:
    """The text of an answer up to its first stop string, which is not part of it. A token is sent
    with the text that it completes; without a text stream it is sent at once, without text."""

    def __init__(self, texts: Texts, stop: tuple[str, ...] = ()) -> None:
        self._texts, self._stop = texts, stop
        self._stream: TextStream | None = None
        self._begun = False
        self._held = ""
        self._told = 0  # number of characters that are final
        self._unsent: list[SampledToken] = []
        self.stopped: str | None = None  # the stop string that was found

    def read(self, token: int) -> tuple[str, int]:
        """Returns the text that a token completes, and where the token's text begins."""
        if not self._begun:  # only now, so that answers without text do not wait for a tokenizer
            self._stream, self._begun = self._texts(), True
        if self._stream is None:
            return "", 0
        at = self._told + len(self._held)
        new = self._stream.push(token)
        return new, getattr(self._stream, "start", at)

    def push(
        self, chosen: SampledToken, new: str, stops: bool = True
    ) -> tuple[str, tuple[SampledToken, ...]]:
        """Adds a token and the `new` text that was read of it. Returns the text that is now final,
        and its tokens. Stop strings are not looked for in the text so far unless `stops`."""
        self._unsent.append(chosen)
        if self._stream is None:
            return self._send("", True)
        return self._grow(new, False) if stops else self._send(new, False)

    def finish(self) -> tuple[str, tuple[SampledToken, ...]]:
        """Returns the rest when no more tokens follow."""
        rest = "" if self._stream is None or self.stopped is not None else self._stream.flush()
        return self._grow(rest, True)

    def _grow(self, new: str, last: bool) -> tuple[str, tuple[SampledToken, ...]]:
        if not self._stop:
            return self._send(new, last) if new or last else ("", ())
        whole = self._held + new
        found = [(at, s) for s in self._stop if (at := whole.find(s)) >= 0]
        if found and self.stopped is None:
            at, self.stopped = min(found)
            self._held = ""
            return self._send(whole[:at], True)
        size = len(whole) if last else self._whole_tokens(len(whole) - self._overlap(whole), whole)
        final, self._held = whole[:size], whole[size:]
        if not final and not last:
            return "", ()
        return self._send(final, last)

    def _whole_tokens(self, size: int, whole: str) -> int:
        """Returns the largest length, at most `size`, that no token reaches beyond."""
        if size == len(whole):
            return size
        starts = [chosen.at - self._told for chosen in self._unsent]
        return max((at for at in starts if 0 <= at <= size), default=0)

    def _overlap(self, text: str) -> int:
        """Returns how many characters at the end of `text` could begin a stop string."""
        most = max((len(s) for s in self._stop), default=1) - 1
        for n in range(min(most, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stop):
                return n
        return 0

    def _send(self, text: str, last: bool) -> tuple[str, tuple[SampledToken, ...]]:
        """Returns final text with the tokens that begin in it; with the last text, all remaining
        tokens."""
        self._told += len(text)
        count = next((i for i, t in enumerate(self._unsent) if t.at >= self._told), None)
        if last or count is None:
            count = len(self._unsent)
        sent, self._unsent = self._unsent[:count], self._unsent[count:]
        if last:
            sent = [_at(t, min(t.at, self._told)) for t in sent]
        return text, tuple(sent)


def _at(token: SampledToken, at: int) -> SampledToken:
    """Returns the token with its text's place (`dataclasses.replace` takes six times as long)."""
    return SampledToken(token.id, token.logprob, token.top, at, token.rank)
