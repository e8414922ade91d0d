"""The parts that ranks over MPI and over torch.distributed share."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import RankError, UsageError
from weft.ranks.base import Ranks
from weft.ranks.watch import Heartbeat

HOST = 64  # bytes of a machine's name


class SeveralRanks(Ranks, abc.ABC):
    """The base class of ranks that a launcher started."""

    _hosts: list[str]
    _watch: Heartbeat | None = None

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"

    def _meet(self, host: str) -> None:
        """Learns the names of the ranks' machines. host: this one's."""
        mine = np.zeros(HOST, np.uint8)
        text = host.encode()[:HOST]
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        hosts = self.gather(mine, [HOST] * self.size).reshape(self.size, HOST)
        self._hosts = [bytes(h).rstrip(b"\0").decode("utf-8", "replace") for h in hosts]
        self.beside = self._hosts.count(self._hosts[self.rank])

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.size or rank == self.rank:
            raise UsageError(f"rank {rank}: expected another of 0 to {self.size - 1}")

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

    @abc.abstractmethod
    def _swap(
        self, parts: list[np.ndarray], places: list[np.ndarray], what: str, seconds: float | None
    ) -> None:
        """Gives parts[r] to each rank r, and fills places[r] with the part that r has for this
        one."""


class naming:
    """Converts a library's errors to RankErrors that name the present operation."""

    def __init__(self, what: str, errors: type[Exception]) -> None:
        self._what, self._errors = what, errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self._errors) and not isinstance(error, RankError):
            first = str(error).split("\n")[0][:160]
            raise RankError(f"{self._what}: {first}") from None


def _split(flat: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Consecutive views with the given lengths."""
    return np.split(flat, np.cumsum(sizes)[:-1])
