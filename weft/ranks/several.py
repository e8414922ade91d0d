"""What ranks of a launcher share, by whatever way their messages go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.errors import UsageError
from weft.ranks.base import Ranks
from weft.ranks.watch import Heartbeat

HOST = 64  # bytes of a machine's name


class SeveralRanks(Ranks):
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

    def _check_gather(self, part: np.ndarray, sizes: Sequence[int]) -> None:
        if part.size != sizes[self.rank] or len(sizes) != self.size:
            raise UsageError(f"gather: {part.size} elements; expected sizes[{self.rank}]")

    def _check_exchange(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> None:
        if not len(parts) == len(sizes) == self.size:
            raise UsageError(f"exchange: {len(parts)} parts for {self.size} ranks")
