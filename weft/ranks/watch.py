"""Heartbeats: every rank says to every other, once a second, that it lives.

A killed process is seen at once by MPI's launcher, which ends the others. A machine that lost its
power, or a cut link, says nothing: then the beats stop, on both sides.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from weft.core.errors import UsageError
from weft.core.install import how
from weft.core.notices import tell
from weft.ranks.base import LOST, SILENT

BEAT = 1.0  # seconds
PATIENCE = 20.0  # seconds of silence, unless WEFT_PATIENCE says otherwise
BEATS, LAST = np.zeros(1, np.uint8), np.ones(1, np.uint8)
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


class Heartbeat:
    """A thread that beats and listens on a communicator of its own."""

    def __init__(self, comm: Any, name: Callable[[int], str]) -> None:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UsageError(f"this MPI does not serve threads; MPICH does: {how('mpi')}")
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.lost = ""  # the rank that was lost, and since when
        self._comm, self._name, self._patience = comm, name, patience()
        me, size = comm.Get_rank(), comm.Get_size()
        self._heard = {r: time.monotonic() for r in range(size) if r != me}
        self._open = set(self._heard)  # ranks whose last beat has not arrived
        self._sent: dict[int, Any] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, once every rank calls it: the last beat of each says that it is."""
        self._ended.set()
        self._thread.join()
        for peer in self._heard:
            self._comm.Isend([LAST, MPI.BYTE], peer).Free()
        until = time.monotonic() + self._patience
        while self._open and time.monotonic() < until:
            self._listen()
            time.sleep(1e-3)

    def _run(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                self._speak()
                self._listen()
            except MPI.Exception as error:
                self.lost = error.Get_error_string().split("\n")[0][:160]
            silent = [r for r, at in self._heard.items() if time.monotonic() - at > self._patience]
            if silent and not self.lost:
                names = ", ".join(self._name(r) for r in silent)
                self.lost = f"{names} {SILENT} {self._patience:g} s"
            if self.lost:
                self._leave()

    def _speak(self) -> None:
        for peer in self._heard:
            if peer not in self._sent or self._sent[peer].Test():
                self._sent[peer] = self._comm.Isend([BEATS, MPI.BYTE], peer)

    def _listen(self) -> None:
        status, heard = MPI.Status(), np.zeros(1, np.uint8)
        while self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            source = status.Get_source()
            self._comm.Recv([heard, MPI.BYTE], source)
            if heard[0]:
                self._open.discard(source)
            self._heard[source] = time.monotonic()

    def _leave(self) -> None:
        """Leaves after a grace period. A call that waits finds `lost` earlier and reports it; a
        long computation does not."""
        if self._ended.wait(GRACE):
            return
        tell(f"weft: {self.lost}; stopping")
        os._exit(LOST)
