"""The text of one answer as it grows, held back where a stop string may be forming."""

from __future__ import annotations

from weft.engine.job import Chosen, Texts, TextStream


class TextEnd:
    """What an answer's tokens say up to its first stop string, which is not part of it. A token
    comes out with the text that it completes; without a stream at once, with none."""

    def __init__(self, texts: Texts, stop: tuple[str, ...] = ()) -> None:
        self._texts, self._stop = texts, stop
        self._stream: TextStream | None = None
        self._begun = False
        self._held = ""
        self._unsent: list[Chosen] = []
        self.stopped: str | None = None  # the stop string that was found

    def push(self, chosen: Chosen) -> tuple[str, tuple[Chosen, ...]]:
        """Adds a token; the text that is now final, and the tokens behind it."""
        if not self._begun:  # only now: what makes no text need not wait for a tokenizer
            self._stream, self._begun = self._texts(), True
        self._unsent.append(chosen)
        if self._stream is None:
            return self._send("")
        return self._grow(self._stream.push(chosen.id), False)

    def finish(self) -> tuple[str, tuple[Chosen, ...]]:
        """The rest, when no token follows."""
        rest = "" if self._stream is None or self.stopped is not None else self._stream.flush()
        return self._grow(rest, True)

    def _grow(self, new: str, last: bool) -> tuple[str, tuple[Chosen, ...]]:
        whole = self._held + new
        found = [(at, s) for s in self._stop if (at := whole.find(s)) >= 0]
        if found and self.stopped is None:
            at, self.stopped = min(found)
            self._held = ""
            return self._send(whole[:at])
        keep = 0 if last else self._overlap(whole)
        self._held = whole[len(whole) - keep :]
        final = whole[: len(whole) - keep]
        if not final and not last:
            return "", ()
        return self._send(final)

    def _overlap(self, text: str) -> int:
        """Characters at the end of `text` that a stop string could begin with."""
        most = max((len(s) for s in self._stop), default=1) - 1
        for n in range(min(most, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stop):
                return n
        return 0

    def _send(self, text: str) -> tuple[str, tuple[Chosen, ...]]:
        sent, self._unsent = tuple(self._unsent), []
        return text, sent
