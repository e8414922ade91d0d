"""Ranks over MPI (mpi4py): typed buffers only, and nothing that waits without looking around.

Every transfer is started (MPI's I... calls) and then asked for, so that a deadline or a lost rank
ends the wait, and a waiting rank leaves its core to others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from weft.core.errors import RankError, UsageError
from weft.core.install import how
from weft.ranks import frames
from weft.ranks.base import Pending
from weft.ranks.several import SeveralRanks, naming
from weft.ranks.watch import Heartbeat

SPINS = 200  # questions without a pause, about 0.1 ms: what comes at once is not slept over
PAUSE = 5e-5, 2e-3  # seconds between further questions: the shortest, the longest
SHARE = 16  # a pause is so small a part of what was waited: nothing comes late by more than that
BROADCAST = "a broadcast"
BEATS, LAST = np.zeros(1, np.uint8), np.ones(1, np.uint8)


class Mpi(SeveralRanks):
    """All processes that the launcher started."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        # separate, so that collective messages never meet those between two ranks
        self._all = self._comm.Dup()
        self._all.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._meet(MPI.Get_processor_name())

    def watch(self) -> None:
        if self._watch is None:
            self._watch = MpiHeartbeat(self._comm.Dup(), self.name)

    # -- one to one

    def start_send(self, array: np.ndarray, to: int, tag: int = 0) -> Pending:
        self._check(to)
        head = frames.header(array)
        self.moved += array.nbytes
        with naming(f"sending to {self.name(to)}", MPI.Exception):
            sent = [self._comm.Isend([head, MPI.INT64_T], to, tag)]
            if array.nbytes:
                sent.append(self._comm.Isend([frames.raw(array), MPI.BYTE], to, tag))
        return _Sent(self, sent, (head, array), f"sending to {self.name(to)}")

    def receive(
        self, source: int, tag: int = 0, most: int = 1 << 31, seconds: float | None = None
    ) -> np.ndarray:
        self._check(source)
        what = f"receiving from {self.name(source)}"
        head = np.zeros(frames.HEADER, np.int64)
        self._ask([partial(self._comm.Irecv, [head, MPI.INT64_T], source, tag)], what, seconds)
        array = frames.announced(head, most, self.name(source))
        if array.nbytes:
            place = [frames.raw(array), MPI.BYTE]
            (came,) = self._ask([partial(self._comm.Irecv, place, source, tag)], what, seconds)
            if came != array.nbytes:
                raise RankError(f"{self.name(source)} sent {came} of {array.nbytes} bytes")
        return array

    # All ranks together: each rank sends to each other one. MPI's own collectives copy in small
    # steps when they are polled rarely (measured: 150 ms for 16 MB, and 1 ms like this).

    def broadcast(
        self, array: np.ndarray, root: int = 0, seconds: float | None = None
    ) -> np.ndarray:
        place = [frames.raw(array), MPI.BYTE]
        if self.rank == root:
            others = [r for r in range(self.size) if r != root]
            self.moved += array.nbytes * len(others)
            self._ask([partial(self._all.Isend, place, r) for r in others], BROADCAST, seconds)
        else:
            self._ask([partial(self._all.Irecv, place, root)], BROADCAST, seconds)
        return array

    def _swap(
        self, parts: list[np.ndarray], places: list[np.ndarray], what: str, seconds: float | None
    ) -> None:
        starts: list[Callable[[], Any]] = []
        for turn in range(1, self.size):  # each begins with another
            source, to = (self.rank - turn) % self.size, (self.rank + turn) % self.size
            taken, given = frames.raw(places[source]), frames.raw(parts[to])
            if taken.size:
                starts.append(partial(self._all.Irecv, [taken, MPI.BYTE], source))
            if given.size:
                starts.append(partial(self._all.Isend, [given, MPI.BYTE], to))
            self.moved += given.nbytes
        places[self.rank][...] = parts[self.rank].reshape(-1)
        self._ask(starts, what, seconds)

    def barrier(self, seconds: float | None = None) -> None:
        self._ask([self._comm.Ibarrier], "a barrier", seconds)

    def finish(self) -> None:
        self.barrier()
        self._unwatch()
        self.barrier()

    # -- parts

    def _ask(
        self, starts: Sequence[Callable[[], Any]], what: str, seconds: float | None
    ) -> list[int]:
        """Starts transfers and waits for them; the bytes that each brought."""
        with naming(what, MPI.Exception):
            requests = [start() for start in starts]
        return self._finished(requests, what, seconds)

    def _finished(self, requests: list[Any], what: str, seconds: float | None) -> list[int]:
        began = time.monotonic()
        until = None if seconds is None else began + seconds
        statuses = [MPI.Status() for _ in requests]
        turns = 0
        while True:
            with naming(what, MPI.Exception):
                if MPI.Request.Testall(requests, statuses):
                    self.seconds += time.monotonic() - began
                    return [int(s.Get_count(MPI.BYTE)) for s in statuses]
            turns += 1
            if self._watch is not None and self._watch.lost:
                raise RankError(f"{what}: {self._watch.lost}")
            if until is not None and time.monotonic() > until:
                raise RankError(f"{what} took more than {seconds:g} s; is the network there?")
            if turns > SPINS:
                waited = time.monotonic() - began
                time.sleep(min(max(waited / SHARE, PAUSE[0]), PAUSE[1]))
            else:
                time.sleep(0)


class MpiHeartbeat(Heartbeat):
    """Beats on a communicator of their own."""

    errors = (MPI.Exception,)

    def __init__(self, comm: Any, name: Callable[[int], str]) -> None:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UsageError(f"this MPI does not serve threads; MPICH does: {how('mpi')}")
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = comm
        self._sent: dict[int, Any] = {}
        super().__init__(comm.Get_rank(), comm.Get_size(), name)

    def _speak(self, last: bool = False) -> None:
        for peer in self._heard:
            if last:
                self._comm.Isend([LAST, MPI.BYTE], peer).Free()
            elif peer not in self._sent or self._sent[peer].Test():
                self._sent[peer] = self._comm.Isend([BEATS, MPI.BYTE], peer)

    def _listen(self) -> None:
        status, heard = MPI.Status(), np.zeros(1, np.uint8)
        while self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            source = status.Get_source()
            self._comm.Recv([heard, MPI.BYTE], source)
            self._beats(source, bool(heard[0]))


class _Sent:
    """Messages under way, with what they read."""

    def __init__(self, ranks: Mpi, requests: list[Any], held: Any, what: str) -> None:
        self._ranks, self._requests, self._held, self._what = ranks, requests, held, what

    def wait(self, seconds: float | None = None) -> None:
        self._ranks._finished(self._requests, self._what, seconds)
        self._held = None
