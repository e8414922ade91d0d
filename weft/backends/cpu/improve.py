"""Kernels that run before LLVM is done with them: first with few of its passes, then with all.

The code of the first kind is slower and has the same bits. A thread compiles the second kind while
Programs run, and puts its addresses in their tables, which native code reads at each step.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from weft.backends.cpu.table import ProgramTable
from weft.core.errors import CompileError
from weft.core.notices import say
from weft.host.forks import lock_of

HEAVY = 40_000  # characters of LLVM's text from which all passes take a tenth of a second or more
_QUIET = 0.5  # seconds without a question for kernels after which the thread goes on
_lock = lock_of(sys.modules[__name__])


class KernelCode:
    """The addresses of a Program's kernels, and the tables that call them. `error`: why LLVM could
    not make the code of all passes."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self.addresses = list(addresses)
        self.error: CompileError | None = None
        self._newer: dict[int, int] = {}  # keeps the older code too, which may be running
        self._tables: weakref.WeakSet[ProgramTable] = weakref.WeakSet()

    def serve(self, table: ProgramTable) -> None:
        """Has a table that was made with `addresses` call newer code as soon as there is some."""
        with _lock:
            self._tables.add(table)
            for old, new in self._newer.items():
                table.replace(old, new)

    def replace(self, old: int, new: int) -> None:
        """Newer code of a kernel is there."""
        with _lock:
            self._newer[old] = new
            self.addresses = [new if address == old else address for address in self.addresses]
            for table in self._tables:
                table.replace(old, new)


class Improvement:
    """A kernel whose code of few passes runs at `address`. `finish` makes the code of all passes
    and returns its address."""

    def __init__(self, address: int, finish: Callable[[], int]) -> None:
        self.address, self.finish = address, finish
        self.pid = os.getpid()  # of the process whose thread finishes it
        self._used: weakref.WeakSet[KernelCode] = weakref.WeakSet()
        self._error: CompileError | None = None

    def serve(self, code: KernelCode) -> None:
        """Has a Program that runs the first code get what comes of it."""
        with _lock:
            self._used.add(code)
            code.error = code.error or self._error

    def done(self, new: int) -> None:
        """The code of all passes is at `new`."""
        with _lock:
            for code in self._used:
                code.replace(self.address, new)

    def failed(self, error: CompileError) -> None:
        """There will be no such code."""
        with _lock:
            self._error = error
            for code in self._used:
                code.error = error


class Improver:
    """A thread that finishes kernels, the newest first, while none is asked for. It ends when none
    is left."""

    def __init__(self) -> None:
        self.pid = os.getpid()  # a forked child lacks the thread
        self._waiting: list[Improvement] = []
        self._asked = 0.0  # when a kernel was asked for last
        self._wakes = threading.Condition()
        self._thread: threading.Thread | None = None
        self._hurried = self._ended = False
        atexit.register(self._end)

    def add(self, improvement: Improvement) -> None:
        """Takes a kernel."""
        with self._wakes:
            self._waiting.append(improvement)
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._work, name="weft-llvm", daemon=True)
                self._thread.start()

    def hold(self) -> None:
        """Somebody waits for kernels now, and these come first."""
        self._asked = time.monotonic()

    def settle(self) -> None:
        """Waits until no kernel is left."""
        with self._wakes:
            self._hurried = True
            self._wakes.notify_all()
        while (thread := self._thread) is not None and thread.is_alive():
            thread.join()
        self._hurried = False

    def _work(self) -> None:
        while (one := self._next()) is not None:
            try:
                new = one.finish()
            except CompileError as error:
                say(f"a kernel keeps its slower first code: {error}")
                one.failed(error)
            else:
                one.done(new)

    def _next(self) -> Improvement | None:
        """Returns the newest kernel once the others' are done, or None at the end."""
        with self._wakes:
            while self._waiting and not self._ended and not _ending():
                rest = self._asked + _QUIET - time.monotonic()
                if rest <= 0 or self._hurried:
                    return self._waiting.pop()
                self._wakes.wait(rest)
            self._thread = None
            return None

    def _end(self) -> None:
        """LLVM must not be at work when the process ends. A later process compiles the rest."""
        with self._wakes:
            self._ended = True
            self._wakes.notify_all()
        self.settle()


def _ending() -> bool:
    """True if no thread is left that the process waits for."""
    return all(thread.daemon or not thread.is_alive() for thread in threading.enumerate())
