"""Ranks over torch.distributed, as torchrun starts them: by gloo between CPUs, or by NCCL between
NVIDIA's GPUs.

Only messages from each to each are used, as over MPI: no library sums. NCCL knows no tags and does
the transfers of a group one after another. So a frame carries its tag, and each direction between
two ranks has a group of its own.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from weft.core.errors import RankError, UsageError
from weft.ranks import frames
from weft.ranks.base import Pending
from weft.ranks.several import SeveralRanks, naming
from weft.ranks.watch import Heartbeat

FOREVER = timedelta(days=365)  # a rank that is lost ends the wait: its heart beats no more
JOINING = timedelta(seconds=300)


class TorchRanks(SeveralRanks):
    """All processes that torchrun started. `way`: gloo or nccl. Raises UsageError, RankError."""

    def __init__(self, way: str) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._place = _place(way)
        with naming("joining the other ranks", RuntimeError):
            own = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            store = PrefixStore("weft", _store(own and self.rank == 0))
            dist.init_process_group(
                way, store=store, rank=self.rank, world_size=self.size, timeout=FOREVER
            )
            self._up, self._down = dist.new_group(), dist.new_group()
        self._came: dict[tuple[int, int], deque[np.ndarray]] = defaultdict(deque)
        self._meet(socket.gethostname())

    def watch(self) -> None:
        if self._watch is None:
            self._watch = _StoreHeartbeat(_store(), self.rank, self.size, self.name)

    # -- one to one

    def start_send(self, array: np.ndarray, to: int, tag: int = 0) -> Pending:
        self._check(to)
        head = np.concatenate([frames.header(array), np.array([tag], np.int64)])
        what, group = f"sending to {self.name(to)}", self._up if to > self.rank else self._down
        self.moved += array.nbytes
        held = [self._tensor(head)]
        if array.nbytes:
            held.append(self._tensor(array))
        with naming(what, RuntimeError):
            return _Sent([dist.isend(one, to, group) for one in held], held, what)

    def receive(
        self, source: int, tag: int = 0, most: int = 1 << 31, seconds: float | None = None
    ) -> np.ndarray:
        self._check(source)
        what = f"receiving from {self.name(source)}"
        while not self._came[source, tag]:
            head = self._taken(np.zeros(frames.HEADER + 1, np.int64), source, what, seconds)
            array = frames.announced(head[:-1], most, self.name(source))
            if array.nbytes:
                self._taken(array, source, what, seconds)
            self._came[source, int(head[-1])].append(array)
        return self._came[source, tag].popleft()

    def _taken(
        self, array: np.ndarray, source: int, what: str, seconds: float | None
    ) -> np.ndarray:
        """`array` with the content that comes next from a rank."""
        group = self._up if source < self.rank else self._down
        place = self._tensor(array)
        with naming(what, RuntimeError):
            work = dist.irecv(place, source, group)
        _wait([work], what, seconds)
        return self._back(place, array)

    # -- all together

    def broadcast(
        self, array: np.ndarray, root: int = 0, seconds: float | None = None
    ) -> np.ndarray:
        others = [r for r in range(self.size) if r != root]
        if self.rank == root:
            self._transfer([(array, r) for r in others], [], "a broadcast", seconds)
        else:
            self._transfer([], [(array, root)], "a broadcast", seconds)
        return array

    def _swap(
        self, parts: list[np.ndarray], places: list[np.ndarray], what: str, seconds: float | None
    ) -> None:
        others = [r for r in range(self.size) if r != self.rank]
        self._transfer(
            [(parts[r], r) for r in others], [(places[r], r) for r in others], what, seconds
        )
        places[self.rank][...] = parts[self.rank].reshape(-1)

    def _transfer(
        self, given: list[tuple[np.ndarray, int]], taken: list[tuple[np.ndarray, int]],
        what: str, seconds: float | None,
    ) -> None:  # fmt: skip
        """Gives arrays to ranks while it takes the content of others."""
        places = [(self._tensor(a), a, r) for a, r in taken if a.nbytes]
        todo = [dist.P2POp(dist.irecv, place, r) for place, _, r in places]
        todo += [dist.P2POp(dist.isend, self._tensor(a), r) for a, r in given if a.nbytes]
        self.moved += sum(a.nbytes for a, _ in given)
        if todo:
            with naming(what, RuntimeError):
                works = dist.batch_isend_irecv(todo)
            _wait(works, what, seconds)
        for place, array, _ in places:
            self._back(place, array)

    def barrier(self, seconds: float | None = None) -> None:
        with naming("a barrier", RuntimeError):
            work = dist.barrier(async_op=True)
        _wait([work], "a barrier", seconds)

    def finish(self) -> None:
        self.barrier()
        self._unwatch()
        self.barrier()
        dist.destroy_process_group()

    # -- parts

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        """The bytes of an array where messages begin and end; on a CPU it is the array itself."""
        return torch.from_numpy(frames.raw(array)).to(self._place)

    def _back(self, place: torch.Tensor, array: np.ndarray) -> np.ndarray:
        if place.device.type != "cpu":
            frames.raw(array)[:] = place.cpu().numpy()
        return array


class _Sent:
    """Messages under way, with what they read."""

    def __init__(self, works: list[Any], held: list[torch.Tensor], what: str) -> None:
        self._works, self._held, self._what = works, held, what

    def wait(self, seconds: float | None = None) -> None:
        _wait(self._works, self._what, seconds)
        self._works, self._held = [], []


class _StoreHeartbeat(Heartbeat):
    """Beats as numbers in torchrun's store; 0 is the last one."""

    errors = (RuntimeError,)

    def __init__(self, store: Any, rank: int, size: int, name: Callable[[int], str]) -> None:
        self._store, self._turn = store, 0
        self._heard_of: dict[int, bytes | None] = {}
        super().__init__(rank, size, name)

    def _speak(self, last: bool = False) -> None:
        self._turn += 1
        self._store.set(f"weft.beat.{self._rank}", "0" if last else str(self._turn))

    def _listen(self) -> None:
        for peer in self._heard:
            key = f"weft.beat.{peer}"
            found = self._store.get(key) if self._store.check([key]) else None
            if found != self._heard_of.get(peer):
                self._heard_of[peer] = found
                self._beats(peer, found == b"0")


def _place(way: str) -> torch.device:
    if way == "gloo":
        return torch.device("cpu")
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise UsageError("WEFT_COLLECTIVES is nccl, and this PyTorch has no NCCL or sees no GPU of "
                         "NVIDIA's; use gloo")  # fmt: skip
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _store(leads: bool = False) -> Any:
    """A connection of its own to torchrun's store. leads: makes the store, where torchrun has
    none."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=leads, timeout=JOINING)


def _wait(works: Sequence[Any], what: str, seconds: float | None) -> None:
    with naming(what, RuntimeError):
        for work in works:
            try:
                work.wait() if seconds is None else work.wait(timedelta(seconds=seconds))
            except RuntimeError as error:
                if seconds is None or "imed out" not in str(error):
                    raise
                raise RankError(
                    f"{what} took more than {seconds:g} s; is the network there?"
                ) from None
