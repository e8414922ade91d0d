"""The worker threads: Python threads that sit in the native worker loop, without the GIL."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.backends.cpu.host import SCRATCH_BYTES
from weft.backends.cpu.layout import POOL_DTYPE, POOL_OFFSETS
from weft.backends.cpu.places import WorkerCpus

# Clock units are nanoseconds here and become ticks by calibration.
_SERIAL_NS = 3_000  # less work than this stays on the caller while workers are awake
_WAKE_NS = 20_000  # ... and while they sleep: waking one costs several microseconds
_ALONE_NS = 20_000  # a Program with less total work than this never wakes the workers
_CHUNK_NS = 2_000  # the least work worth a ticket
_SPINS = 1500  # some 30 us of waiting: longer than a caller's gap between runs, then sleep
_FUTEX = {"x86_64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}


class Workers:
    """`threads - 1` workers and the state they share with the caller of `run`.

    The state, the scratch memory and the native code are never freed: a worker may be in them
    until the process ends. After a fork the child starts workers of its own.
    """

    def __init__(self, functions: Mapping[str, int], threads: int) -> None:
        self.threads = threads
        pointer = ctypes.c_void_p
        self._run = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_int64, pointer)(
            functions["weft_run"]
        )
        self._work = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, ctypes.c_int64)(
            functions["weft_worker"]
        )
        self._alone = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, pointer, pointer)(
            functions["weft_alone"]
        )
        self._clock = ctypes.CFUNCTYPE(ctypes.c_int64)(functions["weft_clock"])
        self._state = _zeros(POOL_DTYPE.itemsize + 64 * threads)
        self._scratch = [_zeros(SCRATCH_BYTES) for _ in range(threads + 1)]
        self._scratch_at = [int(memory.ctypes.data) for memory in self._scratch]
        self._reset()

    @classmethod
    def shared(cls, functions: Mapping[str, int], threads: int) -> Workers:
        """The workers of this process for `threads` threads: devices share them."""
        with _guard:
            if threads not in _all:
                _all[threads] = cls(functions, threads)
            return _all[threads]

    def _reset(self) -> None:
        """Everything as before the first run: at the start, and in the child after a fork."""
        self.lock = threading.Lock()
        self._started: list[threading.Thread] = []
        self._places = WorkerCpus(self.threads - 1)
        self._idle = threading.Event()
        self._fields = self._state[: POOL_DTYPE.itemsize].view(POOL_DTYPE)[0]
        self._state[:] = 0
        rate = _ticks_per_ns(self._clock)
        self.alone_ticks = int(_ALONE_NS * rate)  # work of a Program that one thread does fastest
        number = _FUTEX.get(platform.machine()) if sys.platform == "linux" else None
        self._futex = number is not None
        values = {
            "threads": self.threads,
            "spins": _SPINS,
            "serial_ticks": int(_SERIAL_NS * rate),
            "wake_ticks": int(_WAKE_NS * rate),
            "chunk_ticks": max(1, int(_CHUNK_NS * rate)),
            "scratch": self._scratch_at[0],
            "syscall": _address("syscall") if number is not None else 0,
            "futex": number or 0,
            "yield": _address("SwitchToThread" if os.name == "nt" else "sched_yield"),
        }
        for name, value in values.items():
            self._fields[name] = value
        self._pool = self._state.ctypes.data

    @property
    def pool(self) -> int:
        """The address of the state, for native code that asks the workers itself; 0 without any."""
        return self._pool if self.threads > 1 else 0

    def scratch(self, locked: bool) -> int:
        """The scratch memory of `run`, or of what runs while it holds Python's lock."""
        return self._scratch_at[-1 if locked else 0]

    def guarded(self, play: Callable[..., int]) -> Callable[..., int]:
        """Wraps `play`, whose native code wakes the workers itself, so one thread at a time runs
        it."""

        def played(*arguments: object) -> int:
            with self.lock:
                if self.threads > 1:
                    self._ready()
                return play(*arguments)

        return played

    def run(self, table: int, steps: int, scalars: int, alone: bool = False) -> None:
        """Plays the `steps` entries at address `table`, with the int32 scalars at `scalars`; if
        `alone`, without the workers."""
        with self.lock:
            if alone or self.threads == 1:
                self._alone(table, steps, scalars, self._scratch_at[0])
                return
            self._ready()
            self._run(self._pool, table, steps, scalars)

    def _ready(self) -> None:
        """Prepares the workers for a run."""
        if not self._started:
            self._start()
        self._places.settle()
        if not self._futex:
            self._idle.set()

    def _start(self) -> None:
        for i in range(1, self.threads):
            worker = threading.Thread(
                target=self._loop, args=(i, self._places), name=f"weft-cpu-{i}", daemon=True
            )
            self._started.append(worker)
            worker.start()

    def _loop(self, i: int, places: WorkerCpus) -> None:
        places.joined(threading.get_native_id())
        while self._work(self._pool, self._scratch_at[i], i):
            self._idle.clear()  # no futex on this system: sleep here until the next run
            self._idle.wait(1.0)

    def stop(self) -> None:
        """Ends the workers (the next run starts new ones)."""
        with self.lock:
            started, self._started = self._started, []
            self._places = WorkerCpus(self.threads - 1)
            if not started:
                return
            self._fields["stop"] = 1
            self._idle.set()
            self._wake()
            for worker in started:
                worker.join(1.0)
            self._fields["stop"] = 0

    def _wake(self) -> None:
        self._fields["wake"] += 1
        if self._fields["futex"]:
            libc = ctypes.CDLL(None)
            word = self._pool + POOL_OFFSETS["wake"]
            libc.syscall(
                ctypes.c_long(int(self._fields["futex"])), ctypes.c_void_p(word),
                ctypes.c_long(129), ctypes.c_long(self.threads), None, None, ctypes.c_long(0),
            )  # fmt: skip


_all: dict[int, Workers] = {}
_guard = threading.Lock()


def _zeros(nbytes: int) -> np.ndarray:
    """Zeroed bytes, 64-byte aligned; untouched pages take no memory."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _address(symbol: str) -> int:
    library: Any = ctypes.CDLL(None) if os.name != "nt" else ctypes.windll.kernel32  # type: ignore[attr-defined]
    return ctypes.cast(library[symbol], ctypes.c_void_p).value or 0


_rate: list[float] = []


def _ticks_per_ns(clock: Any) -> float:
    """Returns the rate of the native clock, measured over a fifth of a millisecond."""
    if not _rate:
        start, ticks = time.perf_counter_ns(), clock()
        while time.perf_counter_ns() - start < 200_000:
            pass
        _rate.append(max((clock() - ticks) / (time.perf_counter_ns() - start), 1e-6))
    return _rate[0]


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()
    for workers in list(_all.values()):
        workers._reset()


def _at_exit() -> None:
    for workers in list(_all.values()):
        workers.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
