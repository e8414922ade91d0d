"""Places worker threads, each on CPUs that no other thread of the pool uses.

Some schedulers do not know which CPUs share a cache (many virtual machines). They wake a thread
where it slept, even on the caller's CPU while another idles. Both threads then run at half speed
until the load is balanced, which takes tenths of a second. So the caller runs anywhere, and workers
elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable


class WorkerCpus:
    """The CPUs of `workers` workers (Linux; elsewhere it does nothing)."""

    def __init__(self, workers: int) -> None:
        self._here = _getcpu() if workers else None
        self._allowed = os.sched_getaffinity(0) if self._here else set()
        self._threads: list[int] = []  # the system's numbers of the workers
        self._masks: list[set[int]] = []
        self._workers = workers
        self._caller = -1

    def joined(self, thread: int) -> None:
        """A worker has started; once all have, they are given their places."""
        self._threads.append(thread)

    def settle(self) -> None:
        """Keeps the caller's CPU free of workers, before a run."""
        if self._here is None or len(self._threads) < self._workers:
            return
        cpu = self._here()
        if cpu == self._caller:
            return
        if self._caller < 0:
            self._spread(cpu)
        else:
            self._swap(cpu)
        self._caller = cpu

    def _spread(self, cpu: int) -> None:
        """Shares the other CPUs out; nothing is done where there are too few."""
        rest = sorted(self._allowed - {cpu})
        if len(rest) < self._workers:
            self._here = None
            return
        self._masks = [set(rest[i :: self._workers]) for i in range(self._workers)]
        for i in range(self._workers):
            self._place(i)

    def _swap(self, cpu: int) -> None:
        """The caller has moved: a worker that may be there takes the CPU it came from."""
        for i, mask in enumerate(self._masks):
            if cpu in mask:
                mask.remove(cpu)
                mask.add(self._caller)
                self._place(i)

    def _place(self, i: int) -> None:
        with contextlib.suppress(OSError):  # the thread ended, or a CPU was taken away
            os.sched_setaffinity(self._threads[i], self._masks[i])


def _getcpu() -> Callable[[], int] | None:
    """The C library's sched_getcpu, where threads can be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    function = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    if function is None or function() < 0:
        return None
    found: Callable[[], int] = function
    return found
