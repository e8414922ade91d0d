"""Heartbeats: every rank says to every other, once a second, that it lives.

A killed process is seen at once by MPI's launcher, which ends the others. A machine that lost its
power, or a cut link, says nothing: then the beats stop, on both sides.
"""

from __future__ import annotations

import abc
import os
import threading
import time
from collections.abc import Callable

from weft.core.errors import UsageError
from weft.core.notices import tell
from weft.ranks.base import LOST, SILENT

BEAT = 1.0  # seconds
PATIENCE = 20.0  # seconds of silence, unless WEFT_PATIENCE says otherwise
GRACE = 3.0  # seconds in which a rank may say what it was doing before it leaves


def patience() -> float:
    """WEFT_PATIENCE in seconds, 3 to 86,400. Raises UsageError."""
    given = os.environ.get("WEFT_PATIENCE", "")
    try:
        seconds = float(given) if given else PATIENCE
    except ValueError:
        seconds = 0.0
    if not 3.0 <= seconds <= 86400.0:
        raise UsageError(f"WEFT_PATIENCE is {given[:40]!r}; expected 3 to 86400 (seconds)")
    return seconds


class Heartbeat(abc.ABC):
    """A thread that beats and listens, on a way of its own that a subclass has."""

    errors: tuple[type[BaseException], ...] = ()  # what a broken way raises

    def __init__(self, rank: int, size: int, name: Callable[[int], str]) -> None:
        self.lost = ""  # the rank that was lost, and since when
        self._rank, self._name, self._patience = rank, name, patience()
        self._heard = {r: time.monotonic() for r in range(size) if r != rank}
        self._open = set(self._heard)  # ranks whose last beat has not arrived
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, once every rank calls it: the last beat of each says that it is."""
        self._ended.set()
        self._thread.join()
        self._speak(last=True)
        until = time.monotonic() + self._patience
        while self._open and time.monotonic() < until:
            self._listen()
            time.sleep(1e-3)

    def _run(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                self._speak()
                self._listen()
            except self.errors as error:
                self.lost = str(error).split("\n")[0][:160]
            silent = [r for r, at in self._heard.items() if time.monotonic() - at > self._patience]
            if silent and not self.lost:
                names = ", ".join(self._name(r) for r in silent)
                self.lost = f"{names} {SILENT} {self._patience:g} s"
            if self.lost:
                self._leave()

    @abc.abstractmethod
    def _speak(self, last: bool = False) -> None:
        """Says to every other rank that this one lives, or that this is its last beat."""

    @abc.abstractmethod
    def _listen(self) -> None:
        """Calls `_beats` for the beats that came."""

    def _beats(self, rank: int, last: bool) -> None:
        if last:
            self._open.discard(rank)
        self._heard[rank] = time.monotonic()

    def _leave(self) -> None:
        """Leaves after a grace period. A call that waits finds `lost` earlier and reports it; a
        long computation does not."""
        if self._ended.wait(GRACE):
            return
        tell(f"weft: {self.lost}; stopping")
        os._exit(LOST)
