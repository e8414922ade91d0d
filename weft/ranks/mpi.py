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
from weft.ranks import frames
from weft.ranks.base import Pending, Ranks
from weft.ranks.watch import Heartbeat

SPINS = 200  # questions without a pause, about 0.1 ms: what comes at once is not slept over
PAUSE = 5e-5, 2e-3  # seconds between further questions: the shortest, the longest
SHARE = 16  # a pause is so small a part of what was waited: nothing comes late by more than that
BROADCAST = "a broadcast"
HOST = 64  # bytes of a machine's name


class Mpi(Ranks):
    """All processes that the launcher started."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        # separate, so that collective messages never meet those between two ranks
        self._all = self._comm.Dup()
        self._all.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._watch: Heartbeat | None = None
        mine = np.zeros(HOST, np.uint8)
        text = MPI.Get_processor_name().encode()[:HOST]
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        hosts = self.gather(mine, [HOST] * self.size).reshape(self.size, HOST)
        self._hosts = [bytes(h).rstrip(b"\0").decode("utf-8", "replace") for h in hosts]
        self.beside = self._hosts.count(self._hosts[self.rank])

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"

    def watch(self) -> None:
        if self._watch is None:
            self._watch = Heartbeat(self._comm.Dup(), self.name)

    # -- one to one

    def start_send(self, array: np.ndarray, to: int, tag: int = 0) -> Pending:
        self._check(to)
        head = frames.header(array)
        self.moved += array.nbytes
        with _naming(f"sending to {self.name(to)}"):
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

    def gather(
        self, part: np.ndarray, sizes: Sequence[int], seconds: float | None = None
    ) -> np.ndarray:
        if part.size != sizes[self.rank] or len(sizes) != self.size:
            raise UsageError(f"gather: {part.size} elements; expected sizes[{self.rank}]")
        out = np.empty(sum(sizes), part.dtype)
        places = _split(out, sizes)
        self._swap([np.ascontiguousarray(part)] * self.size, places, "a gathering", seconds)
        return out

    def exchange(
        self, parts: Sequence[np.ndarray], sizes: Sequence[int], seconds: float | None = None
    ) -> list[np.ndarray]:
        if not len(parts) == len(sizes) == self.size:
            raise UsageError(f"exchange: {len(parts)} parts for {self.size} ranks")
        places = _split(np.empty(sum(sizes), parts[0].dtype), sizes)
        given = [np.ascontiguousarray(p) for p in parts]
        self._swap(given, places, "an exchange", seconds)
        return places

    def _swap(
        self, parts: list[np.ndarray], places: list[np.ndarray], what: str, seconds: float | None
    ) -> None:
        """parts[r] goes to rank r, and what rank r has for this one to places[r]."""
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
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self.barrier()

    # -- parts

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.size or rank == self.rank:
            raise UsageError(f"rank {rank}: expected another of 0 to {self.size - 1}")

    def _ask(
        self, starts: Sequence[Callable[[], Any]], what: str, seconds: float | None
    ) -> list[int]:
        """Starts transfers and waits for them; the bytes that each brought."""
        with _naming(what):
            requests = [start() for start in starts]
        return self._finished(requests, what, seconds)

    def _finished(self, requests: list[Any], what: str, seconds: float | None) -> list[int]:
        began = time.monotonic()
        until = None if seconds is None else began + seconds
        statuses = [MPI.Status() for _ in requests]
        turns = 0
        while True:
            with _naming(what):
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


class _Sent:
    """Messages under way, with what they read."""

    def __init__(self, ranks: Mpi, requests: list[Any], held: Any, what: str) -> None:
        self._ranks, self._requests, self._held, self._what = ranks, requests, held, what

    def wait(self, seconds: float | None = None) -> None:
        self._ranks._finished(self._requests, self._what, seconds)
        self._held = None


class _naming:
    """Converts MPI's errors to RankErrors that name the present operation."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, MPI.Exception):
            first = error.Get_error_string().split("\n")[0][:160]
            raise RankError(f"{self._what}: {first}") from None


def _split(flat: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Consecutive views with the given lengths."""
    return np.split(flat, np.cumsum(sizes)[:-1])
